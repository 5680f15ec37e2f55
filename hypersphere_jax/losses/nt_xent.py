"""NT-Xent and its relatives: each of the 2n views against all others.

All are a weighted sum of two terms: the similarity of the positives, and the mean over views of the
log-sum-exp of similarities to the others, with or without the positive.
"""

import math
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp

from hypersphere_jax.losses._pairwise.collectives import global_mean
from hypersphere_jax.losses._pairwise.options import AxisName, Exclude, PairOptions
from hypersphere_jax.losses._pairwise.pair_sets import PairsWithin
from hypersphere_jax.losses._pairwise.points import OptionalArray, Scale, make_points
from hypersphere_jax.losses._pairwise.precision import Precision
from hypersphere_jax.losses._pairwise.reductions import mean_row_logsumexp
from hypersphere_jax.losses._pairwise.sharding import shard_over_mesh
from hypersphere_jax.losses._pairwise.validation import count_points, validate_features
from hypersphere_jax.losses._pairwise.weights import apply_mask, normalize_weights
from hypersphere_jax.losses.normalize import l2_normalize

Similarity = Literal["cosine", "dot", "neg_euclidean"]
Scaling = Literal["per_sample", "per_dimension"]


class Terms(NamedTuple):
    """A loss, alignment + lam * distribution (Chen et al., Eq. (2) and (4)), and its terms."""

    loss: jax.Array
    alignment: jax.Array
    distribution: jax.Array


@shard_over_mesh(sharded=("z1", "z2"), positive=("tau",), weighted=True)
def nt_xent_loss(
    z1: jax.Array,
    z2: jax.Array,
    tau: float = 0.5,
    similarity: Similarity = "cosine",
    *,
    mask: jax.Array | None = None,
    weights: jax.Array | None = None,
    axis_name: AxisName = None,
    mesh_axis: AxisName = None,
    block_size: int | None = None,
    precision: Precision = "highest",
    ring: bool = False,
) -> jax.Array:
    r"""NT-Xent, the loss of SimCLR: the positive of each view against the 2n - 1 other views.

    .. math::
        -\frac{1}{2n} \sum_i \log \frac{e^{s(z_i, z_{p(i)}) / \tau}}
        {\sum_{k \ne i} e^{s(z_i, z_k) / \tau}}

    over the 2n views z of both sides, p(i) the other view of the same image (balanced paper, Eq.
    (15) with alpha = 1 / tau; Chen et al., SimCLR, Eq. (1)).
    Shared options: see `hypersphere_jax.losses`.

    Args:
      z1: `[n, d]` features of the first view.
      z2: `[n, d]` features of the second view, in the order of `z1`.
      tau: temperature, > 0.
      similarity: "cosine" normalizes the features; "dot" and "neg_euclidean", minus the squared
        distance, use them unchanged (balanced paper, Section 5.4 and its footnote).

    Returns:
      float32 (or float64) scalar, at least 0; `log(2n - 1)` when all features coincide.

    >>> z = jnp.array([[1.0, 0.0], [-1.0, 0.0]])
    >>> round(float(nt_xent_loss(z, z, tau=1.0)), 4)
    0.2395
    """
    z1, z2 = validate_features(z1, z2, names="z1, z2")
    if similarity not in get_args(Similarity):
        raise ValueError(f"similarity must be one of {get_args(Similarity)}, got {similarity!r}")
    options = PairOptions(axis_name, block_size, precision, ring)
    mask, weights, z1, z2 = apply_mask(mask, weights, z1, z2)
    if similarity == "cosine":
        z1 = l2_normalize(z1)
        z2 = l2_normalize(z2)
    if similarity == "neg_euclidean":
        positives = -jnp.sum(jnp.square(z1 - z2), axis=-1) / tau
        return _cross_entropy(_views(z1, z2), positives, options, mask, weights, 2 / tau)
    return _nt_xent(z1, z2, 1 / tau, options, mask, weights)


