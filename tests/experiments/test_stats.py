"""Estimates against scipy's tests and simulations, and the rule for verdicts."""

import numpy as np
import pytest
import scipy
from rows import both, row

from experiments.lib import stats
from experiments.lib.stats import Comparison, Estimate, compare, contrast, judge
from hypersphere_jax.configs import UserError


def difference(a, b):
    return contrast([a, b], [1, -1])


def test_difference_equals_closed_forms(rng):
    a, b = rng.random((5, 300)) < 0.8, rng.random((4, 300)) < 0.7
    # If all seeds are equal, the paired t-test over samples.
    same = np.tile(a[:1], (3, 1)), np.tile(b[:1], (2, 1))
    expected = scipy.stats.ttest_rel(same[0][0].astype(float), same[1][0].astype(float))
    found = difference(*same)
    interval = expected.confidence_interval()
    assert found.p == pytest.approx(expected.pvalue)
    assert found[1:3] == pytest.approx([100 * interval.low, 100 * interval.high])
    # If all samples are equal, Welch's test over seeds.
    flat = np.tile([[1], [1], [0], [1]], 1000), np.tile([[0], [1], [0], [0], [0]], 1000)
    expected = scipy.stats.ttest_ind(flat[0][:, 0], flat[1][:, 0], equal_var=False)
    assert difference(*flat).p == pytest.approx(expected.pvalue)
    # One seed against a level: the test over samples.
    one = contrast([a[:1]], [1], 0.75)
    assert one.p == pytest.approx(scipy.stats.ttest_1samp(a[0], 0.75).pvalue)
    assert one.effect == pytest.approx(100 * a[0].mean() - 75) and one.single_seed
    assert difference(np.ones((2, 9)), np.zeros((2, 9)))[:4] == (100, 100, 100, 0)


def test_paired_seeds_use_the_variance_of_each_seeds_difference(rng):
    flat = [np.tile(rng.random((5, 1)) < 0.5, 1000).astype(float) for _ in range(2)]
    flat[0][:2] = flat[1][1:3] = [[0], [1]]
    expected = scipy.stats.ttest_rel(flat[0][:, 0], flat[1][:, 0] * 0.5)
    found = contrast(flat, [1, -0.5], paired=True)
    assert found.p == pytest.approx(expected.pvalue)


@pytest.mark.parametrize(("k", "spread"), [(4, 0.4), (3, 2.0)])
def test_intervals_cover_the_truth(rng, k, spread):
    covered, trials = 0, 400
    for _ in range(trials):
        images = rng.normal(size=150)
        sides = []
        for _ in range(2):
            ability = 1.2 + spread * rng.normal(size=(k, 1))
            sides.append(rng.random((k, 150)) < scipy.special.expit(ability + images))
        found = difference(*sides)
        covered += found.low <= 0 <= found.high
    assert 0.94 <= covered / trials <= 0.995


def test_resampling_has_the_variance_of_the_closed_form(rng):
    images = rng.random(80)
    a = images < np.array((0.75, 0.77, 0.8, 0.83, 0.85))[:, None]
    b = images < np.array((0.6, 0.7, 0.8))[:, None]
    first, second = stats.resample([a, b], draws=8000)
    expected = sum(of.mean(axis=1).var(ddof=1) / len(of) for of in (a, b))
    expected += np.var(a.mean(axis=0) - b.mean(axis=0)) / 80
    assert np.var(first - second) == pytest.approx(expected, rel=0.08)
    copies = a[[0, 0, 0]], a[[0, 0, 0, 0, 0]], a[:1]
    assert np.ptp(stats.resample(copies), axis=0).max() == 0  # equal means stay equal
    found = stats.bootstrap(0.5, np.array([-1.0, *np.arange(1.0, 100)]))
    assert found.p == pytest.approx(2 * 2 / 101) and found.low > 0


def test_seed_difference_is_welchs_test():
    a, b = [1.0, 1.2, 1.4], [0.5, 0.7, 0.6, 0.8]
    expected = scipy.stats.ttest_ind(a, b, equal_var=False)
    assert stats.seed_difference(a, b).p == pytest.approx(expected.pvalue)
    assert stats.seed_difference([1.0], b).single_seed


def comparison(logistic, p, knn, q, **options):
    estimates = {
        "logistic": Estimate(logistic, logistic - 1, logistic + 1, p),
        "knn5": Estimate(knn, knn - 1, knn + 1, q),
        "linear": Estimate(9, 8, 10, 0.0),
    }
    return Comparison("a claim", estimates, **options)


def verdicts(*comparisons):
    return [row["verdict"] for row in judge(comparisons)[::3]]


def test_both_instruments_decide_and_holm_corrects():
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    agree = comparison(1, 0.01, 2, 0.02)
    assert verdicts(agree) == ["supported"]
    assert verdicts(comparison(1, 0.01, 2, 0.2)) == ["inconclusive"]
    assert verdicts(comparison(1, 0.001, -2, 0.001)) == ["inconclusive"]
    assert verdicts(comparison(-1, 0.001, -2, 0.001)) == ["not supported"]
    assert verdicts(comparison(-1, 0.001, -2, 0.001, expected=-1)) == ["supported"]
    assert verdicts(comparison(1, 0.001, 2, 0.001, level=3.0)) == ["not supported"]
    other = comparison(0, 0.5, 0, 0.5)
    assert verdicts(agree, other, other) == ["inconclusive"] * 3


def test_single_seeds_are_inconclusive(rng):
    a, b = rng.random((2, 400)) < 0.9, rng.random((1, 400)) < 0.1
    assert judge([Comparison("c", {"knn5": difference(a, b)})])[0]["verdict"] == "inconclusive"
    repeated = difference(a, b.repeat(2, axis=0))
    assert judge([Comparison("c", {"knn5": repeated})])[0]["verdict"] == "supported"


def test_paired_rows_are_matched_by_seed():
    a = [row(seed, **both("output", 70 + seed)) for seed in range(4)]
    b = [row(seed, **both("output", 60 + seed)) for seed in range(4)]
    columns = stats.columns_of("output")
    found = compare(a, b[::-1], columns, paired=True)
    assert found == compare(a, b, columns, paired=True)
    assert found["knn5"].effect == pytest.approx(10)
    assert compare(a, b[1:], columns, paired=True) == compare(a[1:], b[1:], columns, paired=True)
    with pytest.raises(UserError):
        compare(a[:1], b[1:], columns, paired=True)


def test_summary_has_a_row_per_setting():
    rows = [row(seed, **both("output", 80)) | {"loss": loss} for seed in (0, 1) for loss in "ab"]
    table = stats.summarize(rows, ("loss",), ["output_knn5", "absent"])
    assert [line["loss"] for line in table] == ["a", "b"] and table[0]["seeds"] == 2
    assert table[0]["output_knn5"].startswith("80.00 ± ") and "absent" not in table[0]
