"""Rank correlations against SciPy, and what their bootstrap draws."""

import numpy as np
import pytest
from rows import both, row
from scipy import stats

from experiments.lib import ranks


def encoder(align, uniform, accuracy, number, seed=0):
    made = row(seed, **both("output", accuracy))
    return made | {"align": align, "uniform": uniform, "row": number}


@pytest.mark.parametrize("half", [0, 1, -1])
def test_correlations_equal_scipys_of_means_over_seeds(rng, half):
    """All encoders, or the half with the higher or the lower scores; the first has two seeds."""
    align, uniform, noise = rng.normal(size=(3, 40))
    score = 20 + 1.5 * stats.rankdata(-align - uniform - noise)
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
        expected = stats.spearmanr(total[chosen], score[chosen]).statistic
        assert estimate.effect == pytest.approx(expected)
        assert (estimate.p < 0.05) == (estimate.low > 0 or estimate.high < 0)


def test_permutation_test_counts_orders():
    assert ranks.permutation_p(range(5), [5, 4, 3, 2, 1]) == pytest.approx(2 / 120)
    assert ranks.permutation_p(range(5), [2, 1, 3, 4, 5]) == pytest.approx(10 / 120)
