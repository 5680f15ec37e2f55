"""The shape of a cloud of features: its rank, its projections, its positive pairs and its classes.

All of it goes over the rows in slices, with float64 sums on the host, so features may be larger
than memory. `x` is an array, or what gives arrays for slices (and, of classes, for numbers of
rows), as a memory-mapped file does.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from hypersphere_jax.config import require
from hypersphere_jax.evaluate.metrics import Estimate, alignment, row_slices, uniformities

# Numbers of a slice in float64: 64 MB.
ENTRIES = 2**23
# Bins that the distribution of a projection is counted in, between the ends of the sphere; fine
# enough that distances between distributions are right to 0.001 in 4,096 dimensions.
FINE_BINS = 2**16
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


class PairDistances(NamedTuple):
    """Distances within positive pairs: `counts` `[PAIR_BINS]` are of equal bins from 0 to 2."""

    mean: Estimate
    counts: np.ndarray


class ByClass(NamedTuple):
    """Uniformity of each class's own points; NaN where a class has one point only.

    `mean` is over those classes that have more, each with the same weight.
    """

    labels: list[int]
    sizes: list[int]
    uniform: list[Estimate]
    mean: float


def effective_rank(x: Any) -> Rank:
    r"""In how many directions the features spread.

    .. math:: \exp(-\sum_i p_i \log p_i), \quad p_i = \sigma_i / \sum_j \sigma_j

    with the singular values of the features as they are, not centred (Roy & Vetterli 2007,
    Definition 1, of the matrix `x`). The participation ratio is of the covariance, so of centred
    features: the squared sum of its eigenvalues over the sum of their squares; 0 when all points
    are the same. Both are d for the uniform sphere, up to what a finite sample takes away.

    Singular values come from a matrix of products, so those below some 1e-7 of the largest are
    taken as zero. Memory: `min(n, d) d` numbers in float64.

    Args:
      x: `[n, d]` features, not all zero.
    """
    n, d = x.shape
    slices = row_slices(n, max(1, ENTRIES // d))
    centre = sum(np.asarray(x[rows], np.float64).sum(0) for rows in slices) / n
    if n > d:
        covariance = np.zeros((d, d))
        for rows in slices:
            part = np.asarray(x[rows], np.float64) - centre
            covariance += part.T @ part
        covariance /= n
        products = covariance + np.outer(centre, centre)
    else:
        points = np.asarray(x[:], np.float64)
        products = points @ points.T / n
        points -= centre
        covariance = points @ points.T / n
    squares = np.linalg.eigvalsh(products)[::-1]
    largest = squares[0]
    require(largest > 0, "all features are zero: they have no rank")
    rounding = len(squares) * np.finfo(np.float64).eps * largest
    values = np.sqrt(np.where(squares > rounding, squares, 0))
    shares = values[values > 0] / values.sum()
    trace, of_squares = np.trace(covariance), (covariance**2).sum()
    spread = trace > rounding
    return Rank(
        math.exp(-(shares * np.log(shares)).sum()),
        float(trace**2 / of_squares) if spread else 0.0,
        values,
    )


def projections(x: Any, count: int = 16, seed: int = 0) -> Projections:
    """Histograms of the features along random orthonormal directions, beside the uniform sphere's.

    After Chen et al., Figure B.1, where features that match a normal or a uniform prior look
    Gaussian along any direction. The scale is sqrt(d). There, points of the uniform sphere have
    variance 1, and nearly a normal distribution; the exact one is `sphere_marginal`.

    Args:
      x: `[n, d]` unit features, d of 2 or more.
      count: directions; of fewer dimensions, as many as there are.
      seed: of the directions.
    """
    n, d = x.shape
    require(d >= 2, f"projections need features of two dimensions or more, got {d}")
    rng = np.random.default_rng(seed)
    directions = np.linalg.qr(rng.standard_normal((d, min(count, d))))[0] * math.sqrt(d)
    k, end = directions.shape[1], math.sqrt(d)
    edges = np.linspace(-end, end, FINE_BINS + 1)
    fine = np.zeros((k, FINE_BINS), np.int64)
    sums, squares = np.zeros(k), np.zeros(k)
    for rows in row_slices(n, max(1, ENTRIES // d)):
        found = np.asarray(x[rows], np.float64) @ directions
        sums += found.sum(0)
        squares += (found**2).sum(0)
        bins = np.floor((found + end) * (FINE_BINS / (2 * end))).astype(np.int64)
        # Norms may be a little more than 1.
        bins = np.clip(bins, 0, FINE_BINS - 1) + FINE_BINS * np.arange(k)
        fine += np.bincount(bins.ravel(), minlength=k * FINE_BINS).reshape(k, FINE_BINS)
    mean = sums / n
    # With what lies below each edge.
    below = np.hstack([np.zeros((k, 1)), np.cumsum(fine, 1) / n])
    sphere = sphere_marginal(edges, d)
    normal = np.array([math.erfc(-edge / math.sqrt(2)) / 2 for edge in edges])
    ranks = (np.arange(FINE_BINS) + 0.5) / FINE_BINS
    expected = np.interp(ranks, sphere, edges)
    distances = [np.mean((np.interp(ranks, part, edges) - expected) ** 2) for part in below]
    half_width, counts = _coarse(fine, edges)
    return Projections(
        half_width,
        counts,
        mean,
        squares / n - mean**2,
        np.abs(below - sphere).max(1),
        np.abs(below - normal).max(1),
        np.array(distances),
    )


def sphere_marginal(edges: np.ndarray, d: int) -> np.ndarray:
    """How much of the uniform sphere's projection lies below each edge.

    The density along any direction, in units of `1 / sqrt(d)`, is proportional to
    `(1 - s^2 / d)^((d - 3) / 2)`: of the angle to the equator, to `cos^(d - 2)`, which is smooth.

    Args:
      edges: `[m]`, rising from `-sqrt(d)` to `sqrt(d)`, close to each other.
      d: 2 or more.
    """
    angles = np.arcsin(np.clip(edges / math.sqrt(d), -1, 1))
    nodes, weights = np.polynomial.legendre.leggauss(4)
    half = np.diff(angles)[:, None] / 2
    inside = angles[:-1, None] + half * (1 + nodes)
    parts = (half * weights * np.cos(inside) ** (d - 2)).sum(1)
    return np.concatenate([[0], np.cumsum(parts) / parts.sum()])


def sphere_marginal_density(s: np.ndarray, d: int) -> np.ndarray:
    """The density of which `sphere_marginal` is the integral, at `|s| < sqrt(d)`."""
    log_scale = math.lgamma(d / 2) - math.lgamma((d - 1) / 2) - math.log(math.pi * d) / 2
    return np.exp(log_scale + (d - 3) / 2 * np.log1p(-(s**2) / d))


def pair_distances(x: Any, y: Any) -> PairDistances:
    """Distances within positive pairs: Wang & Isola, Figure 3, middle.

    Args:
      x: `[n, d]` unit features.
      y: `[n, d]` unit features of the positives.

    Raises:
      UserError: as `metrics.alignment`.
    """
    mean = alignment(x, y, alpha=1.0)
    counts = np.zeros(PAIR_BINS, np.int64)
    for rows in row_slices(len(x), max(1, ENTRIES // x.shape[1])):
        lengths = np.linalg.norm(np.asarray(x[rows], np.float64) - y[rows], axis=1)
        counts += np.histogram(np.minimum(lengths, 2), PAIR_BINS, (0, 2))[0]
    return PairDistances(mean, counts)


def class_rows(labels: np.ndarray, n: int, name: str = "labels") -> dict[int, np.ndarray]:
    """The rows of each class, by its label; those of no class (a label below zero) are left out.

    Raises:
      UserError: for labels that do not fit n rows, one class, or no class of two points.
    """
    require(
        labels.shape == (n,), f"{name}: expected {n} labels, one a row, got shape {labels.shape}"
    )
    kind = labels.dtype
    require(np.issubdtype(kind, np.integer), f"{name}: expected integers, got {kind}")
    order = np.argsort(labels, kind="stable")
    known, starts = np.unique(labels[order], return_index=True)
    groups = dict(zip(known.tolist(), np.split(order, starts[1:]), strict=True))
    groups = {label: rows for label, rows in groups.items() if label >= 0}
    found = f"all points are of one class ({min(groups)})" if groups else "no point has a label"
    require(len(groups) >= 2, f"{name}: {found}, and there must be two classes at least")
    largest = max(map(len, groups.values()))
    require(largest >= 2, f"{name}: each of the {len(groups)} classes has one point only")
    return groups


def uniformity_by_class(
    x: Any,
    groups: dict[int, np.ndarray],
    t: float = 2.0,
    devices: Sequence[jax.Device] | None = None,
) -> ByClass:
    """Uniformity of each class's own points: how far a class is spread, or drawn together.

    Args:
      x: `[n, d]` features.
      groups: the rows of each class, from `class_rows`.
      t: scale of the Gaussian potential.
      devices: to compute on; None: one.
    """
    found = uniformities(x, list(groups.values()), t, devices=devices)
    mean = np.mean([estimate.value for estimate in found if not math.isnan(estimate.value)])
    return ByClass(list(groups), [len(rows) for rows in groups.values()], found, float(mean))


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
        for rows in row_slices(n, max(1, ENTRIES // d)):
            difference = np.asarray(x[rows], np.float64) - same_class[rows]
            lengths[rows] += np.linalg.norm(difference, axis=1) / len(draws)
    error = lengths.std(ddof=1) / math.sqrt(n) if n > 1 else math.nan
    return Estimate(float(lengths.mean()), float(error))


def _coarse(fine: np.ndarray, edges: np.ndarray) -> tuple[float, np.ndarray]:
    """The counts for a picture: of bins that reach over all points, and 4 at the least."""
    centres = (edges[:-1] + edges[1:]) / 2
    reach = np.abs(centres[fine.any(0)]).max()
    half_width = min(edges[-1], max(4.0, 1.01 * reach))
    bins = np.floor((centres + half_width) * (BINS / (2 * half_width))).astype(int)
    shown = (bins >= 0) & (bins < BINS)
    counts = [np.bincount(bins[shown], row[shown], BINS) for row in fine]
    return float(half_width), np.array(counts).astype(np.int64)
