"""3 x 3 convolutions of float32 by Winograd's minimal filtering F(4 x 4, 3 x 3), for CPUs.

Each tile of 6 x 6 pixels gives 4 x 4 of the result, by 36 products of transformed tiles and kernels
where 144 would be (Lavin & Gray 2016, "Fast algorithms for convolutional neural networks").
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.xla_metadata import set_xla_metadata

STEP, TILE = 4, 6  # pixels
WIDE = 32  # channels; narrow layers would gain little for the time that this takes to compile
TILES = 128  # of a batch; with fewer the kernel's transform takes longer than what is saved
BLOCK_BYTES = 10_000_000  # of tiles at a time, which stay in the cache

Padding = tuple[tuple[int, int], tuple[int, int]]


def _matrices() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the input `[6, 6]`, the kernel `[6, 3]` and the result `[4, 6]`, by Toom and Cook.

    With these points, which float32 holds exactly, relative errors are about 1e-6, those of float32
    sums in order; with 0, 1, -1, 2, -2, the usual ones, they are several times as large.
    """
    points = np.array([0.0, 0.625, -0.625, 1.5, -1.5])  # and infinity
    others = [np.delete(points, i) for i in range(5)]
    monic = [np.poly(roots)[::-1] for roots in [*others, points]]
    scales = [np.prod(point - roots) for point, roots in zip(points, others, strict=True)]
    inputs = np.stack([np.pad(p, (0, TILE - len(p))) for p in monic])
    kernel = np.vstack([np.vander(points, 3, increasing=True) / np.c_[scales], [0, 0, 1]])
    result = np.c_[np.vander(points, STEP, increasing=True).T, [0, 0, 0, 1]]
    return inputs.astype("f4"), kernel.astype("f4"), result.astype("f4")


_INPUT, _KERNEL, _RESULT = _matrices()


def pays(x: jax.Array, kernel: jax.Array, padding: Padding) -> bool:
    """Whether this is faster than a product of all patches: in wide layers of many tiles."""
    (height, width), (rows, columns) = _sizes(x, padding)
    wide = kernel.shape[:2] == (3, 3) and min(kernel.shape[2:]) >= WIDE
    saves = TILE**2 * rows * columns <= 5 * height * width  # tiles reach little beyond the images
    many = len(x) * rows * columns >= TILES
    return wide and saves and many and x.dtype == kernel.dtype == jnp.float32


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def convolution(x: jax.Array, kernel: jax.Array, padding: Padding) -> jax.Array:
    """Convolves `[n, h, w, c]` with `[3, 3, c, features]`, with strides of 1 and zero padding.

    It has derivatives in reverse mode alone; a form with both took longer to compile.
    """
    return _convolved(x, kernel, padding)


def _forward(x, kernel, padding):
    return _convolved(x, kernel, padding), (x, kernel)


def _backward(padding, residuals, gradient):
    x, kernel = residuals
    mirrored = tuple((2 - low, 2 - high) for low, high in padding)
    of_x = _convolved(gradient, kernel[::-1, ::-1].swapaxes(2, 3), mirrored)
    return of_x, _kernel_gradient(x, gradient, padding)


convolution.defvjp(_forward, _backward)


# Jitted, so that layers of one shape are traced once.
@functools.partial(jax.jit, static_argnums=2)
def _convolved(x: jax.Array, kernel: jax.Array, padding: Padding) -> jax.Array:
    weights = _both_sides(_KERNEL, kernel.reshape(9, -1)).reshape(TILE**2, *kernel.shape[2:])
    (height, width), grid = _sizes(x, padding)

    def of_images(x):
        tiles = _tiles(_INPUT, x, padding, grid)
        products = _flat(tiles) @ weights
        return _joined(products.reshape(*tiles.shape[:-1], -1))[:, :height, :width]

    return in_blocks(of_images, _bytes(grid, *kernel.shape[2:]), x)


@functools.partial(jax.jit, static_argnums=2)
def _kernel_gradient(x: jax.Array, gradient: jax.Array, padding: Padding) -> jax.Array:
    _, grid = _sizes(x, padding)
    channels = x.shape[-1], gradient.shape[-1]

    def add(total, block):
        tiles = _tiles(_INPUT, block[0], padding, grid)
        of_tiles = _tiles(_RESULT.T, block[1], ((0, 0), (0, 0)), grid)
        return total + jnp.einsum("tpc,tpf->tcf", _flat(tiles), _flat(of_tiles)), None

    total = jnp.zeros((TILE**2, *channels), jnp.float32)
    total, _ = jax.lax.scan(add, total, _blocks(_bytes(grid, *channels), x, gradient))
    return _both_sides(_KERNEL.T, total.reshape(TILE**2, -1)).reshape(3, 3, *channels)


