"""Alignment and uniformity (Wang & Isola, ICML 2020)."""

import math
from typing import cast

import jax
import jax.numpy as jnp

from hypersphere_jax.losses._pairwise.collectives import (
    all_gather,
    global_mean,
    global_size,
    weighted_mean,
)
from hypersphere_jax.losses._pairwise.options import AxisName, PairOptions
from hypersphere_jax.losses._pairwise.pair_sets import PairsBetween, PairsWithin
from hypersphere_jax.losses._pairwise.points import MASKED_LOGIT, Points, make_points
from hypersphere_jax.losses._pairwise.precision import Precision
from hypersphere_jax.losses._pairwise.reductions import logsumexp_all_pairs
from hypersphere_jax.losses._pairwise.sharding import shard_over_mesh
from hypersphere_jax.losses._pairwise.validation import count_points, log_count, validate_features
from hypersphere_jax.losses._pairwise.weights import apply_mask, normalize_weights


@shard_over_mesh(sharded=("x", "y"), positive=("alpha",), weighted=True)
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
    r"""Alignment: the mean distance of positive pairs to the power alpha.

    .. math:: \frac{1}{n} \sum_i \|x_i - y_i\|_2^\alpha

    (Wang & Isola, Section 4.1.1; minibatch form in B.1.) The gradient at coincident pairs is
    zero for alpha > 1, and taken as zero for alpha <= 1, where the mathematical one is not defined.
    Shared options: see `hypersphere_jax.losses`.

    Args:
      x: `[n, d]` features, n >= 1, unit norm in the paper.
      y: `[n, d]` features of the positives, in the order of `x`.
      alpha: power of the distance, > 0.

    Returns:
      float32 (or float64) scalar.

    >>> x, y = jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([[0.0, 1.0], [0.0, 1.0]])
    >>> float(align_loss(x, y))
    1.0
    """
    x, y = validate_features(x, y, names="x, y")
    _, weights, x, y = apply_mask(mask, weights, x, y)
    powers = distance_power(x, y, alpha)
    return weighted_mean(powers, normalize_weights(weights, axis_name), axis_name)


def distance_power(x: jax.Array, y: jax.Array, alpha: float) -> jax.Array:
    """Return `|x_i - y_i|^alpha` of each row, `[n]`, with gradient zero at distance zero."""
    squares = jnp.sum(jnp.square(x - y), axis=-1)
    # `norm` then `pow` has NaN gradients at zero distance. A power of the square is differentiable
    # there once zero is replaced before it. NaN is not zero, and stays.
    coincident = squares == 0
    powers = jnp.where(coincident, 1.0, squares) ** (alpha / 2)
    return jnp.where(coincident, 0.0, powers)


@shard_over_mesh(sharded=("x",), positive=("t",), weighted=True)
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
    a point with itself and divides by n^2 instead: estimator (8). With weights, a pair weighs the
    product of the weights of its points. Shared options: see `hypersphere_jax.losses`.

    Args:
      x: `[n, d]` features, n >= 2 (1 with `include_self`), unit norm in the paper.
      t: scale of the potential, > 0.
      include_self: use estimator (8) instead of (9).

    Returns:
      float32 (or float64) scalar, at most 0.

    >>> float(uniform_loss(jnp.array([[1.0, 0.0], [-1.0, 0.0]])))
    -8.0
    """
    (x,) = validate_features(x, names="x")
    least = 1 if include_self else 2
    n = count_points(x, least, "points", axis_name)
    pairs = PairsWithin(PairOptions(axis_name, block_size, precision, ring))
    _, weights, x = apply_mask(mask, weights, x)
    if n == 1:
        return global_mean(jnp.sum(0 * x), axis_name)
    if weights is not None:
        return _weighted_uniform(x, t, include_self, weights, pairs)
    total = logsumexp_all_pairs(pairs, make_points(x), scale=2 * t)
    if include_self:
        return jnp.logaddexp(total, log_count(n)) - 2 * log_count(n)
    return total - log_count(n * (n - 1))


def _weighted_uniform(
    x: jax.Array, t: float, include_self: bool, weights: jax.Array, pairs: PairsWithin
) -> jax.Array:
    """Log of the weighted mean potential; 0 if fewer than two points have weight."""
    axis_name = pairs.options.axis_name
    weights = cast(jax.Array, normalize_weights(weights, axis_name))
    all_weights = all_gather(weights, axis_name)
    # Twice the weight of the pairs i < j. One minus the sum of squares would cancel where one
    # weight dominates.
    pair_weight = 2 * jnp.sum(all_weights[1:] * jnp.cumsum(all_weights)[:-1])
    has_pairs = pair_weight != 0
    # Without pairs all points count equally, and the last line discards value and gradient.
    weights = jnp.where(has_pairs, weights, 1.0)
    masked = weights == 0
    bias = jnp.where(masked, MASKED_LOGIT, jnp.log(jnp.where(masked, 1.0, weights)))
    total = logsumexp_all_pairs(pairs, Points(x, bias), scale=2 * t)
    if include_self:
        squares = jnp.where(has_pairs, jnp.sum(jnp.square(all_weights)), 1.0)
        total = jnp.logaddexp(total, jnp.log(squares))
        pair_weight = pair_weight + squares
    loss = total - jnp.log(jnp.where(has_pairs, pair_weight, 1.0))
    return global_mean(jnp.where(has_pairs, loss, 0.0), axis_name)


@shard_over_mesh(sharded=("query",), replicated=("queue",), positive=("t",))
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

    is Eq. (22). Without `intra_batch` it is the first sum over n m pairs, Eq. (21). Eq. (22) prints
    its second sum over :math:`i \ne j`; its weights fit pairs that are counted once, and so does
    the authors' code. Shared options: see `hypersphere_jax.losses`.

    Args:
      query: `[n, d]` features, unit norm in the paper.
      queue: `[m, d]` features, the same on every device.
      t: scale of the potential, > 0.
      intra_batch: also count the pairs of queries.

    Returns:
      float32 (or float64) scalar, at most 0.

    >>> queue = jnp.array([[1.0, 0.0], [-1.0, 0.0]])
    >>> round(float(uniform_queue_loss(jnp.array([[0.0, 1.0]]), queue, t=1.0)), 4)
    -2.0
    """
    query, queue = validate_features(query, queue, names="query, queue", same_n=False)
    n = global_size(query.shape[0], axis_name)
    count = n * queue.shape[0]
    options = PairOptions(axis_name, block_size, precision, ring)
    queries = make_points(query)
    pairs = PairsBetween(options, columns_are_replicated=True)
    total = logsumexp_all_pairs(pairs, queries, make_points(queue), scale=2 * t)
    if intra_batch and n != 1:
        # The sum over i != j contains each pair twice.
        within = logsumexp_all_pairs(PairsWithin(options), queries, scale=2 * t) - math.log(2)
        total = jnp.logaddexp(total, within)
        count += n * (n - 1) // 2
    return total - log_count(count)
