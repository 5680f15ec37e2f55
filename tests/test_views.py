"""Views of a source: which images they take, in closed form; by seed; disjoint where they must."""

import itertools
import pickle

import numpy as np
import pytest

from hypersphere_jax.config import UserError
from hypersphere_jax.data.source import Arrays
from hypersphere_jax.data.views import (
    Concatenated,
    Subset,
    by_class,
    fold,
    fraction,
    long_tailed,
    long_tailed_counts,
    uniform,
)


def numbered(labels, names=None):
    """A source whose image i shows the number i."""
    images = np.arange(len(labels)).astype("<u4").view(np.uint8).reshape(-1, 1, 1, 4)
    names = tuple("abcdefghijklmnopqrstuvwxyz"[: max(labels) + 1]) if names is None else names
    return Arrays(images, np.array(labels), names, "numbers")


def numbers(source):
    """The numbers that a view shows."""
    return [int(source[i]["image"].view("<u4")[0, 0, 0]) for i in range(len(source))]


def counts(source):
    return np.bincount(source.labels).tolist()


def consistent(view, whole):
    """What a sample says is what the view says, and what the image had in the source."""
    assert [view[i]["label"] for i in range(len(view))] == view.labels.tolist()
    assert view.labels.dtype == np.int32
    names = ["none", *view.class_names]
    theirs = ["none", *whole.class_names]
    assert [names[label + 1] for label in view.labels] == [
        theirs[whole.labels[number] + 1] for number in numbers(view)
    ]
    assert view.image_shape == whole.image_shape
    again = pickle.loads(pickle.dumps(view))
    assert numbers(again) == numbers(view) and again.digest == view.digest


UNEVEN = numbered([0] * 37 + [1] * 5 + [2] * 18 + [3])
# As many images a class as ImageNet has at most.
MANY = numbered(np.repeat(np.arange(26), 1300))


def test_subset():
    view = Subset(UNEVEN, np.array([40, 3, 60]), "three images")
    assert numbers(view) == [40, 3, 60] and view.labels.tolist() == [1, 0, 3]
    consistent(view, UNEVEN)
    assert view.origin == "three images of numbers" and view.class_names == tuple("abcd")
    assert numbers(Subset(view, np.array([2, 0]), "two")) == [60, 40]
    digests = [Subset(UNEVEN, indices, "").digest for indices in ([3, 40], [40, 3], [3])]
    digests += [UNEVEN.digest, Subset(numbered([1] * 61), [3, 40], "").digest]
    assert len(set(digests)) == 5


@pytest.mark.parametrize("indices", [[0, 61], [-1], [2, 2], [0.5], [[1]]])
def test_no_subset(indices):
    with pytest.raises(ValueError, match="indices must be"):
        Subset(UNEVEN, np.array(indices), "")


def test_counts_of_imagenet_lt():
    """A.3.4: 1,000 classes, 115,846 images, 1,280 to 5 a class."""
    counts = long_tailed_counts(1000)
    assert counts.sum() == 115_846
    assert counts[0] == counts.max() == 1280 and counts[-1] == counts.min() == 5
    assert (np.diff(counts) <= 0).all()
    # Liu et al. count 385, 479 and 136 classes with over 100, 20 to 100, and under 20 images.
    shots = [(counts > 100).sum(), ((counts >= 20) & (counts <= 100)).sum(), (counts < 20).sum()]
    assert np.abs(np.array(shots) - [385, 479, 136]).max() <= 10


def test_counts_follow_the_pareto_quantiles():
    """A class of twice the rank is 2^(1/alpha) times smaller, beyond the first classes."""
    counts = long_tailed_counts(100_000, None, 2.0, 1, 10**9).astype(float)
    shift = counts[0] - counts[-1]
    first, last = (0.7928 / 100_000.5856) ** -0.5, (99_999.7928 / 100_000.5856) ** -0.5
    quantiles = last + (counts - counts[-1]) / shift * (first - last)
    for rank in (1_000, 10_000):
        assert quantiles[rank] / quantiles[2 * rank] == pytest.approx(2**0.5, rel=1e-3)