@shard_over_mesh(sharded=("z1", "z2"), positive=("tau",), non_negative=("lam",))
def decoupled_nt_xent_loss(
    z1: jax.Array,
    z2: jax.Array,
    tau: float = 1.0,
    lam: float = 0.1,
    *,
    scaling: Scaling = "per_sample",
    self_similarity: bool = False,
    with_terms: bool = False,
    axis_name: AxisName = None,
    mesh_axis: AxisName = None,
    block_size: int | None = None,
    precision: Precision = "highest",
    ring: bool = False,
) -> jax.Array | Terms:
    r"""NT-Xent with a separate weight for the term that spreads the features.

    .. math::
        -\frac{1}{n} \sum_i z_i^\top z'_i +
        \frac{\lambda}{2n} \sum_i \log \sum_{k \ne i} e^{z_i^\top z_k / \tau}

    (Chen et al., Eq. (5), as the mean over all 2n views.) At lam = tau it is tau times NT-Xent. The
    authors' numbers and notebook differ: see `scaling`, `self_similarity` and docs/losses.
    Shared options: see `hypersphere_jax.losses`.

    Args:
      z1: `[n, d]` features of the first view, unit norm in the paper.
      z2: `[n, d]` features of the second view, in the order of `z1`.
      tau: temperature, > 0.
      lam: weight of the second term, >= 0.
      scaling: "per_sample" has the alignment of Eq. (5); "per_dimension" half the mean of squared
        differences over n *and d*, as in Figure B.2 and Table D.1, where lam is d times smaller.
      self_similarity: include k = i in the sum and subtract log d from its log, as the notebook.
      with_terms: return the loss and its two terms.

    Returns:
      float32 (or float64) scalar (`Terms` if `with_terms`).

    >>> z = jnp.array([[1.0, 0.0], [-1.0, 0.0]])
    >>> round(float(decoupled_nt_xent_loss(z, z, tau=1.0, lam=1.0)), 4)
    0.2395
    """
    z1, z2 = validate_features(z1, z2, names="z1, z2")
    options = PairOptions(axis_name, block_size, precision, ring)
    compute_terms = _notebook_terms if self_similarity else _decoupled_terms
    terms = compute_terms(z1, z2, tau, lam, scaling, options)
    return terms if with_terms else terms.loss


def _notebook_terms(
    z1: jax.Array, z2: jax.Array, tau: float, lam: float, scaling: Scaling, options: PairOptions
) -> Terms:
    """The released notebook's loss: the sum contains the similarity of a view with itself."""
    attraction = alignment_term(z1, z2, scaling, options.axis_name)
    views = make_points(_views(z1, z2) / jnp.sqrt(tau))
    distribution = mean_row_logsumexp(PairsWithin(options, Exclude.NONE), views)
    distribution -= math.log(z1.shape[1])
    return Terms(attraction + lam * distribution, attraction, distribution)


def _decoupled_terms(
    z1: jax.Array, z2: jax.Array, tau: float, lam: float, scaling: Scaling, options: PairOptions
) -> Terms:
    """Chen et al., Eq. (5), whose log-sum-exp is NT-Xent plus the logit of the positive."""
    attraction = alignment_term(z1, z2, scaling, options.axis_name)
    nt_xent = _nt_xent(z1, z2, 1 / tau, options)
    if scaling == "per_sample":
        # With one factor for both attractions, nothing is left of them at lam = tau.
        loss = (1 - lam / tau) * attraction + lam * nt_xent
        return Terms(loss, attraction, nt_xent + -attraction / tau)
    per_sample = alignment_term(z1, z2, "per_sample", options.axis_name)
    loss = attraction - lam / tau * per_sample + lam * nt_xent
    return Terms(loss, attraction, nt_xent - per_sample / tau)


