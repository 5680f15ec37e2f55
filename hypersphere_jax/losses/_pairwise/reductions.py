"""Two scalars over pairs of points that the pairwise losses consist of, with exact gradients.

`logsumexp_all_pairs` is the log of the sum of `exp(l_ij)` over all pairs, and `mean_row_logsumexp`
the mean over points of the log of the sum over the pairs of each. Memory is linear in the number of
points. A derivative of any mode comes from gradients that are computed together with the value.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from hypersphere_jax.losses._pairwise.collectives import (
    global_logsumexp,
    global_mean,
    global_size,
    global_sum,
    weighted_mean,
)
from hypersphere_jax.losses._pairwise.options import AxisName
from hypersphere_jax.losses._pairwise.pair_sets import PairSet, Sides
from hypersphere_jax.losses._pairwise.points import (
    MASKED_LOGIT,
    OptionalArray,
    Points,
    Scale,
    any_of_batch,
    within_range,
)


def logsumexp_all_pairs(pairs: PairSet, *sides: Points, scale: Scale = None) -> jax.Array:
    r"""Return `\log \sum_{ij} e^{l_ij}` over the pairs of all devices.

    Args:
      pairs: which pairs count.
      *sides: the points of this device, see `pair_sets`.
      scale: factor of squared distances, or None for inner products.
    """
    value = functools.partial(_log_total, pairs)
    value_and_gradients = functools.partial(_log_total_and_gradients, pairs)
    return _differentiable(value, value_and_gradients, pairs.options.axis_name)(sides, scale)


def _log_total(pairs: PairSet, sides: Sides, scale: Scale) -> jax.Array:
    row_sums = pairs.logsumexp(_match_types(sides), scale)[0]
    return global_logsumexp(row_sums, pairs.options.axis_name)


def _log_total_and_gradients(pairs: PairSet, sides: Sides, scale: Scale) -> tuple[jax.Array, Any]:
    """All weights share the denominator, so that one pass computes both."""
    axis_name = pairs.options.axis_name
    sides = _match_types(sides)
    shift = _overflow_shift(pairs, sides, scale)
    lowered = sides[0]._replace(bias=sides[0].bias - shift / pairs.places)
    sums = pairs.weighted_sums((lowered, *sides[1:]), scale)
    total = global_sum(jnp.sum(sums[0].bias), axis_name)
    # The sum may underflow when logits exceed 1e7, which round differently in each pass.
    total = jnp.maximum(total, jnp.finfo(total.dtype).tiny)
    gradients = jax.tree.map(lambda array: pairs.places * array / total, sums)
    scale_gradient = _scale_gradient(sides, gradients, scale, axis_name)
    return jnp.log(total) + shift, (gradients, scale_gradient)


def _overflow_shift(pairs: PairSet, sides: Sides, scale: Scale) -> jax.Array:
    """Return a shift of logits with which no sum of exponentials under- or overflows.

    It is 0 if the norms of the points guarantee that, else the value, which takes another pass.
    """
    sides, scale = lax.stop_gradient((sides, scale))
    fits = within_range(sides[0], sides[-1], scale)
    if pairs.options.axis_name is not None:
        fits = lax.pmin(fits.astype(jnp.int32), pairs.options.axis_name) > 0
    zero = jnp.zeros_like(fits, sides[0].bias.dtype)
    return lax.cond(any_of_batch(~fits), lambda: _log_total(pairs, sides, scale), lambda: zero)


def mean_row_logsumexp(
    pairs: PairSet,
    *sides: Points,
    positives: OptionalArray = None,
    weights: OptionalArray = None,
    scale: Scale = None,
) -> jax.Array:
    r"""Return `\frac{1}{n} \sum_i \log \sum_j e^{l_ij}` over the points of all devices.

    With positives it is the mean of `\log(1 + \sum_j e^{l_ij - p_i})`, the cross entropy of the
    logit p_i among itself and the others. It keeps its precision near zero, where a difference of
    two log-sum-exps would not.

    Args:
      pairs: which pairs count. If columns are anchors too, half the mean over rows plus half the
        mean over columns is returned.
      *sides: the n points of this device, see `pair_sets`.
      positives: logits `[n]`, or None.
      weights: `[n]`, normalized, or None for the mean.
      scale: factor of squared distances, or None for inner products.
    """
    value = functools.partial(_mean, pairs)
    value_and_gradients = functools.partial(_mean_and_gradients, pairs)
    function = _differentiable(value, value_and_gradients, pairs.options.axis_name)
    return function(sides, positives, weights, scale)


def _mean(
    pairs: PairSet, sides: Sides, positives: OptionalArray, weights: OptionalArray, scale: Scale
) -> jax.Array:
    sums = pairs.logsumexp(_match_types(sides), scale)
    return weighted_mean(_entropies(sums, positives), weights, pairs.options.axis_name)


def _mean_and_gradients(
    pairs: PairSet, sides: Sides, positives: OptionalArray, weights: OptionalArray, scale: Scale
) -> tuple[jax.Array, Any]:
    axis_name = pairs.options.axis_name
    sides = _match_types(sides)
    sums = pairs.logsumexp(sides, scale)
    entropies = _entropies(sums, positives)
    mean = weighted_mean(entropies, weights, axis_name)

    count = len(sums) * _weight_total(entropies.shape[0], weights, axis_name)
    shifts = [_softmax_shift(row_sums, positives, weights) for row_sums in sums]
    anchors = tuple(
        side._replace(shift=shift) for side, shift in itertools.zip_longest(sides, shifts)
    )
    gradients = pairs.weighted_sums(anchors, scale)
    gradients = jax.tree.map(lambda array: array / count, gradients)
    positive_gradient = None
    if positives is not None:
        slopes = sum(_positive_slope(row_sums, positives, weights) for row_sums in sums)
        positive_gradient = slopes / count
    weight_gradient = entropies if weights is not None else None
    scale_gradient = _scale_gradient(sides, gradients, scale, axis_name)
    return mean, (gradients, positive_gradient, weight_gradient, scale_gradient)


def _entropies(sums: tuple[jax.Array, ...], positives: OptionalArray) -> jax.Array:
    """Mean cross entropy of each point as row and, if there are column sums, as column."""
    if positives is not None:
        sums = tuple(jax.nn.softplus(row_sums - positives) for row_sums in sums)
    return sum(sums[1:], start=sums[0]) / len(sums)


def _softmax_shift(sums: jax.Array, positives: OptionalArray, weights: OptionalArray) -> jax.Array:
    """Return the shift with which exponentials of logits are their weights in the gradient."""
    shift = sums
    if positives is not None:
        shift = positives + jax.nn.softplus(sums - positives)
    if weights is None:
        return shift
    counts = weights > 0
    return jnp.where(counts, shift - jnp.log(jnp.where(counts, weights, 1.0)), -MASKED_LOGIT)


def _positive_slope(sums: jax.Array, positives: jax.Array, weights: OptionalArray) -> jax.Array:
    slope = -jax.nn.sigmoid(sums - positives)
    if weights is None:
        return slope
    return weights * slope


def _weight_total(n: int, weights: OptionalArray, axis_name: AxisName) -> float | jax.Array:
    """Return the number of points on all devices, or 1 for normalized weights."""
    if weights is not None:
        return 1.0
    return 1.0 * global_size(n, axis_name)


def _scale_gradient(sides: Sides, gradients: Sides, scale: Scale, axis_name: AxisName) -> Scale:
    """Derive the gradient of the scale from the gradients of the points.

    Logits depend on `sqrt(scale) x` only.
    """
    if scale is None:
        return None
    # The gradients sum to zero, so that less is lost to rounding around the center.
    center = global_mean(jnp.mean(sides[0].x, 0, keepdims=True), axis_name)
    sums = (
        jnp.sum((points.x - center) * gradient.x)
        for points, gradient in zip(sides, gradients, strict=True)
    )
    return sum(sums) / (2 * scale)


def _match_types(sides: Sides) -> Sides:
    """Give both sides one type: types inside `shard_map` say over which axes a value varies."""
    if len(sides) == 1:
        return sides
    zero = jnp.zeros_like(sides[0].bias, shape=()) + jnp.zeros_like(sides[1].bias, shape=())
    return jax.tree.map(lambda array: array + zero, sides)


def _differentiable(
    value: Callable, value_and_gradients: Callable, axis_name: AxisName
) -> Callable:
    """Return a function with `value`, whose derivative uses `value_and_gradients`.

    It returns gradients of the global value with respect to the arguments of this device. The rule
    for tangents serves forward and reverse mode, and `psum` sums the cotangents of all devices.
    """

    @jax.custom_jvp
    def function(*arguments: Any) -> jax.Array:
        return value(*arguments)

    def jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
        result, gradients = value_and_gradients(*primals)
        pairs = zip(jax.tree.leaves(gradients), _leaves(tangents), strict=True)
        slope: Any = sum(
            jnp.sum(gradient * tangent)
            for gradient, tangent in pairs
            if not isinstance(tangent, SymbolicZero)
        )
        return result, global_sum(slope, axis_name)

    function.defjvp(jvp, symbolic_zeros=True)
    return function


def _leaves(tangents: Any) -> list[Any]:
    return jax.tree.leaves(tangents, is_leaf=lambda node: isinstance(node, SymbolicZero))
