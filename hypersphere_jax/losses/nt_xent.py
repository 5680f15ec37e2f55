"""NT-Xent and its relatives: each of the 2n views against all others.

All are a weighted sum of the same two terms: the similarity of the positives, and the mean over
views of the log-sum-exp of similarities to the others, with or without the positive among them.
"""

import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from hypersphere_jax.losses.common import (
    at_least,
    features,
    l2_normalize,
    masked,
    shares_of,
)
from hypersphere_jax.losses.devices import AxisName, PairOptions, global_mean, pair_options
from hypersphere_jax.losses.mesh import on_mesh
from hypersphere_jax.losses.pairs import mean_log_sum, plain_points, real_points
from hypersphere_jax.losses.products import Precision

Similarity = Literal["cosine", "dot", "neg_euclidean"]
Scaling = Literal["per_sample", "per_dimension"]


class Terms(NamedTuple):
    """A loss, alignment + lam * distribution (Chen et al., Eq. (2) and (4)), with both terms."""

    loss: jax.Array
    alignment: jax.Array
    distribution: jax.Array


@on_mesh("z1", "z2", "mask", "weights")
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
    r"""NT-Xent, the loss of SimCLR: each view's positive against the 2n - 1 other views.

    .. math::
        -\frac{1}{2n} \sum_i \log \frac{e^{s(z_i, z_{p(i)}) / \tau}}
        {\sum_{k \ne i} e^{s(z_i, z_k) / \tau}}

    over the 2n views z of both sides, p(i) the other view of the same image (balanced paper, Eq.
    (15) with alpha = 1 / tau; Chen et al., SimCLR, Eq. (1)).

    Args:
      z1: `[n, d]` features of the first view.
      z2: `[n, d]` features of the second view, in the order of `z1`.
      tau: temperature, > 0.
      similarity: "cosine" normalizes the features here; "dot" and "neg_euclidean", minus the
        squared distance, take them as they are (balanced paper, Section 5.4 and its footnote).
      mask: bool `[n]`, which pairs are real: the others, whatever they hold, count nowhere.
      weights: `[n]`, zero or positive: the mean over pairs becomes the weighted mean.
      axis_name: a mapped axis: the pairs are those of all devices.
      mesh_axis: of global arrays, the axis of the mesh that they are sharded along.
      block_size: points in a block, at most; memory grows with `n d + block_size^2`. None chooses.
      precision: of matrix products: "highest", "high" or "default", see docs/losses.md.
      ring: pass the devices' points along a ring, rather than gathering them on each.

    Returns:
      float32 (or float64) scalar, at least 0; `log(2n - 1)` when all features coincide.

    Raises:
      ValueError: for shapes that do not fit, no pairs, a similarity of another name, or tau that is
        not positive.

    >>> import jax.numpy as jnp
    >>> z = jnp.array([[1.0, 0.0], [-1.0, 0.0]])
    >>> round(float(nt_xent_loss(z, z, tau=1.0)), 4)
    0.2395
    """
    z1, z2 = features(z1, z2, names="z1, z2")
    at_least(1, "nt_xent_loss", "pair", z1)
    mask, weights, z1, z2 = masked(mask, weights, z1, z2)
    if similarity == "cosine":
        z1, z2 = l2_normalize(z1), l2_normalize(z2)
    elif similarity not in ("dot", "neg_euclidean"):
        raise ValueError(
            f"similarity must be 'cosine', 'dot' or 'neg_euclidean', got {similarity!r}"
        )
    options = pair_options(block_size, axis_name, ring, precision)
    real = None if mask is None else _views(mask, mask)
    shares = shares_of(None if weights is None else _views(weights, weights), axis_name)
    if similarity == "neg_euclidean":
        points = real_points(plain_points(_views(z1, z2)), real)
        positives = -jnp.sum(jnp.square(z1 - z2), axis=-1) / tau
        positives = _views(positives, positives)
        return mean_log_sum(points, 2, options, positives, shares, 2 / tau)
    return _nt_xent(z1, z2, 1 / tau, options, real, shares)