def alignment_term(
    z1: jax.Array, z2: jax.Array, scaling: Scaling, axis_name: AxisName
) -> jax.Array:
    """Return the alignment term of Chen et al. in one of its two scalings."""
    if scaling == "per_sample":
        return -global_mean(jnp.mean(jnp.sum(z1 * z2, axis=-1)), axis_name)
    if scaling == "per_dimension":
        return global_mean(jnp.mean(jnp.square(z1 - z2)), axis_name) / 2
    raise ValueError(f"scaling must be one of {get_args(Scaling)}, got {scaling!r}")


@shard_over_mesh(sharded=("z",), positive=("tau",))
def logsumexp_loss(
    z: jax.Array,
    tau: float = 0.5,
    *,
    axis_name: AxisName = None,
    mesh_axis: AxisName = None,
    block_size: int | None = None,
    precision: Precision = "highest",
    ring: bool = False,
) -> jax.Array:
    r"""The term of NT-Xent that spreads the features (Chen et al., Section C).

    .. math:: \frac{1}{n} \sum_i \log \sum_{k \ne i} e^{z_i^\top z_k / \tau}

    This is the second term of Eq. (5) for one view of each image: the other view is not among the
    points. Shared options: see `hypersphere_jax.losses`.

    Args:
      z: `[n, d]` features, n >= 2, unit norm in the paper.
      tau: temperature, > 0.

    Returns:
      float32 (or float64) scalar; `1 / tau + log(n - 1)` when all features coincide.

    >>> float(logsumexp_loss(jnp.array([[1.0, 0.0], [-1.0, 0.0]]), tau=1.0))
    -1.0
    """
    (z,) = validate_features(z, names="z")
    count_points(z, 2, "points", axis_name)
    pairs = PairsWithin(PairOptions(axis_name, block_size, precision, ring))
    return mean_row_logsumexp(pairs, make_points(z / jnp.sqrt(tau)))


@shard_over_mesh(sharded=("z1", "z2"), positive=("alpha",), non_negative=("lam",))
def balanced_contrastive_loss(
    z1: jax.Array,
    z2: jax.Array,
    alpha: float = 4.0,
    lam: float = 2.0,
    *,
    with_terms: bool = False,
    axis_name: AxisName = None,
    mesh_axis: AxisName = None,
    block_size: int | None = None,
    precision: Precision = "highest",
    ring: bool = False,
) -> jax.Array | Terms:
    r"""The balanced contrastive loss: the positive attracts, 2(n - 1) negatives repel.

    .. math::
        \frac{1}{2n} \sum_i \Big( -z_i^\top z_{p(i)} +
        \frac{\lambda}{\alpha} \log \sum_{k \ne i, p(i)} e^{\alpha z_i^\top z_k} \Big)

    over the 2n views z of both sides, p(i) the other view of the same image (balanced paper, Eq.
    (17)). As alpha grows, the second term becomes lam times the similarity of the hardest negative.
    With alpha = 1 / tau and lam = 1, divided by tau, it is lightly's `DCLLoss` for unit features.
    Shared options: see `hypersphere_jax.losses`.

    Args:
      z1: `[n, d]` features of the first view, n >= 2, unit norm in the paper.
      z2: `[n, d]` features of the second view, in the order of `z1`.
      alpha: inverse temperature, > 0: how much more similar negatives repel.
      lam: weight of the repulsion, >= 0.
      with_terms: return the loss and its two terms.

    Returns:
      float32 (or float64) scalar (`Terms` if `with_terms`);
      `-1 + lam (1 + log(2n - 2) / alpha)` when all features coincide.

    >>> z = jnp.array([[1.0, 0.0], [-1.0, 0.0]])
    >>> round(float(balanced_contrastive_loss(z, z, alpha=1.0, lam=1.0)), 4)
    -1.3069
    """
    z1, z2 = validate_features(z1, z2, names="z1, z2")
    count_points(z1, 2, "pairs", axis_name)
    pairs = PairsWithin(PairOptions(axis_name, block_size, precision, ring), Exclude.VIEWS)
    repulsion = mean_row_logsumexp(pairs, make_points(_views(z1, z2) * jnp.sqrt(alpha)))
    attraction = alignment_term(z1, z2, "per_sample", axis_name)
    terms = Terms(lam / alpha * repulsion + attraction, attraction, repulsion / alpha)
    return terms if with_terms else terms.loss


