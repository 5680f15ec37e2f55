"""Alignment and uniformity of whole data sets, with standard errors."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hypersphere_jax.configs import require
from hypersphere_jax.data.inputs import as_numpy
from hypersphere_jax.evaluation import geometry
from hypersphere_jax.evaluation.checks import check_matrix, check_unit_norm
from hypersphere_jax.evaluation.estimates import (
    UNKNOWN_ESTIMATE,
    Estimate,
    entries,
    jsonable,
    mean_estimate,
)
from hypersphere_jax.evaluation.rows import SelectedRows, row_blocks
from hypersphere_jax.losses._pairwise.options import Exclude, PairOptions
from hypersphere_jax.losses._pairwise.points import Points, make_points
from hypersphere_jax.losses._pairwise.sums import pair_logsumexp
from hypersphere_jax.losses.alignment_uniformity import distance_power
from hypersphere_jax.theory import uniformity_lower_bound, uniformity_optimum
from hypersphere_jax.training import distributed
from hypersphere_jax.utils.terminal import track

CHUNK_ROWS = 16384  # rows on a device at once

_distance_power = jax.jit(distance_power)


@distributed.isolated()
def measure(
    x: Any,
    y: Any = None,
    *,
    labels: Any = None,
    alpha: float = 2.0,
    t: float = 2.0,
    ignore_label: int = -1,
) -> dict[str, Any]:
    r"""Return alignment, uniformity and rank of features, with standard errors.

    Args:
      x: `[n, d]` features of unit norm, an array or a memory map, n >= 2.
      y: `[n, d]` features of the positives, in the order of `x`.
      labels: `[n]`, integers or strings, instead of y: alignment is then over all pairs of two
        points of one class.
      alpha: power of the distance in alignment, > 0.
      t: scale of the potential in uniformity, > 0.
      ignore_label: label of points without a class, which alignment leaves out.

    Returns:
      `align`, `uniform`, and each with `_standard_error`; `uniform_optimum`, the value of the
      uniform distribution in d dimensions, and `uniform_lower_bound`, the bound for n points
      (Wang & Isola, A.1.1); `effective_rank` (Roy & Vetterli 2007) and `participation_ratio`, both
      d for the uniform distribution; `n`, `d`, `align_alpha`, `uniform_t`. Unknown values are None,
      such as alignment without y and labels.

    Raises:
      UserError: for shapes that differ, features that are not of unit norm (see `l2_normalize`),
        y together with labels, or labels without two points of one class.

    >>> import numpy as np
    >>> corners = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> round(measure(corners)["effective_rank"], 4)
    2.0
    """
    require(y is None or labels is None, "y and labels both define positives; pass one of them")
    x = as_numpy(x)
    sides = {"x": x}
    if y is not None:
        sides["y"] = as_numpy(y)
    for name, side in sides.items():
        check_matrix(name, side)
        check_unit_norm(name, side)
    require(len(x) > 1, f"x has {len(x)} point; uniformity needs two")
    align = UNKNOWN_ESTIMATE
    if y is not None:
        align = alignment(x, sides["y"], alpha)
    elif labels is not None:
        groups = geometry.class_rows(labels, len(x), ignore_label=ignore_label)
        align = geometry.class_alignment(x, groups, alpha)
    rank = geometry.effective_rank(x)
    ranks = {name: getattr(rank, name) for name in ("effective_rank", "participation_ratio")}
    return summary(x, align, alpha, t) | ranks


def alignment(x: Any, y: Any, alpha: float = 2.0) -> Estimate:
    """Return the mean of `|x_i - y_i|^alpha` over pairs of rows: `align_loss` of a data set.

    Args:
      x: `[n, d]` features, an array or a memory map.
      y: `[n, d]` features of the positives.
      alpha: power of the distance.

    Raises:
      UserError: for shapes that differ, or no pairs.
    """
    return mean_estimate(distance_powers(x, y, alpha))


def distance_powers(x: Any, y: Any, alpha: float = 2.0) -> np.ndarray:
    """Return `|x_i - y_i|^alpha` of each pair, float64 `[n]`; see `alignment`."""
    require(x.shape == y.shape, f"pairs must have one shape, got {x.shape} and {y.shape}")
    require(len(x) > 0, "alignment needs at least one pair")
    powers = np.empty(len(x))
    for rows in row_blocks(len(x), 1, CHUNK_ROWS):
        sides = (np.asarray(side[rows], np.float32) for side in (x, y))
        powers[rows] = _distance_power(*sides, alpha)
    return powers


def uniformity(
    x: Any, t: float = 2.0, *, devices: Sequence[jax.Device] | None = None, chunk: int = CHUNK_ROWS
) -> Estimate:
    """Return the log of the mean Gaussian potential of all pairs: `uniform_loss` of a data set.

    Two chunks of rows at a time are on a device, and the host sums in float64. Time grows with n^2,
    memory with n.

    Args:
      x: `[n, d]` features, an array or a memory map, n >= 2.
      t: scale of the potential.
      devices: local devices, which share the pairs of chunks. Defaults to JAX's first.
      chunk: largest number of rows of a chunk.

    Returns:
      The value. Its standard error is that of a U-statistic (Hoeffding), and rough for fewer than
      about 20 points.

    Raises:
      UserError: for fewer than two points.
    """
    n = len(x)
    require(n >= 2, f"uniformity needs at least two points, got {n}")
    devices = distributed.local_devices(1, devices)
    size = -(-n // -(-n // chunk))
    chunks = row_blocks(n, 1, size)
    if len(chunks) == 1:
        size = _round_up(n)
    centre = sum(np.asarray(x[rows], np.float64).sum(axis=0) for rows in chunks) / n
    # Logarithms of the sums of each point's potentials, and of their squares.
    sums = np.full((2, len(chunks), size), -np.inf)
    pairs = list(itertools.combinations_with_replacement(range(len(chunks)), 2))
    pending: list[tuple] = []  # one pair of chunks on each device
    for number, pair in enumerate(track(pairs, "uniformity") if len(pairs) > 1 else pairs):
        if len(pending) == len(devices):
            _add_sums(sums, *pending.pop(0))
        sides = [_load_chunk(x, chunks[index], size, centre) for index in dict.fromkeys(pair)]
        sides = jax.device_put(sides, devices[number % len(devices)])
        pending.append((pair, _chunk_sums(np.float32(t), *sides)))
    for pair, parts in pending:
        _add_sums(sums, pair, parts)
    sums = sums.reshape(2, -1)
    return _u_statistic(sums[0, :n], sums[1, :n])


def uniformities(
    x: Any, groups: Sequence[np.ndarray], t: float = 2.0, **options: Any
) -> list[Estimate]:
    """Return the uniformity of each group of rows, such as a class; NaN for a single point."""
    estimates = [UNKNOWN_ESTIMATE] * len(groups)
    for index, rows in enumerate(groups):
        if len(rows) > 1:
            estimates[index] = uniformity(SelectedRows(x, rows), t, **options)
    return estimates


def summary(
    x: Any,
    align: Estimate,
    alpha: float = 2.0,
    t: float = 2.0,
    devices: Sequence[jax.Device] | None = None,
) -> dict[str, Any]:
    """Return an alignment, the uniformity of unit features `[n, d]`, and its optimal values."""
    n, d = x.shape
    bounds = {
        "uniform_t": t,
        "uniform_optimum": uniformity_optimum(d, t),
        "uniform_lower_bound": uniformity_lower_bound(d, t, n),
    }
    aligned = entries("align", align) | {"align_alpha": alpha}
    uniform = entries("uniform", uniformity(x, t, devices=devices))
    return jsonable(aligned | uniform | bounds | {"d": d, "n": n})


def _round_up(n: int) -> int:
    """Round to three binary digits after the first, so that few sizes are compiled."""
    step = 2 ** max(3, n.bit_length() - 4)
    return -(-n // step) * step


def _load_chunk(x: Any, rows: slice, size: int, centre: np.ndarray) -> np.ndarray:
    """Return points `[size, d + 1]` around the centre; the last column is 1 for a point, else 0."""
    points = np.asarray(x[rows], np.float64) - centre
    padded = np.zeros((size, points.shape[1] + 1), np.float32)
    padded[: len(points), :-1] = points
    padded[: len(points), -1] = 1
    return padded


def _add_sums(sums: np.ndarray, pair: tuple[int, int], parts: Sequence[jax.Array]) -> None:
    for index, part in zip(dict.fromkeys(pair), parts, strict=True):
        sums[:, index] = np.logaddexp(sums[:, index], np.asarray(part))


@jax.jit
def _chunk_sums(t: jax.Array, *chunks: jax.Array) -> list[jax.Array]:
    """Return log-sums of the potentials and of their squares `[2, size]`, for each chunk's points.

    The potentials are those within a chunk, or between two chunks.
    """
    points = [_points(chunk) for chunk in chunks]
    scales = (2 * t, 4 * t)
    if len(points) == 1:
        sums = [pair_logsumexp(*points, None, PairOptions(), s, Exclude.SELF)[:1] for s in scales]
    else:
        sums = [pair_logsumexp(*points, PairOptions(), s) for s in scales]
    return [jnp.stack(pair) for pair in zip(*sums, strict=True)]


def _points(chunk: jax.Array) -> Points:
    return make_points(chunk[:, :-1], chunk[:, -1] > 0)


def _u_statistic(sums: np.ndarray, squares: np.ndarray) -> Estimate:
    """Return the log of the mean potential, from log-sums over each point `[n]`.

    With potentials `theta + g_i + g_j + h_ij` of uncorrelated terms, the variance of their mean is
    `(2 v + 4 (n - 2) var(g)) / (n (n - 1))`, where v is the variance of all potentials. The
    variance of the points' mean potentials is a sum of v and var(g), too, which gives var(g).
    """
    n = len(sums)
    value = np.logaddexp.reduce(sums) - math.log(n * (n - 1))
    if n < 5:
        return Estimate(float(value), math.nan)
    of_means = np.var(np.exp(sums - math.log(n - 1) - value), ddof=1)
    of_all = math.expm1(np.logaddexp.reduce(squares) - math.log(n * (n - 1)) - 2 * value)
    of_points = (of_means * (n - 1) ** 2 / (n - 2) - of_all) / (n - 4)
    # Potentials that differ by less than float32's rounding are equal.
    if of_all < 2e-6:
        return Estimate(float(value), 0.0)
    # var(g) is zero for uniform points, and its estimate may be negative. The variance is at least
    # 2 v. Bounded by 2 v, the error would be too large by a tenth on average for such points;
    # bounded by v, it is right within a few hundredths.
    variance = max(2 * of_all + 4 * (n - 2) * of_points, of_all) / (n * (n - 1))
    return Estimate(float(value), math.sqrt(variance))
