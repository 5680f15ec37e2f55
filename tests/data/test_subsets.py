"""Parts of a source: counts in closed form, by seed, disjoint if they must be."""

import itertools
import pickle

import numpy as np
import pytest

from hypersphere_jax.configs import UserError
from hypersphere_jax.data import Arrays, subsets


def numbered(labels, names=tuple("abcdefghijklmnopqrstuvwxyz")):
    """Return a source whose image i contains the number i."""
    images = np.arange(len(labels)).astype("<u4").view(np.uint8).reshape(-1, 1, 1, 4)
    return Arrays(images, np.array(labels), names[: max(labels) + 1], "numbers")


def numbers(source):
    return [int(source[i]["image"].view("<u4")[0, 0, 0]) for i in range(len(source))]


def counts(source):
    return np.bincount(source.labels).tolist()


def assert_consistent(view, whole):
    """Compare samples, labels and classes of a view with its source, also after pickling."""
    assert [view[i]["label"] for i in range(len(view))] == view.labels.tolist()
    names = ["none", *whole.class_names]
    expected = [names[whole.labels[number] + 1] for number in numbers(view)]
    assert [["none", *view.class_names][label + 1] for label in view.labels] == expected
    again = pickle.loads(pickle.dumps(view))
    assert numbers(again) == numbers(view)
    assert again.digest == view.digest


UNEVEN = numbered([0] * 37 + [1] * 5 + [2] * 18 + [3])
UNLABELED = numbered([-1] * 10)
MANY = numbered(np.repeat(np.arange(26), 1300))  # the largest class of ImageNet


def test_long_tailed_counts_reproduce_imagenet_lt():
    """A.3.4: 1,000 classes, 115,846 images, 1,280 to 5 a class."""
    found = subsets.long_tailed_counts(1000)
    assert (found.sum(), found[0], found[-1]) == (115_846, 1280, 5)
    assert max(np.diff(found)) <= 0
    # Liu et al. count 385 classes with over 100 images and 136 with under 20.
    assert abs((found > 100).sum() - 385) <= 10
    assert abs((found < 20).sum() - 136) <= 10


def test_long_tailed_counts_are_pareto_quantiles():
    """A class of twice the rank is 2^(1/alpha) times smaller."""
    found = subsets.long_tailed_counts(100_000, 2.0, 1, 10**9).astype(float)
    first, last = (0.7928 / 100_000.5856) ** -0.5, (99_999.7928 / 100_000.5856) ** -0.5
    quantiles = last + (found - found[-1]) / (found[0] - found[-1]) * (first - last)
    for rank in (1_000, 10_000):
        assert quantiles[rank] / quantiles[2 * rank] == pytest.approx(2**0.5, rel=1e-3)


def test_long_tailed():
    view = subsets.long_tailed(MANY, seed=0)
    assert sorted(counts(view), reverse=True) == subsets.long_tailed_counts(26).tolist()
    assert_consistent(view, MANY)
    assert np.mean(view.indices % 1300) == pytest.approx(650, abs=30)  # not the first of a class
    seeds = [subsets.long_tailed(MANY, seed) for seed in [*range(20), 0]]
    assert numbers(seeds[0]) == numbers(seeds[-1])
    assert len({np.argmax(counts(view)) for view in seeds}) > 8


def test_uniform():
    view, again, other = (subsets.uniform(MANY, seed, 1158) for seed in (0, 0, 1))
    assert set(counts(view)) == {44, 45}
    assert numbers(view) == numbers(again) != numbers(other)
    # The seed draws the classes that have one more; a class with too few gives all it has.
    assert len({tuple(counts(subsets.uniform(MANY, seed, 30))) for seed in range(9)}) == 9
    assert counts(subsets.uniform(UNEVEN, 0, 20)) == [7, 5, 7, 1]
    assert counts(subsets.uniform(UNEVEN, 0, 61)) == [37, 5, 18, 1]


@pytest.mark.parametrize("folds", [2, 5, 61])
def test_folds_are_disjoint_and_stratified(folds):
    parts = [subsets.fold(UNEVEN, folds, number, seed=0) for number in range(folds)]
    held_out = [numbers(validation) for _, validation in parts]
    assert sorted(itertools.chain(*held_out)) == list(range(61))
    sizes = np.array([np.bincount(part.labels, minlength=4) for _, part in parts])
    assert (np.ptp(sizes, axis=0) <= 1).all()
    assert np.ptp(sizes.sum(1)) <= 1
    for train, validation in parts:
        assert sorted(numbers(train) + numbers(validation)) == list(range(61))
    assert_consistent(parts[0][0], UNEVEN)
    again, other = (numbers(subsets.fold(UNEVEN, folds, 1, seed)[1]) for seed in (0, 1))
    assert again == held_out[1] != other


def test_fraction():
    assert counts(subsets.fraction(UNEVEN, 0.1, 0)) == [4, 1, 2, 1]
    assert numbers(subsets.fraction(UNEVEN, 1.0, 5)) == list(range(61))
    parts = [set(numbers(subsets.fraction(UNEVEN, share, 3))) for share in (0.01, 0.1, 0.5)]
    assert parts[0] < parts[1] < parts[2] != set(numbers(subsets.fraction(UNEVEN, 0.5, 4)))


def test_by_class():
    source = numbered([2, 0, 1, 3, 2, -1, 0], ("dog", "cat", "ant", "bee"))
    view = subsets.by_class(source, ["dog", "ant"])
    assert numbers(view) == [0, 1, 4, 6]
    assert view.labels.tolist() == [0, 1, 0, 1]
    assert view.class_names == ("ant", "dog")
    assert view.digest != subsets.Subset(source, [0, 1, 4, 6], "").digest
    for found in (view, subsets.fraction(view, 0.5, 0)):
        assert_consistent(found, source)
    with pytest.raises(UserError, match="'dog'"):
        subsets.by_class(source, ["dogs", "ant"])


def test_concatenated():
    whole = subsets.Concatenated([UNEVEN, UNLABELED, UNEVEN])
    assert numbers(whole) == [*range(61), *range(10), *range(61)]
    assert whole.labels.tolist() == [sample["label"] for sample in whole]
    assert whole.class_names == tuple("abcd")
    orders = ([UNEVEN, UNLABELED], [UNLABELED, UNEVEN], [UNLABELED])
    assert len({subsets.Concatenated(parts).digest for parts in orders}) == 3
