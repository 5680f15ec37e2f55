"""Alignment plus a sliced test against the standard normal distribution (LeJEPA, VISReg).

Like the generalized contrastive loss of Chen et al., both losses spread the features by comparing
their projections on random directions with a prior. Features enter without normalization.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from hypersphere_jax.losses._pairwise.collectives import global_mean, global_positions, global_size
from hypersphere_jax.losses._pairwise.options import AxisName
from hypersphere_jax.losses._pairwise.sharding import shard_over_mesh
from hypersphere_jax.losses._pairwise.validation import validate_features
from hypersphere_jax.losses._projections import project, sorted_distance
from hypersphere_jax.losses.normalize import l2_normalize
from hypersphere_jax.losses.nt_xent import Terms, alignment_term

# Nodes of the trapezoidal rule on [0, 5]. The integrand is even: these are 17 nodes on [-5, 5].
LAST_NODE = 5.0
NODES = 9
SMALLEST_DEVIATION = 1e-6  # lower bound of a divisor

# (features [n, d], directions [k, d], axis_name) -> distance of their distribution to N(0, I)
Regularizer = Callable[[jax.Array, jax.Array, AxisName], jax.Array]


@shard_over_mesh(sharded=("z1", "z2"), replicated=("key",), non_negative=("lam",))
def lejepa_loss(
    key: jax.Array,
    z1: jax.Array,
    z2: jax.Array,
    lam: float = 0.02,
    *,
    num_slices: int = 256,
    with_terms: bool = False,
    axis_name: AxisName = None,
    mesh_axis: AxisName = None,
) -> jax.Array | Terms:
    r"""LeJEPA: alignment plus SIGReg, a test of the features' projections against N(0, 1).

    .. math::
        \frac{1 - \lambda}{4 n d} \sum_i \|z_i - z'_i\|_2^2 + \frac{\lambda}{2 K}
        \sum_{j=1}^K \big( T(Z w_j) + T(Z' w_j) \big)

    with the statistic of Epps and Pulley

    .. math::
        T(s) = n \int_{-5}^5 \left| \frac{1}{n} \sum_i e^{\mathrm{i} t s_i} - e^{-t^2 / 2} \right|^2
        e^{-t^2 / 2} \, dt

    (Balestriero & LeCun, arXiv:2511.08544; for two views their mean is the prediction target.) T is
    integrated by the trapezoidal rule with 17 nodes, and the w_j are fresh random unit vectors. For
    samples of N(0, I) of any size its expectation is 1.06, and for features that are all zero it is
    0.409 n. Shared options: see `hypersphere_jax.losses`.

    Args:
      key: random key of this step, the same on all devices.
      z1: `[n, d]` features of the first view.
      z2: `[n, d]` features of the second view, in the order of `z1`.
      lam: weight of SIGReg, between 0 and 1. The paper recommends 0.01 to 0.1.
      num_slices: number of directions K.
      with_terms: return the loss and its two terms without their weights.

    Returns:
      float32 (or float64) scalar (`Terms` if `with_terms`), at least 0.

    >>> z = jax.random.normal(jax.random.key(0), (512, 4))
    >>> bool(lejepa_loss(jax.random.key(1), z, z, lam=1.0) < 2)
    True
    """
    terms = _two_view_terms(_sigreg, key, z1, z2, lam, num_slices, axis_name)
    return terms if with_terms else terms.loss


@shard_over_mesh(sharded=("z1", "z2"), replicated=("key",), non_negative=("lam",))
def visreg_loss(
    key: jax.Array,
    z1: jax.Array,
    z2: jax.Array,
    lam: float = 0.9,
    *,
    num_slices: int = 256,
    with_terms: bool = False,
    axis_name: AxisName = None,
    mesh_axis: AxisName = None,
) -> jax.Array | Terms:
    r"""VISReg: alignment plus the center, the scale and the shape of the features' distribution.

    .. math::
        \frac{1 - \lambda}{4 n d} \sum_i \|z_i - z'_i\|_2^2 +
        \frac{\lambda}{2} \big( R(Z) + R(Z') \big)

    with the regularizer

    .. math::
        R(Z) = \frac{1}{d} \sum_k \big( \mu_k^2 + (\sigma_k - 1)^2 \big) +
        \frac{1}{n K} \sum_{j=1}^K \| \mathrm{sort}(\hat Z w_j) - q \|_2^2

    (Wu, Balestriero & Levine, arXiv:2606.02572, and the authors' released configuration.) The mean
    and the deviation of dimension k are mu and sigma; :math:`\hat Z` are the standardized features,
    with no gradient through sigma, q the quantiles i / (n + 1) of N(0, 1), and the w_j fresh random
    unit vectors. The shape term is a sliced Wasserstein distance, as in `prior_matching_loss`.
    Shared options: see `hypersphere_jax.losses`.

    Args:
      key: random key of this step, the same on all devices.
      z1: `[n, d]` features of the first view.
      z2: `[n, d]` features of the second view, in the order of `z1`.
      lam: weight of R, between 0 and 1.
      num_slices: number of directions K.
      with_terms: return the loss and its two terms without their weights.

    Returns:
      float32 (or float64) scalar (`Terms` if `with_terms`), at least 0.

    >>> z = jax.random.normal(jax.random.key(0), (512, 4))
    >>> bool(visreg_loss(jax.random.key(1), z, z) < 0.1)
    True
    """
    terms = _two_view_terms(_visreg, key, z1, z2, lam, num_slices, axis_name)
    return terms if with_terms else terms.loss


def _two_view_terms(
    regularizer: Regularizer,
    key: jax.Array,
    z1: jax.Array,
    z2: jax.Array,
    lam: float,
    num_slices: int,
    axis_name: AxisName,
) -> Terms:
    """Mean over both views of the squared distance to their center, and of the regularizer."""
    z1, z2 = validate_features(z1, z2, names="z1, z2")
    if num_slices < 1:
        raise ValueError(f"num_slices must be at least 1, got {num_slices}")
    directions = l2_normalize(jax.random.normal(key, (num_slices, z1.shape[1]), z1.dtype))
    # The center is half as far from a view as the other view.
    alignment = alignment_term(z1, z2, "per_dimension", axis_name) / 2
    first = regularizer(z1, directions, axis_name)
    second = regularizer(z2, directions, axis_name)
    distribution = (first + second) / 2
    return Terms((1 - lam) * alignment + lam * distribution, alignment, distribution)


def _sigreg(z: jax.Array, directions: jax.Array, axis_name: AxisName) -> jax.Array:
    """Mean over directions of the statistic of Epps and Pulley."""
    projections = project(z, directions)
    nodes = jnp.linspace(0.0, LAST_NODE, NODES, dtype=z.dtype)

    @jax.checkpoint  # Otherwise the angles of all nodes are kept for the gradient.
    def characteristic_function(node: jax.Array) -> jax.Array:
        angles = node * projections
        return jnp.stack([jnp.mean(jnp.cos(angles), 1), jnp.mean(jnp.sin(angles), 1)])

    values = global_mean(lax.map(characteristic_function, nodes), axis_name)
    normal = jnp.exp(-jnp.square(nodes) / 2)
    gaps = jnp.square(values[:, 0] - normal[:, None]) + jnp.square(values[:, 1])
    steps = jnp.full_like(nodes, 2 * LAST_NODE / (NODES - 1)).at[jnp.array([0, -1])].divide(2)
    integrals = jnp.sum((steps * normal)[:, None] * gaps, axis=0)
    return global_size(z.shape[0], axis_name) * jnp.mean(integrals)


def _visreg(z: jax.Array, directions: jax.Array, axis_name: AxisName) -> jax.Array:
    """Sum of the terms of center, scale and shape."""
    mean = global_mean(jnp.mean(z, axis=0, keepdims=True), axis_name)
    centered = z - mean
    squares = jnp.square(centered)
    variance = global_mean(jnp.mean(squares, axis=0, keepdims=True), axis_name)
    # The slope of the root is infinite at zero.
    deviation = jnp.sqrt(jnp.maximum(variance, SMALLEST_DEVIATION**2))
    center = jnp.mean(jnp.square(mean))
    scale = jnp.mean(jnp.square(deviation - 1))

    projections = project(centered / lax.stop_gradient(deviation), directions)
    n = z.shape[0]
    ranks = 1 + global_positions(n, axis_name)
    probabilities = (ranks / (1 + global_size(n, axis_name))).astype(z.dtype)
    quantiles = math.sqrt(2) * lax.erf_inv(2 * probabilities - 1)
    normal = jnp.broadcast_to(quantiles, projections.shape)
    return center + scale + sorted_distance(projections, normal, axis_name)
