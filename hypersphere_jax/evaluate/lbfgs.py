"""L-BFGS on many convex objectives at once, from gradients that others compute.

With memory 10 (Nocedal & Wright, Numerical Optimization, Algorithm 7.4), each direction starts from
a model of the curvature, scaled to the newest pair of differences.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

MEMORY = 10  # pairs of differences that are kept


class State(NamedTuple):
    """Of g minimizations; points and gradients are `[g, a, b]`."""

    trial: jax.Array  # where the gradient is computed next: point + step * direction
    step: jax.Array  # [g]
    point: jax.Array
    gradient: jax.Array  # at the point
    direction: jax.Array
    moves: jax.Array  # [MEMORY, g, ...] ring of differences of points ...
    changes: jax.Array  # ... and of gradients
    inverse: jax.Array  # [MEMORY, g] 1 / (move . change); 0: no such pair
    turn: jax.Array  # next place in the ring
    model_scale: jax.Array  # [g] of the inverse of the model of the curvature
    steps: jax.Array  # [g] taken
    norm: jax.Array  # [g] of the gradient
    done: jax.Array  # [g]


def begin(trial: np.ndarray) -> State:
    """Starts at points `[g, a, b]`: the first `advance` takes the gradients there."""
    g, zeros = len(trial), np.zeros_like(trial)
    none, ring = np.zeros(g, np.float32), np.zeros((MEMORY, *trial.shape), np.float32)
    pairs = ring, ring, np.zeros((MEMORY, g), np.float32), np.int32(0)
    ends = np.full(g, -1, np.int32), none + np.inf, np.zeros(g, bool)
    return State(trial, none + 1, trial, zeros, zeros, *pairs, none + 1, *ends)


def advance(state: State, gradient, model_inverse: Callable, tolerance, excess) -> State:
    """A step where the slope at its end allows it, given the gradients at `state.trial`.

    The line search needs no value of the convex objective, whose changes near the minimum are below
    float32's resolution: the slope must not be much above zero (the approximate Wolfe condition of
    Hager & Zhang, 2005, delta = 0.1). A longer step is cut where the secant of the slopes is zero.

    `model_inverse` multiplies by the inverse of a model of each objective's second derivative;
    `tolerance` is on the norm of the gradient and `excess` on the Newton decrement.
    """
    slope, slope_there = _dot(state.gradient, state.direction), _dot(gradient, state.direction)
    taken = (slope_there <= 0.8 * -slope) & ~state.done

    move, change = state.trial - state.point, gradient - state.gradient
    product, bent = _dot(move, change), _dot(change, model_inverse(change))
    known = taken & (product > 0)
    inverse = jnp.where(known, 1 / jnp.where(known, product, 1.0), 0.0)
    model_scale = jnp.where(known & (bent > 0), product / jnp.where(bent > 0, bent, 1.0), 1.0)
    ring = state._replace(
        moves=state.moves.at[state.turn].set(move),
        changes=state.changes.at[state.turn].set(change),
        inverse=state.inverse.at[state.turn].set(inverse),
        model_scale=jnp.where(taken, model_scale, state.model_scale),
        turn=(state.turn + 1) % MEMORY,
    )
    point = _where(taken, state.trial, state.point)
    gradient = _where(taken, gradient, state.gradient)
    direction = _where(taken, -_two_loops(ring, gradient, model_inverse), state.direction)
    secant = jnp.where(taken | state.done, 1.0, slope - slope_there)
    step = jnp.where(taken, 1.0, state.step * slope / secant)

    norm = jnp.sqrt(_dot(gradient, gradient))
    above = -_dot(gradient, direction) / 2
    # A step that had to be that short was shortened by float32's rounding.
    stuck = step < 1e-4
    done = state.done | stuck | (norm <= tolerance) | (above <= excess)
    trial = _where(done, point, point + step[:, None, None] * direction)
    ring = ring._replace(trial=trial, step=step, point=point, gradient=gradient)
    return ring._replace(direction=direction, steps=state.steps + taken, norm=norm, done=done)


def only(state: State, fit) -> State:
    """The state of one of the g minimizations."""
    axes = {"moves": 1, "changes": 1, "inverse": 1}
    kept = {
        name: lax.dynamic_slice_in_dim(leaf, fit, 1, axes.get(name, 0))
        for name, leaf in state._asdict().items()
        if name != "turn"
    }
    return state._replace(**kept)


def _two_loops(ring: State, gradient, model_inverse) -> jax.Array:
    """The inverse of the curvature, as L-BFGS knows it, times the gradient."""
    newest_first = (ring.turn - 1 - jnp.arange(MEMORY)) % MEMORY

    def backwards(q, place):
        factor = ring.inverse[place] * _dot(ring.moves[place], q)
        return q - factor[:, None, None] * ring.changes[place], factor

    def forwards(r, at):
        place, factor = at
        excess = factor - ring.inverse[place] * _dot(ring.changes[place], r)
        return r + excess[:, None, None] * ring.moves[place], None

    q, factors = lax.scan(backwards, gradient, newest_first)
    r = ring.model_scale[:, None, None] * model_inverse(q)
    return lax.scan(forwards, r, (newest_first, factors), reverse=True)[0]


def _dot(a, b) -> jax.Array:
    """Inner products `[g]` of `[g, a, b]`."""
    return jnp.einsum("gcd,gcd->g", a, b, precision="highest")


def _where(taken, new, old) -> jax.Array:
    return jnp.where(taken[:, None, None], new, old)