@on_mesh("z1", "z2")
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
    r"""NT-Xent with a weight of its own for the term that spreads the features.

    .. math::
        -\frac{1}{n} \sum_i z_i^\top z'_i +
        \frac{\lambda}{2n} \sum_i \log \sum_{k \ne i} e^{z_i^\top z_k / \tau}

    (Chen et al., Eq. (5), as the mean over all 2n views.) At lam = tau it is tau times NT-Xent.

    Their numbers (Figure B.2, Table D.1) were made with another alignment term, half the mean over
    n *and d* of the squared differences: `scaling="per_dimension"`. For unit features that is
    `(1 - z_i . z'_i) / d`, so their lam is the lam of Eq. (5) divided by d, and their grid contains
    NT-Xent along `d lam = tau`.

    The notebook that they released has k = i in the sum, too, and subtracts log d from its log:
    `self_similarity=True`. The term :math:`e^{1 / \tau}` of a view with itself takes weight from
    the others: they repel :math:`1 + e^{1 / \tau} / \sum_{k \ne i} e^{z_i^\top z_k / \tau}` times
    less than without it, which at a low tau is much: see docs/losses.md.

    Args:
      z1: `[n, d]` features of the first view, unit norm in the paper.
      z2: `[n, d]` features of the second view, in the order of `z1`.
      tau: temperature, > 0.
      lam: weight of the second term, >= 0.
      scaling: of the alignment term: "per_sample" as in Eq. (5), "per_dimension" as in the tables.
      self_similarity: keep a view's similarity with itself in the sum, as the authors' notebook.
      with_terms: return the two terms beside the loss.
      axis_name: a mapped axis: the pairs are those of all devices.
      mesh_axis: of global arrays, the axis of the mesh that they are sharded along.
      block_size: points in a block, at most. None chooses.
      precision: of matrix products: "highest", "high" or "default", see docs/losses.md.
      ring: pass the devices' points along a ring, rather than gathering them on each.

    Returns:
      float32 (or float64) scalar (`Terms` if `with_terms`).

    Raises:
      ValueError: for shapes that differ, no pairs, a scaling of another name, tau that is not
        positive or lam that is negative.

    >>> import jax.numpy as jnp
    >>> z = jnp.array([[1.0, 0.0], [-1.0, 0.0]])
    >>> round(float(decoupled_nt_xent_loss(z, z, tau=1.0, lam=1.0)), 4)
    0.2395
    """
    z1, z2 = features(z1, z2, names="z1, z2")
    at_least(1, "decoupled_nt_xent_loss", "pair", z1)
    attraction = alignment(z1, z2, scaling, axis_name)
    options = pair_options(block_size, axis_name, ring, precision)
    if self_similarity:
        views = plain_points(_views(z1, z2) / jnp.sqrt(tau))
        distribution = mean_log_sum(views, 0, options) - math.log(z1.shape[1])
        terms = Terms(attraction + lam * distribution, attraction, distribution)
        return terms if with_terms else terms.loss
    nt_xent = _nt_xent(z1, z2, 1 / tau, options)
    # The log-sum-exp is NT-Xent plus the positive's logit. In one factor with the attraction that
    # leaves nothing of it at lam = tau, not even rounding.
    if scaling == "per_sample":
        loss = (1 - lam / tau) * attraction + lam * nt_xent
        distribution = nt_xent + -attraction / tau
    else:
        opposite = alignment(z1, z2, "per_sample", axis_name)
        loss = attraction - lam / tau * opposite + lam * nt_xent
        distribution = nt_xent - opposite / tau
    terms = Terms(loss, attraction, distribution)
    return terms if with_terms else terms.loss


def alignment(z1: jax.Array, z2: jax.Array, scaling: str, axis_name: AxisName) -> jax.Array:
    """The alignment term of Chen et al., in one of its two scalings."""
    if scaling == "per_sample":
        return -global_mean(jnp.mean(jnp.sum(z1 * z2, axis=-1)), axis_name)
    if scaling == "per_dimension":
        return global_mean(jnp.mean(jnp.square(z1 - z2)), axis_name) / 2
    raise ValueError(f"scaling must be 'per_sample' or 'per_dimension', got {scaling!r}")


@on_mesh("z")
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
    r"""The term of NT-Xent that spreads the features, alone (Chen et al., Section C).

    .. math:: \frac{1}{n} \sum_i \log \sum_{k \ne i} e^{z_i^\top z_k / \tau}

    (The second term of Eq. (5), of one view of each image: the other view is not among the rest.)

    Args:
      z: `[n, d]` features, unit norm in the paper.
      tau: temperature, > 0.
      axis_name: a mapped axis: the features are those of all devices.
      mesh_axis: of global arrays, the axis of the mesh that they are sharded along.
      block_size: points in a block, at most. None chooses.
      precision: of matrix products: "highest", "high" or "default", see docs/losses.md.
      ring: pass the devices' points along a ring, rather than gathering them on each.

    Returns:
      float32 (or float64) scalar; `1 / tau + log(n - 1)` when all features coincide.

    Raises:
      ValueError: for z that is not `[n, d]`, fewer than two points, or tau that is not positive.

    >>> import jax.numpy as jnp
    >>> float(logsumexp_loss(jnp.array([[1.0, 0.0], [-1.0, 0.0]]), tau=1.0))
    -1.0
    """
    (z,) = features(z, names="z")
    at_least(2, "logsumexp_loss", "point", z, axis_name=axis_name)
    points = plain_points(z / jnp.sqrt(tau))
    return mean_log_sum(points, 1, pair_options(block_size, axis_name, ring, precision))


