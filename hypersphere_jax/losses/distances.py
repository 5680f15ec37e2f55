"""Distances between far points by their differences, in which nothing cancels."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

# Terms that one pass over a block adds up. One at a time, a pass would read and write the sum for
# each; all at once, as a sum over the last of three axes, CPUs take twice the time, and XLA minutes
# to compile it for a GPU.
AT_ONCE = 16


@jax.checkpoint  # else reverse over reverse would keep each pair's coordinates
def squared_distances(x: jax.Array, y: jax.Array) -> jax.Array:
    """`|x_i - y_j|^2`, `[n, m]`."""
    nothing = jnp.zeros_like(x, shape=(x.shape[0], y.shape[0]))
    return _added(lambda one, other: jnp.square(one[:, None] - other[None]), nothing, x.T, y.T)


def differences(weights: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """`sum_j P_ij (y_j - x_i)`, `[n, d]`."""
    nothing = jnp.zeros_like(x)
    return _added(lambda p, other: p[:, None] * (other[None] - x), nothing, weights.T, y)


def _added(
    term: Callable[[jax.Array, jax.Array], jax.Array], total: jax.Array, *sides: jax.Array
) -> jax.Array:
    """`total + sum_k term(a_k, b_k)` of the rows of both sides; of zeros a term must be zero."""

    @jax.checkpoint
    def add(total: jax.Array, few: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        return total + functools.reduce(jnp.add, map(term, *few)), None

    missing = -sides[0].shape[0] % AT_ONCE
    padded = (jnp.pad(side, ((0, missing), (0, 0))) for side in sides)
    parts = tuple(side.reshape(-1, AT_ONCE, side.shape[1]) for side in padded)
    return lax.scan(add, total, parts)[0]
