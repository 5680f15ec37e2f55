"""Rank correlations over encoders or settings, with bootstrap intervals."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy

from experiments.lib.records import PREDICTIONS, Rows, column, correct, group_by
from experiments.lib.stats import Estimate

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


def metric_correlations(
    rows: Rows, score: str, shares: Sequence[float], half: int = 0, draws: int = DRAWS
) -> list[Estimate]:
    """Return the correlation of a score with (1 - share) L_align + share L_uniform per share."""
    shares = np.asarray(shares, float)
    weights = np.stack([1 - shares, shares])
    return encoder_correlations(rows, score, ("align", "uniform"), weights, half, draws)


def encoder_correlations(
    rows: Rows,
    score: str,
    others: Sequence[str],
    weights: np.ndarray,
    half: int = 0,
    draws: int = DRAWS,
) -> list[Estimate]:
    """Return the rank correlation over encoders of a score with weighted sums of other columns.

    Encoders are groups of rows with the same `row` number, averaged over their seeds. The bootstrap
    draws encoders, their seeds, and test samples (shared by all encoders). Drawing samples adds
    noise to noisy accuracies, so the interval is biased towards zero.

    Args:
      rows: finished runs.
      score: column of the score.
      others: columns of the sums.
      weights: `[others, sums]`.
      half: 1 uses only the encoders with the higher half of the scores, -1 the lower half, 0 all.
      draws: number of bootstrap draws.
    """
    groups = [*group_by(rows, "row").values()]
    ordered = [row for group in groups for row in group]
    sizes = np.array([len(group) for group in groups])
    if all(score in row.get(PREDICTIONS, {}) for row in ordered):
        scores = 100 * correct(ordered, score).astype(np.float32)
    else:
        scores = column(ordered, score).astype(np.float32)[:, None]
    sums = np.array([[row[name] for name in others] for row in ordered], float) @ weights
    data = _Encoders(scores, sums, sizes, half)

    random = np.random.default_rng(0)
    n = scores.shape[1]
    first = np.cumsum(sizes) - sizes
    places = np.arange(sizes.max())
    own_seeds = first[:, None] + np.minimum(places, sizes[:, None] - 1)
    own_encoders = np.arange(len(groups))[None]
    (values,) = _correlations(data, own_encoders, own_seeds[None], np.ones((1, n), np.float32))
    encoders = random.integers(0, len(groups), (draws, len(groups)))
    seeds = random.random((*encoders.shape, len(places))) * sizes[encoders][..., None]
    seeds = first[encoders][..., None] + seeds.astype(int)
    counts = [np.bincount(random.integers(0, n, n), minlength=n) for _ in range(draws)]
    drawn = _correlations(data, encoders, seeds, np.array(counts, np.float32))
    return [_estimate(value, of) for value, of in zip(values.tolist(), drawn.T, strict=True)]


class _Encoders(NamedTuple):
    """Scores `[rows, n]` and sums `[rows, k]`, and the number of seeds (rows) per encoder."""

    scores: np.ndarray
    sums: np.ndarray
    sizes: np.ndarray
    half: int


def _correlations(
    data: _Encoders, encoders: np.ndarray, seeds: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """Correlate drawn encoders `[draws, m]`, with rows of seeds `[draws, m, s]`.

    `counts` `[draws, n]` is how often each test sample was drawn.
    """
    places = np.arange(seeds.shape[2])
    usable = places < data.sizes[encoders][..., None]
    of_row = (data.scores @ counts.T).T.astype(float) / counts.sum(axis=1, keepdims=True)
    scores = np.take_along_axis(of_row[:, None], seeds, axis=2).mean(axis=2, where=usable)
    scores = scores.round(9)  # equal means must get equal ranks
    sums = data.sums[seeds].mean(axis=2, where=usable[..., None])
    both = np.concatenate([sums, scores[..., None]], axis=2)
    if data.half:
        count = -(-len(data.sizes) // 2)
        best = np.argsort(-data.half * scores, axis=1, kind="stable")[:, :count]
        both = np.take_along_axis(both, best[..., None], axis=1)
    ranks = scipy.stats.rankdata(both, axis=1)
    ranks -= ranks.mean(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):  # a draw may repeat one encoder
        ranks /= np.sqrt(np.sum(ranks**2, axis=1, keepdims=True))
    return np.einsum("dmj,dm->dj", ranks[..., :-1], ranks[..., -1])


def _estimate(value: float, drawn: np.ndarray) -> Estimate:
    drawn = drawn[~np.isnan(drawn)]
    if np.isnan(value) or not len(drawn):
        return Estimate(value, -1.0, 1.0, 1.0)
    low, high = np.percentile(drawn, (2.5, 97.5)).tolist()
    beyond = min(np.sum(drawn <= 0), np.sum(drawn >= 0))
    return Estimate(value, low, high, min(1.0, 2 * float(1 + beyond) / (1 + len(drawn))))
