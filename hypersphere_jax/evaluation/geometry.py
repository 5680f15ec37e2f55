"""Geometry of features: rank, projections, distances of positive pairs, classes.

Features `[n, d]` are arrays or memory maps, read in blocks of rows; sums are float64 on the host.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy
from scipy import special
from scipy.spatial.distance import cdist

from hypersphere_jax.configs import require
from hypersphere_jax.data.inputs import as_labels
from hypersphere_jax.evaluation.checks import row_blocks
from hypersphere_jax.evaluation.estimates import Estimate, mean_estimate

FLOAT64_ENTRIES = 2**23  # numbers in a block: 64 MB
QUANTILES = 2**16  # quantiles whose mean squared difference is the Wasserstein distance
PROJECTION_BINS = 64


class Rank(NamedTuple):
    """Numbers of directions in which features spread."""

    effective_rank: float
    participation_ratio: float
    singular_values: np.ndarray  # float64 [min(n, d)], descending, divided by sqrt(n)


class Projections(NamedTuple):
    """Projections on k directions, scaled so that the uniform sphere has variance 1."""

    half_width: float  # histograms go from -half_width to half_width
    counts: np.ndarray  # [k, PROJECTION_BINS]
    mean: np.ndarray  # [k]
    variance: np.ndarray  # [k]
    ks_sphere: np.ndarray  # [k] Kolmogorov-Smirnov distances from the uniform sphere
    ks_normal: np.ndarray  # [k] Kolmogorov-Smirnov distances from the normal distribution
    sliced_wasserstein: np.ndarray  # [k] squared 2-Wasserstein distances from the uniform sphere


def float64_blocks(x: Any) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield blocks of the rows of features `[n, d]`, and their positions."""
    for rows in row_blocks(*x.shape, FLOAT64_ENTRIES):
        yield rows, np.asarray(x[rows], np.float64)


def mean_point(x: Any) -> np.ndarray:
    """Return the mean of features `[n, d]`, float64 `[d]`."""
    return sum(block.sum(axis=0) for _, block in float64_blocks(x)) / len(x)


def distances(x: Any, y: Any) -> np.ndarray:
    """Return the distances of rows of features `[n, d]`, float64 `[n]`.

    Raises:
      UserError: for shapes that differ, or no rows.
    """
    require(x.shape == y.shape, f"pairs must have one shape, got {x.shape} and {y.shape}")
    require(len(x) > 0, "pairs: there are none")
    return np.concatenate(
        [np.linalg.norm(block - y[rows], axis=1) for rows, block in float64_blocks(x)]
    )


def effective_rank(x: Any) -> Rank:
    r"""Return the effective rank and the participation ratio of features `[n, d]`.

    .. math:: \exp(-\sum_i p_i \log p_i), \quad p_i = \sigma_i / \sum_j \sigma_j

    with the singular values of the features, not centred (Roy & Vetterli 2007, Definition 1). The
    participation ratio is the squared sum of the eigenvalues of the covariance over the sum of
    their squares, and 0 if all points coincide. Both are d for the uniform sphere in the limit of
    many points. Singular values below about 1e-7 of the largest count as zero.

    Raises:
      UserError: if all features are zero.
    """
    n, d = x.shape
    centre = mean_point(x)
    if n > d:
        covariance = np.zeros((d, d))
        for _, block in float64_blocks(x):
            centred = block - centre
            covariance += centred.T @ centred / n
        moments = covariance + np.outer(centre, centre)
    else:
        points = np.asarray(x[:], np.float64)
        moments = points @ points.T / n
        centred = points - centre
        covariance = centred @ centred.T / n
    squares = np.linalg.eigvalsh(moments)[::-1]
    require(squares[0] > 0, "all features are zero, so they have no rank")
    rounding = len(squares) * np.finfo(np.float64).eps * squares[0]
    values = np.sqrt(np.where(squares > rounding, squares, 0))
    shares = values[values > 0] / values.sum()
    trace = np.trace(covariance)
    ratio = 0.0
    if trace > rounding:
        ratio = float(trace**2 / (covariance**2).sum())
    return Rank(math.exp(-(shares * np.log(shares)).sum()), ratio, values)


def sphere_marginal(d: int) -> Any:
    """Return the distribution of a projection of the uniform sphere of radius sqrt(d)."""
    shape = (d - 1) / 2
    return scipy.stats.beta(shape, shape, loc=-math.sqrt(d), scale=2 * math.sqrt(d))


