"""How the scores of encoders go with alignment and uniformity: rank correlations."""

from collections.abc import Sequence

import numpy as np
import scipy

from experiments.inference import Estimate
from experiments.predictions import COLUMN, right
from experiments.statistics import Rows, by, values

CURVE = np.linspace(0, 1, 13)  # shares of uniformity in the weighted sum of both metrics
EQUAL = 6  # the place of equal weights among them
FEWEST = 8  # encoders that are ranked: of fewer, percentiles are too narrow
DRAWS = 1000


def rank_correlations(
    rows: Rows, column: str, shares: np.ndarray = CURVE, half: int = 0, draws: int = DRAWS
) -> list[Estimate]:
    """`correlated` with sums of alignment and uniformity.

    The shares are the weights of L_uniform; those of L_align are the rest to 1.
    """
    weights = np.stack([1 - shares, shares])
    return correlated(rows, column, ("align", "uniform"), weights, half, draws)


def correlated(
    rows: Rows,
    column: str,
    others: Sequence[str],
    weights: np.ndarray,
    half: int = 0,
    draws: int = DRAWS,
) -> list[Estimate]:
    """Spearman's correlation of a score with weighted sums of other columns.

    An encoder's numbers are means over its seeds, the rows with the same `row`. The interval is
    that of the bootstrap, which draws encoders, seeds of each, and test samples, these for all
    encoders alike; where predictions were not kept, the first two. Drawing samples adds noise to
    scores that have some, so that the interval is rather too near to zero.

    Args:
      rows: that are done.
      column: of the score.
      others: the columns of the sums.
      weights: `[others, sums]`.
      half: 1 ranks the half of the encoders with the higher scores alone, -1 that with the lower
        ones, in each draw anew; 0 all.
      draws: of the bootstrap.

    Returns:
      One for each sum: the correlation, its 95% interval, and the p-value of the bootstrap.
    """
    groups = [*by(rows, "row").values()]
    ordered = [row for group in groups for row in group]
    sizes = np.array([len(group) for group in groups])
    first = np.cumsum(sizes) - sizes
    kept = all(column in row.get(COLUMN, {}) for row in ordered)
    one_each = np.array(values(ordered, column), float)[:, None]
    scores = (100 * right(ordered, column) if kept else one_each).astype(np.float32)
    sums = np.array([[row[name] for name in others] for row in ordered], float) @ weights
    places = np.arange(sizes.max())

    def correlations(encoders, seeds, samples):
        """Of encoders `[draws, m]`, rows of seeds `[draws, m, k]`, and counts `[draws, n]`."""
        usable = places < sizes[encoders][..., None]
        of_row = (scores @ samples.T).T.astype(float) / samples.sum(axis=1, keepdims=True)
        score = np.take_along_axis(of_row[:, None], seeds, axis=2).mean(axis=2, where=usable)
        score = score.round(9)  # equal means of seeds differ by rounding
        both = sums[seeds].mean(axis=2, where=usable[..., None])
        both = np.concatenate([both, score[..., None]], axis=2)
        if half:
            better = np.argsort(-half * score, axis=1, kind="stable")[:, : -(-len(groups) // 2)]
            both = np.take_along_axis(both, better[..., None], axis=1)
        ranks = scipy.stats.rankdata(both, axis=1)
        ranks -= ranks.mean(axis=1, keepdims=True)
        with np.errstate(invalid="ignore"):  # a draw may be of one encoder alone
            ranks /= np.sqrt(np.sum(ranks**2, axis=1, keepdims=True))
        return np.einsum("dmj,dm->dj", ranks[..., :-1], ranks[..., -1])

    random, n = np.random.default_rng(0), scores.shape[1]
    own = first[:, None] + np.minimum(places, sizes[:, None] - 1)
    (found,) = correlations(np.arange(len(groups))[None], own[None], np.ones((1, n), np.float32))
    encoders = random.integers(0, len(groups), (draws, len(groups)))
    seeds = random.random((*encoders.shape, len(places))) * sizes[encoders][..., None]
    seeds = first[encoders][..., None] + seeds.astype(int)
    samples = [np.bincount(random.integers(0, n, n), minlength=n) for _ in range(draws)]
    drawn = correlations(encoders, seeds, np.array(samples, np.float32))
    return [_estimate(value, of) for value, of in zip(found.tolist(), drawn.T, strict=True)]


def _estimate(value: float, drawn: np.ndarray) -> Estimate:
    """With the percentiles of the draws, and twice the share of them beyond zero."""
    drawn = drawn[~np.isnan(drawn)]
    if np.isnan(value) or not len(drawn):
        return Estimate(value, -1.0, 1.0, 1.0)
    low, high = np.percentile(drawn, (2.5, 97.5)).tolist()
    beyond = min(np.sum(drawn <= 0), np.sum(drawn >= 0))
    return Estimate(value, low, high, min(1.0, 2 * float(1 + beyond) / (1 + len(drawn))))
