"""Contrastive losses of one view against the other: in-batch, and with shared negatives."""

import jax
import jax.numpy as jnp

from hypersphere_jax.losses._pairwise.collectives import weighted_mean
from hypersphere_jax.losses._pairwise.options import AxisName, Exclude, PairOptions
from hypersphere_jax.losses._pairwise.pair_sets import PairsBetween
from hypersphere_jax.losses._pairwise.points import make_points
from hypersphere_jax.losses._pairwise.precision import Precision
from hypersphere_jax.losses._pairwise.reductions import mean_row_logsumexp
from hypersphere_jax.losses._pairwise.sharding import shard_over_mesh
from hypersphere_jax.losses._pairwise.validation import count_points, validate_features
from hypersphere_jax.losses._pairwise.weights import apply_mask, normalize_weights


@shard_over_mesh(sharded=("x", "y"), positive=("tau",), weighted=True)
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
    other `y_j`, and vice versa. Shared options: see `hypersphere_jax.losses`.

    Args:
      x: `[n, d]` features, unit norm in the paper.
      y: `[n, d]` features of the positives, in the order of `x`.
      tau: temperature, > 0.
      symmetric: average both directions. False takes the mean of the first log over n: InfoNCE with
        `x` as queries and the `y` of the batch as keys.

    Returns:
      float32 (or float64) scalar, at least 0; `log n` when all features coincide.

    >>> x = jnp.array([[1.0, 0.0], [-1.0, 0.0]])
    >>> round(float(contrastive_loss(x, x, tau=1.0)), 4)
    0.1269
    """
    x, y = validate_features(x, y, names="x, y")
    options = PairOptions(axis_name, block_size, precision, ring)
    mask, weights, x, y = apply_mask(mask, weights, x, y)
    x = x / tau
    return mean_row_logsumexp(
        PairsBetween(options, columns_are_anchors=symmetric, exclude=Exclude.SELF),
        make_points(x, mask),
        make_points(y, mask),
        positives=jnp.sum(x * y, axis=-1),
        weights=normalize_weights(weights, axis_name),
    )


@shard_over_mesh(sharded=("z1", "z2"), positive=("tau",))
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
    r"""The contrastive loss without the positive in the denominator, with cross-view negatives.

    .. math::
        -\frac{1}{n} \sum_i \log \frac{e^{z_i^\top z'_i / \tau}}{\sum_{j \ne i}
        e^{z_i^\top z'_j / \tau}}

    and the mean of that over both views as anchors (balanced paper, Eq. (14), with alpha =
    1 / tau). It has no lower bound of zero: separated pairs make it negative. The `DCLLoss` of
    lightly differs: its negatives are both views of the other images, as in
    `balanced_contrastive_loss(z1, z2, 1 / tau, lam=1) / tau`.
    Shared options: see `hypersphere_jax.losses`.

    Args:
      z1: `[n, d]` features of the first view, n >= 2, unit norm in the paper.
      z2: `[n, d]` features of the second view, in the order of `z1`.
      tau: temperature, > 0.

    Returns:
      float32 (or float64) scalar; `log(n - 1)` when all features coincide.

    >>> z = jnp.array([[1.0, 0.0], [-1.0, 0.0]])
    >>> float(dcl_loss(z, z, tau=1.0))
    -2.0
    """
    z1, z2 = validate_features(z1, z2, names="z1, z2")
    count_points(z1, 2, "pairs", axis_name)
    options = PairOptions(axis_name, block_size, precision, ring)
    z1 = z1 / tau
    pairs = PairsBetween(options, columns_are_anchors=True, exclude=Exclude.SELF)
    negatives = mean_row_logsumexp(pairs, make_points(z1), make_points(z2))
    return negatives - weighted_mean(jnp.sum(z1 * z2, axis=-1), None, axis_name)


@shard_over_mesh(sharded=("query", "key"), replicated=("negatives",), positive=("tau",))
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
    r"""InfoNCE with one positive key for each query, and negatives that all queries share.

    .. math::
        -\frac{1}{n} \sum_i \log \frac{e^{q_i^\top k_i / \tau}}
        {e^{q_i^\top k_i / \tau} + \sum_j e^{q_i^\top k^-_j / \tau}}

    (Wang & Isola, Eq. (1), with M = m negatives; the loss of MoCo, whose negatives are its queue.)
    Shared options: see `hypersphere_jax.losses`.

    Args:
      query: `[n, d]` features, unit norm in the papers.
      key: `[n, d]` features of the positives, in the order of `query`.
      negatives: `[m, d]` features, the same on every device.
      tau: temperature, > 0.

    Returns:
      float32 (or float64) scalar, at least 0; `log(m + 1)` when all features coincide.

    >>> query, negatives = jnp.array([[1.0, 0.0]]), jnp.array([[0.0, 1.0], [0.0, -1.0]])
    >>> round(float(info_nce_loss(query, query, negatives, tau=1.0)), 4)
    0.5514
    """
    query, key = validate_features(query, key, names="query, key")
    query, negatives = validate_features(query, negatives, names="query, negatives", same_n=False)
    options = PairOptions(axis_name, block_size, precision)
    query = query / tau
    return mean_row_logsumexp(
        PairsBetween(options, columns_are_replicated=True),
        make_points(query),
        make_points(negatives),
        positives=jnp.sum(query * key, axis=-1),
    )