@shard_over_mesh(sharded=("z1", "z2"), positive=("alpha",), non_negative=("lam",))
def generalized_nt_xent_loss(
    z1: jax.Array,
    z2: jax.Array,
    alpha: float = 2.0,
    lam: float = 2.0,
    *,
    with_terms: bool = False,
    axis_name: AxisName = None,
    mesh_axis: AxisName = None,
    block_size: int | None = None,
    precision: Precision = "highest",
    ring: bool = False,
) -> jax.Array | Terms:
    r"""The balanced contrastive loss with the positive among those that repel.

    .. math::
        \frac{1}{2n} \sum_i \Big( -z_i^\top z_{p(i)} +
        \frac{\lambda}{\alpha} \log \sum_{k \ne i} e^{\alpha z_i^\top z_k} \Big)

    (Balanced paper, Section 6, after Eq. (18).) At lam = 1, alpha times the loss is NT-Xent at
    tau = 1 / alpha. Shared options: see `hypersphere_jax.losses`.

    Args:
      z1: `[n, d]` features of the first view, unit norm in the paper.
      z2: `[n, d]` features of the second view, in the order of `z1`.
      alpha: inverse temperature, > 0: how much more similar views repel.
      lam: weight of the repulsion, >= 0.
      with_terms: return the loss and its two terms.

    Returns:
      float32 (or float64) scalar (`Terms` if `with_terms`);
      `-1 + lam (1 + log(2n - 1) / alpha)` when all features coincide.

    >>> z = jnp.array([[1.0, 0.0], [-1.0, 0.0]])
    >>> round(float(generalized_nt_xent_loss(z, z, alpha=1.0, lam=1.0)), 4)
    0.2395
    """
    z1, z2 = validate_features(z1, z2, names="z1, z2")
    nt_xent = _nt_xent(z1, z2, alpha, PairOptions(axis_name, block_size, precision, ring))
    # The log-sum-exp is NT-Xent plus the logit of the positive.
    attraction = alignment_term(z1, z2, "per_sample", axis_name)
    loss = lam / alpha * nt_xent + (1 - lam) * attraction
    terms = Terms(loss, attraction, nt_xent / alpha - attraction)
    return terms if with_terms else terms.loss


def _nt_xent(
    z1: jax.Array,
    z2: jax.Array,
    alpha: float,
    options: PairOptions,
    mask: OptionalArray = None,
    weights: OptionalArray = None,
) -> jax.Array:
    """NT-Xent of inner products times alpha."""
    positives = alpha * jnp.sum(z1 * z2, axis=-1)
    views = _views(z1, z2) * jnp.sqrt(alpha)
    return _cross_entropy(views, positives, options, mask, weights)


def _cross_entropy(
    views: jax.Array,
    positives: jax.Array,
    options: PairOptions,
    mask: OptionalArray,
    weights: OptionalArray,
    scale: Scale = None,
) -> jax.Array:
    """Mean cross entropy of 2n views, with positives, mask and weights `[n]` of the images."""
    if mask is not None:
        mask = _views(mask, mask)
    if weights is not None:
        weights = _views(weights, weights)
    return mean_row_logsumexp(
        PairsWithin(options, Exclude.VIEWS),
        make_points(views, mask),
        positives=_views(positives, positives),
        weights=normalize_weights(weights, options.axis_name),
        scale=scale,
    )


def _views(z1: jax.Array, z2: jax.Array) -> jax.Array:
    """`[2n, ...]`, the two views of an image one after the other, so that no block parts them."""
    return jnp.stack([z1, z2], axis=1).reshape(2 * z1.shape[0], *z1.shape[1:])
