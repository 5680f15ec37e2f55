"""Sums of exponentials over pairs in one kernel of Hopper GPUs that writes no logits.

The kernel replaces blocks for `precision="high"`, products of three bfloat16 parts: blocks write
and read all logits once.

A thread block consists of `GROUPS` warpgroups that compute `BLOCK` rows each, and of one that loads
tiles of columns into a ring in shared memory. Logits stay in registers, and so do their
exponentials, the left side of the second product. Tensor cores round sums towards zero, so they sum
a few tiles at a time.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from hypersphere_jax.losses._pairwise.points import MASKED_LOGIT, Points, log_or_masked

BLOCK = 64  # rows of a warpgroup
GROUPS = 2  # warpgroups that compute
TILE = 64  # columns of a step
SLOTS = 4  # tiles in shared memory
TILES_PER_SUM = 8
WIDTH = 64  # The padded dimension is once or twice this.
SMALLEST_SET = 1024  # points of either side from which on the kernel is faster
LOG2E = math.log2(math.e)


def is_supported(x: jax.Array, y: jax.Array) -> bool:
    """Return whether the kernel computes the pairs of these points on this machine."""
    if not all(isinstance(n, int) for n in (*x.shape, *y.shape)):  # Symbolic, in `jax.export`.
        return False
    sizes = min(len(x), len(y)) >= SMALLEST_SET and x.shape[1] <= 2 * WIDTH
    types = x.dtype == y.dtype == jnp.float32 and not (_is_varying(x) or _is_varying(y))
    return sizes and types and _is_hopper()


def _is_varying(x: jax.Array) -> bool:
    """Return whether `shard_map` tracks x in its types, which results of kernels do not have."""
    kind = jax.typeof(x)
    return bool(getattr(kind, "vma", None) or getattr(getattr(kind, "mat", None), "varying", None))


def _is_hopper() -> bool:
    device = jax.local_devices()[0]
    version = tuple(map(int, jax.__version__.split(".")[:2]))
    return getattr(device, "compute_capability", "") == "9.0" and version >= (0, 11)


def with_fallback(kernel: Callable, fallback: Callable) -> Callable:
    """Return the kernel with the derivatives, and the results under `vmap`, of the fallback."""

    @custom_vmap
    def unbatched(*arguments: Any) -> Any:
        return kernel(*arguments)

    @unbatched.def_vmap
    def _(axis_size: int, in_batched: list, *arguments: Any) -> tuple[Any, Any]:
        axes = jax.tree.map(lambda batched: 0 if batched else None, tuple(in_batched))
        results = jax.vmap(fallback, axes, axis_size=axis_size)(*arguments)
        return results, jax.tree.map(lambda _: True, results)

    function = jax.custom_jvp(unbatched)
    function.defjvp(lambda primals, tangents: jax.jvp(fallback, primals, tangents))
    return function


def kernel_logsumexp(exclude: int, a: Points, b: Points | None) -> tuple[jax.Array, jax.Array]:
    """`sums.pair_logsumexp` of inner products within float32's range of exponentials."""

    def row_logsumexp(a: Points, b: Points) -> jax.Array:
        sums = exp_sums(a.x, b.x, -a.bias, b.bias, exclude=exclude, weighted=False)
        return log_or_masked(sums[0])

    if b is None:
        rows = row_logsumexp(a, a)
        return rows, rows
    return row_logsumexp(a, b), row_logsumexp(b, a)


def kernel_weighted_sums(exclude: int, a: Points, b: Points | None) -> tuple[Points, Points]:
    """`sums.weighted_pair_sums` of inner products within float32's range of exponentials."""
    if b is None:
        rows = _weighted_rows(exclude, a, a)
        return rows, rows
    return _weighted_rows(exclude, a, b), _weighted_rows(exclude, b, a)


def _weighted_rows(exclude: int, a: Points, b: Points) -> Points:
    shift = -a.bias
    bias = b.bias
    second = None
    if a.shift is not None:
        shift = a.shift - a.bias
    if b.shift is not None and a.shift is None:
        bias = b.bias - b.shift
    elif b.shift is not None:
        second = (-a.bias, b.shift)
    return Points(*exp_sums(a.x, b.x, shift, bias, second, exclude=exclude))


