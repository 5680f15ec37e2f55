"""Parts of a source: their images in closed form, by seed, disjoint if they must be."""

import itertools
import pickle

import numpy as np
import pytest
from data_cases import why

from hypersphere_jax.data import Arrays, subsets


def numbered(labels, names=tuple("abcdefghijklmnopqrstuvwxyz")):
    """A source whose image i shows the number i."""
    images = np.arange(len(labels)).astype("<u4").view(np.uint8).reshape(-1, 1, 1, 4)
    return Arrays(images, np.array(labels), names[: max(labels) + 1], "numbers")


def numbers(source):
    return [int(source[i]["image"].view("<u4")[0, 0, 0]) for i in range(len(source))]


def counts(source):
    return np.bincount(source.labels).tolist()


def consistent(view, whole):
    """Samples, labels and classes of a view agree with its source, also after pickling."""
    assert [view[i]["label"] for i in range(len(view))] == view.labels.tolist()
    assert view.labels.dtype == np.int32 and view.image_shape == whole.image_shape
    names, theirs = (["none", *source.class_names] for source in (view, whole))
    shown = [theirs[whole.labels[number] + 1] for number in numbers(view)]
    assert [names[label + 1] for label in view.labels] == shown
    again = pickle.loads(pickle.dumps(view))
    assert numbers(again) == numbers(view) and again.digest == view.digest


UNEVEN = numbered([0] * 37 + [1] * 5 + [2] * 18 + [3])
WITHOUT = numbered([-1] * 10)
MANY = numbered(np.repeat(np.arange(26), 1300))  # the largest class of ImageNet


def test_subset():
    parts = [subsets.Subset(UNEVEN, indices, "") for indices in ([40, 3, 60], [40, 60, 3], [3])]
    assert numbers(parts[0]) == [40, 3, 60] and parts[0].labels.tolist() == [1, 0, 3]
    consistent(parts[0], UNEVEN)
    parts += [UNEVEN, subsets.Subset(numbered([1] * 61), [3], "")]
    assert len({part.digest for part in parts}) == 5


def test_counts_are_pareto_quantiles_and_reproduce_imagenet_lt():
    """A.3.4: 1,000 classes, 115,846 images, 1,280 to 5 a class."""
    found = subsets.long_tailed_counts(1000)
    assert (found.sum(), found[0], found[-1]) == (115_846, 1280, 5) and max(np.diff(found)) <= 0
    # Liu et al. count 385 classes with over 100 images and 136 with under 20.
    assert abs((found > 100).sum() - 385) <= 10 and abs((found < 20).sum() - 136) <= 10
    # Pareto quantiles: a class of twice the rank is 2^(1/alpha) times smaller.
    found = subsets.long_tailed_counts(100_000, None, 2.0, 1, 10**9).astype(float)
    first, last = (0.7928 / 100_000.5856) ** -0.5, (99_999.7928 / 100_000.5856) ** -0.5
    quantiles = last + (found - found[-1]) / (found[0] - found[-1]) * (first - last)
    for rank in (1_000, 10_000):
        assert quantiles[rank] / quantiles[2 * rank] == pytest.approx(2**0.5, rel=1e-3)
    for size in (950, 5_000, 30_000):
        found = subsets.long_tailed_counts(100, size, 6.0, 2, 700)
        assert (found.sum(), found[0], found[-1]) == (size, 700, 2)


def test_long_tailed():
    view, expected = subsets.long_tailed(MANY, seed=0), subsets.long_tailed_counts(26)
    assert sorted(counts(view), reverse=True) == expected.tolist()
    consistent(view, MANY)
    assert np.mean(view.indices % 1300) == pytest.approx(650, abs=30)  # not the first of a class
    seeds = [subsets.long_tailed(MANY, seed, 5_000) for seed in [*range(20), 0]]
    assert {len(view) for view in seeds} == {5_000} and numbers(seeds[0]) == numbers(seeds[-1])
    assert len({np.argmax(counts(view)) for view in seeds}) > 8
    # Large sizes go to classes that have them.
    source = numbered([0] * 20 + [1] * 12 + [2] * 20 + [3] * 12 + [-1] * 50)
    for seed in range(10):
        view = subsets.long_tailed(source, seed)
        assert max(counts(view)) == 20 and np.argmax(counts(view)) in (0, 2)
        assert -1 not in view.labels


