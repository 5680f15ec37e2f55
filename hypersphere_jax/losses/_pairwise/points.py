"""Points with biases, and what their norms say about the logits of their pairs."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

OptionalArray = jax.Array | None
Scale = jax.Array | float | None
# Bias and logit of a masked pair: finite, because differences of infinities are NaN.
MASKED_LOGIT = -1e30
# Half the scaled squared distance from the center above which inner products are too inexact:
# there gradients are off by up to 5e-5.
FAR = 32.0
# Range of logits whose exponentials, their sums, and products with small coordinates float32
# represents without a shift.
LOWEST = -60.0
HIGHEST = 60.0


class Points(NamedTuple):
    """Points of one side of a set of pairs.

    Attributes:
      x: `[n, d]` coordinates, with the temperature inside.
      bias: `[n]`, what each point adds to its logits.
      shift: `[n]`, which weighted sums subtract from the logits of anchors. Defaults to None for
        points that are not anchors.
    """

    x: jax.Array
    bias: jax.Array
    shift: OptionalArray = None


def make_points(x: jax.Array, mask: OptionalArray = None) -> Points:
    """Points without biases; masked points form no pairs."""
    bias = jnp.zeros_like(x, shape=x.shape[:1])
    if mask is not None:
        bias = jnp.where(mask, bias, MASKED_LOGIT)
    return Points(x, bias)


def log_or_masked(sums: jax.Array) -> jax.Array:
    """Log of sums of exponentials; the sum of a point without pairs is zero."""
    positive = sums > 0
    return jnp.where(positive, jnp.log(jnp.where(positive, sums, 1.0)), MASKED_LOGIT)


def within_range(a: Points, b: Points, scale: Scale = None) -> jax.Array:
    """Return whether all logits are within `LOWEST` and `HIGHEST`, by bounds from the norms."""
    squares_a, bottom_a, top_a = _bounds(a)
    squares_b, bottom_b, top_b = _bounds(b)
    inner_product = jnp.sqrt(squares_a * squares_b)
    lowest = bottom_a + bottom_b
    highest = top_a + top_b
    if scale is None:
        lowest -= inner_product
        highest += inner_product
    else:
        lowest -= scale * (squares_a / 2 + squares_b / 2 + inner_product)
    return (lowest >= LOWEST) & (highest <= HIGHEST)


def _bounds(points: Points) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Largest squared norm, smallest bias of unmasked points, and largest bias."""
    points = lax.stop_gradient(points)
    squares = jnp.max(jnp.sum(jnp.square(points.x), 1))
    bottom = jnp.min(jnp.where(points.bias > MASKED_LOGIT, points.bias, 0.0))
    return squares, bottom, jnp.max(points.bias)


def center_points(
    a: Points, b: Points | None, scale: jax.Array | float
) -> tuple[Points, Points | None, jax.Array]:
    """Return points whose inner products are logits of distances, and whether some are too far.

    Far from their center, inner products are too inexact.
    """
    center = lax.stop_gradient(jnp.mean(a.x, 0, keepdims=True))
    centered_a, far, finite = _center(a, center, scale)
    centered_b = None
    if b is not None:
        centered_b, far_b, finite_b = _center(b, center, scale)
        far |= far_b
        finite &= finite_b
    # Features that are not finite make the inner products, and so the loss, NaN.
    return centered_a, centered_b, any_of_batch(far & finite)


def _center(
    points: Points, center: jax.Array, scale: jax.Array | float
) -> tuple[Points, jax.Array, jax.Array]:
    """Centered points, whether an unmasked one is far, and whether all are finite."""
    x = jnp.sqrt(scale) * (points.x - center)
    halves = jnp.sum(jnp.square(x), 1) / 2
    radius = jnp.max(jnp.where(points.bias > MASKED_LOGIT, lax.stop_gradient(halves), 0.0))
    finite = jnp.all(jnp.isfinite(points.x))
    return points._replace(x=x, bias=points.bias - halves), ~(radius <= FAR), finite


@custom_vmap
def any_of_batch(flag: jax.Array) -> jax.Array:
    """Return the flag; under `vmap` one flag for the batch, so that `cond` runs one branch."""
    return flag


@any_of_batch.def_vmap
def _(axis_size: int, in_batched: list[bool], flag: jax.Array) -> tuple[jax.Array, bool]:
    return any_of_batch(jnp.any(flag)), False
