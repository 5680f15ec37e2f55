"""Convolution, matrix product and maximum pool of the encoders: one place chooses the kernel.

GPUs and TPUs use XLA's operations. CPUs use the kernels of `cpu/`; `python run.py bench step`
compares both.
"""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp

from hypersphere_jax.models.cpu import dense, patches, winograd

MATRIX_PRODUCT = (((1,), (0,)), ((), ()))  # dimension numbers of `[n, k] @ [k, m]`


def convolution(
    x: jax.Array, kernel: jax.Array, strides: tuple[int, int], padding: Any, **options: Any
) -> jax.Array:
    """Convolve images; a replacement for `jax.lax.conv_general_dilated`.

    On CPUs, 3x3 convolutions with stride 1 and at least `winograd.MIN_CHANNELS` channels are
    computed by Winograd's algorithm, which has reverse-mode derivatives only. XLA's convolution is
    faster for fewer channels and other strides, except for images of at most 8x8 pixels. Dilated
    and grouped convolutions are always XLA's.

    Args:
      x: images `[n, h, w, c]`.
      kernel: `[kh, kw, c, features]`.
      strides: along height and width.
      padding: pairs of zeros to add before and after height and width.
      **options: further arguments of `conv_general_dilated`.
    """
    dilations = (*(options.get("lhs_dilation") or ()), *(options.get("rhs_dilation") or ()))
    is_plain = set(dilations) <= {1} and options.get("feature_group_count", 1) == 1
    if not on_cpu() or not is_plain:
        return jax.lax.conv_general_dilated(x, kernel, strides, padding, **options)
    strides = tuple(strides)
    padding = tuple(tuple(pair) for pair in padding)
    sharded = is_sharded(x) or is_sharded(kernel)
    if not sharded and strides == (1, 1) and winograd.is_faster(x, kernel, padding):
        return winograd.convolution(x, kernel, padding)
    if patches.is_faster(x, kernel, strides, padding):
        return patches.convolution(x, kernel, strides, padding)
    # The gradient of the kernel transposes x. XLA would fuse this with the operations that compute
    # x, and repeat them slowly: a quarter of the time of a narrow ResNet's step.
    x = winograd.unfused(jax.lax.optimization_barrier, x)
    return jax.lax.conv_general_dilated(x, kernel, strides, padding, **options)


def dot_general(x: jax.Array, kernel: jax.Array, dimensions: Any, **options: Any) -> jax.Array:
    """Multiply arrays; a replacement for `jax.lax.dot_general`.

    On CPUs, products with a wide float32 kernel have reverse-mode derivatives only.
    """
    is_plain = x.ndim == 2 and dimensions == MATRIX_PRODUCT and not any(options.values())
    sharded = is_sharded(x) or is_sharded(kernel)
    if on_cpu() and is_plain and not sharded and dense.is_faster(x, kernel):
        return dense.product(x, kernel)
    return jax.lax.dot_general(x, kernel, dimensions, **options)


def on_cpu() -> bool:
    """Return whether JAX computes on CPUs."""
    return jax.default_backend() == "cpu"


def is_sharded(x: jax.Array) -> bool:
    """Return whether an array is sharded, by `shard_map` or over explicit axes of a mesh."""
    aval = jax.typeof(x)
    is_explicit = any(axis is not None for axis in aval.sharding.spec)
    return is_explicit or bool(aval.manual_axis_type.varying)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def max_pool(x: jax.Array, padding: int = 0) -> jax.Array:
    """Return the maxima of 3x3 windows with stride 2 of images `[n, h, w, c]`.

    Without padding, side s becomes (s - 1) // 2. The first of equal maxima gets the gradient.

    XLA computes the gradient of a maximum pool by a scatter. On CPUs that takes longer than the
    convolution before it; on GPUs its order of additions varies from call to call. Here the
    gradient of each pixel is a sum over the at most four windows that contain the pixel.
    """
    return _maxima(x, padding)[0]


@max_pool.defjvp
def _(padding, primals, tangents):
    (x,), (tangent,) = primals, tangents
    maxima, argmax = _maxima(x, padding)
    scatter = functools.partial(_scatter, argmax, padding, x.shape[1:3])
    # Reverse mode transposes this once more, which gives `_scatter` itself.
    (gathered,) = jax.linear_transpose(scatter, maxima)(tangent)
    return maxima, gathered


def _maxima(x: jax.Array, padding: int) -> tuple[jax.Array, jax.Array]:
    """Return the maxima, and the position (0 to 8) of each maximum in its window."""
    sides = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    x = jnp.pad(x, sides, constant_values=-jnp.inf)
    h, w = (side - (side - 3) % 2 for side in x.shape[1:3])
    maxima = x[:, : h - 2 : 2, : w - 2 : 2]
    argmax = jnp.uint8(0)
    for position, (i, j) in enumerate(itertools.product(range(3), range(3))):
        y = x[:, i : h - 2 + i : 2, j : w - 2 + j : 2]
        larger = (y > maxima) | jnp.isnan(y)
        maxima = jnp.where(larger, y, maxima)
        argmax = jnp.where(larger, jnp.uint8(position), argmax)
    return maxima, argmax


def _scatter(
    argmax: jax.Array, padding: int, sides: tuple[int, int], gradient: jax.Array
) -> jax.Array:
    """Return the gradient of a pool's input `[n, *sides, c]` from the gradient of its output."""
    rows, columns = (jnp.arange(padding, padding + side) % 2 for side in sides)
    rows = rows[None, :, None, None]
    columns = columns[None, None, :, None]
    # Windows are repeated along both axes, because a pixel is in up to two windows along each.
    argmax = _repeated(argmax)
    gradient = _repeated(gradient)
    total = jnp.zeros((), gradient.dtype)
    for i, j in itertools.product((0, 2), (0, 2)):
        inside = (rows + i < 3) & (columns + j < 3)
        position = jnp.where(inside, 3 * (rows + i) + columns + j, 9).astype(jnp.uint8)
        top = padding + 2 - i
        left = padding + 2 - j
        window = (slice(None), slice(top, top + sides[0]), slice(left, left + sides[1]))
        total += jnp.where(argmax[window] == position, gradient[window], 0)
    return total


def _repeated(x: jax.Array) -> jax.Array:
    x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
