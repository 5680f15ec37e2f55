"""What is held out of the training split, and which cell is chosen by it."""

import math

import numpy as np
import pytest

from hypersphere_jax.config import UserError
from hypersphere_jax.evaluation.selection import best_cell, stratified_folds, stratified_part


def counts(part, y, classes):
    """Rows of each (part, class)."""
    return [np.bincount(y[part == number], minlength=classes).tolist() for number in set(part)]


def test_the_held_out_part_has_its_share_of_every_class():
    y = np.repeat([0, 1, 2, 3, 5], [100, 33, 3, 2, 1])
    part = stratified_part(y, 0.2, 0)
    assert counts(part, y, 6) == [[20, 7, 1, 1, 0, 0], [80, 26, 2, 1, 0, 1]]
    again, other = stratified_part(y, 0.2, 0), stratified_part(y, 0.2, 1)
    assert np.array_equal(part, again) and not np.array_equal(part, other)
    most = stratified_part(y, 0.9, 0)
    assert np.bincount(y[most == 1]).tolist() == [10, 3, 1, 1, 0, 1]


@pytest.mark.parametrize("folds", [2, 5, 7])
def test_folds_are_a_stratified_partition(folds):
    rng = np.random.default_rng(folds)
    sizes = np.array([100, 33, 3, 1, 0, 2])
    y = rng.permutation(np.repeat(np.arange(6), sizes))
    for seed in range(3):
        part = stratified_folds(y, folds, seed)
        found = np.array(counts(part, y, 6))
        assert found.shape == (folds, 6)
        np.testing.assert_array_equal(found.sum(axis=0), sizes)
        assert (found >= sizes // folds).all() and (found <= -(-sizes // folds)).all()
        assert np.ptp(found.sum(axis=1)) <= 1
        assert np.array_equal(part, stratified_folds(y, folds, seed))
        assert not np.array_equal(part, stratified_folds(y, folds, seed + 1))


def test_rows_of_a_class_are_drawn_at_random():
    """Each row is held out as often as every other: labels come sorted, and so may images."""
    y = np.repeat([0, 1], 10)
    held_out = np.mean([stratified_part(y, 0.2, seed) == 0 for seed in range(1000)], axis=0)
    np.testing.assert_allclose(held_out, 0.2, atol=0.06)
    first = np.mean([stratified_folds(y, 5, seed) == 0 for seed in range(1000)], axis=0)
    np.testing.assert_allclose(first, 0.2, atol=0.06)


def test_the_best_mean_over_folds_is_chosen_and_the_first_of_equals():
    assert best_cell([[50.0, 60.0, 70.0], [90.0, 70.0, 59.0]]) == 0
    assert best_cell([[90.0, 60.0, 70.0], [10.0, 70.0, 59.0]]) == 1
    assert best_cell([[50.0, 60.0, 70.0], [60.0, 70.0, 60.0]]) == 1
    # 0.1 + 0.2 + 0.3 is not 0.3 + 0.2 + 0.1 in floating point.
    assert best_cell([[0.3, 0.1], [0.2, 0.2], [0.1, 0.3]]) == 0
    assert best_cell([[0.1, 0.3], [0.2, 0.2], [0.3, 0.1]]) == 0
    # A fit that diverged is not chosen.
    assert best_cell([[99.0, 10.0, 99.0], [math.nan, 11.0, math.nan]]) == 1
    assert best_cell([[math.nan, math.nan]]) == 0


def test_mistakes_are_named():
    with pytest.raises(UserError, match=r"valid_fraction = 1\.0"):
        stratified_part(np.arange(4) % 2, 1.0, 0)
    with pytest.raises(UserError, match="no class has two training samples"):
        stratified_part(np.arange(4), 0.2, 0)
    for folds in (1, 5):
        with pytest.raises(UserError, match=f"folds = {folds}: must be 2 to 4"):
            stratified_folds(np.arange(4), folds, 0)
