"""Sums of exponentials over pairs of points in one kernel of Hopper GPUs, which writes no logits.

What `blocks.py` sums block by block, with products of three bfloat16 parts (`precision="high"`):
there each block of logits is written and read again.

A thread block has two warpgroups that compute, each of 64 rows, and one that loads tiles of columns
into a ring in shared memory. Logits are in registers, and so is their exponential as the left side
of the second product. Tensor cores round sums towards zero, so that these run over a few tiles, and
are added up apart.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

BLOCK, GROUPS = 64, 2  # rows of a warpgroup, and how many compute
TILE, SLOTS = 64, 4  # columns of a step, and tiles in shared memory
TILES_A_SUM = 8
WIDTH = 64  # of which the points' coordinates are a multiple, at most two
FEWEST = 1024  # points of either side that are worth it
OFF = -1e30  # bias of what forms no pair
LOG2E = math.log2(math.e)


def serves(x: jax.Array, y: jax.Array) -> bool:
    """Whether the kernel is for these points, and for the GPU here."""
    if not all(isinstance(side, int) for side in (*x.shape, *y.shape)):  # of `jax.export`
        return False
    sizes = min(len(x), len(y)) >= FEWEST and x.shape[1] <= 2 * WIDTH
    plain = x.dtype == y.dtype == jnp.float32 and not (_varies(x) or _varies(y))
    return sizes and plain and _is_hopper()


def _varies(x: jax.Array) -> bool:
    """Whether it is of a `shard_map` that checks types, which a kernel's results do not have."""
    kind = jax.typeof(x)
    return bool(getattr(kind, "vma", None) or getattr(getattr(kind, "mat", None), "varying", None))


def _is_hopper() -> bool:
    device = jax.local_devices()[0]
    version = tuple(map(int, jax.__version__.split(".")[:2]))
    return getattr(device, "compute_capability", "") == "9.0" and version >= (0, 11)


def with_fallback(kernel: Callable, plain: Callable) -> Callable:
    """The kernel, whose derivatives, and results under `vmap`, are those of the plain form."""

    @custom_vmap
    def alone(*arguments: Any) -> Any:
        return kernel(*arguments)

    @alone.def_vmap
    def _(axis_size: int, in_batched: list, *arguments: Any) -> tuple[Any, Any]:
        axes = jax.tree.map(lambda batched: 0 if batched else None, tuple(in_batched))
        results = jax.vmap(plain, axes, axis_size=axis_size)(*arguments)
        return results, jax.tree.map(lambda _: True, results)

    function = jax.custom_jvp(alone)
    function.defjvp(lambda primals, tangents: jax.jvp(plain, primals, tangents))
    return function


