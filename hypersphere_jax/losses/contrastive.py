"""Contrastive losses of one view against the other: in-batch, and against shared negatives."""

import jax
import jax.numpy as jnp

from hypersphere_jax.losses.common import (
    at_least,
    features,
    masked,
    shares_of,
)
from hypersphere_jax.losses.devices import AxisName, global_mean, pair_options
from hypersphere_jax.losses.mesh import on_mesh
from hypersphere_jax.losses.pairs import (
    mean_log_sum_shared,
    mean_log_sums_between,
    plain_points,
    real_points,
)
from hypersphere_jax.losses.products import Precision


@on_mesh("x", "y", "mask", "weights")
def contrastive_loss(
    x: jax.Array,
    y: jax.Array,
    tau: float = 0.5,
    *,
    symmetric: bool = True,
    mask: jax.Array | None = None,
    weights: jax.Array | None = None,
    axis_name: AxisName = None,
    mesh_axis: AxisName = None,
    block_size: int | None = None,
    precision: Precision = "highest",
    ring: bool = False,
) -> jax.Array:
    r"""The in-batch contrastive loss, in both directions: the mean of 2n cross entropies.

    .. math::
        -\frac{1}{2n} \sum_i \left[
          \log \frac{e^{x_i^\top y_i / \tau}}{\sum_j e^{x_i^\top y_j / \tau}} +
          \log \frac{e^{x_i^\top y_i / \tau}}{\sum_j e^{x_j^\top y_i / \tau}} \right]

    (Wang & Isola, B.1, which prints it without the minus sign.) The negatives of `x_i` are the
    other `y_j`, and those of `y_i` the other `x_j`. `symmetric=False` takes the first log alone,
    in the mean over n: InfoNCE with `x` as queries and the batch's `y` as keys.

    Args:
      x: `[n, d]` features, unit norm in the paper.
      y: `[n, d]` features of the positives, in the order of `x`.
      tau: temperature, > 0.
      symmetric: the mean of both directions, rather than x against y alone.
      mask: bool `[n]`, which pairs are real: the others, whatever they hold, count nowhere.
      weights: `[n]`, zero or positive: the mean over pairs becomes the weighted mean.
      axis_name: a mapped axis: the pairs are those of all devices.
      mesh_axis: of global arrays, the axis of the mesh that they are sharded along.
      block_size: points in a block, at most; memory grows with `n d + block_size^2`. None chooses.
      precision: of matrix products: "highest", "high" or "default", see docs/losses.md.
      ring: pass the devices' points along a ring, rather than gathering them on each.

    Returns:
      float32 (or float64) scalar, at least 0; `log n` when all features coincide.

    Raises:
      ValueError: for shapes that differ, no pairs, or tau that is not positive.

    >>> import jax.numpy as jnp
    >>> x = jnp.array([[1.0, 0.0], [-1.0, 0.0]])
    >>> round(float(contrastive_loss(x, x, tau=1.0)), 4)
    0.1269
    """
    x, y = features(x, y, names="x, y")
    at_least(1, "contrastive_loss", "pair", x)
    mask, weights, x, y = masked(mask, weights, x, y)
    x = x / tau
    return mean_log_sums_between(
        real_points(plain_points(x), mask),
        real_points(plain_points(y), mask),
        pair_options(block_size, axis_name, ring, precision),
        columns=symmetric,
        exclude=1,
        positives=jnp.sum(x * y, axis=-1),
        shares=shares_of(weights, axis_name),
    )


