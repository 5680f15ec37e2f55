"""Sums of exponentials over pairs of points, block by block, in memory linear in their number.

All pairwise losses are made of sums of `exp(l_ij)` over logits of one form,

    l_ij = x_i . y_j + bias_i + bias_j

with the temperature inside the points, or, with a scale,

    l_ij = -scale / 2 |x_i - y_j|^2 + bias_i + bias_j

Two passes over the blocks of that matrix serve all of them: `log_sums` gives the log-sum-exp of its
rows and columns, `weighted_sums` the products with exponentials of it that gradients are made of. A
set of points against itself is symmetric: each two blocks meet once, and that counts for both.

Distances are those of inner products around the centre, as long as these are small enough for that
to cancel no more than rounding does elsewhere; else they are sums of squared differences.

On accelerators a block's time is that of moving its logits. So their biases are columns of the
product, as are the sums of weights, and exponentials are summed as they are where float32 holds
them.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

from hypersphere_jax.losses import fused
from hypersphere_jax.losses.distances import differences, squared_distances
from hypersphere_jax.losses.products import Precision, on_cpu, product

Scale = jax.Array | float | None
OFF = fused.OFF  # the logit of what is no pair. Finite: differences of infinities are no numbers
# Squared distances from the centre, times scale / 2, above which inner products are not exact
# enough: there gradients are off by up to some 5e-5.
FAR = 32.0
# Where no logit lies outside, float32 holds their exponentials, sums of these and products with
# small coordinates as they are.
LOWEST, HIGHEST = -60.0, 60.0
# Larger blocks are a multiple of this many points, for which accelerators copy nothing.
UNIT, LARGE = 128, 2048
# Columns of the biases in products: three of bfloat16 make a float32.
PARTS = 3


class Points(NamedTuple):
    """`x [n, d]` and `bias [n]`."""

    x: jax.Array
    bias: jax.Array


class Blocking(NamedTuple):
    """How the matrix is computed.

    Attributes:
      limit: points in a block, at most.
      precision: of products, see `product`.
      kernel: whether a kernel may do it in the place of blocks, see `fused.py`.
    """

    limit: int
    precision: Precision = "highest"
    kernel: bool = False


def log_sums(
    a: Points, b: Points | None, *, scale: Scale = None, exclude: int = 0, blocking: Blocking
) -> tuple[jax.Array, jax.Array]:
    """Log-sum-exp of each row `[n]` and of each column `[m]` of the logits.

    Args:
      a: the n points of the rows.
      b: the m points of the columns; None for `a` itself, whose columns are as its rows.
      scale: of squared distances; None where the logits are inner products.
      exclude: 0 counts all pairs, 1 leaves out (i, i), 2 also (2i, 2i + 1) and (2i + 1, 2i).
      blocking: of the matrix.
    """
    of = functools.partial(_log_sums, exclude=exclude, blocking=blocking)
    if scale is None:
        return _in_range(of, a, b)
    x, y, far = _centred(a, b, scale)
    return lax.cond(far, lambda: of(a, b, scale=scale), lambda: _in_range(of, x, y))


def _in_range(of: Callable, a: Points, b: Points | None) -> Any:
    """`of(a, b, plain=True)` on accelerators, if float32 holds the exponentials as they are."""
    if on_cpu():  # it is not faster there, but takes longer to compile
        return of(a, b)
    beyond = everywhere(~within_range(a, b))
    return lax.cond(beyond, lambda: of(a, b), lambda: of(a, b, plain=True))


def _log_sums(
    a: Points,
    b: Points | None,
    *,
    exclude: int,
    blocking: Blocking,
    scale: Scale = None,
    plain: bool = False,
) -> tuple:
    """`log_sums`; with a scale by differences."""
    if plain and _has_kernel(a, b, blocking):
        blocks = functools.partial(
            _log_sums, exclude=exclude, blocking=blocking._replace(kernel=False), plain=True
        )
        return fused.with_fallback(functools.partial(_log_sums_by_kernel, exclude), blocks)(a, b)
    fold, add = (jnp.sum, jnp.add) if plain else (jax.nn.logsumexp, jnp.logaddexp)

    def parts(logits, rows, columns):
        values = jnp.exp(logits) if plain else logits
        return fold(values, 1), fold(values, 0)

    limit, least = blocking.limit, 0.0 if plain else OFF
    rows, columns = _split((a,), limit, exclude), b and _split((b,), limit, exclude)
    nothing = tuple(jnp.full_like(side[0].bias, least) for side in (rows, columns or rows))
    sums, others = _sweep(parts, add, rows, columns, nothing, exclude, scale, blocking)
    if b is None:
        sums = others = sums if others is None else add(sums, others)
    sides = (sums, a), (others, a if b is None else b)
    sums, others = (_join(sums, side.bias.shape[0]) for sums, side in sides)
    return (_log(sums), _log(others)) if plain else (sums, others)


def _has_kernel(a: Points, b: Points | None, blocking: Blocking) -> bool:
    allowed = blocking.kernel and blocking.precision == "high" and jax.default_backend() == "gpu"
    return allowed and fused.serves(a.x, (b or a).x)


def _log_sums_by_kernel(exclude: int, a: Points, b: Points | None) -> tuple:
    def of(a, b):
        return _log(
            fused.sums_of_pairs(a.x, b.x, -a.bias, b.bias, exclude=exclude, weighted=False)[0]
        )

    rows = of(a, b or a)
    return rows, rows if b is None else of(b, a)


def _log(sums: jax.Array) -> jax.Array:
    """Zero is the sum of a point that forms no pair."""
    return jnp.where(sums > 0, jnp.log(jnp.where(sums > 0, sums, 1.0)), OFF)


def weighted_sums(
    a: Points,
    b: Points | None,
    r: jax.Array | None,
    c: jax.Array | None,
    *,
    scale: Scale = None,
    exclude: int = 0,
    blocking: Blocking,
) -> tuple[Points, Points]:
    """The slopes of all logits by the points, summed with weights P, and P's rows and columns.

    The weights are `P_ij = exp(l_ij - r_i) + exp(l_ij - c_j)`, or one of these terms where the
    other's shift is None, or `exp(l_ij)` where both are. Exponents must be at most 0 with a shift,
    and at most `HIGHEST` without.

    Args:
      a: the n points of the rows.
      b: the m points of the columns; None for `a` itself, and then c is r.
      r: shifts of the rows, `[n]`, or None.
      c: shifts of the columns, `[m]`, or None.
      scale: as in `log_sums`.
      exclude: as in `log_sums`; what it leaves out has no weight.
      blocking: of the matrix.

    Returns:
      `Points(P b [n, d], sums of rows [n])` and `Points(P^T a [m, d], sums of columns [m])`; with a
      scale it is `scale P_ij (b_j - a_i)` that is summed over j, and likewise over i.
    """
    of = functools.partial(_weighted_sums, r=r, c=c, exclude=exclude, blocking=blocking)
    if scale is None:
        return of(a, b)
    x, y, far = _centred(a, b, scale)

    def near():
        sums = of(x, y)
        sides = zip(sums, (x, x if y is None else y), strict=True)
        root = jnp.sqrt(scale)
        return tuple(Points(root * (s.x - s.bias[:, None] * p.x), s.bias) for s, p in sides)

    return lax.cond(far, lambda: of(a, b, scale=scale), near)


def _weighted_sums(
    a: Points,
    b: Points | None,
    *,
    r: jax.Array | None,
    c: jax.Array | None,
    exclude: int,
    blocking: Blocking,
    scale: Scale = None,
) -> tuple[Points, Points]:
    """`weighted_sums`; with a scale by differences."""
    if scale is None and _has_kernel(a, b, blocking):

        def blocks(a, b, r, c):
            without = blocking._replace(kernel=False)
            return _weighted_sums(a, b, r=r, c=c, exclude=exclude, blocking=without)

        kernel = functools.partial(_weighted_sums_by_kernel, exclude)

        def of(a, b, plain=False):
            return (fused.with_fallback(kernel, blocks) if plain else blocks)(a, b, r, c)

        return _in_range(of, a, b)

    def parts(logits, rows, columns):
        (row_points, row_shift), (column_points, column_shift) = rows, columns
        shifts = [] if row_shift is None else [row_shift[:, None]]
        shifts += [] if column_shift is None else [column_shift[None, :]]
        # Without the limits, exponentials of logits around 1e10 overflow, which rounding changes
        # by thousands.
        if shifts:
            weights = sum(jnp.exp(jnp.minimum(logits - shift, 0.0)) for shift in shifts)
        else:
            weights = jnp.exp(jnp.minimum(logits, HIGHEST))
        return (
            _slopes(weights, row_points, column_points, scale, blocking),
            _slopes(weights.T, column_points, row_points, scale, blocking),
        )

    limit = blocking.limit
    rows, columns = _split((a, r), limit, exclude), b and _split((b, c), limit, exclude)
    sides = rows[0], (columns or rows)[0]
    if scale is None and not on_cpu():
        sides = tuple(_with_columns(*side) for side in sides)
    nothing = jax.tree.map(jnp.zeros_like, sides)
    sums, others = _sweep(parts, jnp.add, rows, columns, nothing, exclude, scale, blocking)
    if b is None:
        sums = others = jax.tree.map(jnp.add, sums, others) if others is not None else sums
    return _joined(sums, a), _joined(others, a if b is None else b)


def _weighted_sums_by_kernel(
    exclude: int, a: Points, b: Points | None, r: jax.Array | None, c: jax.Array | None
) -> tuple[Points, Points]:
    def of(a, b, r, c):
        bias = b.bias if r is not None or c is None else b.bias - c
        shift = -a.bias if r is None else r - a.bias
        second = None if r is None or c is None else (-a.bias, c)
        return Points(*fused.sums_of_pairs(a.x, b.x, shift, bias, second, exclude=exclude))

    rows = of(a, b or a, r, c)
    return rows, rows if b is None else of(b, a, c, r)


def _joined(sums: Any, points: Points) -> Points:
    n = points.bias.shape[0]
    if isinstance(sums, Points):
        return Points(_join(sums.x, n), _join(sums.bias, n))
    return Points(_join(sums[..., :-1], n), _join(sums[..., -1], n))


def _sweep(
    parts: Callable,
    add: Callable,
    rows: tuple,
    columns: Any,
    totals: Any,
    exclude: int,
    scale: Scale,
    blocking: Blocking,
) -> tuple[Any, Any]:
    """Adds `parts(logits, row block, column block)` to the totals, over all pairs of blocks.

    Where the rows meet themselves (columns None), what one block gives to another as column is kept
    apart from what it gets as row: both in one array would be copied in each step. The totals of
    columns are None if the one block met only itself.
    """
    symmetric = columns is None
    columns = rows if columns is None else columns
    counts = rows[0].bias.shape[0], columns[0].bias.shape[0]
    if counts == (1, 1):
        row, column = _at(rows, 0), _at(columns, 0)
        mine, theirs = parts(_logits(row[0], column[0], exclude, scale, blocking), row, column)
        return jax.tree.map(lambda part: part[None], (mine, None if symmetric else theirs))

    def meet(i, j, totals, diagonal=False):
        row, column = _at(rows, i), _at(columns, j)
        logits = _logits(row[0], column[0], exclude if diagonal else 0, scale, blocking, i)
        mine, theirs = parts(logits, row, column)
        totals, others = totals
        totals = _add_at(add, totals, i, mine)
        if not (symmetric and diagonal):
            others = _add_at(add, others, j, theirs)
        return totals, others

    first, second = np.indices(counts).reshape(2, -1)
    if symmetric or exclude:
        totals = _loop(lambda i, totals: meet(i, i, totals, True), totals, np.arange(counts[0]))
        apart = first < second if symmetric else first != second
        first, second = first[apart], second[apart]
    return _loop(meet, totals, first, second)


def _loop(body: Callable, carry: Any, *indices: np.ndarray) -> Any:
    """`carry = body(*index, carry)` for each index."""
    steps = len(indices[0])
    indices = [jnp.asarray(index, jnp.int32) for index in indices]
    return lax.fori_loop(0, steps, lambda s, c: body(*(index[s] for index in indices), c), carry)


def _at(tree: Any, i: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[i], tree)


def _add_at(add: Callable, totals: Any, i: Any, part: Any) -> Any:
    return jax.tree.map(lambda total, p: total.at[i].set(add(total[i], p)), totals, part)


def _logits(
    a: Points, b: Points, exclude: int, scale: Scale, blocking: Blocking, block: Any = 0
) -> jax.Array:
    """Of two blocks; what is excluded is on the diagonal, where both are this one."""
    if scale is None and not on_cpu():
        one = jnp.ones_like(a.bias)
        rows = _with_columns(a.x, *_parts(a.bias), *[one] * PARTS)
        columns = _with_columns(b.x, *[jnp.ones_like(b.bias)] * PARTS, *_parts(b.bias))
        logits = product(rows, columns.T, blocking.precision)
    else:
        logits = a.bias[:, None] + b.bias[None, :]
        if scale is None:
            logits += product(a.x, b.x.T)
        else:
            logits -= squared_distances(a.x, b.x, jnp.sqrt(scale / 2))
    if exclude:
        # What is the same in all blocks, as OFF and the places inside, would be kept as an array.
        size = a.bias.shape[0]
        group = (block * size + jnp.arange(size)) >> (exclude - 1)
        logits = jnp.where(group[:, None] == group[None, :], OFF - block, logits)
    return logits


def _slopes(
    weights: jax.Array, a: Points, b: Points, scale: Scale, blocking: Blocking
) -> Points | jax.Array:
    """The slopes of the logits by `a`, summed over `b` with weights, and the weights' sums.

    Those of a product on accelerators are one array, the weights' sums its last column: on their
    own these would be a pass over it.
    """
    if scale is not None:
        return Points(scale * differences(weights, a.x, b.x), jnp.sum(weights, 1))
    if on_cpu():
        return Points(product(weights, b.x), jnp.sum(weights, 1))
    return product(weights, _with_columns(b.x, jnp.ones_like(b.bias)), blocking.precision)


def _with_columns(x: jax.Array, *columns: jax.Array) -> jax.Array:
    return jnp.concatenate([x, *(column[..., None] for column in columns)], -1)


def _parts(bias: jax.Array) -> list[jax.Array]:
    """Biases as sums of parts that products of any precision leave as they are."""
    parts = []
    for _ in range(PARTS - 1):
        parts.append(lax.reduce_precision(lax.stop_gradient(bias), 8, 7))  # bfloat16
        bias = bias - parts[-1]
    return [*parts, bias]


def _centred(a: Points, b: Points | None, scale: Any) -> tuple[Points, Points | None, jax.Array]:
    """Points whose inner products are the logits, and whether some are too far apart for that."""
    centre = lax.stop_gradient(jnp.mean(a.x, 0, keepdims=True))
    sides, most, finite = [], jnp.zeros_like(a.bias, shape=()), True
    for points in (a,) if b is None else (a, b):
        x = jnp.sqrt(scale) * (points.x - centre)
        halves = jnp.sum(jnp.square(x), 1) / 2
        sides.append(Points(x, points.bias - halves))
        most = jnp.maximum(most, jnp.max(jnp.where(points.bias > OFF, halves, 0.0)))
        finite &= jnp.all(jnp.isfinite(points.x))
    # What is not finite makes the products NaN: let it.
    far = everywhere(~(lax.stop_gradient(most) <= FAR) & finite)
    return sides[0], sides[1] if b else None, far


@custom_vmap
def everywhere(flag: jax.Array) -> jax.Array:
    """The flag; under `vmap` one for the whole batch, so that a `cond` does not run both sides."""
    return flag


@everywhere.def_vmap
def _(axis_size: int, in_batched: list[bool], flag: jax.Array) -> tuple[jax.Array, bool]:
    return everywhere(jnp.any(flag)), False


def within_range(a: Points, b: Points | None, scale: Scale = None) -> jax.Array:
    """Whether all logits lie in a range where float32 holds sums of exponentials, by the norms."""
    sides = [(p.x, p.bias) for p in lax.stop_gradient((a,) if b is None else (a, b))]
    norms = [jnp.max(jnp.sum(jnp.square(x), 1)) for x, _ in sides]
    tops = [jnp.max(bias) for _, bias in sides]
    bottoms = [jnp.min(jnp.where(bias > OFF, bias, 0.0)) for _, bias in sides]
    lowest, highest = bottoms[0] + bottoms[-1], tops[0] + tops[-1]
    most = jnp.sqrt(norms[0] * norms[-1])
    if scale is None:
        lowest, highest = lowest - most, highest + most
    else:
        lowest -= scale * (norms[0] / 2 + norms[-1] / 2 + most)
    return (lowest >= LOWEST) & (highest <= HIGHEST)


def _split(side: tuple, limit: int, exclude: int) -> tuple:
    """Arrays of n points to `[blocks, size, ...]`, filled up with points that form no pair."""
    n = side[0].bias.shape[0]
    if not isinstance(n, int):  # `jax.export` with a symbolic n: one block
        return jax.tree.map(lambda array: array[None], side)
    count = math.ceil(n / limit)
    size = math.ceil(n / count)
    size += -size % UNIT if LARGE < size < limit else 0
    size += size % max(exclude, 1)  # no block parts an excluded pair
    count = math.ceil(n / size)
    missing = count * size - n

    def split(array: jax.Array, fill: float = 0.0) -> jax.Array:
        if missing:
            widths = [(0, missing)] + [(0, 0)] * (array.ndim - 1)
            array = jnp.pad(array, widths, constant_values=fill)
        return array.reshape(count, size, *array.shape[1:])

    points, *more = side
    points = Points(split(points.x), split(points.bias, OFF))
    return points, *(None if array is None else split(array) for array in more)


def _join(blocks: jax.Array, n: int) -> jax.Array:
    return blocks.reshape(-1, *blocks.shape[2:])[:n]