def test_uniform():
    view, again, other = (subsets.uniform(MANY, seed, 1158) for seed in (0, 0, 1))
    assert len(view) == 1158 and set(counts(view)) == {44, 45}
    assert numbers(view) == numbers(again) != numbers(other)
    # The seed draws the classes that have one more; a class with too few gives all it has.
    assert len({tuple(counts(subsets.uniform(MANY, seed, 30))) for seed in range(9)}) == 9
    assert counts(subsets.uniform(UNEVEN, 0, 20)) == [7, 5, 7, 1]
    assert counts(subsets.uniform(UNEVEN, 0, 61)) == [37, 5, 18, 1]


def test_folds():
    for folds in (2, 5, 61):
        parts = [subsets.fold(UNEVEN, folds, number, seed=0) for number in range(folds)]
        shown = [numbers(validation) for _, validation in parts]
        assert sorted(itertools.chain(*shown)) == list(range(61))
        sizes = np.array([np.bincount(part.labels, minlength=4) for _, part in parts])
        assert (np.ptp(sizes, axis=0) <= 1).all() and np.ptp(sizes.sum(1)) <= 1
        for train, validation in parts:
            assert sorted(numbers(train) + numbers(validation)) == list(range(61))
            consistent(train, UNEVEN)
        again, other = (numbers(subsets.fold(UNEVEN, folds, 1, seed)[1]) for seed in (0, 1))
        assert again == shown[1] != other
    assert [len(part) for part in subsets.fold(WITHOUT, 5, 2, 0)] == [8, 2]


def test_fraction():
    assert counts(subsets.fraction(UNEVEN, 0.1, 0)) == [4, 1, 2, 1]
    consistent(subsets.fraction(UNEVEN, 0.1, 0), UNEVEN)
    assert numbers(subsets.fraction(UNEVEN, 1.0, 5)) == list(range(61))
    shown = [set(numbers(subsets.fraction(UNEVEN, share, 3))) for share in (0.01, 0.1, 0.5)]
    assert shown[0] < shown[1] < shown[2] != set(numbers(subsets.fraction(UNEVEN, 0.5, 4)))


def test_by_class():
    source = numbered([2, 0, 1, 3, 2, -1, 0], ("dog", "cat", "ant", "bee"))
    view = subsets.by_class(source, ["dog", "ant"])
    assert numbers(view) == [0, 1, 4, 6] and view.labels.tolist() == [0, 1, 0, 1]
    assert view.digest != subsets.Subset(source, [0, 1, 4, 6], "").digest
    part = subsets.fraction(view, 0.5, 0)
    assert view.class_names == part.class_names == ("ant", "dog") and counts(part) == [1, 1]
    for found in (view, part, subsets.by_class(source, source.class_names)):
        consistent(found, source)
    assert "'dogs'; did you mean 'dog'?" in why(subsets.by_class, source, ["dogs", "ant"])


def test_concatenated():
    whole = subsets.Concatenated([UNEVEN, WITHOUT, UNEVEN])
    assert len(whole) == 132 and numbers(whole) == [*range(61), *range(10), *range(61)]
    assert whole.labels.tolist() == [sample["label"] for sample in whole]
    assert set(whole.labels[61:71]) == {-1} and whole.class_names == tuple("abcd")
    orders = ([UNEVEN, WITHOUT], [WITHOUT, UNEVEN], [WITHOUT])
    assert len({subsets.Concatenated(parts).digest for parts in orders}) == 3
