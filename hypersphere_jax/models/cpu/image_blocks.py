"""Blocks of images that fit the cache."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

BLOCK_BYTES = 10_000_000  # of intermediate values of a block


def map_blocks(function: Callable, bytes_per_image: int, x: jax.Array) -> jax.Array:
    """Return `function(x)` for images `[n, ...]`, computed block by block.

    Args:
      function: maps images `[m, ...]` to an array `[m, ...]`, each image on its own.
      bytes_per_image: size of the intermediate values for one image.
      x: images.
    """
    (blocks,) = split_blocks(bytes_per_image, x)
    if len(blocks) == 1:
        return function(x)
    y = jax.lax.map(function, blocks)
    return y.reshape(-1, *y.shape[2:])[: len(x)]


def split_blocks(bytes_per_image: int, *arrays: jax.Array) -> list[jax.Array]:
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