@pytest.mark.parametrize("size", [950, 5_000, 30_000])
def test_counts_of_a_given_size(size):
    counts = long_tailed_counts(100, size, 6.0, 2, 700)
    assert counts.sum() == size and counts[0] == 700 and counts[-1] == 2
    assert (np.diff(counts) <= 0).all()


def test_a_smaller_alpha_has_a_longer_tail():
    totals = [long_tailed_counts(1000, None, alpha).sum() for alpha in (1.0, 3.0, 6.0, 12.0)]
    assert totals == sorted(totals) and len(set(totals)) == 4


def test_impossible_counts():
    with pytest.raises(UserError, match="10 classes of 5 to 1280 images have from 13"):
        long_tailed_counts(10, 100_000)
    for bad in ({"alpha": 0.0}, {"smallest": 0}, {"smallest": 2000}, {"classes": 1}):
        with pytest.raises(UserError, match="needs 1 <= smallest"):
            long_tailed_counts(**({"classes": 10} | bad))


def test_long_tailed():
    view = long_tailed(MANY, seed=0)
    expected = long_tailed_counts(26)
    assert sorted(counts(view), reverse=True) == expected.tolist()
    consistent(view, MANY)
    assert len(set(numbers(view))) == expected.sum()
    assert numbers(long_tailed(MANY, seed=0)) == numbers(view)
    other = long_tailed(MANY, seed=1)
    assert counts(other) != counts(view) and sorted(counts(other)) == sorted(counts(view))
    heads = {np.argmax(counts(long_tailed(MANY, seed))) for seed in range(20)}
    assert len(heads) > 8
    assert len(long_tailed(MANY, 0, 9_000)) == 9_000


def test_large_sizes_go_to_classes_that_have_them():
    source = numbered([0] * 20 + [1] * 12 + [2] * 20 + [3] * 12 + [-1] * 50)
    for seed in range(10):
        view = long_tailed(source, seed, smallest=2, largest=20)
        assert max(counts(view)) == 20 and np.argmax(counts(view)) in (0, 2)
        assert -1 not in view.labels
    assert max(counts(long_tailed(source, 0, smallest=2))) == 20
    with pytest.raises(UserError, match=r"left that has 21 images \(the largest has 20\)"):
        long_tailed(source, 0, smallest=2, largest=21)


