"""Estimates and rank correlations against SciPy, and the rule for verdicts."""

import numpy as np
import pytest
import scipy
from rows import both, row

from experiments.lib import ranks, stats
from experiments.lib.stats import Comparison, Estimate, compare, contrast, judge
from hypersphere_jax.configs import UserError


def difference(a, b):
    return contrast([a, b], [1, -1])


def test_difference_of_equal_seeds_is_the_paired_t_test_over_samples(rng):
    a, b = rng.random((2, 300)) < [[0.8], [0.7]]
    expected = scipy.stats.ttest_rel(a.astype(float), b.astype(float))
    interval = expected.confidence_interval()
    found = difference(np.tile(a, (3, 1)), np.tile(b, (2, 1)))
    assert found.p == pytest.approx(expected.pvalue)
    assert found[1:3] == pytest.approx([100 * interval.low, 100 * interval.high])
    one = contrast([a[None]], [1], 0.75)  # a single seed against a level
    assert one.p == pytest.approx(scipy.stats.ttest_1samp(a, 0.75).pvalue)
    assert one.effect == pytest.approx(100 * a.mean() - 75) and one.single_seed


def test_difference_of_equal_samples_is_welchs_test_over_seeds():
    a, b = np.tile([[1], [1], [0], [1]], 1000), np.tile([[0], [1], [0], [0], [0]], 1000)
    expected = scipy.stats.ttest_ind(a[:, 0], b[:, 0], equal_var=False)
    assert difference(a, b).p == pytest.approx(expected.pvalue)
    assert stats.seed_difference(a[:, 0], b[:, 0]).p == pytest.approx(expected.pvalue)
    assert difference(np.ones((2, 9)), np.zeros((2, 9)))[:4] == (100, 100, 100, 0)


def test_paired_seeds_use_the_variance_of_each_seeds_difference():
    a, b = np.tile([[0], [1], [0], [1], [1]], 1000), np.tile([[1], [0], [1], [1], [0]], 1000)
    expected = scipy.stats.ttest_rel(a[:, 0], b[:, 0] * 0.5)
    found = contrast([a.astype(float), b.astype(float)], [1, -0.5], paired=True)
    assert found.p == pytest.approx(expected.pvalue)


def comparison(logistic, p, knn, q, **options):
    estimates = {
        "logistic": Estimate(logistic, logistic - 1, logistic + 1, p),
        "knn5": Estimate(knn, knn - 1, knn + 1, q),
        "linear": Estimate(9, 8, 10, 0.0),
    }
    return Comparison("a claim", estimates, **options)


def verdicts(*comparisons):
    return [line["verdict"] for line in judge(comparisons)[::3]]


@pytest.mark.parametrize(
    ("effects", "options", "verdict"),
    [
        ((1, 0.01, 2, 0.02), {}, "supported"),
        ((1, 0.01, 2, 0.2), {}, "inconclusive"),
        ((1, 0.001, -2, 0.001), {}, "inconclusive"),
        ((-1, 0.001, -2, 0.001), {}, "not supported"),
        ((-1, 0.001, -2, 0.001), {"expected": -1}, "supported"),
        ((1, 0.001, 2, 0.001), {"level": 3.0}, "not supported"),
    ],
)
def test_both_instruments_decide(effects, options, verdict):
    assert verdicts(comparison(*effects, **options)) == [verdict]


def test_holm_corrects_for_several_claims():
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    other = comparison(0, 0.5, 0, 0.5)
    assert verdicts(comparison(1, 0.01, 2, 0.02), other, other) == ["inconclusive"] * 3


def test_single_seeds_are_inconclusive(rng):
    a, b = rng.random((2, 400)) < 0.9, rng.random((1, 400)) < 0.1
    for side, verdict in ((b, "inconclusive"), (b.repeat(2, axis=0), "supported")):
        assert judge([Comparison("c", {"knn5": difference(a, side)})])[0]["verdict"] == verdict


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


def encoder(align, uniform, accuracy, number, seed=0):
    made = row(seed, **both("output", accuracy))
    return made | {"align": align, "uniform": uniform, "row": number}


@pytest.mark.parametrize("half", [0, 1, -1])
def test_correlations_equal_scipys_of_means_over_seeds(rng, half):
    """All encoders, or the half with the higher or the lower scores; the first has two seeds."""
    align, uniform, noise = rng.normal(size=(3, 40))
    score = 20 + 1.5 * scipy.stats.rankdata(-align - uniform - noise)
    values = zip(align, uniform, score, strict=True)
    rows = [encoder(*of_encoder, number) for number, of_encoder in enumerate(values)]
    rows.append(encoder(align[0] + 9, uniform[0] - 3, score[0] - 10.5, 0, seed=1))
    align[0] += 4.5
    uniform[0] -= 1.5
    score[0] -= 5.25
    is_high = score >= np.sort(score)[20]
    chosen = {0: is_high | True, 1: is_high, -1: ~is_high}[half]
    shares = (0, 0.25, 0.5)
    estimates = ranks.metric_correlations(rows, "output_knn5", shares, half)
    for share, estimate in zip(shares, estimates, strict=True):
        total = (1 - share) * align + share * uniform
        expected = scipy.stats.spearmanr(total[chosen], score[chosen]).statistic
        assert estimate.effect == pytest.approx(expected)
        assert (estimate.p < 0.05) == (estimate.low > 0 or estimate.high < 0)


def test_permutation_test_counts_orders():
    assert ranks.permutation_p(range(5), [5, 4, 3, 2, 1]) == pytest.approx(2 / 120)
    assert ranks.permutation_p(range(5), [2, 1, 3, 4, 5]) == pytest.approx(10 / 120)