@on_mesh("z1", "z2")
def dcl_loss(
    z1: jax.Array,
    z2: jax.Array,
    tau: float = 0.5,
    *,
    axis_name: AxisName = None,
    mesh_axis: AxisName = None,
    block_size: int | None = None,
    precision: Precision = "highest",
    ring: bool = False,
) -> jax.Array:
    r"""The contrastive loss whose denominator leaves out the positive, with cross-view negatives.

    .. math::
        -\frac{1}{n} \sum_i \log \frac{e^{z_i^\top z'_i / \tau}}{\sum_{j \ne i}
        e^{z_i^\top z'_j / \tau}}

    and the mean of that over both views as anchors (balanced paper, Eq. (14), with alpha =
    1 / tau). It has no lower bound of zero: separated pairs make it negative. The `DCLLoss` of
    lightly, whose negatives are both views of the others, is not this one but
    `balanced_contrastive_loss(z1, z2, 1 / tau, lam=1) / tau`.

    Args:
      z1: `[n, d]` features of the first view, unit norm in the paper.
      z2: `[n, d]` features of the second view, in the order of `z1`.
      tau: temperature, > 0.
      axis_name: a mapped axis: the pairs are those of all devices.
      mesh_axis: of global arrays, the axis of the mesh that they are sharded along.
      block_size: points in a block, at most. None chooses.
      precision: of matrix products: "highest", "high" or "default", see docs/losses.md.
      ring: pass the devices' points along a ring, rather than gathering them on each.

    Returns:
      float32 (or float64) scalar; `log(n - 1)` when all features coincide.

    Raises:
      ValueError: for shapes that differ, fewer than two pairs, or tau that is not positive.

    >>> import jax.numpy as jnp
    >>> z = jnp.array([[1.0, 0.0], [-1.0, 0.0]])
    >>> float(dcl_loss(z, z, tau=1.0))
    -2.0
    """
    z1, z2 = features(z1, z2, names="z1, z2")
    at_least(2, "dcl_loss", "pair", z1, axis_name=axis_name)
    z1 = z1 / tau
    spread = mean_log_sums_between(
        plain_points(z1),
        plain_points(z2),
        pair_options(block_size, axis_name, ring, precision),
        columns=True,
        exclude=1,
    )
    return spread - global_mean(jnp.mean(jnp.sum(z1 * z2, axis=-1)), axis_name)


@on_mesh("query", "key")
def info_nce_loss(
    query: jax.Array,
    key: jax.Array,
    negatives: jax.Array,
    tau: float = 0.07,
    *,
    axis_name: AxisName = None,
    mesh_axis: AxisName = None,
    block_size: int | None = None,
    precision: Precision = "highest",
) -> jax.Array:
    r"""InfoNCE with one positive key a query and negatives that all queries share.

    .. math::
        -\frac{1}{n} \sum_i \log \frac{e^{q_i^\top k_i / \tau}}
        {e^{q_i^\top k_i / \tau} + \sum_j e^{q_i^\top k^-_j / \tau}}

    (Wang & Isola, Eq. (1), with M = m negatives; MoCo's loss, whose negatives are its queue.)

    Args:
      query: `[n, d]` features, unit norm in the papers.
      key: `[n, d]` features of the positives, in the order of `query`.
      negatives: `[m, d]` features.
      tau: temperature, > 0.
      axis_name: a mapped axis: queries and keys are those of all devices. Each has the same
        negatives.
      mesh_axis: of global arrays, the axis of the mesh that they are sharded along.
      block_size: points in a block, at most. None chooses.
      precision: of matrix products: "highest", "high" or "default", see docs/losses.md.

    Returns:
      float32 (or float64) scalar, at least 0; `log(m + 1)` when all features coincide.

    Raises:
      ValueError: for shapes that do not fit, no queries, no negatives, or tau that is not positive.

    >>> import jax.numpy as jnp
    >>> query, negatives = jnp.array([[1.0, 0.0]]), jnp.array([[0.0, 1.0], [0.0, -1.0]])
    >>> round(float(info_nce_loss(query, query, negatives, tau=1.0)), 4)
    0.5514
    """
    query, key = features(query, key, names="query, key")
    query, negatives = features(query, negatives, names="query, negatives", same_n=False)
    at_least(1, "info_nce_loss", "query", query)
    at_least(1, "info_nce_loss", "negative", negatives)
    query = query / tau
    return mean_log_sum_shared(
        plain_points(query),
        plain_points(negatives),
        jnp.sum(query * key, axis=-1),
        pair_options(block_size, axis_name, precision=precision),
    )