def test_uniform():
    view = uniform(MANY, 0, 115_846 // 100)
    assert len(view) == 1158 and set(counts(view)) == {44, 45}
    consistent(view, MANY)
    assert numbers(uniform(MANY, 0, 1158)) == numbers(view) != numbers(uniform(MANY, 1, 1158))
    assert counts(uniform(UNEVEN, 0, 20)) in ([7, 5, 7, 1], [8, 5, 6, 1], [6, 5, 8, 1])
    assert counts(uniform(UNEVEN, 0, 61)) == [37, 5, 18, 1]
    for size in (0, 62):
        with pytest.raises(UserError, match="has 61 labelled images"):
            uniform(UNEVEN, 0, size)


def test_subsets_by_class_need_labels():
    without = numbered([-1] * 5, ())
    for subset in (lambda: uniform(without, 0, 2), lambda: long_tailed(without, 0)):
        with pytest.raises(UserError, match="numbers has no labels"):
            subset()


@pytest.mark.parametrize("folds", [2, 5, 61])
def test_folds(folds):
    parts = [fold(UNEVEN, folds, number, seed=0) for number in range(folds)]
    shown = [numbers(validation) for _, validation in parts]
    assert sorted(itertools.chain(*shown)) == list(range(61))
    sizes = np.array([np.bincount(validation.labels, minlength=4) for _, validation in parts])
    assert (sizes.max(0) - sizes.min(0) <= 1).all()
    assert np.ptp(sizes.sum(1)) <= 1
    for train, validation in parts:
        assert sorted(numbers(train) + numbers(validation)) == list(range(61))
        consistent(train, UNEVEN)
    assert numbers(fold(UNEVEN, folds, 1, 0)[1]) == shown[1]
    assert numbers(fold(UNEVEN, folds, 1, 1)[1]) != shown[1]


def test_folds_without_labels():
    train, validation = fold(numbered([-1] * 10, ()), 5, 2, 0)
    assert len(train) == 8 and len(validation) == 2


def test_impossible_folds():
    for folds in (1, 62):
        with pytest.raises(UserError, match=f"folds {folds}"):
            fold(UNEVEN, folds, 0, 0)
    for number in (-1, 3):
        with pytest.raises(UserError, match="numbered from 0 to 2"):
            fold(UNEVEN, 3, number, 0)


def test_fraction():
    assert counts(fraction(UNEVEN, 0.1, 0)) == [4, 1, 2, 1]
    consistent(fraction(UNEVEN, 0.1, 0), UNEVEN)
    assert numbers(fraction(UNEVEN, 1.0, 5)) == list(range(61))
    shown = [set(numbers(fraction(UNEVEN, share, 3))) for share in (0.01, 0.1, 0.5)]
    assert shown[0] < shown[1] < shown[2]
    assert set(numbers(fraction(UNEVEN, 0.5, 4))) != shown[2]
    assert len(fraction(numbered([-1] * 10, ()), 0.25, 0)) == 2
    for share in (0, 1.1, float("nan")):
        with pytest.raises(UserError, match="share"):
            fraction(UNEVEN, share, 0)


def test_by_class():
    source = numbered([2, 0, 1, 3, 2, -1, 0], ("dog", "cat", "ant", "bee"))
    view = by_class(source, ["dog", "ant"])
    assert view.class_names == ("ant", "dog")
    assert numbers(view) == [0, 1, 4, 6] and view.labels.tolist() == [0, 1, 0, 1]
    consistent(view, source)
    assert by_class(source, source.class_names).class_names == ("ant", "bee", "cat", "dog")
    same = Subset(source, np.array([0, 1, 4, 6]), "")
    digests = {view.digest, same.digest, by_class(source, ["dog", "ant", "bee"]).digest}
    assert len(digests) == 3
    part = fraction(view, 0.5, 0)
    consistent(part, source)
    assert part.class_names == ("ant", "dog") and counts(part) == [1, 1]
    with pytest.raises(UserError, match=r"no classes dogs \(did you mean 'dog'\?\)"):
        by_class(source, ["dogs", "ant"])
    with pytest.raises(UserError, match="no classes of numbers are named"):
        by_class(source, [])


def test_concatenated():
    other = numbered([-1, -1], ())
    whole = Concatenated([UNEVEN, other, UNEVEN])
    assert len(whole) == 124 and numbers(whole) == [*range(61), 0, 1, *range(61)]
    assert whole.labels.tolist() == [whole[i]["label"] for i in range(124)]
    assert whole.labels[61:63].tolist() == [-1, -1] and whole.class_names == tuple("abcd")
    assert whole.origin == "numbers + numbers + numbers" and whole.image_shape == (1, 1, 4)
    assert numbers(pickle.loads(pickle.dumps(whole))) == numbers(whole)
    with pytest.raises(IndexError):
        whole[124]
    digests = {Concatenated(parts).digest for parts in ([UNEVEN, other], [other, UNEVEN], [other])}
    assert len(digests) == 3
    with pytest.raises(UserError, match=r"different classes: 4 of numbers; 2 of numbers"):
        Concatenated([UNEVEN, numbered([0, 1])])
    wide = Arrays(np.zeros((1, 2, 2, 4), np.uint8), np.array([-1]), (), "wide")
    assert Concatenated([other, wide]).image_shape is None
