"""L-BFGS for several smooth convex objectives at once, one evaluation of all gradients at a time.

Nocedal & Wright, Numerical Optimization, Algorithm 7.4, with a model of the curvature in place of
its multiple of the identity: each direction starts from the inverse of the model, scaled to the
newest pair of differences.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

MEMORY = 10


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


def begin(trial: jax.Array) -> State:
    """Starts at points `[g, a, b]`: the first `advance` computes the gradients there."""
    g = len(trial)
    zeros, ring = jnp.zeros_like(trial), jnp.zeros((MEMORY, *trial.shape))
    return State(
        trial=trial,
        step=jnp.ones(g),
        point=trial,
        gradient=zeros,
        direction=zeros,
        moves=ring,
        changes=ring,
        inverse=jnp.zeros((MEMORY, g)),
        turn=jnp.int32(0),
        model_scale=jnp.ones(g),
        steps=jnp.full(g, -1),
        norm=jnp.full(g, jnp.inf),
        done=jnp.zeros(g, bool),
    )


def advance(
    state: State, gradient_at: Callable, model_inverse: Callable, tolerance, excess
) -> State:
    """One evaluation of all gradients, and what follows of it.

    The line search needs no value of the objective, whose changes near the minimum are below
    float32's resolution: since the objective is convex, a step is good if the slope at its end is
    not much above zero (the approximate Wolfe condition of Hager & Zhang, 2005, with delta = 0.1).
    A step that goes too far is shortened to where the secant of the slopes is zero.

    Args:
      state: from `begin` or the call before.
      gradient_at: gradients of the g convex objectives at points.
      model_inverse: multiplies by the inverse of a model of each objective's second derivative.
      tolerance: number or `[g]`: a minimization ends where the norm of its gradient is at most
        that ...
      excess: ... or where half of the product of the gradient and the direction is, which
        estimates how far the objective is above its minimum.
    """
    gradient = gradient_at(state.trial)
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
    point, gradient = (
        _where(taken, new, old)
        for new, old in ((state.trial, state.point), (gradient, state.gradient))
    )
    direction = _where(taken, -_two_loops(ring, gradient, model_inverse), state.direction)
    secant = jnp.where(taken | state.done, 1.0, slope - slope_there)
    step = jnp.where(taken, 1.0, state.step * slope / secant)

    norm = jnp.sqrt(_dot(gradient, gradient))
    above = -_dot(gradient, direction) / 2
    # A step that had to be that short was shortened by float32's rounding.
    stuck = step < 1e-4
    done = state.done | stuck | (norm <= tolerance) | (above <= excess)
    trial = _where(done, point, point + step[:, None, None] * direction)
    return ring._replace(
        trial=trial,
        step=step,
        point=point,
        gradient=gradient,
        direction=direction,
        steps=state.steps + taken,
        norm=norm,
        done=done,
    )


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
