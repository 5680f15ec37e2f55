"""Intervals of differences, compared with published numbers and with SciPy."""

import numpy as np
import pytest
from scipy import stats

from hypersphere_jax.evaluation import estimates


def test_newcombe_has_the_published_numbers():
    """Newcombe (1998), Table II, method 10: 56/70 less 48/80, and 5/56 less 0/29."""
    assert estimates.newcombe(80.0, 70, 60.0, 80) == pytest.approx((20, 5.24, 33.39), abs=0.005)
    low_counts = estimates.newcombe(100 * 5 / 56, 56, 0.0, 29)
    assert low_counts == pytest.approx((8.93, -3.81, 19.26), abs=0.005)
    value, low, high = estimates.newcombe(60.0, 80, 80.0, 70)
    assert (value, -high, -low) == pytest.approx((-20, 5.24, 33.39), abs=0.005)
    wilson = stats.binomtest(9, 10).proportion_ci(method="wilson")
    assert estimates.wilson(0.9, 10) == pytest.approx((wilson.low, wilson.high))


def pairs(both, first, second, neither):
    """Return whether two classifiers are correct on each sample, from the counts of four cells."""
    kinds = np.array([[1, 1], [1, 0], [0, 1], [0, 0]], bool)
    return np.repeat(kinds, (both, first, second, neither), axis=0).T


def test_paired_has_the_published_numbers():
    """Complete response before and after therapy (Cavo et al., 2012), of 161 patients.

    Ends: Fagerland, Lydersen & Laake, Statistical Analysis of Contingency Tables (2017), chapter 8,
    in their R package contingencytables.
    """
    before, after = pairs(59, 6, 16, 80)
    found = estimates.paired(before, after)
    assert found == pytest.approx((-1000 / 161, -11.82, -0.45), abs=0.005)
    value, low, high = estimates.paired(after, before)
    assert (-value, -high, -low) == pytest.approx(found)


def test_paired_is_wald_with_half_a_sample_more_per_cell(rng):
    """For many samples, it also matches the bootstrap over pairs."""
    for counts in ((30, 7, 3, 5), (0, 9, 0, 0), (380, 0, 0, 17), (1, 0, 0, 0)):
        more = np.subtract(*pairs(*(2 * count + 1 for count in counts)).astype(float))
        half = stats.norm.ppf(0.975) * more.std() / np.sqrt(len(more) / 2)
        ends = np.clip(more.mean() + np.array([-half, half]), -1, 1)
        assert estimates.paired(*pairs(*counts))[1:] == pytest.approx(100 * ends)
    counts = np.array([1500, 130, 70, 300])
    _, first, second, _ = rng.multinomial(2000, counts / 2000, 20_000).T
    ends = np.quantile(first - second, [0.025, 0.975]) / 20
    low, high = estimates.paired(*pairs(*counts))[1:]
    assert (low, high) == pytest.approx(ends, abs=0.06)
    apart = estimates.newcombe(81.5, 2000, 78.5, 2000)
    assert high - low < 0.6 * (apart.high - apart.low)


def test_welch_matches_scipy():
    a, b = [97.5, 98.0, 96.1], [95.0, 96.4]
    ends = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert estimates.welch(a, b)[1:] == pytest.approx((ends.low, ends.high))
    assert estimates.welch([1.0, 1.0], [0.5, 0.5]) == (0.5, 0.5, 0.5)
    assert estimates.from_errors(1.0, 0.3, 0.0, 0.4) == pytest.approx((1, 0.020018, 1.979982))
