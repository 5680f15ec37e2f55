"""Alignment and uniformity of whole data sets, with their standard errors."""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hypersphere_jax.configs import require
from hypersphere_jax.evaluate.checks import row_blocks
from hypersphere_jax.losses._pairwise.options import Exclude, PairOptions
from hypersphere_jax.losses._pairwise.points import Points, make_points
from hypersphere_jax.losses._pairwise.sums import pair_logsumexp
from hypersphere_jax.losses.alignment_uniformity import distance_power
from hypersphere_jax.theory import uniformity_lower_bound, uniformity_optimum
from hypersphere_jax.training import distributed
from hypersphere_jax.utils.terminal import track

# Rows that are on a device at once: features themselves may be larger than any memory.
CHUNK = 16384

_distance_power = jax.jit(distance_power)
_mapped = functools.cache(distributed.pmap)  # inputs of one shape share a compiled program


class Estimate(NamedTuple):
    """A value and the standard error that comes of the sample's size; NaN where n is too small."""

    value: float
    standard_error: float


UNKNOWN = Estimate(math.nan, math.nan)


class SelectedRows:
    """Some rows of features, read when they are asked for by a slice."""

    def __init__(self, x: Any, indices: np.ndarray):
        self._x, self._indices = x, indices
        self.shape = (len(indices), x.shape[1])

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self._x[self._indices[rows]]


def alignment(x: Any, y: Any, alpha: float = 2.0) -> Estimate:
    """The mean of `|x_i - y_i|^alpha` over pairs of rows `[n, d]`: `align_loss` of a data set.

    Features are arrays, or what gives arrays for slices, as a memory-mapped file does. UserError
    for shapes that differ or no pairs.
    """
    return mean_estimate(distance_powers(x, y, alpha))


def mean_estimate(values: np.ndarray) -> Estimate:
    """The mean of independent values."""
    n = len(values)
    error = values.std(ddof=1) / math.sqrt(n) if n > 1 else math.nan
    return Estimate(float(values.mean()), float(error))


def distance_powers(x: Any, y: Any, alpha: float = 2.0) -> np.ndarray:
    """`|x_i - y_i|^alpha` of each pair, float64 `[n]`: what `alignment` takes the mean of."""
    require(x.shape == y.shape, f"pairs must have one shape, got {x.shape} and {y.shape}")
    require(len(x) > 0, "alignment needs at least one pair")
    powers = np.empty(len(x))
    for rows in row_blocks(len(x), 1, CHUNK):
        sides = (np.asarray(side[rows], np.float32) for side in (x, y))
        powers[rows] = _distance_power(*sides, alpha)
    return powers


