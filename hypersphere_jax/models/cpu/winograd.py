"""3x3 convolution by Winograd's minimal filtering F(4x4, 3x3), for CPUs.

A tile of 6x6 pixels gives 4x4 pixels of the result with 36 products of transformed pixels and
weights, where the sums over patches have 144.

Source: Lavin & Gray 2016, "Fast algorithms for convolutional neural networks".
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.xla_metadata import set_xla_metadata

from hypersphere_jax.models.cpu.patches import Padding

STRIDE = 4  # pixels between tiles
TILE = 6  # pixels of a tile's side
MIN_CHANNELS = 32  # with 16 channels, transforms take as long as the products that they save
BLOCK_BYTES = 10_000_000  # size of the tiles of a block of images, which must fit the cache
MIN_TILES = 128  # in a batch; with fewer, transforming the kernel costs more than is saved


def _transforms() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return Toom and Cook's matrices of input `[6, 6]`, kernel `[6, 3]` and result `[4, 6]`.

    The points are exact in float32 and give relative errors of about 1e-6, like direct sums in
    float32. The usual points 0, 1, -1, 2, -2 give errors several times as large.
    """
    points = np.array([0.0, 0.625, -0.625, 1.5, -1.5])  # and infinity
    others = [np.delete(points, i) for i in range(5)]
    polynomials = [np.poly(roots)[::-1] for roots in [*others, points]]
    scales = [np.prod(point - roots) for point, roots in zip(points, others, strict=True)]
    inputs = np.stack([np.pad(p, (0, TILE - len(p))) for p in polynomials])
    kernel = np.vstack([np.vander(points, 3, increasing=True) / np.c_[scales], [0, 0, 1]])
    result = np.c_[np.vander(points, STRIDE, increasing=True).T, [0, 0, 0, 1]]
    return inputs.astype("f4"), kernel.astype("f4"), result.astype("f4")


_INPUT, _KERNEL, _RESULT = _transforms()


def is_faster(x: jax.Array, kernel: jax.Array, padding: Padding) -> bool:
    """Return whether `convolution` is faster than XLA's."""
    if kernel.shape[:2] != (3, 3) or not x.dtype == kernel.dtype == jnp.float32:
        return False
    (height, width), (rows, columns) = _sizes(x, padding)
    is_wide = min(kernel.shape[2:]) >= MIN_CHANNELS
    # Tiles may cover only a little more than the result.
    fits = TILE**2 * rows * columns <= 5 * height * width
    return is_wide and fits and len(x) * rows * columns >= MIN_TILES


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def convolution(x: jax.Array, kernel: jax.Array, padding: Padding) -> jax.Array:
    """Convolve images `[n, h, w, c]` with a kernel `[3, 3, c, features]` and stride 1.

    The convolution has reverse-mode derivatives only; a form with both took longer to compile.
    """
    return _convolve(x, kernel, padding)


def _forward(x, kernel, padding):
    return _convolve(x, kernel, padding), (x, kernel)


def _backward(padding, residuals, gradient):
    x, kernel = residuals
    mirrored = tuple((2 - low, 2 - high) for low, high in padding)
    x_gradient = _convolve(gradient, kernel[::-1, ::-1].swapaxes(2, 3), mirrored)
    return x_gradient, _kernel_gradient(x, gradient, padding)


convolution.defvjp(_forward, _backward)


# Jitted, so that layers of one shape are traced once.
@functools.partial(jax.jit, static_argnums=2)
def _convolve(x: jax.Array, kernel: jax.Array, padding: Padding) -> jax.Array:
    weights = _transform_both_axes(_KERNEL, kernel.reshape(9, -1))
    weights = weights.reshape(TILE**2, *kernel.shape[2:])
    (height, width), grid = _sizes(x, padding)

    def convolve(x):
        tiles = _transformed_tiles(_INPUT, x, padding, grid)
        products = _by_position(tiles) @ weights
        return _images(products.reshape(*tiles.shape[:-1], -1))[:, :height, :width]

    return _map_blocks(convolve, _bytes_per_image(grid, *kernel.shape[2:]), x)


@functools.partial(jax.jit, static_argnums=2)
def _kernel_gradient(x: jax.Array, gradient: jax.Array, padding: Padding) -> jax.Array:
    _, grid = _sizes(x, padding)
    channels = (x.shape[-1], gradient.shape[-1])

    def add(total, block):
        images, gradients = block
        input_tiles = _transformed_tiles(_INPUT, images, padding, grid)
        result_tiles = _transformed_tiles(_RESULT.T, gradients, ((0, 0), (0, 0)), grid)
        products = jnp.einsum("tpc,tpf->tcf", _by_position(input_tiles), _by_position(result_tiles))
        return total + products, None

    total = jnp.zeros((TILE**2, *channels), jnp.float32)
    blocks = _split_blocks(_bytes_per_image(grid, *channels), x, gradient)
    total, _ = jax.lax.scan(add, total, blocks)
    kernel = _transform_both_axes(_KERNEL.T, total.reshape(TILE**2, -1))
    return kernel.reshape(3, 3, *channels)


