"""Matching the features to a prior by the sliced Wasserstein distance (Chen, Luo & Li)."""

from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp

from hypersphere_jax.losses._pairwise.collectives import global_positions
from hypersphere_jax.losses._pairwise.options import AxisName
from hypersphere_jax.losses._pairwise.sharding import shard_over_mesh
from hypersphere_jax.losses._pairwise.validation import validate_features
from hypersphere_jax.losses._projections import project, sorted_distance
from hypersphere_jax.losses.normalize import l2_normalize
from hypersphere_jax.losses.nt_xent import Scaling, Terms, alignment_term

Prior = Literal["hypersphere", "hypercube", "normal"]


@shard_over_mesh(sharded=("h", "prior_samples"), replicated=("directions",))
def sliced_wasserstein_loss(
    h: jax.Array,
    prior_samples: jax.Array,
    directions: jax.Array,
    *,
    axis_name: AxisName = None,
    mesh_axis: AxisName = None,
) -> jax.Array:
    r"""Squared sliced Wasserstein distance between features and samples of a prior.

    .. math:: \frac{1}{n d'} \sum_{j=1}^{d'} \| \mathrm{sort}(H w_j) - \mathrm{sort}(P w_j) \|_2^2

    (Chen et al., Algorithm 1.) The mean over samples and directions, as in the authors' released
    form; the printed algorithm divides the sum by `d d'` instead. Shared options: see
    `hypersphere_jax.losses`.

    Args:
      h: `[n, d]` features.
      prior_samples: `[n, d]` samples of the prior; they have a gradient, too.
      directions: `[d, d']` directions as columns, orthonormal in the paper.

    Returns:
      float32 (or float64) scalar, at least 0; 0 for a sample with itself in any order.

    >>> h = jnp.array([[1.0, 0.0], [0.0, 1.0]])
    >>> float(sliced_wasserstein_loss(h, h[::-1] + 2.0, jnp.eye(2)))
    4.0
    """
    h, prior_samples = validate_features(h, prior_samples, names="h, prior_samples")
    rows = jnp.transpose(directions)
    h, rows = validate_features(h, rows, names="h, directions.T", same_n=False)
    return sorted_distance(project(h, rows), project(prior_samples, rows), axis_name)


@shard_over_mesh(sharded=("z",), replicated=("key",))
def prior_matching_loss(
    key: jax.Array,
    z: jax.Array,
    prior: Prior = "hypersphere",
    *,
    axis_name: AxisName = None,
    mesh_axis: AxisName = None,
) -> jax.Array:
    r"""The sliced Wasserstein distance of features to a prior (Chen et al., Section C).

    `sliced_wasserstein_loss` with n fresh samples of the prior, along d fresh orthogonal
    directions. Shared options: see `hypersphere_jax.losses`.

    Args:
      key: random key of this step, the same on all devices.
      z: `[n, d]` features.
      prior: "normal", standard; "hypercube", uniform in [-1, 1]^d; "hypersphere", uniform on the
        unit sphere, for which the features are normalized here. The others take them unchanged.

    Returns:
      float32 (or float64) scalar, at least 0.

    >>> z = jax.random.normal(jax.random.key(0), (512, 4))
    >>> bool(prior_matching_loss(jax.random.key(1), z, prior="normal") < 0.1)
    True
    """
    (z,) = validate_features(z, names="z")
    if prior not in get_args(Prior):
        raise ValueError(f"prior must be one of {get_args(Prior)}, got {prior!r}")
    if prior == "hypersphere":
        z = l2_normalize(z)
    n, d = z.shape
    key_samples, key_directions = jax.random.split(key)
    # A sample belongs to its position in the global batch: devices do not change it.
    positions = global_positions(n, axis_name)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key_samples, positions)
    samples = jax.vmap(lambda key: _draw(prior, key, d, z.dtype))(keys)
    directions = jax.random.orthogonal(key_directions, d, dtype=z.dtype)
    return sorted_distance(project(z, directions), project(samples, directions), axis_name)


def _draw(prior: Prior, key: jax.Array, d: int, dtype: Any) -> jax.Array:
    """Draw one sample of the prior."""
    if prior == "hypercube":
        return jax.random.uniform(key, (d,), dtype, minval=-1.0)
    sample = jax.random.normal(key, (d,), dtype)
    if prior == "hypersphere":
        sample = l2_normalize(sample)
    return sample


@shard_over_mesh(sharded=("z1", "z2"), replicated=("key",), non_negative=("lam",))
def generalized_contrastive_loss(
    key: jax.Array,
    z1: jax.Array,
    z2: jax.Array,
    prior: Prior = "hypersphere",
    lam: float = 5.0,
    *,
    scaling: Scaling = "per_dimension",
    with_terms: bool = False,
    axis_name: AxisName = None,
    mesh_axis: AxisName = None,
) -> jax.Array | Terms:
    r"""Alignment plus lam times the sliced Wasserstein distance to a prior (Chen et al., Eq. (4)).

    .. math::
        \frac{1}{2 n d} \sum_i \|z_i - z'_i\|_2^2 + \lambda \, \mathrm{SWD}(\{z, z'\}, P)

    The 2n views of both sides are matched as in `prior_matching_loss`. The paper trains with this
    loss times 1000 for normalized features. Shared options: see `hypersphere_jax.losses`.

    Args:
      key: random key of this step, the same on all devices.
      z1: `[n, d]` features of the first view.
      z2: `[n, d]` features of the second view, in the order of `z1`.
      prior: as in `prior_matching_loss`.
      lam: weight of the distance, >= 0.
      scaling: "per_dimension" takes half the mean over n *and d* as alignment, as in the tables;
        "per_sample" takes half the mean over n, at d lam d times the loss.
      with_terms: return the loss and its two terms.

    Returns:
      float32 (or float64) scalar (`Terms` if `with_terms`), at least 0.

    >>> z = jax.random.normal(jax.random.key(0), (512, 4))
    >>> bool(generalized_contrastive_loss(jax.random.key(1), z, z, prior="normal") < 0.1)
    True
    """
    z1, z2 = validate_features(z1, z2, names="z1, z2")
    if scaling not in get_args(Scaling):
        raise ValueError(f"scaling must be one of {get_args(Scaling)}, got {scaling!r}")
    distance = prior_matching_loss(key, jnp.concatenate([z1, z2]), prior, axis_name=axis_name)
    if prior == "hypersphere":
        z1 = l2_normalize(z1)
        z2 = l2_normalize(z2)
    # The inner product of NT-Xent's "per_sample" has no minimum for features of any norm.
    alignment = alignment_term(z1, z2, "per_dimension", axis_name)
    if scaling == "per_sample":
        alignment = z1.shape[1] * alignment
    terms = Terms(alignment + lam * distance, alignment, distance)
    return terms if with_terms else terms.loss
