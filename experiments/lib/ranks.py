"""Rank correlations over encoders or settings, with bootstrap intervals."""

import itertools
from collections.abc import Sequence

import numpy as np
import scipy

from experiments.lib.records import PREDICTIONS, Rows, column, correct, group_by
from experiments.lib.stats import Estimate, bootstrap

DRAWS = 1000
MIN_ENCODERS = 8  # percentiles over fewer encoders are too narrow


def spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return Spearman's correlation along axis 0 of `[n, draws]` arrays; 0 for a constant."""
    x = scipy.stats.rankdata(x, axis=0)
    y = scipy.stats.rankdata(y, axis=0)
    x = x - x.mean(axis=0)
    y = y - y.mean(axis=0)
    scale = np.sqrt((x**2).sum(axis=0) * (y**2).sum(axis=0))
    products = (x * y).sum(axis=0)
    return np.divide(products, scale, out=np.zeros_like(scale), where=scale > 0)


def permutation_p(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the share of orders of y whose correlation with x is at least as far from 0."""
    x = np.array(x, float)
    orders = np.array([*itertools.permutations(y)], float).T
    by_order = spearman(np.broadcast_to(x[:, None], orders.shape), orders)
    value = spearman(x[:, None], np.array(y, float)[:, None])[0]
    return float(np.mean(np.abs(by_order) >= abs(value) - 1e-9))


def setting_correlation(
    x: Sequence[float], y: Sequence[float], drawn_x: np.ndarray, drawn_y: np.ndarray
) -> Estimate:
    """Return the rank correlation of two numbers `[settings]` over a few settings.

    The p-value is the larger one of an exact permutation test and of the bootstrap, which has the
    draws `[settings, draws]`.
    """
    effect = spearman(np.array(x, float)[:, None], np.array(y, float)[:, None])[0]
    estimate = bootstrap(effect, spearman(drawn_x, drawn_y))
    return estimate._replace(p=max(estimate.p, permutation_p(x, y)))


def metric_correlations(
    rows: Rows, score: str, shares: Sequence[float], half: int = 0
) -> list[Estimate]:
    """Return the correlation of a score with (1 - share) L_align + share L_uniform per share."""
    weights = np.stack([1 - np.asarray(shares), np.asarray(shares)])
    return encoder_correlations(rows, score, ("align", "uniform"), weights, half)


def encoder_correlations(
    rows: Rows, score: str, others: Sequence[str], weights: np.ndarray, half: int = 0
) -> list[Estimate]:
    """Return the rank correlation over encoders of a score with weighted sums of other columns.

    Encoders are groups of rows with the same `row` number, averaged over their seeds. The bootstrap
    draws encoders, their seeds, and test samples (shared by all encoders). Drawing samples adds
    noise to noisy accuracies, so the interval is biased towards zero.

    The weights are `[others, sums]`. With half = 1 only the encoders with the higher half of the
    scores count, with -1 the lower half.
    """
    groups = [*group_by(rows, "row").values()]
    ordered = [row for group in groups for row in group]
    sizes = np.array([len(group) for group in groups])
    if all(score in row.get(PREDICTIONS, {}) for row in ordered):
        scores = 100 * correct(ordered, score).astype(np.float32)
    else:
        scores = column(ordered, score).astype(np.float32)[:, None]
    sums = np.array([[row[name] for name in others] for row in ordered], float) @ weights

    random = np.random.default_rng(0)
    n = scores.shape[1]
    drawn_encoders = random.integers(0, len(groups), (DRAWS, len(groups)))
    drawn_seeds = random.random((DRAWS, len(groups), sizes.max()))
    samples = [random.integers(0, n, n) for _ in range(DRAWS)]
    counts = np.array([np.bincount(drawn, minlength=n) for drawn in samples], np.float32)
    drawn_scores = (scores @ counts.T).astype(float) / n  # [rows, draws]

    first = np.cumsum(sizes) - sizes
    places = np.arange(sizes.max())
    usable = places < sizes[:, None]
    means = scores.mean(axis=1, dtype=float)
    values = _correlate(means, sums, first[:, None] + places, usable, half)
    drawn = []
    for draw, encoders in enumerate(drawn_encoders):
        seeds = (drawn_seeds[draw] * sizes[encoders, None]).astype(int)
        seeds += first[encoders, None]
        drawn.append(_correlate(drawn_scores[:, draw], sums, seeds, usable[encoders], half))
    pairs = zip(values.tolist(), np.array(drawn).T, strict=True)
    return [bootstrap(value, draws) for value, draws in pairs]


def _correlate(
    scores: np.ndarray, sums: np.ndarray, seeds: np.ndarray, usable: np.ndarray, half: int
) -> np.ndarray:
    """Correlate means over seeds of scores `[rows]` with means of sums `[rows, k]`.

    `seeds` `[encoders, s]` are row numbers, of which `usable` ones count.
    """
    seeds = np.where(usable, seeds, 0)
    mean_scores = scores[seeds].mean(axis=1, where=usable).round(9)  # equal means, equal ranks
    mean_sums = sums[seeds].mean(axis=1, where=usable[..., None])
    if half:
        count = -(-len(mean_scores) // 2)
        best = np.argsort(-half * mean_scores, kind="stable")[:count]
        mean_scores = mean_scores[best]
        mean_sums = mean_sums[best]
    return spearman(mean_sums, np.broadcast_to(mean_scores[:, None], mean_sums.shape))
