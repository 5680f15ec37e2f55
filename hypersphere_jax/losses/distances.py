"""Distances between far points by their differences, in which nothing cancels."""

import jax
import jax.numpy as jnp
from jax import lax

from hypersphere_jax.losses.products import on_cpu

# So many coordinates' differences are squared and summed in one pass over a block.
COORDINATES = 16


@jax.checkpoint  # else reverse over reverse would keep each pair's coordinates
def squared_distances(x: jax.Array, y: jax.Array) -> jax.Array:
    """`|x_i - y_j|^2`, `[n, m]`."""
    if on_cpu():
        return jnp.sum(jnp.square(x[:, None] - y[None]), -1)

    # A sum over the last of three axes, of large blocks, takes XLA minutes to compile for a GPU.
    x, y = (_parted(side, COORDINATES) for side in (x, y))

    @jax.checkpoint
    def add(total: jax.Array, few: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        squares = (jnp.square(one[:, None] - other[None]) for one, other in zip(*few, strict=True))
        return total + sum(squares), None

    return lax.scan(add, jnp.zeros_like(x, shape=(x.shape[2], y.shape[2])), (x, y))[0]


def _parted(x: jax.Array, size: int) -> jax.Array:
    """`[n, d]` as `[parts, size, n]`; coordinates of zero fill the last part."""
    x = jnp.pad(x.T, ((0, -x.shape[1] % size), (0, 0)))
    return x.reshape(-1, size, x.shape[1])


def differences(weights: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """`sum_j P_ij (y_j - x_i)`, one j after the other: at once CPUs take ten times as long."""

    @jax.checkpoint
    def add(total: jax.Array, side: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        weight, other = side
        return total + weight[:, None] * (other[None] - x), None

    return lax.scan(add, jnp.zeros_like(x), (weights.T, y))[0]
