"""The supervised contrastive loss: all points of a label are each other's positives."""

import jax
import jax.numpy as jnp
from jax import lax

from hypersphere_jax.losses.common import at_least, features, masked, shares_of
from hypersphere_jax.losses.devices import (
    AxisName,
    all_gather,
    global_sum,
    mean_of,
    pair_options,
)
from hypersphere_jax.losses.mesh import on_mesh
from hypersphere_jax.losses.pairs import mean_log_sum, plain_points, real_points
from hypersphere_jax.losses.products import Precision


@on_mesh("z", "labels", "mask", "weights", labels="labels")
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
    r"""SupCon: each point's positives are all others of its label, its negatives the rest.

    .. math::
        -\frac{1}{n} \sum_i \frac{1}{|P(i)|} \sum_{p \in P(i)} \log
        \frac{e^{z_i^\top z_p / \tau}}{\sum_{k \ne i} e^{z_i^\top z_k / \tau}}

    (Khosla et al., Supervised Contrastive Learning, Eq. (2), L_out, as the mean over i.) P(i) are
    the points with the label of i, without i. A point without positives is left out of the mean,
    but is a negative of the others. With the number of the image as label it is NT-Xent, of any
    number of views of each image.

    Args:
      z: `[n, d]` features of all views of all images, in any order, unit norm in the paper.
      labels: integers or booleans `[n]`, any values.
      tau: temperature, > 0.
      mask: bool `[n]`, which points are real: the others, whatever they hold, count nowhere.
      weights: `[n]`, zero or positive: the mean over points becomes the weighted mean.
      axis_name: a mapped axis: the points are those of all devices.
      mesh_axis: of global arrays, the axis of the mesh that they are sharded along.
      block_size: points in a block, at most; memory grows with `n d + block_size^2`. None chooses.
      precision: of matrix products: "highest", "high" or "default", see docs/losses.md.
      ring: pass the devices' points along a ring, rather than gathering them on each. The sums of
        the labels' points, `n d` numbers for n points of all devices, are on each in any case.

    Returns:
      float32 (or float64) scalar; `log(n - 1)` when all features coincide, 0 where no point has a
      positive.

    Raises:
      ValueError: for shapes that do not fit, labels that are not integers, fewer than two points,
        or tau that is not positive.

    >>> import jax.numpy as jnp
    >>> z, labels = jnp.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]), jnp.array([0, 0, 1])
    >>> round(float(supervised_contrastive_loss(z, labels, tau=1.0)), 4)
    0.1269
    """
    (z,) = features(z, names="z")
    at_least(2, "supervised_contrastive_loss", "point", z, axis_name=axis_name)
    labels = jnp.asarray(labels)
    if labels.shape != z.shape[:1] or labels.dtype.kind not in "biu":
        raise ValueError(
            f"labels must be integers [{z.shape[0]}], got {labels.dtype}{list(labels.shape)}"
        )
    mask, weights, z = masked(mask, weights, z)
    z = z / jnp.sqrt(tau)
    ones = jnp.ones_like(z, shape=labels.shape)
    real = ones if mask is None else mask.astype(z.dtype)

    own = every = _numbered(all_gather(labels, axis_name))
    if axis_name is not None:
        n = labels.shape[0]
        own = lax.dynamic_slice_in_dim(every, lax.axis_index(axis_name) * n, n)

    def of_class(values: jax.Array) -> jax.Array:
        """The sum over the points of all devices with the same label, for each point."""
        sums = jnp.zeros_like(values, shape=(every.shape[0], *values.shape[1:]))
        return global_sum(sums.at[own].add(values), axis_name)[own]

    others = of_class(real) - real
    similarity = jnp.sum(z * (of_class(z) - z), axis=-1) / jnp.maximum(others, 1.0)
    weights = jnp.where(others > 0, ones if weights is None else weights, 0.0)
    shares = shares_of(weights, axis_name)
    options = pair_options(block_size, axis_name, ring, precision)
    spread = mean_log_sum(real_points(plain_points(z), mask), 1, options, shares=shares)
    return spread - mean_of(similarity, shares, axis_name)


def _numbered(labels: jax.Array) -> jax.Array:
    """Any integers `[n]` as numbers of classes, from 0 to at most n - 1."""
    order = jnp.argsort(labels)
    ordered = labels[order]
    changes = (ordered[1:] != ordered[:-1]).astype(order.dtype)
    numbers = jnp.cumsum(jnp.concatenate([jnp.zeros_like(order[:1]), changes]))
    return jnp.zeros_like(order).at[order].set(numbers, unique_indices=True)
