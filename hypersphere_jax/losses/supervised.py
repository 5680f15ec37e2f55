"""The supervised contrastive loss: all points of a label are each other's positives."""

import jax
import jax.numpy as jnp

from hypersphere_jax.losses._pairwise.collectives import (
    all_gather,
    global_positions,
    global_sum,
    weighted_mean,
)
from hypersphere_jax.losses._pairwise.options import AxisName, PairOptions
from hypersphere_jax.losses._pairwise.pair_sets import PairsWithin
from hypersphere_jax.losses._pairwise.points import OptionalArray, make_points
from hypersphere_jax.losses._pairwise.precision import Precision
from hypersphere_jax.losses._pairwise.reductions import mean_row_logsumexp
from hypersphere_jax.losses._pairwise.sharding import shard_over_mesh
from hypersphere_jax.losses._pairwise.validation import count_points, validate_features
from hypersphere_jax.losses._pairwise.weights import apply_mask, normalize_weights


@shard_over_mesh(sharded=("z",), labels=("labels",), positive=("tau",), weighted=True)
def supervised_contrastive_loss(
    z: jax.Array,
    labels: jax.Array,
    tau: float = 0.1,
    *,
    mask: jax.Array | None = None,
    weights: jax.Array | None = None,
    axis_name: AxisName = None,
    mesh_axis: AxisName = None,
    block_size: int | None = None,
    precision: Precision = "highest",
    ring: bool = False,
) -> jax.Array:
    r"""SupCon: the positives of a point are all others of its label, its negatives the rest.

    .. math::
        -\frac{1}{n} \sum_i \frac{1}{|P(i)|} \sum_{p \in P(i)} \log
        \frac{e^{z_i^\top z_p / \tau}}{\sum_{k \ne i} e^{z_i^\top z_k / \tau}}

    (Khosla et al., Supervised Contrastive Learning, Eq. (2), L_out, as the mean over i.) P(i) are
    the points with the label of i, without i. A point without positives is left out of the mean,
    but is a negative of the others. With the number of the image as label it is NT-Xent, for any
    number of views of each image. Shared options: see `hypersphere_jax.losses`.

    Args:
      z: `[n, d]` features of all views of all images, n >= 2, unit norm in the paper.
      labels: integers or booleans `[n]`, any values.
      tau: temperature, > 0.

    Returns:
      float32 (or float64) scalar; `log(n - 1)` when all features coincide, 0 without positives.

    >>> z = jnp.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    >>> round(float(supervised_contrastive_loss(z, jnp.array([0, 0, 1]), tau=1.0)), 4)
    0.1269
    """
    (z,) = validate_features(z, names="z")
    n = z.shape[0]
    count_points(z, 2, "points", axis_name)
    if labels.shape != (n,) or labels.dtype.kind not in "biu":
        raise ValueError(f"labels must be integers [{n}], got {labels.dtype}{list(labels.shape)}")
    options = PairOptions(axis_name, block_size, precision, ring)
    mask, weights, z = apply_mask(mask, weights, z)
    return _supervised_contrastive(z / jnp.sqrt(tau), labels, mask, weights, options)


def _supervised_contrastive(
    z: jax.Array,
    labels: jax.Array,
    mask: OptionalArray,
    weights: OptionalArray,
    options: PairOptions,
) -> jax.Array:
    """The loss of features that contain the temperature; masked features are zero."""
    axis_name = options.axis_name
    unmasked = jnp.ones_like(z, shape=labels.shape)
    if weights is None:
        weights = unmasked
    if mask is not None:
        unmasked = mask.astype(z.dtype)
    all_classes = _class_numbers(all_gather(labels, axis_name))
    classes = all_classes[global_positions(labels.shape[0], axis_name)]

    def class_sums(values: jax.Array) -> jax.Array:
        """Sum over the points of all devices with the same label, for each point."""
        sums = jnp.zeros_like(values, shape=(all_classes.shape[0], *values.shape[1:]))
        return global_sum(sums.at[classes].add(values), axis_name)[classes]

    positives = class_sums(unmasked) - unmasked
    similarity = jnp.sum(z * (class_sums(z) - z), axis=-1) / jnp.maximum(positives, 1.0)
    weights = normalize_weights(jnp.where(positives > 0, weights, 0.0), axis_name)
    points = make_points(z, mask)
    sums = mean_row_logsumexp(PairsWithin(options), points, weights=weights)
    return sums - weighted_mean(similarity, weights, axis_name)


def _class_numbers(labels: jax.Array) -> jax.Array:
    """Map integers `[n]` to class numbers from 0 to at most n - 1."""
    order = jnp.argsort(labels)
    ordered = labels[order]
    changes = (ordered[1:] != ordered[:-1]).astype(order.dtype)
    numbers = jnp.cumsum(jnp.concatenate([jnp.zeros_like(order[:1]), changes]))
    return jnp.zeros_like(order).at[order].set(numbers, unique_indices=True)
