"""Squared distances of far points from coordinate differences, which do not cancel."""

import jax
import jax.numpy as jnp
from jax import lax

from hypersphere_jax.losses._pairwise.precision import on_cpu

CHUNK = 16  # coordinates, or points, that one pass over a block adds up on accelerators


@jax.checkpoint  # Otherwise reverse over reverse keeps the coordinates of each pair.
def squared_distances(x: jax.Array, y: jax.Array, factor: jax.Array) -> jax.Array:
    """Return `|factor (x_i - y_j)|^2`, `[n, m]`.

    The factor is inside the square so that no product follows it. XLA fuses such a product with a
    later sum in some programs only, and logits of 1e10 that differ in their last digit differ by
    thousands.
    """
    if on_cpu():
        return jnp.sum(jnp.square(factor * (x[:, None] - y[None])), -1)

    @jax.checkpoint
    def add_chunk(total: jax.Array, chunk: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        gaps = (x_k[:, None] - y_k[None] for x_k, y_k in zip(*chunk, strict=True))
        return total + sum(jnp.square(factor * gap) for gap in gaps), None

    # XLA takes minutes to compile a sum over the last of three axes of a large block for a GPU.
    coordinates = (_chunks(x.T, CHUNK), _chunks(y.T, CHUNK))
    zeros = jnp.zeros_like(x, shape=(x.shape[0], y.shape[0]))
    return lax.scan(add_chunk, zeros, coordinates)[0]


def weighted_differences(weights: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """Return `sum_j P_ij (y_j - x_i)`, `[n, d]`.

    CPUs take one j at a time: all at once is ten times as slow, and larger chunks take longer to
    compile than they save.
    """

    @jax.checkpoint
    def add_chunk(total: jax.Array, chunk: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        terms = (p_j[:, None] * (y_j[None] - x) for p_j, y_j in zip(*chunk, strict=True))
        return total + sum(terms), None

    size = 1 if on_cpu() else CHUNK
    chunks = (_chunks(weights.T, size), _chunks(y, size))
    return lax.scan(add_chunk, jnp.zeros_like(x), chunks)[0]


def _chunks(x: jax.Array, size: int) -> jax.Array:
    """Split `[n, m]` into `[chunks, size, m]`; zeros pad the last chunk."""
    chunks = -(-x.shape[0] // size)
    x = jnp.pad(x, ((0, chunks * size - x.shape[0]), (0, 0)))
    return x.reshape(chunks, size, x.shape[1])
