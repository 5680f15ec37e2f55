"""Rank correlations against scipy's, and what their bootstrap draws."""

import numpy as np
import pytest
from rows import both, row
from scipy import stats

from experiments.lib import ranks
from experiments.lib.records import Predictions


def encoder(align, uniform, accuracy, number, seed=0):
    made = row(seed, **both("output", accuracy))
    return made | {"align": align, "uniform": uniform, "row": number}


def test_correlations_equal_scipys_of_means_over_seeds(rng):
    align, uniform, noise = rng.normal(size=(3, 40))
    score = 20 + 1.5 * stats.rankdata(-align - uniform - noise)
    numbers = [*zip(align, uniform, score, strict=True)]
    rows = [encoder(*of, number) for number, of in enumerate(numbers)]
    rows.append(encoder(align[0] + 9, uniform[0] - 3, score[0] - 10.5, 0, seed=1))
    align[0] += 4.5
    uniform[0] -= 1.5
    score[0] -= 5.25
    median = np.sort(score)[20]
    shares = (0, 0.25, 0.5)
    for half, chosen in {0: score > 0, 1: score >= median, -1: score < median}.items():
        estimates = ranks.metric_correlations(rows, "output_knn5", shares, half)
        for share, estimate in zip(shares, estimates, strict=True):
            total = (1 - share) * align + share * uniform
            expected = stats.spearmanr(total[chosen], score[chosen]).statistic
            assert estimate.effect == pytest.approx(expected)
            assert (estimate.p < 0.05) == (estimate.low > 0 or estimate.high < 0)


def test_bootstrap_draws_test_samples(rng):
    """Encoders that differ by few of a hundred samples have an uncertain order."""
    rows = [encoder(a, 0, 50 - a / 9, a) | {"predictions": {}} for a in range(30)]
    (exact,) = ranks.metric_correlations(rows, "output_knn5", (0,), draws=200)
    assert exact[:3] == pytest.approx((-1, -1, -1))
    for each in rows:
        guesses = (rng.random(100) < 0.4).astype(int)
        each["predictions"] = {"output_knn5": Predictions(np.ones(100, int), guesses)}
    (drawn,) = ranks.metric_correlations(rows, "output_knn5", (0,), draws=200)
    assert drawn.low < -0.2 < 0.2 < drawn.high


def test_permutation_test_counts_orders():
    assert ranks.permutation_p(range(5), [5, 4, 3, 2, 1]) == pytest.approx(2 / 120)
    assert ranks.permutation_p(range(5), [2, 1, 3, 4, 5]) == pytest.approx(10 / 120)
    assert ranks.spearman(np.arange(4.0)[:, None], np.ones((4, 1))) == 0
