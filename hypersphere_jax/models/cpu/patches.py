"""Convolution as a product of image patches with the kernel."""

import functools

import jax
import jax.numpy as jnp

from hypersphere_jax.models.cpu.image_blocks import map_blocks

Padding = tuple[tuple[int, int], tuple[int, int]]


def convolution(
    x: jax.Array, kernel: jax.Array, strides: tuple[int, int], padding: Padding, in_blocks: bool
) -> jax.Array:
    """Convolve images `[n, h, w, c]` with a kernel `[kh, kw, c, features]`.

    Args:
      x: images.
      kernel: weights.
      strides: along height and width.
      padding: zeros before and after height and width.
      in_blocks: compute a few images at a time, so that their patches stay in the cache. Sharded
        arrays cannot be divided into blocks.
    """
    kh, kw, channels, features = kernel.shape
    height = (x.shape[1] + sum(padding[0]) - kh) // strides[0] + 1
    width = (x.shape[2] + sum(padding[1]) - kw) // strides[1] + 1
    patch_size = kh * kw * channels

    def convolve(x):
        return _product(x, kernel, strides, padding, (height, width))

    # Small patches are gathered quickly.
    if not in_blocks or kh * kw == 1 or patch_size <= features:
        return convolve(x)
    return map_blocks(convolve, 4 * height * width * patch_size, x)


# Checkpointed: patches take kh * kw times the memory of the input. Gathering them again in the
# backward pass is cheap beside the product.
@functools.partial(jax.checkpoint, static_argnums=(2, 3, 4))
def _product(x, kernel, strides, padding, size):
    kh, kw, channels, features = kernel.shape
    n = len(x)
    x = jnp.pad(x, ((0, 0), *padding, (0, 0)))
    rows = (size[0] - 1) * strides[0] + 1
    columns = (size[1] - 1) * strides[1] + 1
    shifted = [
        jax.lax.slice(x, (0, i, j, 0), (n, i + rows, j + columns, channels), (1, *strides, 1))
        for i in range(kh)
        for j in range(kw)
    ]
    patches = jnp.concatenate(shifted, axis=-1).reshape(-1, kh * kw * channels)
    return (patches @ kernel.reshape(-1, features)).reshape(n, *size, features)
