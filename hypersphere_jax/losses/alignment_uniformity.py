"""Alignment and uniformity (Wang & Isola, ICML 2020)."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from hypersphere_jax.losses.common import (
    at_least,
    features,
    log_count,
    masked,
    shares_of,
)
from hypersphere_jax.losses.devices import (
    AxisName,
    PairOptions,
    all_gather,
    global_mean,
    mean_of,
    pair_options,
)
from hypersphere_jax.losses.mesh import on_mesh
from hypersphere_jax.losses.pairs import (
    log_total,
    log_total_with,
    plain_points,
    real_points,
)
from hypersphere_jax.losses.products import Precision


@on_mesh("x", "y", "mask", "weights")
def align_loss(
    x: jax.Array,
    y: jax.Array,
    alpha: float = 2.0,
    *,
    mask: jax.Array | None = None,
    weights: jax.Array | None = None,
    axis_name: AxisName = None,
    mesh_axis: AxisName = None,
) -> jax.Array:
    r"""Alignment: the mean distance of positive pairs, to the power alpha.

    .. math:: \frac{1}{n} \sum_i \|x_i - y_i\|_2^\alpha

    (Wang & Isola, Section 4.1.1; minibatch form in B.1.) The gradient at coincident pairs is
    zero for alpha > 1, and taken as zero for alpha <= 1, where the mathematical one is not defined.

    Args:
      x: `[n, d]` features, unit norm in the paper.
      y: `[n, d]` features of the positives, in the order of `x`.
      alpha: power of the distance, > 0.
      mask: bool `[n]`, which pairs are real: the others, whatever they hold, count nowhere.
      weights: `[n]`, zero or positive: the mean over pairs becomes the weighted mean.
      axis_name: a mapped axis: the pairs are those of all devices.
      mesh_axis: of global arrays, the axis of the mesh that they are sharded along.

    Returns:
      float32 (or float64) scalar.

    Raises:
      ValueError: for shapes that do not fit, no pairs, or alpha that is not positive.

    >>> import jax.numpy as jnp
    >>> x, y = jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([[0.0, 1.0], [0.0, 1.0]])
    >>> float(align_loss(x, y))
    1.0
    """
    x, y = features(x, y, names="x, y")
    at_least(1, "align_loss", "pair", x)
    _, weights, x, y = masked(mask, weights, x, y)
    return mean_of(distance_power(x, y, alpha), shares_of(weights, axis_name), axis_name)


def distance_power(x: jax.Array, y: jax.Array, alpha: float) -> jax.Array:
    """`|x_i - y_i|^alpha` of each row, `[n]`, with gradient zero at distance zero."""
    squares = jnp.sum(jnp.square(x - y), axis=-1)
    # The paper's `norm` then `pow` has NaN gradients at zero distance; a power of the square is
    # differentiable there once the zero is taken out before it. NaN is not zero, and stays.
    same = squares == 0
    return jnp.where(same, 0.0, jnp.where(same, 1.0, squares) ** (alpha / 2))


@on_mesh("x", "mask", "weights")
def uniform_loss(
    x: jax.Array,
    t: float = 2.0,
    include_self: bool = False,
    *,
    mask: jax.Array | None = None,
    weights: jax.Array | None = None,
    axis_name: AxisName = None,
    mesh_axis: AxisName = None,
    block_size: int | None = None,
    precision: Precision = "highest",
    ring: bool = False,
) -> jax.Array:
    r"""Uniformity: the log of the mean Gaussian potential of all pairs of points.

    .. math:: \log \frac{1}{n (n - 1)} \sum_{i \ne j} e^{-t \|x_i - x_j\|_2^2}

    (Wang & Isola, Section 4.1.2 and B.1; estimator (9) of A.1.1.) `include_self` adds the pairs of
    a point with itself and divides by n^2 instead, which is estimator (8). Value and gradient take
    one pass over half the pairs (for unit features and t > 15 another one for the value comes
    before; of points on two devices, both compute each pair).

    Args:
      x: `[n, d]` features, unit norm in the paper.
      t: scale of the potential, > 0.
      include_self: estimator (8) in place of (9).
      mask: bool `[n]`, which points are real: the others, whatever they hold, count nowhere.
      weights: `[n]`, zero or positive: the mean over pairs becomes a weighted mean, in which a pair
        weighs the product of its points' weights.
      axis_name: a mapped axis: the points are those of all devices.
      mesh_axis: of global arrays, the axis of the mesh that they are sharded along.
      block_size: points in a block, at most; memory grows with `n d + block_size^2`. None chooses.
      precision: of matrix products: "highest", "high" or "default", see docs/losses.md.
      ring: pass the devices' points along a ring, rather than gathering them on each.

    Returns:
      float32 (or float64) scalar, at most 0.

    Raises:
      ValueError: for shapes that do not fit, fewer than two points (one with `include_self`), or t
        that is not positive.

    >>> import jax.numpy as jnp
    >>> float(uniform_loss(jnp.array([[1.0, 0.0], [-1.0, 0.0]])))
    -8.0
    """
    (x,) = features(x, names="x")
    n = at_least(1 if include_self else 2, "uniform_loss", "point", x, axis_name=axis_name)
    options = pair_options(block_size, axis_name, ring, precision)
    _, weights, x = masked(mask, weights, x)
    if n == 1:
        return global_mean(jnp.sum(0 * x), axis_name)
    if weights is not None:
        return _weighted_uniform(x, t, include_self, weights, options)
    total = log_total(plain_points(x), options, 2 * t)
    if include_self:
        return jnp.logaddexp(total, log_count(n)) - 2 * log_count(n)
    return total - log_count(n * (n - 1))


def _weighted_uniform(
    x: jax.Array, t: float, include_self: bool, weights: jax.Array, options: PairOptions
) -> jax.Array:
    """Log of the weighted mean potential; 0 where fewer than two points have weight."""
    shares: Any = shares_of(weights, options.axis_name)
    every = all_gather(shares, options.axis_name)
    # Twice the pairs i < j. One minus the sum of squares would cancel where one weight dominates.
    total_weight = 2 * jnp.sum(every[1:] * jnp.cumsum(every)[:-1])
    has_pairs = total_weight != 0
    # Without pairs all points count equally, and the last line discards value and gradient.
    counts = jnp.where(has_pairs, shares, 1.0)
    bias = jnp.log(jnp.where(counts == 0, 1.0, counts))
    points = real_points(plain_points(x)._replace(bias=bias), counts != 0)
    total = log_total(points, options, 2 * t)
    if include_self:
        squares = jnp.where(has_pairs, jnp.sum(jnp.square(every)), 1.0)
        total = jnp.logaddexp(total, jnp.log(squares))
        total_weight = total_weight + squares
    loss = total - jnp.log(jnp.where(has_pairs, total_weight, 1.0))
    return global_mean(jnp.where(has_pairs, loss, 0.0), options.axis_name)


@on_mesh("query")
def uniform_queue_loss(
    query: jax.Array,
    queue: jax.Array,
    t: float = 2.0,
    intra_batch: bool = True,
    *,
    axis_name: AxisName = None,
    mesh_axis: AxisName = None,
    block_size: int | None = None,
    precision: Precision = "highest",
    ring: bool = False,
) -> jax.Array:
    r"""Uniformity of queries against a queue of keys (Wang & Isola, B.2).

    .. math::
        \log \frac{1}{n m + n (n - 1) / 2} \Big(
          \sum_{i, j} e^{-t \|q_i - k_j\|_2^2} + \sum_{i < j} e^{-t \|q_i - q_j\|_2^2} \Big)

    is Eq. (22); without `intra_batch` it is the first sum alone, over n m pairs, Eq. (21). Eq. (22)
    prints its second sum over :math:`i \ne j`; its weights fit pairs that are counted once, and so
    does the authors' code.

    Args:
      query: `[n, d]` features, unit norm in the paper.
      queue: `[m, d]` features.
      t: scale of the potential, > 0.
      intra_batch: count the pairs of queries too.
      axis_name: a mapped axis: the queries are those of all devices. Each has the same queue.
      mesh_axis: of global arrays, the axis of the mesh that they are sharded along.
      block_size: points in a block, at most. None chooses.
      precision: of matrix products: "highest", "high" or "default", see docs/losses.md.
      ring: pass the devices' queries along a ring, rather than gathering them on each.

    Returns:
      float32 (or float64) scalar, at most 0.

    Raises:
      ValueError: for shapes that do not fit, no queries, an empty queue, or t that is not positive.

    >>> import jax.numpy as jnp
    >>> queue = jnp.array([[1.0, 0.0], [-1.0, 0.0]])
    >>> round(float(uniform_queue_loss(jnp.array([[0.0, 1.0]]), queue, t=1.0)), 4)
    -2.0
    """
    query, queue = features(query, queue, names="query, queue", same_n=False)
    n = at_least(1, "uniform_queue_loss", "query", query, axis_name=axis_name)
    m = at_least(1, "uniform_queue_loss", "key in the queue", queue)
    options = pair_options(block_size, axis_name, ring, precision)
    queries, pairs = plain_points(query), n * m
    total = log_total_with(queries, plain_points(queue), options, 2 * t)
    if intra_batch and n != 1:
        # Each pair is twice in the sum over i != j.
        total = jnp.logaddexp(total, log_total(queries, options, 2 * t) - math.log(2))
        pairs += n * (n - 1) // 2
    return total - log_count(pairs)
