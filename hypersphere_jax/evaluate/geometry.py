"""The shape of a cloud of features: its rank, its projections, its positive pairs and its classes.

All of it goes over the rows in slices, with float64 sums on the host, so features may be larger
than memory. `x` is an array, or what gives arrays for slices, as a memory-mapped file does.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from hypersphere_jax.config import require
from hypersphere_jax.evaluate.metrics import Estimate, alignment, mean_estimate, row_slices

# Numbers of a slice in float64: 64 MB.
ENTRIES = 2**23
# Quantiles whose mean squared difference is the Wasserstein distance.
RANKS = 2**16
# Bins of what is drawn.
BINS = 64
PAIR_BINS = 50


class Rank(NamedTuple):
    """`singular_values` float64 `[min(n, d)]`, from the largest, each divided by sqrt(n)."""

    effective_rank: float
    participation_ratio: float
    singular_values: np.ndarray


class Projections(NamedTuple):
    """Of k directions; lengths are in units in which the uniform sphere has variance 1.

    `counts` `[k, BINS]` are those of equal bins from `-half_width` to `half_width`; `ks_sphere` and
    `ks_normal` `[k]` the Kolmogorov-Smirnov distances; `sliced_wasserstein` `[k]` the squared
    2-Wasserstein distances from the uniform sphere.
    """

    half_width: float
    counts: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    ks_sphere: np.ndarray
    ks_normal: np.ndarray
    sliced_wasserstein: np.ndarray


def effective_rank(x: Any) -> Rank:
    r"""In how many directions the features spread.

    .. math:: \exp(-\sum_i p_i \log p_i), \quad p_i = \sigma_i / \sum_j \sigma_j

    with the singular values of the features as they are, not centred (Roy & Vetterli 2007,
    Definition 1, of the matrix `x`). The participation ratio is of the covariance, so of centred
    features: the squared sum of its eigenvalues over the sum of their squares; 0 when all points
    are the same. Both are d for the uniform sphere, in the limit of many points.

    Singular values come from a matrix of products, so those below some 1e-7 of the largest are
    taken as zero. Memory: `min(n, d) d` numbers in float64.

    Args:
      x: `[n, d]` features, not all zero.
    """
    n, d = x.shape
    slices = _slices(n, d)
    centre = sum(np.asarray(x[rows], np.float64).sum(0) for rows in slices) / n
    if n > d:
        covariance = np.zeros((d, d))
        for rows in slices:
            part = np.asarray(x[rows], np.float64) - centre
            covariance += part.T @ part / n
        products = covariance + np.outer(centre, centre)
    else:
        points = np.asarray(x[:], np.float64)
        products = points @ points.T / n
        points -= centre
        covariance = points @ points.T / n
    squares = np.linalg.eigvalsh(products)[::-1]
    require(squares[0] > 0, "all features are zero: they have no rank")
    rounding = len(squares) * np.finfo(np.float64).eps * squares[0]
    values = np.sqrt(np.where(squares > rounding, squares, 0))
    shares = values[values > 0] / values.sum()
    trace = np.trace(covariance)
    return Rank(
        math.exp(-(shares * np.log(shares)).sum()),
        float(trace**2 / (covariance**2).sum()) if trace > rounding else 0.0,
        values,
    )


def projections(x: Any, count: int = 16, seed: int = 0) -> Projections:
    """Histograms of the features along random orthonormal directions, beside the uniform sphere's.

    After Chen et al., Figure B.1, where features that match a normal or a uniform prior look
    Gaussian along any direction. The scale is sqrt(d). There, points of the uniform sphere have
    variance 1, and nearly a normal distribution. Memory: `count n` numbers in float64.

    Args:
      x: `[n, d]` unit features, d of 2 or more.
      count: directions; of fewer dimensions, as many as there are.
      seed: of the directions.
    """
    n, d = x.shape
    require(d >= 2, f"projections need features of two dimensions or more, got {d}")
    rng, end, half = np.random.default_rng(seed), math.sqrt(d), (d - 1) / 2
    directions = np.linalg.qr(rng.standard_normal((d, min(count, d))))[0] * end
    values = [np.asarray(x[rows], np.float64) @ directions for rows in _slices(n, d)]
    # Norms may be a little more than 1.
    values = np.clip(np.sort(np.concatenate(values).T, axis=1), -end, end)
    ranks, fine = ((np.arange(m) + 0.5) / m for m in (n, RANKS))
    # In `(s / sqrt(d) + 1) / 2`, the sphere's projection s has a beta distribution.
    below = special.betainc(half, half, (values / end + 1) / 2)
    quantiles = end * (2 * special.betaincinv(half, half, fine) - 1)
    half_width = min(end, max(4.0, 1.01 * float(np.abs(values).max())))
    return Projections(
        half_width,
        np.stack([np.histogram(row, BINS, (-half_width, half_width))[0] for row in values]),
        values.mean(1),
        values.var(1),
        np.abs(below - ranks).max(1) + 0.5 / n,
        np.abs(special.ndtr(values) - ranks).max(1) + 0.5 / n,
        np.mean((values[:, (fine * n).astype(int)] - quantiles) ** 2, axis=1),
    )


def sphere_marginal_density(s: np.ndarray, d: int) -> np.ndarray:
    """The density of a projection of the uniform sphere of radius sqrt(d), at `|s| < sqrt(d)`.

    It is proportional to `(1 - s^2 / d)^((d - 3) / 2)`.
    """
    log_scale = math.lgamma(d / 2) - math.lgamma((d - 1) / 2) - math.log(math.pi * d) / 2
    return np.exp(log_scale + (d - 3) / 2 * np.log1p(-(s**2) / d))


def pair_distances(x: Any, y: Any) -> tuple[Estimate, np.ndarray]:
    """Distances within positive pairs: Wang & Isola, Figure 3, middle.

    Args:
      x: `[n, d]` unit features.
      y: `[n, d]` unit features of the positives.

    Returns:
      The mean, and counts `[PAIR_BINS]` in equal bins from 0 to 2.

    Raises:
      UserError: as `metrics.alignment`.
    """
    counts = np.zeros(PAIR_BINS, np.int64)
    for rows in _slices(*x.shape):
        lengths = np.linalg.norm(np.asarray(x[rows], np.float64) - y[rows], axis=1)
        counts += np.histogram(np.minimum(lengths, 2), PAIR_BINS, (0, 2))[0]
    return alignment(x, y, alpha=1.0), counts


def class_rows(labels: np.ndarray, n: int, name: str = "labels") -> dict[int, np.ndarray]:
    """The rows of each class, by its label; those of no class (a label below zero) are left out.

    Raises:
      UserError: for labels that do not fit n rows, one class, or no class of two points.
    """
    shape, kind = labels.shape, labels.dtype
    require(shape == (n,), f"{name}: expected {n} labels, one a row, got shape {shape}")
    require(np.issubdtype(kind, np.integer), f"{name}: expected integers, got {kind}")
    order = np.argsort(labels, kind="stable")
    known, starts = np.unique(labels[order], return_index=True)
    groups = dict(zip(known.tolist(), np.split(order, starts[1:]), strict=True))
    groups = {label: rows for label, rows in groups.items() if label >= 0}
    require(len(groups) >= 2, f"{name}: two classes are needed, and there are {len(groups)}")
    largest = max(map(len, groups.values()))
    require(largest >= 2, f"{name}: each of the {len(groups)} classes has one point only")
    return groups


def class_mates(groups: dict[int, np.ndarray], n: int, seed: int = 0) -> np.ndarray:
    """For each of n rows another one of its class, drawn uniformly: int64 `[n]`.

    Rows of no class, and those that are alone in theirs, get -1.
    """
    rng = np.random.default_rng([seed, 1])  # another stream than that of the directions
    mates = np.full(n, -1)
    for rows in groups.values():
        if len(rows) > 1:
            steps = rng.integers(1, len(rows), len(rows))
            mates[rows] = rows[(np.arange(len(rows)) + steps) % len(rows)]
    return mates


def prototype_bias(draws: Sequence[tuple[Any, Any]]) -> Estimate:
    r"""How far a feature lies from that of another image of its class: `theory.prototype_bias`.

    .. math:: \frac{1}{n} \sum_i \|f(t_i(x'_i)) - f(t_i(x_i))\|

    (The balanced paper, Eq. (51).) Of several draws of the augmentations `t_i`, the mean.

    Args:
      draws: for each draw, `[n, d]` features of the images and, row by row under the same
        augmentation, of other random images of their classes (see `class_mates`).
    """
    n, d = draws[0][0].shape
    lengths = np.zeros(n)
    for x, same_class in draws:
        for rows in _slices(n, d):
            difference = np.asarray(x[rows], np.float64) - same_class[rows]
            lengths[rows] += np.linalg.norm(difference, axis=1) / len(draws)
    return mean_estimate(lengths)


def _slices(n: int, d: int) -> list[slice]:
    return row_slices(n, max(1, ENTRIES // d))