def projections(x: Any, count: int = 16, seed: int = 0) -> Projections:
    """Return statistics of unit features along random orthonormal directions (Chen et al., B.1).

    Args:
      x: `[n, d]` features, d >= 2. They are multiplied by sqrt(d), so that points of the uniform
        sphere have variance 1 and nearly a normal distribution.
      count: number of directions, at most d. Memory is `count n` numbers in float64.
      seed: seed of the directions.

    Raises:
      UserError: for features of one dimension.
    """
    n, d = x.shape
    require(d >= 2, f"projections need features of two dimensions or more, got {d}")
    radius = math.sqrt(d)
    gaussian = np.random.default_rng(seed).standard_normal((d, min(count, d)))
    directions = np.linalg.qr(gaussian)[0] * radius
    values = np.concatenate([block @ directions for _, block in float64_blocks(x)])
    values = np.clip(np.sort(values.T, axis=1), -radius, radius)  # norms may exceed 1 by rounding
    marginal = sphere_marginal(d)
    ranks = (np.arange(n) + 0.5) / n
    quantiles = (np.arange(QUANTILES) + 0.5) / QUANTILES
    differences = values[:, (quantiles * n).astype(int)] - marginal.ppf(quantiles)
    half_width = min(radius, max(4.0, 1.01 * float(np.abs(values).max())))
    bounds = (-half_width, half_width)
    return Projections(
        half_width=half_width,
        counts=np.stack([np.histogram(row, PROJECTION_BINS, bounds)[0] for row in values]),
        mean=values.mean(axis=1),
        variance=values.var(axis=1),
        ks_sphere=np.abs(marginal.cdf(values) - ranks).max(axis=1) + 0.5 / n,
        ks_normal=np.abs(special.ndtr(values) - ranks).max(axis=1) + 0.5 / n,
        sliced_wasserstein=np.mean(differences**2, axis=1),
    )


def class_rows(labels: Any, n: int, ignore_label: int = -1) -> dict[Any, np.ndarray]:
    """Return the rows of each class of labels `[n]`; -1 and `ignore_label` mark other rows.

    Raises:
      UserError: for labels that do not fit n rows, or no class with two points.
    """
    ids, classes = as_labels(labels, n, "labels")
    order = np.argsort(ids, kind="stable")
    starts = np.searchsorted(ids[order], range(len(classes) + 1))
    groups = np.split(order, starts)[1:-1]  # the first group is unlabelled
    rows = dict(zip(classes, groups, strict=True))
    rows.pop(ignore_label, None)
    has_pair = any(len(group) > 1 for group in rows.values())
    require(has_pair, "labels: no class has two points")
    return rows


def class_alignment(x: Any, groups: dict[Any, np.ndarray], alpha: float = 2.0) -> Estimate:
    """Return the mean of `|x_i - x_j|^alpha` over all pairs of one class.

    Args:
      x: `[n, d]` features.
      groups: rows of each class, see `class_rows`.
      alpha: power of the distance.

    Returns:
      The mean, with the standard error of a ratio of U-statistics of independent labelled points,
      by the delta method.
    """
    sums = np.zeros(len(x))
    mates = np.full(len(x), -1.0)  # number of other points of the class; -1 without a class
    for rows in groups.values():
        points = np.asarray(x[rows], np.float64)
        mates[rows] = len(rows) - 1
        if alpha == 2:
            squares = np.sum((points - points.mean(axis=0)) ** 2, axis=1)
            sums[rows] = len(rows) * squares + squares.sum()
            continue
        for block in row_blocks(len(rows), len(rows), FLOAT64_ENTRIES):
            powers = cdist(points[block], points, "sqeuclidean") ** (alpha / 2)
            sums[rows[block]] = powers.sum(axis=1)
    sums = sums[mates >= 0]
    mates = mates[mates >= 0]
    value = sums.sum() / mates.sum()
    return mean_estimate(value + 2 * (sums - value * mates) / mates.mean())


def class_mates(groups: dict[Any, np.ndarray], n: int, seed: int = 0) -> np.ndarray:
    """Return another row of its class for each of n rows, drawn uniformly, or -1: int64 `[n]`."""
    rng = np.random.default_rng([seed, 1])  # not the stream of the directions
    mates = np.full(n, -1)
    for rows in groups.values():
        if len(rows) > 1:
            steps = rng.integers(1, len(rows), len(rows))
            mates[rows] = rows[(np.arange(len(rows)) + steps) % len(rows)]
    return mates


def mean_prototype_bias(draws: Sequence[tuple[Any, Any]]) -> Estimate:
    r"""Return the mean distance between features of an image and of another image of its class.

    .. math:: \frac{1}{n} \sum_i \|f(t_i(x'_i)) - f(t_i(x_i))\|

    (The balanced paper, Eq. (51); see `theory.prototype_bias`.)

    Args:
      draws: for each draw of the augmentations `t_i`, features `[n, d]` of the images and of other
        images of their classes, see `class_mates`.
    """
    return mean_estimate(np.mean([distances(*draw) for draw in draws], axis=0))
