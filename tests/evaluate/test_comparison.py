"""Intervals of differences: published numbers, SciPy's, and what must hold of any."""

import pytest
from scipy import stats

from hypersphere_jax.evaluate import comparison


def test_newcombes_interval_has_the_published_numbers():
    """Newcombe (1998), Table II, method 10: 56/70 less 48/80, and 5/56 less 0/29."""
    assert comparison.newcombe(80.0, 70, 60.0, 80) == pytest.approx((20, 5.24, 33.39), abs=0.005)
    low_counts = comparison.newcombe(100 * 5 / 56, 56, 0.0, 29)
    assert low_counts == pytest.approx((8.93, -3.81, 19.26), abs=0.005)
    value, low, high = comparison.newcombe(60.0, 80, 80.0, 70)
    assert (value, -high, -low) == pytest.approx((-20, 5.24, 33.39), abs=0.005)
    wilson = stats.binomtest(9, 10).proportion_ci(method="wilson")
    assert comparison.wilson(0.9, 10) == pytest.approx((wilson.low, wilson.high))


def test_welchs_interval_is_scipys():
    a, b = [97.5, 98.0, 96.1], [95.0, 96.4]
    ends = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert comparison.welch(a, b)[1:] == pytest.approx((ends.low, ends.high))
    assert comparison.welch([1.0, 1.0], [0.5, 0.5]) == (0.5, 0.5, 0.5)
    assert comparison.of_errors(1.0, 0.3, 0.0, 0.4) == pytest.approx((1, 0.020018, 1.979982))