def sums_of_pairs(
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
    """`(sum_j P_ij y_j [n, d], sum_j P_ij [n])` with `P_ij = exp(l_ij - shift_i)`.

    Args:
      x: `[n, d]`, float32, as all arrays.
      y: `[m, d]`.
      shift: `[n]`.
      bias: `[m]`, of `l_ij = x_i . y_j + bias_j`; -1e30 for what forms no pair.
      second: None, or `(u [n], v [m])` for `exp(l_ij - u_i - v_j)` as a second term of P.
      exclude: 0, or which pairs have no weight: 1 those of i = j, 2 those of i // 2 = j // 2.
      weighted: False for `(sum_j P_ij,)` alone.
      interpret: of Pallas, to run on CPU.
    """
    import jax.experimental.pallas.mosaic_gpu as plgpu

    (n, d), m = x.shape, y.shape[0]
    more_rows, more_columns, more_width = (
        -n % (BLOCK * GROUPS),
        -m % (TILE * TILES_A_SUM),
        -d % WIDTH,
    )
    x = jnp.pad(LOG2E * x, ((0, more_rows), (0, more_width)))
    y = jnp.pad(y, ((0, more_columns), (0, more_width)))
    by_row = [jnp.pad(LOG2E * shift, (0, more_rows))]
    by_column = [jnp.pad(LOG2E * bias, (0, more_columns), constant_values=OFF)]
    if second is not None:
        by_row.append(jnp.pad(LOG2E * second[0], (0, more_rows)))
        by_column.append(jnp.pad(LOG2E * second[1], (0, more_columns)))
    rows, width, vectors = n + more_rows, d + more_width, len(by_row)
    f32, bf16 = jnp.float32, jnp.bfloat16
    out = [jax.ShapeDtypeStruct((rows, width), f32)] * weighted
    out += [jax.ShapeDtypeStruct((rows,), f32)]
    tiled = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
    own: list = [plgpu.SMEM((GROUPS, BLOCK, width), bf16, transforms=tiled)] * 2
    own += [plgpu.SMEM((GROUPS, BLOCK), f32)] * vectors
    ring: list = [plgpu.SMEM((SLOTS, TILE, width), bf16, transforms=tiled)] * 2
    ring += [plgpu.SMEM((SLOTS, TILE), f32)] * vectors
    scratch: dict[str, Any] = {
        "own": own,
        "ring": ring,
        "sums": plgpu.SMEM((GROUPS, BLOCK), f32),
        "filled": plgpu.Barrier(num_arrivals=len(own), num_barriers=GROUPS),
        "ready": plgpu.Barrier(num_arrivals=len(ring), num_barriers=SLOTS),
        "free": plgpu.Barrier(num_arrivals=GROUPS, num_barriers=SLOTS),
    }
    kernel = plgpu.kernel(
        functools.partial(_body, exclude=exclude, weighted=weighted, vectors=vectors),
        out_type=out,
        scratch_types=scratch,
        grid=(rows // (BLOCK * GROUPS),),
        grid_names=("rows",),
        num_threads=GROUPS + 1,
        thread_name="group",
        compiler_params=plgpu.CompilerParams(approx_math=True),
        interpret=interpret,
    )
    found = kernel(*_parts(x), *by_row, *_parts(y), *by_column)
    return tuple(array[:n, :d] if array.ndim == 2 else array[:n] for array in found)


def _parts(x: jax.Array) -> list[jax.Array]:
    """As a sum of two bfloat16; XLA may drop a cast there and back."""
    high = lax.reduce_precision(x, 8, 7)
    return [high.astype(jnp.bfloat16), (x - high).astype(jnp.bfloat16)]


def _body(
    *refs: Any,
    own: list,
    ring: list,
    sums: Any,
    filled: Any,
    ready: Any,
    free: Any,
    exclude: int,
    weighted: bool,
    vectors: int,
) -> None:
    """Of a thread block: rows in `own`, columns in `ring`, each two parts and then vectors."""
    import jax.experimental.pallas as pl
    import jax.experimental.pallas.mosaic_gpu as plgpu

    rows, columns, out = refs[: 2 + vectors], refs[2 + vectors : 2 * (2 + vectors)], refs[-2:]
    width, m = columns[0].shape[1], columns[0].shape[0]
    layout, group = plgpu.Layout.WGMMA, lax.axis_index("group")

    def zeros(shape: tuple[int, ...], of: Any = layout) -> jax.Array:
        return plgpu.layout_cast(jnp.full(shape, 0, jnp.float32), of)

    def by_row(vector: jax.Array) -> jax.Array:
        return lax.broadcast_in_dim(vector, (BLOCK, TILE), [0])

    def by_column(vector: jax.Array) -> jax.Array:
        return lax.broadcast_in_dim(vector, (BLOCK, TILE), [1])

    def multiplied(start: jax.Array, *products: tuple[Any, Any]) -> jax.Array:
        def add(ref: Any) -> None:
            for one, other in products:
                plgpu.wgmma(ref, one, other)

        return pl.run_state(add)(plgpu.ACC.init(start))

    @pl.when(group < GROUPS)
    def _compute() -> None:
        plgpu.set_max_registers(232, action="increase")
        first = (lax.axis_index("rows") * GROUPS + group) * BLOCK
        mine = pl.ds(first, BLOCK)
        for source, target in zip(rows, own, strict=True):
            plgpu.copy_gmem_to_smem(source.at[mine], target.at[group], filled.at[group])
        plgpu.barrier_wait(filled.at[group])
        high, low = (part.at[group] for part in own[:2])
        shifts = [plgpu.load(vector.at[group], layout=layout.reduce(1)) for vector in own[2:]]

        def step(k: jax.Array, carry: tuple) -> tuple:
            acc, total = carry
            slot = lax.rem(k, jnp.asarray(SLOTS, k.dtype))
            plgpu.barrier_wait(ready.at[slot])
            y_high, y_low = (part.at[slot] for part in ring[:2])
            y_high_t, y_low_t = (part.transpose((1, 0)) for part in (y_high, y_low))
            biases = [plgpu.load(vector.at[slot], layout=layout.reduce(0)) for vector in ring[2:]]
            products = (high, y_low_t), (low, y_high_t), (high, y_high_t)
            if vectors == 1:
                weights = jnp.exp2(multiplied(by_column(biases[0]) - by_row(shifts[0]), *products))
            else:
                logits = multiplied(by_column(biases[0]), *products)
                weights = jnp.exp2(logits - by_row(shifts[0]))
                weights += jnp.exp2(logits - by_row(shifts[1]) - by_column(biases[1]))
            if exclude:
                i, j = (
                    plgpu.broadcasted_iota(jnp.int32, (BLOCK, TILE), axis, layout=layout)
                    for axis in (0, 1)
                )
                i, j = (i + first) >> (exclude - 1), (j + k * TILE) >> (exclude - 1)
                weights = jnp.where(i == j, 0.0, weights)
            total += weights.sum(axis=1)
            if weighted:
                upper = weights.astype(jnp.bfloat16)
                lower = (weights - upper.astype(jnp.float32)).astype(jnp.bfloat16)
                acc = multiplied(acc, (lower, y_high), (upper, y_low), (upper, y_high))
            plgpu.barrier_arrive(free.at[slot])
            return acc, total

        def nothing() -> tuple:
            acc = zeros((BLOCK, width)) if weighted else jnp.int32(0)
            return acc, zeros((BLOCK,), layout.reduce(1))

        def steps(t: jax.Array, so_far: tuple) -> tuple:
            more = lax.fori_loop(t * TILES_A_SUM, (t + 1) * TILES_A_SUM, step, nothing())
            return tuple(one + other for one, other in zip(so_far, more, strict=True))

        acc, total = lax.fori_loop(0, m // (TILE * TILES_A_SUM), steps, nothing())
        sums.at[group][...] = total
        if weighted:
            out[0].at[mine][...] = acc
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(sums.at[group], out[-1].at[mine])
        plgpu.wait_smem_to_gmem(0)

    @pl.when(group == GROUPS)
    def _load() -> None:
        plgpu.set_max_registers(40, action="decrease")
        count = m // TILE

        def copy(k: Any, slot: Any) -> None:
            part = pl.ds(k * TILE, TILE)
            for source, target in zip(columns, ring, strict=True):
                plgpu.copy_gmem_to_smem(source.at[part], target.at[slot], ready.at[slot])

        for k in range(min(SLOTS, count)):
            copy(k, k)

        @pl.loop(0, count)
        def _(k: jax.Array) -> None:
            slot = lax.rem(k, jnp.asarray(SLOTS, k.dtype))
            plgpu.barrier_wait(free.at[slot])
            pl.when(k + SLOTS < count)(lambda: copy(k + SLOTS, slot))