def uniformity(
    x: Any, t: float = 2.0, *, devices: Sequence[jax.Device] | None = None, chunk: int = CHUNK
) -> Estimate:
    """The log of the mean Gaussian potential of all pairs of points: `uniform_loss` of a data set.

    Two chunks of rows at a time are on a device, and sums are kept in float64 on the host: time
    grows with n^2, memory with n. The standard error is that of a U-statistic (Hoeffding); with
    fewer than some 20 points it is rough.

    Args:
      x: `[n, d]` features, as for `alignment`; n of 2 or more.
      t: scale of the potential.
      devices: the pairs of chunks are dealt out to these; None: the first one.
      chunk: rows of a chunk, at most.
    """
    n = len(x)
    require(n >= 2, f"uniformity needs at least two points, got {n}")
    devices = tuple(distributed.local_devices(1, devices))
    size = -(-n // -(-n // chunk))
    chunks = row_blocks(n, 1, size)
    size = size if len(chunks) > 1 else _rounded_up(n)
    centre = sum(np.asarray(x[rows], np.float64).sum(0) for rows in chunks) / n

    def load(rows: slice) -> np.ndarray:
        """Points `[size, d + 1]` around the centre; the last column is 1 for a point, else 0."""
        points = np.asarray(x[rows], np.float64) - centre
        padded = np.zeros((size, points.shape[1] + 1), np.float32)
        padded[: len(points), :-1], padded[: len(points), -1] = points, 1
        return padded

    # The log of each point's potential with all others, and of the square of that.
    sums = np.full((2, len(chunks) * size), -np.inf)
    singles, pairs = [(rows,) for rows in chunks], list(itertools.combinations(chunks, 2))
    for function, groups in ((_within, singles), (_between, pairs)):
        for group, parts in _on_devices(function, t, groups, load, devices):
            for rows, part in zip(group, parts, strict=True):
                rows = slice(rows.start, rows.start + size)
                sums[:, rows] = np.logaddexp(sums[:, rows], part)
    return _estimate(sums[0, :n], sums[1, :n])


def uniformities(
    x: Any, groups: Sequence[np.ndarray], t: float = 2.0, **options: Any
) -> list[Estimate]:
    """The uniformity of each group of rows, such as those of one class; NaN for a single point."""
    return [
        uniformity(SelectedRows(x, rows), t, **options) if len(rows) > 1 else UNKNOWN
        for rows in groups
    ]


def _rounded_up(n: int) -> int:
    """To three binary digits after the first: few sizes, which share compiled programs."""
    step = 2 ** max(3, n.bit_length() - 4)
    return -(-n // step) * step


def _on_devices(
    function: Callable, t: float, groups: list, load: Callable, devices: tuple[jax.Device, ...]
) -> Iterator[tuple[tuple[slice, ...], list[np.ndarray]]]:
    """Each group of chunks, and `function` of their points: a group on each device at a time."""
    scale, count = distributed.replicate(np.float32(t), devices), len(devices)
    firsts = range(0, len(groups), count)
    for first in track(firsts, "uniformity") if len(firsts) > 1 else firsts:
        several = groups[first : first + count]
        filled = [*several, *[several[0]] * (count - len(several))]
        sides = [np.stack([load(rows) for rows in side]) for side in zip(*filled, strict=True)]
        parts = _mapped(function, devices)(scale, *distributed.split(sides, devices))
        yield from zip(several, zip(*map(np.asarray, parts), strict=True), strict=False)


def _within(t: jax.Array, a: jax.Array) -> tuple[jax.Array]:
    points = _points(a)
    sums = [
        pair_logsumexp(points, None, PairOptions(), scale, Exclude.SELF)[0]
        for scale in (2 * t, 4 * t)
    ]
    return (jnp.stack(sums),)


def _between(t: jax.Array, a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    # The scale of the potential, and that of its square.
    sums = (pair_logsumexp(_points(a), _points(b), PairOptions(), s) for s in (2 * t, 4 * t))
    rows, columns = zip(*sums, strict=True)
    return jnp.stack(rows), jnp.stack(columns)


def _points(chunk: jax.Array) -> Points:
    return make_points(chunk[:, :-1], chunk[:, -1] > 0)


def _estimate(sums: np.ndarray, squares: np.ndarray) -> Estimate:
    """From the log-sums of the potentials of each point, and of their squares.

    With potentials `theta + g_i + g_j + h_ij` of uncorrelated terms, the variance of their mean is
    `(2 v + 4 (n - 2) var(g)) / (n (n - 1))`, where v is the variance of all potentials. That of the
    points' mean potentials is a sum of v and var(g) too, and so gives var(g).
    """
    n = len(sums)
    value = np.logaddexp.reduce(sums) - math.log(n * (n - 1))
    if n < 5:
        return Estimate(float(value), math.nan)
    of_means = np.var(np.exp(sums - math.log(n - 1) - value), ddof=1)
    of_all = math.expm1(np.logaddexp.reduce(squares) - math.log(n * (n - 1)) - 2 * value)
    of_points = (of_means * (n - 1) ** 2 / (n - 2) - of_all) / (n - 4)
    # Potentials that differ by less than float32 rounds them do not differ.
    if of_all < 2e-6:
        return Estimate(float(value), 0.0)
    # Uniform points have no var(g), and its estimate, which has a spread, may be below zero. The
    # variance is never below 2 v; held at that, the error would be too large on average by a tenth
    # for such points, and held at v it is right to a few hundredths.
    variance = max(2 * of_all + 4 * (n - 2) * of_points, of_all) / (n * (n - 1))
    return Estimate(float(value), math.sqrt(variance))


def entries(name: str, estimate: Estimate) -> dict[str, float]:
    """A value and its standard error, as results name them."""
    return {name: estimate.value, f"{name}_standard_error": estimate.standard_error}


def summary(
    x: Any,
    pairs: tuple[Any, Any] | None,
    alpha: float = 2.0,
    t: float = 2.0,
    devices: Sequence[jax.Device] | None = None,
) -> dict[str, Any]:
    """Alignment of unit features in pairs, uniformity of x `[n, d]`, and what it can be at best."""
    n, d = x.shape
    result = {
        **entries("align", UNKNOWN if pairs is None else alignment(*pairs, alpha)),
        "align_alpha": alpha,
        **entries("uniform", uniformity(x, t, devices=devices)),
        "uniform_t": t,
        "uniform_optimum": uniformity_optimum(d, t),
        "uniform_lower_bound": uniformity_lower_bound(d, t, n),
        "d": d,
        "n": n,
    }
    return jsonable(result)


def jsonable(value: Any) -> Any:
    """Arrays as lists, and None for NaN: what is not known is null in a JSON file."""
    if isinstance(value, dict):
        return {key: jsonable(item) for key, item in value.items()}
    value = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(value, list):
        return [jsonable(item) for item in value]
    return None if value != value else value
