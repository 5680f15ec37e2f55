"""Distances between far points by their differences, in which nothing cancels."""

import jax
import jax.numpy as jnp
from jax import lax

from hypersphere_jax.losses.products import on_cpu

AT_ONCE = 16  # terms that one pass over a block adds up on accelerators


@jax.checkpoint  # else reverse over reverse would keep each pair's coordinates
def squared_distances(x: jax.Array, y: jax.Array, factor: jax.Array) -> jax.Array:
    """`|factor (x_i - y_j)|^2`, `[n, m]`.

    The factor is inside the square so that nothing is multiplied afterwards. XLA would fuse such a
    product with a later sum in one program and not in another, and logits of 1e10 that differ in
    their last digit differ by thousands.
    """
    if on_cpu():
        return jnp.sum(jnp.square(factor * (x[:, None] - y[None])), -1)

    # A sum over the last of three axes, of large blocks, takes XLA minutes to compile for a GPU.
    x, y = (_parted(side.T, AT_ONCE) for side in (x, y))

    @jax.checkpoint
    def add(total: jax.Array, few: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        gaps = (one[:, None] - other[None] for one, other in zip(*few, strict=True))
        return total + sum(jnp.square(factor * gap) for gap in gaps), None

    return lax.scan(add, jnp.zeros_like(x, shape=(x.shape[2], y.shape[2])), (x, y))[0]


def differences(weights: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """`sum_j P_ij (y_j - x_i)`, few j at a time: all at once CPUs take ten times as long."""

    @jax.checkpoint
    def add(total: jax.Array, few: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        terms = (p[:, None] * (other[None] - x) for p, other in zip(*few, strict=True))
        return total + sum(terms), None

    at_once = 1 if on_cpu() else AT_ONCE  # more takes CPUs longer to compile than it saves
    sides = _parted(weights.T, at_once), _parted(y, at_once)
    return lax.scan(add, jnp.zeros_like(x), sides)[0]


def _parted(x: jax.Array, size: int) -> jax.Array:
    """`[n, m]` as `[parts, size, m]`; zeros fill the last part."""
    parts = -(-x.shape[0] // size)
    x = jnp.pad(x, ((0, parts * size - x.shape[0]), (0, 0)))
    return x.reshape(parts, size, x.shape[1])