def in_blocks(function: Callable, bytes_of_one: int, x: jax.Array) -> jax.Array:
    """`function(x)` of images `[n, ...]`, of so many at a time that a block stays in the cache."""
    (blocks,) = _blocks(bytes_of_one, x)
    if len(blocks) == 1:
        return function(x)
    y = jax.lax.map(function, blocks)
    return y.reshape(-1, *y.shape[2:])[: len(x)]


def _blocks(bytes_of_one: int, *arrays: jax.Array) -> list[jax.Array]:
    """Arrays of n images as `[blocks, images, ...]`, with zeros where n does not divide."""
    n = len(arrays[0])
    least = max(1, -(-n // max(1, BLOCK_BYTES // max(1, bytes_of_one))))
    count = next((c for c in range(least, 2 * least) if n % c == 0), least)
    missing = -n % count
    padded = [jnp.pad(a, ((0, missing), *((0, 0),) * (a.ndim - 1))) for a in arrays]
    return [a.reshape(count, -1, *a.shape[1:]) for a in padded]


def _bytes(grid: tuple[int, int], *channels: int) -> int:
    """Of an image's tiles, before or after the products, whichever are more."""
    return 4 * TILE**2 * grid[0] * grid[1] * max(channels)


def _sizes(x: jax.Array, padding: Padding) -> tuple[tuple[int, int], tuple[int, int]]:
    """Height and width of the result, and how many tiles they take."""
    height, width = (side + sum(p) - 2 for side, p in zip(x.shape[1:3], padding, strict=True))
    return (height, width), (-(-height // STEP), -(-width // STEP))


def _flat(tiles: jax.Array) -> jax.Array:
    """`[6, 6, ..., c]` as `[36, m, c]`."""
    return tiles.reshape(TILE**2, -1, tiles.shape[-1])


def _tiles(matrix: np.ndarray, x: jax.Array, padding: Padding, grid: tuple[int, int]) -> jax.Array:
    """Images `[n, h, w, c]`, padded, as transformed tiles `m t m'`: `[6, 6, n, *grid, c]`."""
    extent = matrix.shape[1]
    sides = [
        (low, STEP * (count - 1) + extent - low - side, 0)
        for (low, _), count, side in zip(padding, grid, x.shape[1:3], strict=True)
    ]

    def views(x, axis, count):
        last = STEP * (count - 1) + 1
        return [jax.lax.slice_in_dim(x, j, j + last, STEP, axis) for j in range(extent)]

    zero, rest = jnp.zeros((), x.dtype), (0, 0, 0)
    x = _unfused(lambda x: jax.lax.pad(x, zero, (rest, *sides, rest)), x)
    x = _unfused(lambda x: _mixed(matrix, views(x, 1, grid[0]), 0), x)
    return _unfused(lambda x: _mixed(matrix, views(x, 3, grid[1]), 1), x)


def _joined(tiles: jax.Array) -> jax.Array:
    """Products of tiles, `[6, 6, n, rows, columns, c]`, as images `[n, 4 rows, 4 columns, c]`."""
    _, _, n, rows, columns, c = tiles.shape
    x = _unfused(lambda t: _mixed(_RESULT, [t[:, j] for j in range(TILE)], 4), tiles)
    x = x.reshape(TILE, n, rows, columns * STEP, c)
    x = _unfused(lambda x: _mixed(_RESULT, list(x), 2), x)
    return x.reshape(n, rows * STEP, columns * STEP, c)


def _both_sides(matrix: np.ndarray, x: jax.Array) -> jax.Array:
    """`m x m'` for each x, `[rows columns, k]`."""
    return jnp.matmul(np.kron(matrix, matrix), x, precision="highest")


def _mixed(matrix: np.ndarray, parts: Sequence[jax.Array], axis: int) -> jax.Array:
    """`sum_j matrix[i, j] parts[j]`, with i along a new axis."""
    shape = (*(1,) * axis, -1, *(1,) * (parts[0].ndim - axis))
    terms = [
        column.reshape(shape) * jnp.expand_dims(part, axis)
        for column, part in zip(matrix.T, parts, strict=True)
    ]
    return functools.reduce(jnp.add, terms)


def _unfused(function: Callable, x: Any) -> jax.Array:
    """`function(x)`, which XLA does not fuse with what comes after.

    Fused, every number of a transform would compute all that it reads of the one before again.
    """
    with set_xla_metadata(inlineable="false"):
        return jax.jit(function)(x)
