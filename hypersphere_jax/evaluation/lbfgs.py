"""The memory of L-BFGS for several convex objectives at once (Nocedal & Wright, Algorithm 7.4)."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

PAIRS = 10  # differences of points and gradients in the memory


class Memory(NamedTuple):
    """Differences of points `[g, a, b]` and of gradients, in rings."""

    moves: jax.Array  # [PAIRS, g, a, b] differences of points
    changes: jax.Array  # [PAIRS, g, a, b] differences of gradients
    weights: jax.Array  # [PAIRS, g] 1 / (move . change), 0 for no pair
    scale: jax.Array  # [g] factor of the initial inverse Hessian
    newest: jax.Array  # position in the rings


def empty_memory(points: jax.Array) -> Memory:
    """Return a memory without pairs for points `[g, a, b]`."""
    ring = jnp.zeros((PAIRS, *points.shape))
    g = len(points)
    return Memory(ring, ring, jnp.zeros((PAIRS, g)), jnp.ones(g), jnp.int32(0))


def remember(
    memory: Memory, moves: jax.Array, changes: jax.Array, taken: jax.Array, solve: Callable
) -> Memory:
    """Add the differences of steps that were taken, if rounding left their curvature positive.

    `solve` multiplies vectors by the inverse of a model of the Hessian.
    """
    products = inner(moves, changes)
    squares = inner(changes, solve(changes))
    is_pair = taken & (products > 0) & (squares > 0)
    newest = (memory.newest + 1) % PAIRS
    return Memory(
        memory.moves.at[newest].set(moves),
        memory.changes.at[newest].set(changes),
        memory.weights.at[newest].set(_ratio(1.0, products, is_pair, 0.0)),
        _ratio(products, squares, is_pair, memory.scale),
        newest,
    )


def inverse_hessian_product(memory: Memory, gradients: jax.Array, solve: Callable) -> jax.Array:
    """Return the product of the inverse Hessian and gradients `[g, a, b]`, by two loops."""
    newest_first = (memory.newest - jnp.arange(PAIRS)) % PAIRS

    def backward(q, position):
        factor = memory.weights[position] * inner(memory.moves[position], q)
        return q - factor[:, None, None] * memory.changes[position], factor

    def forward(r, pair):
        position, factor = pair
        excess = factor - memory.weights[position] * inner(memory.changes[position], r)
        return r + excess[:, None, None] * memory.moves[position], None

    q, factors = lax.scan(backward, gradients, newest_first)
    r = memory.scale[:, None, None] * solve(q)
    return lax.scan(forward, r, (newest_first, factors), reverse=True)[0]


def inner(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return inner products `[g]` of arrays `[g, a, b]`."""
    return jnp.einsum("gcd,gcd->g", a, b, precision="highest")


def _ratio(a, b: jax.Array, where: jax.Array, otherwise) -> jax.Array:
    return jnp.where(where, a / jnp.where(where, b, 1.0), otherwise)