def exp_sums(
    x: jax.Array,
    y: jax.Array,
    shift: jax.Array,
    bias: jax.Array,
    second: tuple[jax.Array, jax.Array] | None = None,
    *,
    exclude: int = 0,
    weighted: bool = True,
    interpret: Any = None,
) -> tuple[jax.Array, ...]:
    """Return `(sum_j P_ij y_j [n, d], sum_j P_ij [n])` with `P_ij = exp(l_ij - shift_i)`.

    Args:
      x: `[n, d]`, float32 like all arrays.
      y: `[m, d]`.
      shift: `[n]`.
      bias: `[m]`, of `l_ij = x_i . y_j + bias_j`; `MASKED_LOGIT` for points without pairs.
      second: `(u [n], v [m])` for `exp(l_ij - u_i - v_j)` as a second term of P, or None.
      exclude: 0, or which pairs have no weight: 1 for i = j, 2 for i // 2 = j // 2.
      weighted: False for `(sum_j P_ij,)` only.
      interpret: Pallas' parameters for running on CPU.
    """
    n, d = x.shape
    more_rows = (0, -n % (BLOCK * GROUPS))
    more_columns = (0, -y.shape[0] % (TILE * TILES_PER_SUM))
    more_width = (0, -d % WIDTH)
    x = jnp.pad(LOG2E * x, (more_rows, more_width))
    y = jnp.pad(y, (more_columns, more_width))
    rows = [*_bfloat16_parts(x), jnp.pad(LOG2E * shift, more_rows)]
    masked = jnp.pad(LOG2E * bias, more_columns, constant_values=MASKED_LOGIT)
    columns = [*_bfloat16_parts(y), masked]
    if second is not None:
        rows.append(jnp.pad(LOG2E * second[0], more_rows))
        columns.append(jnp.pad(LOG2E * second[1], more_columns))
    kernel = _make_kernel(x.shape, len(rows), exclude, weighted, interpret)
    *gradients, sums = kernel(*rows, *columns)
    return *(array[:n, :d] for array in gradients), sums[:n]


def _bfloat16_parts(x: jax.Array) -> list[jax.Array]:
    """Split into a sum of two bfloat16; XLA may drop a cast there and back."""
    high = lax.reduce_precision(x, 8, 7)
    return [high.astype(jnp.bfloat16), (x - high).astype(jnp.bfloat16)]


class _Shared(NamedTuple):
    """Shared memory of a thread block, and its barriers."""

    block: list
    ring: list
    sums: Any
    filled: Any
    ready: Any
    free: Any