@on_mesh("z1", "z2")
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
    With alpha = 1 / tau and lam = 1, divided by tau, it is lightly's `DCLLoss` of unit features.

    Args:
      z1: `[n, d]` features of the first view, unit norm in the paper.
      z2: `[n, d]` features of the second view, in the order of `z1`.
      alpha: how much more the similar negatives repel, > 0; an inverse temperature.
      lam: weight of the repulsion, >= 0.
      with_terms: return the two terms beside the loss.
      axis_name: a mapped axis: the pairs are those of all devices.
      mesh_axis: of global arrays, the axis of the mesh that they are sharded along.
      block_size: points in a block, at most. None chooses.
      precision: of matrix products: "highest", "high" or "default", see docs/losses.md.
      ring: pass the devices' points along a ring, rather than gathering them on each.

    Returns:
      float32 (or float64) scalar (`Terms` if `with_terms`);
      `-1 + lam (1 + log(2n - 2) / alpha)` when all features coincide.

    Raises:
      ValueError: for shapes that differ, fewer than two pairs, alpha that is not positive or lam
        that is negative.

    >>> import jax.numpy as jnp
    >>> z = jnp.array([[1.0, 0.0], [-1.0, 0.0]])
    >>> round(float(balanced_contrastive_loss(z, z, alpha=1.0, lam=1.0)), 4)
    -1.3069
    """
    z1, z2 = features(z1, z2, names="z1, z2")
    at_least(2, "balanced_contrastive_loss", "pair", z1, axis_name=axis_name)
    points = plain_points(_views(z1, z2) * jnp.sqrt(alpha))
    repulsion = mean_log_sum(points, 2, pair_options(block_size, axis_name, ring, precision))
    attraction = alignment(z1, z2, "per_sample", axis_name)
    terms = Terms(lam / alpha * repulsion + attraction, attraction, repulsion / alpha)
    return terms if with_terms else terms.loss


@on_mesh("z1", "z2")
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
    tau = 1 / alpha.

    Args:
      z1: `[n, d]` features of the first view, unit norm in the paper.
      z2: `[n, d]` features of the second view, in the order of `z1`.
      alpha: how much more the similar views repel, > 0; an inverse temperature.
      lam: weight of the repulsion, >= 0.
      with_terms: return the two terms beside the loss.
      axis_name: a mapped axis: the pairs are those of all devices.
      mesh_axis: of global arrays, the axis of the mesh that they are sharded along.
      block_size: points in a block, at most. None chooses.
      precision: of matrix products: "highest", "high" or "default", see docs/losses.md.
      ring: pass the devices' points along a ring, rather than gathering them on each.

    Returns:
      float32 (or float64) scalar (`Terms` if `with_terms`);
      `-1 + lam (1 + log(2n - 1) / alpha)` when all features coincide.

    Raises:
      ValueError: for shapes that differ, no pairs, alpha that is not positive or lam that is
        negative.

    >>> import jax.numpy as jnp
    >>> z = jnp.array([[1.0, 0.0], [-1.0, 0.0]])
    >>> round(float(generalized_nt_xent_loss(z, z, alpha=1.0, lam=1.0)), 4)
    0.2395
    """
    z1, z2 = features(z1, z2, names="z1, z2")
    at_least(1, "generalized_nt_xent_loss", "pair", z1)
    nt_xent = _nt_xent(z1, z2, alpha, pair_options(block_size, axis_name, ring, precision))
    # The log-sum-exp is NT-Xent plus the positive's logit.
    attraction = alignment(z1, z2, "per_sample", axis_name)
    loss = lam / alpha * nt_xent + (1 - lam) * attraction
    terms = Terms(loss, attraction, nt_xent / alpha - attraction)
    return terms if with_terms else terms.loss


def _nt_xent(
    z1: jax.Array,
    z2: jax.Array,
    alpha: float,
    options: PairOptions,
    mask: jax.Array | None = None,
    shares: jax.Array | None = None,
) -> jax.Array:
    """NT-Xent of inner products times alpha; mask and shares are of the 2n views."""
    positives = alpha * jnp.sum(z1 * z2, axis=-1)
    points = real_points(plain_points(_views(z1, z2) * jnp.sqrt(alpha)), mask)
    return mean_log_sum(points, 2, options, _views(positives, positives), shares)


def _views(z1: jax.Array, z2: jax.Array) -> jax.Array:
    """`[2n, ...]`, the two views of an image one after the other: no block parts them."""
    return jnp.stack([z1, z2], axis=1).reshape(2 * z1.shape[0], *z1.shape[1:])
