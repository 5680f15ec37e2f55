"""Intervals of differences against published numbers and SciPy."""

import numpy as np
import pytest
from scipy import stats

from hypersphere_jax.evaluation import estimates


def correct_pairs(both, first, second, neither):
    """Return whether two classifiers are correct on each sample, from the counts of four cells."""
    kinds = np.array([[1, 1], [1, 0], [0, 1], [0, 0]], bool)
    return np.repeat(kinds, (both, first, second, neither), axis=0).T


def test_paired_has_the_published_numbers():
    """Complete response before and after therapy (Cavo et al., 2012), of 161 patients.

    Fagerland, Lydersen & Laake, Statistical Analysis of Contingency Tables (2017), chapter 8.
    """
    before, after = correct_pairs(59, 6, 16, 80)
    expected = (-1000 / 161, -11.82, -0.45)
    assert estimates.paired(before, after) == pytest.approx(expected, abs=0.005)
    swapped = (1000 / 161, 0.45, 11.82)
    assert estimates.paired(after, before) == pytest.approx(swapped, abs=0.005)


def test_welch_matches_scipy():
    a, b = [97.5, 98.0, 96.1], [95.0, 96.4]
    ends = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert estimates.welch(a, b)[1:] == pytest.approx((ends.low, ends.high))
    assert estimates.welch([1.0, 1.0], [0.5, 0.5]) == (0.5, 0.5, 0.5)
    assert estimates.from_errors(1.0, 0.3, 0.0, 0.4) == pytest.approx((1, 0.020018, 1.979982))