def _make_kernel(
    shape: tuple[int, ...], inputs: int, exclude: int, weighted: bool, interpret: Any
) -> Callable:
    """Return the kernel for padded rows of this shape.

    The rows, like the columns, are `inputs` arrays: two bfloat16 parts of the points, then vectors.
    """
    import jax.experimental.pallas.mosaic_gpu as plgpu

    n, width = shape
    tiling = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))

    def shared_inputs(slots: int, size: int) -> list:
        part = plgpu.SMEM((slots, size, width), jnp.bfloat16, transforms=tiling)
        return [part] * 2 + [plgpu.SMEM((slots, size), jnp.float32)] * (inputs - 2)

    shared = _Shared(
        block=shared_inputs(GROUPS, BLOCK),
        ring=shared_inputs(SLOTS, TILE),
        sums=plgpu.SMEM((GROUPS, BLOCK), jnp.float32),
        filled=plgpu.Barrier(num_arrivals=inputs, num_barriers=GROUPS),
        ready=plgpu.Barrier(num_arrivals=inputs, num_barriers=SLOTS),
        free=plgpu.Barrier(num_arrivals=GROUPS, num_barriers=SLOTS),
    )
    gradients = [jax.ShapeDtypeStruct((n, width), jnp.float32)] * weighted
    return plgpu.kernel(
        functools.partial(_body, inputs=inputs, exclude=exclude),
        out_type=[*gradients, jax.ShapeDtypeStruct((n,), jnp.float32)],
        scratch_types=shared._asdict(),
        grid=(n // (BLOCK * GROUPS),),
        grid_names=("rows",),
        num_threads=GROUPS + 1,
        thread_name="group",
        compiler_params=plgpu.CompilerParams(approx_math=True),
        interpret=interpret,
    )


def _body(*refs: Any, inputs: int, exclude: int, **scratch: Any) -> None:
    """Compute the rows of a thread block."""
    import jax.experimental.pallas as pl

    shared = _Shared(**scratch)
    columns = refs[inputs : 2 * inputs]
    group = lax.axis_index("group")

    @pl.when(group < GROUPS)
    def _() -> None:
        _compute_rows(group, refs[:inputs], columns, refs[2 * inputs :], shared, exclude)

    @pl.when(group == GROUPS)
    def _() -> None:
        _load_columns(columns, shared)


def _compute_rows(
    group: Any, rows: Any, columns: Any, out: Any, shared: _Shared, exclude: int
) -> None:
    """Sum over all columns for the rows of a warpgroup."""
    import jax.experimental.pallas as pl
    import jax.experimental.pallas.mosaic_gpu as plgpu

    plgpu.set_max_registers(232, action="increase")
    layout = plgpu.Layout.WGMMA
    first = (lax.axis_index("rows") * GROUPS + group) * BLOCK
    mine = pl.ds(first, BLOCK)
    for source, target in zip(rows, shared.block, strict=True):
        plgpu.copy_gmem_to_smem(source.at[mine], target.at[group], shared.filled.at[group])
    plgpu.barrier_wait(shared.filled.at[group])
    parts = [part.at[group] for part in shared.block[:2]]
    shifts = [plgpu.load(vector.at[group], layout=layout.reduce(1)) for vector in shared.block[2:]]

    def zeros() -> tuple:
        """The weighted sum, if it is an output, and the sum."""
        shapes = [(BLOCK, columns[0].shape[1])] * (len(out) - 1)
        arrays = [plgpu.layout_cast(jnp.full(shape, 0, jnp.float32), layout) for shape in shapes]
        sums = plgpu.layout_cast(jnp.full((BLOCK,), 0, jnp.float32), layout.reduce(1))
        return *arrays, sums

    def add_tile(k: jax.Array, sums: tuple) -> tuple:
        *weighted_sums, total = sums
        slot = lax.rem(k, jnp.asarray(SLOTS, k.dtype))
        plgpu.barrier_wait(shared.ready.at[slot])
        tile = [array.at[slot] for array in shared.ring]
        weights = _tile_weights(parts, shifts, tile)
        if exclude:
            weights = _without_excluded(weights, first, k * TILE, exclude)
        total += weights.sum(axis=1)
        weighted_sums = [_add_weighted(array, weights, *tile[:2]) for array in weighted_sums]
        plgpu.barrier_arrive(shared.free.at[slot])
        return *weighted_sums, total

    def add_tiles(t: jax.Array, sums: tuple) -> tuple:
        more = lax.fori_loop(t * TILES_PER_SUM, (t + 1) * TILES_PER_SUM, add_tile, zeros())
        return tuple(total + part for total, part in zip(sums, more, strict=True))

    tiles = columns[0].shape[0] // TILE
    *weighted_sums, total = lax.fori_loop(0, tiles // TILES_PER_SUM, add_tiles, zeros())
    shared.sums.at[group][...] = total
    for target, array in zip(out[:-1], weighted_sums, strict=True):
        target.at[mine][...] = array
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(shared.sums.at[group], out[-1].at[mine])
    plgpu.wait_smem_to_gmem(0)


def _tile_weights(parts: list, shifts: list, tile: list) -> jax.Array:
    """P of the rows of a warpgroup and the columns of a tile."""
    import jax.experimental.pallas.mosaic_gpu as plgpu

    def along(axis: int, vector: jax.Array) -> jax.Array:
        return lax.broadcast_in_dim(vector, (BLOCK, TILE), [axis])

    high, low = parts
    tile_high, tile_low = (part.transpose((1, 0)) for part in tile[:2])
    layout = plgpu.Layout.WGMMA.reduce(0)
    biases = [plgpu.load(vector, layout=layout) for vector in tile[2:]]
    products = ((high, tile_low), (low, tile_high), (high, tile_high))
    if len(shifts) == 1:
        return jnp.exp2(_multiply_add(along(1, biases[0]) - along(0, shifts[0]), *products))
    logits = _multiply_add(along(1, biases[0]), *products)
    weights = jnp.exp2(logits - along(0, shifts[0]))
    return weights + jnp.exp2(logits - along(0, shifts[1]) - along(1, biases[1]))


def _without_excluded(weights: jax.Array, row: Any, column: Any, exclude: int) -> jax.Array:
    """Set the weights of excluded pairs to zero, in the tile that starts at this pair."""
    import jax.experimental.pallas.mosaic_gpu as plgpu

    i, j = (
        plgpu.broadcasted_iota(jnp.int32, (BLOCK, TILE), axis, layout=plgpu.Layout.WGMMA)
        for axis in (0, 1)
    )
    same = (i + row) >> (exclude - 1) == (j + column) >> (exclude - 1)
    return jnp.where(same, 0.0, weights)


def _add_weighted(total: jax.Array, weights: jax.Array, high: Any, low: Any) -> jax.Array:
    """Add the product of weights and a tile, each the sum of two bfloat16 parts."""
    upper = weights.astype(jnp.bfloat16)
    lower = (weights - upper.astype(jnp.float32)).astype(jnp.bfloat16)
    return _multiply_add(total, (lower, high), (upper, low), (upper, high))


def _multiply_add(start: jax.Array, *products: tuple[Any, Any]) -> jax.Array:
    """Add matrix products on tensor cores."""
    import jax.experimental.pallas as pl
    import jax.experimental.pallas.mosaic_gpu as plgpu

    def accumulate(ref: Any) -> None:
        for left, right in products:
            plgpu.wgmma(ref, left, right)

    return pl.run_state(accumulate)(plgpu.ACC.init(start))


def _load_columns(columns: Any, shared: _Shared) -> None:
    """Copy tiles of columns into free slots of the ring."""
    import jax.experimental.pallas as pl
    import jax.experimental.pallas.mosaic_gpu as plgpu

    plgpu.set_max_registers(40, action="decrease")
    tiles = columns[0].shape[0] // TILE

    def copy(k: Any, slot: Any) -> None:
        tile = pl.ds(k * TILE, TILE)
        for source, target in zip(columns, shared.ring, strict=True):
            plgpu.copy_gmem_to_smem(source.at[tile], target.at[slot], shared.ready.at[slot])

    for k in range(min(SLOTS, tiles)):
        copy(k, k)

    @pl.loop(0, tiles)
    def _(k: jax.Array) -> None:
        slot = lax.rem(k, jnp.asarray(SLOTS, k.dtype))
        plgpu.barrier_wait(shared.free.at[slot])
        pl.when(k + SLOTS < tiles)(lambda: copy(k + SLOTS, slot))
