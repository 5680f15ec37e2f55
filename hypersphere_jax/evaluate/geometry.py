"""Geometry of features: rank, projections, distances of positive pairs, classes.

All of it reads the rows in slices, with float64 sums on the host: `x` may be larger than memory, an
array or what gives arrays for slices, as a memory-mapped file does.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy
from scipy import special
from scipy.spatial.distance import cdist

from hypersphere_jax.configs import require
from hypersphere_jax.data.inputs import as_labels
from hypersphere_jax.evaluate.checks import row_blocks
from hypersphere_jax.evaluate.metrics import Estimate, alignment, mean_estimate

ENTRIES = 2**23  # numbers of a slice in float64: 64 MB
RANKS = 2**16  # quantiles whose mean squared difference is the Wasserstein distance
BINS, PAIR_BINS = 64, 50  # of the histograms of projections and of distances


class Rank(NamedTuple):
    """`singular_values` float64 `[min(n, d)]`, from the largest, each divided by sqrt(n)."""

    effective_rank: float
    participation_ratio: float
    singular_values: np.ndarray


class Projections(NamedTuple):
    """Of k directions; lengths are in units in which the uniform sphere has variance 1."""

    half_width: float  # of the histograms
    counts: np.ndarray  # [k, BINS]
    mean: np.ndarray  # [k], as all that follow
    variance: np.ndarray
    ks_sphere: np.ndarray  # Kolmogorov-Smirnov distances
    ks_normal: np.ndarray
    sliced_wasserstein: np.ndarray  # squared 2-Wasserstein distances from the uniform sphere


def effective_rank(x: Any) -> Rank:
    r"""In how many directions features `[n, d]` spread.

    .. math:: \exp(-\sum_i p_i \log p_i), \quad p_i = \sigma_i / \sum_j \sigma_j

    with the singular values of the features as they are, not centred (Roy & Vetterli 2007,
    Definition 1). The participation ratio is of the covariance: the squared sum of its eigenvalues
    over the sum of their squares; 0 when all points coincide. Both are d for the uniform sphere, in
    the limit of many points. Singular values below some 1e-7 of the largest are taken as zero.
    """
    n, d = x.shape
    slices = row_blocks(n, d, ENTRIES)
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


def sphere_marginal(d: int) -> Any:
    """The distribution of a projection of the uniform sphere of radius sqrt(d): a scaled beta."""
    return scipy.stats.beta((d - 1) / 2, (d - 1) / 2, loc=-math.sqrt(d), scale=2 * math.sqrt(d))


def projections(x: Any, count: int = 16, seed: int = 0) -> Projections:
    """Histograms of unit features along random orthonormal directions, beside the uniform sphere's.

    After Chen et al., Figure B.1. The scale is sqrt(d): there, points of the uniform sphere have
    variance 1, and nearly a normal distribution. Memory: `count n` numbers in float64.
    """
    n, d = x.shape
    require(d >= 2, f"projections need features of two dimensions or more, got {d}")
    rng, end, marginal = np.random.default_rng(seed), math.sqrt(d), sphere_marginal(d)
    directions = np.linalg.qr(rng.standard_normal((d, min(count, d))))[0] * end
    values = [np.asarray(x[rows], np.float64) @ directions for rows in row_blocks(n, d, ENTRIES)]
    # Norms may be a little more than 1.
    values = np.clip(np.sort(np.concatenate(values).T, axis=1), -end, end)
    ranks, fine = ((np.arange(m) + 0.5) / m for m in (n, RANKS))
    quantiles = marginal.ppf(fine)
    half_width = min(end, max(4.0, 1.01 * float(np.abs(values).max())))
    return Projections(
        half_width,
        np.stack([np.histogram(row, BINS, (-half_width, half_width))[0] for row in values]),
        values.mean(1),
        values.var(1),
        np.abs(marginal.cdf(values) - ranks).max(1) + 0.5 / n,
        np.abs(special.ndtr(values) - ranks).max(1) + 0.5 / n,
        np.mean((values[:, (fine * n).astype(int)] - quantiles) ** 2, axis=1),
    )


def pair_distances(x: Any, y: Any) -> tuple[Estimate, np.ndarray]:
    """Distances within positive pairs, unit features `[n, d]` (Wang & Isola, Figure 3, middle).

    Returns:
      The mean, and counts `[PAIR_BINS]` in equal bins from 0 to 2.
    """
    counts = np.zeros(PAIR_BINS, np.int64)
    for rows in row_blocks(*x.shape, ENTRIES):
        lengths = np.linalg.norm(np.asarray(x[rows], np.float64) - y[rows], axis=1)
        counts += np.histogram(np.minimum(lengths, 2), PAIR_BINS, (0, 2))[0]
    return alignment(x, y, alpha=1.0), counts


def class_rows(labels: Any, n: int, name: str = "labels") -> dict[Any, np.ndarray]:
    """The rows of each class, by its label, see `inputs.as_labels`.

    Raises:
      UserError: for labels that do not fit n rows, or no class of two points.
    """
    ids, classes = as_labels(labels, n, name)
    ends = np.cumsum(np.bincount(ids + 1, minlength=len(classes) + 1))
    parts = np.split(np.argsort(ids, kind="stable"), ends[:-1])[1:]  # the first are unlabelled
    require(max(map(len, parts), default=0) > 1, f"{name}: no class has two points")
    return dict(zip(classes, parts, strict=True))


def class_alignment(x: Any, groups: dict[Any, np.ndarray], alpha: float = 2.0) -> Estimate:
    """The mean of `|x_i - x_j|^alpha` over all pairs of features `[n, d]` of one class.

    `groups` are those of `class_rows`. The standard error is that of a ratio of U-statistics of
    independent labelled points, by the delta method.
    """
    sums, mates = np.zeros(len(x)), np.full(len(x), -1.0)  # of each point; -1: unlabelled
    for rows in groups.values():
        points = np.asarray(x[rows], np.float64)
        mates[rows] = len(rows) - 1
        if alpha == 2:
            squares = np.sum((points - points.mean(0)) ** 2, axis=1)
            sums[rows] = len(rows) * squares + squares.sum()
            continue
        for part in row_blocks(len(rows), len(rows), ENTRIES):
            powers = cdist(points[part], points, "sqeuclidean") ** (alpha / 2)
            sums[rows[part]] = powers.sum(axis=1)
    sums, mates = sums[mates >= 0], mates[mates >= 0]
    value = sums.sum() / mates.sum()
    return mean_estimate(value + 2 * (sums - value * mates) / mates.mean())


def class_mates(groups: dict[Any, np.ndarray], n: int, seed: int = 0) -> np.ndarray:
    """For each of n rows another one of its class, drawn uniformly, or -1: int64 `[n]`."""
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

    (The balanced paper, Eq. (51).) The mean over several draws of the augmentations `t_i`: pairs of
    features `[n, d]` of the images, and of others of their classes (see `class_mates`).
    """
    n, d = draws[0][0].shape
    lengths = np.zeros(n)
    for x, same_class in draws:
        for rows in row_blocks(n, d, ENTRIES):
            difference = np.asarray(x[rows], np.float64) - same_class[rows]
            lengths[rows] += np.linalg.norm(difference, axis=1) / len(draws)
    return mean_estimate(lengths)