def _bytes_per_image(grid: tuple[int, int], *channels: int) -> int:
    """Return the size of an image's tiles before or after the products, whichever is larger."""
    return 4 * TILE**2 * grid[0] * grid[1] * max(channels)


def _sizes(x: jax.Array, padding: Padding) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return height and width of the result, and the number of tiles along both."""
    height = x.shape[1] + sum(padding[0]) - 2
    width = x.shape[2] + sum(padding[1]) - 2
    return (height, width), (-(-height // STRIDE), -(-width // STRIDE))


def _by_position(tiles: jax.Array) -> jax.Array:
    """Return tiles `[6, 6, ..., c]` as `[36, m, c]`."""
    return tiles.reshape(TILE**2, -1, tiles.shape[-1])


def _transformed_tiles(
    matrix: np.ndarray, x: jax.Array, padding: Padding, grid: tuple[int, int]
) -> jax.Array:
    """Return the transformed tiles `matrix @ tile @ matrix.T` of images, `[6, 6, n, *grid, c]`."""
    extent = matrix.shape[1]
    sides = [(0, 0, 0)]
    for (low, _), count, side in zip(padding, grid, x.shape[1:3], strict=True):
        sides.append((low, STRIDE * (count - 1) + extent - low - side, 0))
    sides.append((0, 0, 0))

    def views(x, axis, count):
        last = STRIDE * (count - 1) + 1
        return [jax.lax.slice_in_dim(x, j, j + last, STRIDE, axis) for j in range(extent)]

    zero = jnp.zeros((), x.dtype)
    x = unfused(lambda x: jax.lax.pad(x, zero, sides), x)
    x = unfused(lambda x: _transform(matrix, views(x, 1, grid[0]), 0), x)
    return unfused(lambda x: _transform(matrix, views(x, 3, grid[1]), 1), x)


def _images(products: jax.Array) -> jax.Array:
    """Return products `[6, 6, n, rows, columns, c]` as images `[n, 4 rows, 4 columns, c]`."""
    _, _, n, rows, columns, c = products.shape
    x = unfused(lambda t: _transform(_RESULT, [t[:, j] for j in range(TILE)], 4), products)
    x = x.reshape(TILE, n, rows, columns * STRIDE, c)
    x = unfused(lambda x: _transform(_RESULT, list(x), 2), x)
    return x.reshape(n, rows * STRIDE, columns * STRIDE, c)


def _transform_both_axes(matrix: np.ndarray, x: jax.Array) -> jax.Array:
    """Return `matrix @ x @ matrix.T` for each of k matrices, `[rows columns, k]`."""
    return jnp.matmul(np.kron(matrix, matrix), x, precision="highest")


def _transform(matrix: np.ndarray, parts: Sequence[jax.Array], axis: int) -> jax.Array:
    """Return `sum_j matrix[i, j] parts[j]`, with i along a new axis."""
    shape = (*(1,) * axis, -1, *(1,) * (parts[0].ndim - axis))
    terms = [
        column.reshape(shape) * jnp.expand_dims(part, axis)
        for column, part in zip(matrix.T, parts, strict=True)
    ]
    return functools.reduce(jnp.add, terms)


def unfused(function: Callable, x: Any) -> jax.Array:
    """Return `function(x)`, which XLA does not fuse with the next operation.

    A fused transform would compute each number of the transform before it several times.
    """
    with set_xla_metadata(inlineable="false"):
        return jax.jit(function)(x)


def _map_blocks(function: Callable, bytes_per_image: int, x: jax.Array) -> jax.Array:
    """Return `function(x)` of images, which it maps independently, computed block by block."""
    (blocks,) = _split_blocks(bytes_per_image, x)
    if len(blocks) == 1:
        return function(x)
    y = jax.lax.map(function, blocks)
    return y.reshape(-1, *y.shape[2:])[: len(x)]


def _split_blocks(bytes_per_image: int, *arrays: jax.Array) -> list[jax.Array]:
    """Return arrays `[n, ...]` as `[blocks, images, ...]`, padded with zeros if necessary."""
    n = len(arrays[0])
    images = max(1, BLOCK_BYTES // max(1, bytes_per_image))
    least = max(1, -(-n // images))
    # A number of blocks that divides n needs no padding.
    count = next((c for c in range(least, 2 * least) if n % c == 0), least)
    missing = -n % count
    blocks = []
    for array in arrays:
        padded = jnp.pad(array, ((0, missing), *((0, 0),) * (array.ndim - 1)))
        blocks.append(padded.reshape(count, -1, *array.shape[1:]))
    return blocks
