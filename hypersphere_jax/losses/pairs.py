"""Global log-sum-exps over pairs of points, with gradients of their own.

Five scalars of which the pairwise losses are made: the log of the sum over all pairs, of points
among themselves or with others, and the mean over points of the log of the sum over their pairs.
With `axis_name` points lie spread over devices. Where `shares` of the points are given, which add
up to one over all devices, the mean is weighted by them. Value and gradient need memory linear in
the number of points. The gradient is computed together with the value, when a derivative is asked
for, in forward as in reverse mode.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from hypersphere_jax.losses.blocks import (
    OFF,
    Points,
    Scale,
    everywhere,
    log_sums,
    weighted_sums,
    within_range,
)
from hypersphere_jax.losses.devices import (
    AxisName,
    PairOptions,
    global_mean,
    global_sum,
    mean_of,
    over_devices,
)


def plain_points(x: jax.Array) -> Points:
    """Points whose logits are inner products, or with a scale distances, alone."""
    return Points(x, jnp.zeros_like(x, shape=x.shape[:1]))


def real_points(points: Points, mask: jax.Array | None) -> Points:
    """Points of which those that the mask leaves out form no pair."""
    return points if mask is None else points._replace(bias=jnp.where(mask, points.bias, OFF))


def log_total(points: Points, options: PairOptions, scale: Scale = None) -> jax.Array:
    r"""`\log \sum_{i \ne j} e^{l_ij}` over the pairs of points, in one pass with the gradient."""

    def value(points, scale):
        return _log_sum(_row_sums(points, scale, 1, options), options.axis_name)

    def value_and_gradients(points, scale):
        shift = _shift(value, scale, options.axis_name, points)
        weighted = _weighted_sums_among(_lowered(points, shift / 2), scale, None, 1, options)
        total = _positive(global_sum(jnp.sum(weighted.bias), options.axis_name))
        # Each point is in both places of its pairs.
        slopes = jax.tree.map(lambda p: 2 * p / total, weighted)
        return jnp.log(total) + shift, (
            slopes,
            _by_scale(scale, options.axis_name, (points, slopes)),
        )

    return _differentiable(value, value_and_gradients, options.axis_name)(points, scale)


def log_total_with(
    points: Points, others: Points, options: PairOptions, scale: Scale = None
) -> jax.Array:
    r"""`\log \sum_{ij} e^{l_ij}` over points and others; every device has the same others."""

    def value(points, others, scale):
        points, others = _alike(points, others)
        rows, _ = log_sums(points, others, scale=scale, blocking=options.between)
        return _log_sum(rows, options.axis_name)

    def value_and_gradients(points, others, scale):
        sides = _alike(points, others)
        shift = _shift(value, scale, options.axis_name, *sides)
        low = _lowered(sides[0], shift)
        weighted = weighted_sums(low, sides[1], None, None, scale=scale, blocking=options.between)
        total = _positive(global_sum(jnp.sum(weighted[0].bias), options.axis_name))
        slopes = jax.tree.map(lambda p: p / total, weighted)
        by_scale = _by_scale(scale, options.axis_name, *zip(sides, slopes, strict=True))
        return jnp.log(total) + shift, (*slopes, by_scale)

    return _differentiable(value, value_and_gradients, options.axis_name)(points, others, scale)


def mean_log_sum(
    points: Points,
    exclude: int,
    options: PairOptions,
    positives: jax.Array | None = None,
    shares: jax.Array | None = None,
    scale: Scale = None,
) -> jax.Array:
    r"""`\frac{1}{n} \sum_i \log \sum_j e^{l_ij}` of points among themselves.

    With positives it is the mean of `\log(1 + \sum_j e^{l_ij - p_i})`, the cross entropy of the
    logit p_i among itself and the others. It keeps its precision where it is near zero, which a
    difference of two log-sum-exps would not.

    Args:
      points: this device's n points.
      exclude: 1 leaves out j = i, 2 also the other of (0, 1), (2, 3) and so on.
      options: see `PairOptions`.
      positives: logits `[n]`.
      shares: `[n]`, or None for the mean.
      scale: of squared distances, or None.
    """

    def value(points, positives, shares, scale):
        sums = _row_sums(points, scale, exclude, options)
        return mean_of(_entropies(sums, positives), shares, options.axis_name)

    def value_and_gradients(points, positives, shares, scale):
        sums = _row_sums(points, scale, exclude, options)
        shifts, slopes = _slopes(sums, positives, shares)
        weighted = _weighted_sums_among(points, scale, shifts, exclude, options)
        entropies = _entropies(sums, positives)
        mean = mean_of(entropies, shares, options.axis_name)
        gradients = _over(_count(points, shares, options.axis_name), (weighted, slopes))
        by_scale = _by_scale(scale, options.axis_name, (points, gradients[0]))
        return mean, (*gradients, None if shares is None else entropies, by_scale)

    function = _differentiable(value, value_and_gradients, options.axis_name)
    return function(points, positives, shares, scale)


def mean_log_sums_between(
    a: Points,
    b: Points,
    options: PairOptions,
    *,
    columns: bool,
    exclude: int = 0,
    positives: jax.Array | None = None,
    shares: jax.Array | None = None,
) -> jax.Array:
    r"""`\frac{1}{n} \sum_i \log \sum_j e^{l_ij}` of a with b, both spread over the devices.

    Args:
      a: this device's n points of the rows.
      b: this device's n points of the columns.
      options: see `PairOptions`.
      columns: half the mean over rows plus half that over columns, rather than rows alone.
      exclude: 1 leaves out j = i.
      positives: logits `[n]`, as in `mean_log_sum`.
      shares: `[n]`, of rows as of columns, or None for the mean.
    """

    def sums(a, b):
        def pair_sums(remote, exclude=0):
            rows, theirs = log_sums(a, remote, exclude=exclude, blocking=options.between)
            return rows, theirs if columns else None

        both = over_devices(pair_sums, b, pair_sums(b, exclude), jax.nn.logsumexp, options)
        return both if columns else both[:1]

    def entropies(sides, positives):
        return sum(_entropies(side, positives) for side in sides) / len(sides)

    def value(a, b, positives, shares):
        sides = sums(*_alike(a, b))
        return mean_of(entropies(sides, positives), shares, options.axis_name)

    def value_and_gradients(a, b, positives, shares):
        a, b = _alike(a, b)
        sides = sums(a, b)
        shifts, slopes = zip(*(_slopes(side, positives, shares) for side in sides), strict=True)
        r, c = (*shifts, None)[:2]

        def pair_sums(remote, exclude=0):
            of, shifts = remote
            return weighted_sums(a, of, r, shifts, exclude=exclude, blocking=options.between)

        weighted = over_devices(pair_sums, (b, c), pair_sums((b, c), exclude), jnp.sum, options)
        slope = None if positives is None else sum(slopes)
        gradients = _over(len(sides) * _count(a, shares, options.axis_name), (*weighted, slope))
        each = entropies(sides, positives)
        mean = mean_of(each, shares, options.axis_name)
        return mean, (*gradients, None if shares is None else each)

    return _differentiable(value, value_and_gradients, options.axis_name)(a, b, positives, shares)


def mean_log_sum_shared(
    a: Points, b: Points, positives: jax.Array, options: PairOptions
) -> jax.Array:
    """As `mean_log_sum` with positives, of a with b; every device has the same b."""

    def value(a, b, positives):
        sums, _ = log_sums(*_alike(a, b), blocking=options.between)
        return mean_of(_entropies(sums, positives), None, options.axis_name)

    def value_and_gradients(a, b, positives):
        sums, _ = log_sums(*_alike(a, b), blocking=options.between)
        shifts, slopes = _slopes(sums, positives, None)
        weighted = weighted_sums(*_alike(a, b), shifts, None, blocking=options.between)
        mean = mean_of(_entropies(sums, positives), None, options.axis_name)
        return mean, _over(_count(a, None, options.axis_name), (*weighted, slopes))

    return _differentiable(value, value_and_gradients, options.axis_name)(a, b, positives)


def _entropies(sums: jax.Array, positives: jax.Array | None) -> jax.Array:
    return sums if positives is None else jax.nn.softplus(sums - positives)


def _slopes(
    sums: jax.Array, positives: jax.Array | None, shares: jax.Array | None
) -> tuple[jax.Array, jax.Array | None]:
    """What to subtract from logits to have their weights, and the slope of each positive."""
    shifts, slopes = sums, None
    if positives is not None:
        shifts = positives + jax.nn.softplus(sums - positives)
        slopes = -jax.nn.sigmoid(sums - positives)
    if shares is None:
        return shifts, slopes
    some = shares > 0
    shifts = jnp.where(some, shifts - jnp.log(jnp.where(some, shares, 1.0)), -OFF)
    return shifts, None if slopes is None else shares * slopes


def _by_scale(scale: Scale, axis_name: AxisName, *sides: tuple[Points, Points]) -> Scale:
    """The slope by the scale, from points and the slopes by them: only `sqrt(scale) x` counts."""
    if scale is None:
        return None
    # The slopes add up to zero, so that around the centre less is lost to rounding.
    centre = global_mean(jnp.mean(sides[0][0].x, 0, keepdims=True), axis_name)
    sums = (jnp.sum((points.x - centre) * slopes.x) for points, slopes in sides)
    return sum(sums) / (2 * scale)


def _over(count: float | jax.Array, gradients: Any) -> Any:
    return jax.tree.map(lambda gradient: gradient / count, gradients)


def _row_sums(points: Points, scale: Scale, exclude: int, options: PairOptions) -> jax.Array:
    """Each point's log-sum-exp over all devices' points."""
    local, _ = log_sums(points, None, scale=scale, exclude=exclude, blocking=options.among)

    def pair_sums(remote):
        return log_sums(points, remote, scale=scale, blocking=options.between)[0], None

    return over_devices(pair_sums, points, (local, None), jax.nn.logsumexp, options)[0]


def _weighted_sums_among(
    points: Points, scale: Scale, shifts: jax.Array | None, exclude: int, options: PairOptions
) -> Points:
    """`weighted_sums` on this device's points by all devices' points."""
    among: dict[str, Any] = {"scale": scale, "exclude": exclude, "blocking": options.among}
    local, _ = weighted_sums(points, None, shifts, shifts, **among)

    def pair_sums(remote):
        of, theirs = remote
        between: dict[str, Any] = {"scale": scale, "blocking": options.between}
        return weighted_sums(points, of, shifts, theirs, **between)[0], None

    return over_devices(pair_sums, (points, shifts), (local, None), jnp.sum, options)[0]


def _differentiable(
    value: Callable, value_and_gradients: Callable, axis_name: AxisName
) -> Callable:
    """A function with `value`, whose derivative uses `value_and_gradients`.

    Gradients are those of the global value with respect to this device's arguments. As a rule for
    the tangent it serves forward and reverse mode, and `psum` sees to it that the cotangents of
    all devices arrive.
    """

    @jax.custom_jvp
    def function(*arguments):
        return value(*arguments)

    def rule(primals, tangents):
        result, gradients = value_and_gradients(*primals)
        slope = sum(
            jnp.sum(gradient * tangent)
            for gradient, tangent in zip(*map(_leaves, (gradients, tangents)), strict=True)
            if not isinstance(tangent, SymbolicZero)
        )
        return result, global_sum(slope, axis_name)

    function.defjvp(rule, symbolic_zeros=True)
    return function


def _leaves(tree: Any) -> list[Any]:
    return jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, SymbolicZero))


def _shift(value: Callable, scale: Scale, axis_name: AxisName, *sides: Points) -> jax.Array:
    """What to subtract from logits so that no sum of exponentials under- or overflows.

    Mostly 0, as the norms of the points tell; else the value itself, which takes another pass.
    """
    sides, scale = lax.stop_gradient((sides, scale))
    fits = within_range(sides[0], sides[-1], scale)
    if axis_name is not None:
        fits = lax.pmin(fits.astype(jnp.int32), axis_name) > 0
    zero = jnp.zeros_like(fits, sides[0].bias.dtype)
    return lax.cond(everywhere(~fits), lambda: value(*sides, scale), lambda: zero)


def _positive(total: jax.Array) -> jax.Array:
    """A sum of exponentials, which may underflow when logits exceed 1e7 and round differently."""
    return jnp.maximum(total, jnp.finfo(total.dtype).tiny)


def _lowered(points: Points, shift: jax.Array) -> Points:
    return points._replace(bias=points.bias - shift)


def _alike(a: Points, b: Points) -> tuple[Points, Points]:
    """Both with the type that sums of them have: inside `shard_map` a type says what varies."""
    zero = jnp.zeros_like(a.bias, shape=()) + jnp.zeros_like(b.bias, shape=())
    return jax.tree.map(lambda array: array + zero, (a, b))


def _count(points: Points, shares: jax.Array | None, axis_name: AxisName) -> float | jax.Array:
    """What sums over points are divided by: their number on all devices, or 1 with shares."""
    if shares is not None:
        return 1.0
    n = points.bias.shape[0] * (1 if axis_name is None else lax.axis_size(axis_name))
    return 1.0 * (n if isinstance(n, int) else jnp.asarray(n))


def _log_sum(x: jax.Array, axis_name: AxisName) -> jax.Array:
    """Log-sum-exp of all devices' values."""
    if axis_name is None:
        return jax.nn.logsumexp(x)
    top = lax.pmax(lax.stop_gradient(jnp.max(x)), axis_name)
    return jnp.log(lax.psum(jnp.sum(jnp.exp(x - top)), axis_name)) + top
