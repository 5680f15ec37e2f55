"""Optima, bounds, limits and entropy estimates from the papers.

The expectations in the bounds of the balanced paper are means over the given views and images. The
theorems are true for this empirical distribution exactly.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hypersphere_jax.losses import align_loss, l2_normalize
from hypersphere_jax.losses._pairwise.options import Exclude, PairOptions
from hypersphere_jax.losses._pairwise.pair_sets import PairsWithin
from hypersphere_jax.losses._pairwise.points import make_points
from hypersphere_jax.losses._pairwise.reductions import mean_row_logsumexp
from hypersphere_jax.losses._pairwise.validation import check_positive, validate_features

# GPUs round features to 10 bits by default.
PRECISION = lax.Precision.HIGHEST


class AttractingBound(NamedTuple):
    """Both sides of Theorem 4.4, `[n]` each, and whether Assumption 4.3 is true, bool `[n]`."""

    left: jax.Array
    right: jax.Array
    assumed: jax.Array


class RepellingBound(NamedTuple):
    """Both sides of Theorem 4.6, the right side times nu (`bracket`), and nu: `[n]` each."""

    left: jax.Array
    right: jax.Array
    bracket: jax.Array
    nu: jax.Array


def uniformity_optimum(d: int, t: float = 2.0) -> float:
    r"""Return the uniformity of the uniform distribution, the minimum in d dimensions.

    .. math:: -2t + \log {}_0F_1(; d/2; t^2)

    Source: Wang & Isola, Corollary 1. Estimator (9), which excludes pairs of a point with itself,
    can be lower for a finite sample: see `uniformity_lower_bound`.

    Args:
      d: dimension of the space around the sphere, >= 1.
      t: scale of the Gaussian potential, > 0.

    Returns:
      The optimum, in the units of `uniform_loss`.

    Raises:
      ValueError: for d < 1, or t that is not positive or beyond 1e6.

    >>> round(uniformity_optimum(32, 2.0), 4)
    -3.7518
    """
    if d < 1 or not 0 < t <= 1e6:
        raise ValueError(f"uniformity_optimum needs d >= 1 and 0 < t <= 1e6, got d={d}, t={t}")
    return _log_0f1_scaled(d / 2, t)


def uniformity_lower_bound(d: int, t: float, n: int, include_self: bool = False) -> float:
    r"""Return a lower bound of the uniformity of n points in d dimensions.

    .. math:: \max\left(-4t, \log \frac{n e^{-2t} {}_0F_1(; d/2; t^2) - 1}{n - 1}\right)

    and -4t where the fraction is not positive. Source: Wang & Isola, A.1.1, for estimator (9). For
    estimator (8) (`include_self`), the bound is `uniformity_optimum`. Two antipodal points attain
    the bound; in general, n points do not.

    Args:
      d: dimension of the space around the sphere, >= 1.
      t: scale of the Gaussian potential, > 0.
      n: number of points, >= 2 (>= 1 with `include_self`).
      include_self: use estimator (8) instead of (9), as in `uniform_loss`.

    Returns:
      The bound, in the units of `uniform_loss`.

    Raises:
      ValueError: for d, t or n out of range.

    >>> round(uniformity_lower_bound(32, 2.0, 256), 4)
    -3.9299
    >>> uniformity_lower_bound(32, 2.0, 2)
    -8.0
    """
    least = 1 if include_self else 2
    if n < least:
        raise ValueError(f"uniformity_lower_bound needs n >= {least}, got n={n}")
    optimum = uniformity_optimum(d, t)
    if include_self:
        return optimum
    # Near -log(n) the fraction is a difference of equal numbers. The subtracted term exceeds the
    # rounding error.
    return max(-4.0 * t, float(uniformity_without_self(optimum - 1e-14 * (10 + t), n)))


def uniformity_without_self(value: float | jax.Array, n: int) -> float | jax.Array:
    r"""Convert estimator (8) of uniformity to estimator (9), for the same n points.

    .. math:: \log \frac{n e^{v} - 1}{n - 1}

    Source: Wang & Isola, A.1.1. Estimator (8) is at least `-log n`, the value without any potential
    between different points; at `-log n` and below, the result is -inf.

    Args:
      value: `uniform_loss(x, t, include_self=True)`: a float, or an array of any shape.
      n: number of points, >= 2.

    Returns:
      `uniform_loss(x, t)` in the shape of `value`; a JAX array for a JAX array, otherwise NumPy.

    Raises:
      ValueError: for n < 2.

    >>> round(float(uniformity_without_self(-1.0, 4)), 4)
    -1.8504
    """
    xp = _at_least_two(n, value)
    with np.errstate(divide="ignore"):
        return xp.log(xp.expm1(xp.maximum(value + math.log(n), 0.0))) - math.log(n - 1)


def uniformity_with_self(value: float | jax.Array, n: int) -> float | jax.Array:
    r"""Convert estimator (9) of uniformity to estimator (8), for the same n points.

    .. math:: \log \frac{(n - 1) e^{v} + 1}{n}

    This is the inverse of `uniformity_without_self`. Source: Wang & Isola, A.1.1.

    Args:
      value: `uniform_loss(x, t)`: a float, or an array of any shape.
      n: number of points, >= 2.

    Returns:
      `uniform_loss(x, t, include_self=True)` in the shape of `value`; a JAX array for a JAX array,
      otherwise NumPy.

    Raises:
      ValueError: for n < 2.

    >>> round(float(uniformity_with_self(-1.8504, 4)), 4)
    -1.0
    """
    return _at_least_two(n, value).logaddexp(value + math.log(n - 1), 0.0) - math.log(n)


def contrastive_limit(x: jax.Array, y: jax.Array, tau: float = 0.5) -> jax.Array:
    r"""Return the limit of the contrastive loss minus log M for M negatives, as M grows.

    .. math:: -\frac{1}{n \tau} \sum_i x_i^\top y_i
              + \frac{1}{n} \sum_i \log \frac{1}{n} \sum_j e^{x_j^\top x_i / \tau}

    Source: Wang & Isola, Theorem 1, Eq. (2). The data distribution is uniform over the rows of `x`;
    a negative may be the point itself, so that the sum includes j = i. Memory is linear in n.

    Args:
      x: `[n, d]` features, unit norm in the paper.
      y: `[n, d]` features of the positives, in the same order.
      tau: temperature, > 0.

    Returns:
      float32 scalar.

    Raises:
      ValueError: for shapes that differ, no pairs, or tau that is not positive.

    >>> import jax.numpy as jnp
    >>> x = jnp.array([[1.0, 0.0], [-1.0, 0.0]])
    >>> round(float(contrastive_limit(x, x, tau=1.0)), 4)  # -1 + log cosh 1
    -0.5662
    """
    x, y = _points(x, y, names="x, y")
    tau = check_positive("tau", tau, x.dtype)
    return _mean_log_mean_exp(x, 1 / tau) - jnp.mean(jnp.sum(x * y, axis=-1)) / tau


def sphere_log_area(d: int) -> float:
    r"""Return the log of the surface area of the unit sphere in R^d.

    .. math:: \log \frac{2 \pi^{d/2}}{\Gamma(d/2)}

    This is the entropy in nats, with respect to the surface measure, of the uniform distribution.

    Args:
      d: dimension of the space around the sphere, >= 1 (for d = 1, two points of measure 1).

    Returns:
      The log of the area.

    Raises:
      ValueError: for d < 1.

    >>> round(math.exp(sphere_log_area(3)) / math.pi, 12)
    4.0
    """
    if d < 1:
        raise ValueError(f"sphere_log_area needs d >= 1, got d={d}")
    return math.log(2) + d / 2 * math.log(math.pi) - math.lgamma(d / 2)


def vmf_log_normalizer(d: int, kappa: float) -> float:
    r"""Return the log of the integral of the von Mises-Fisher kernel over the unit sphere in R^d.

    .. math:: \log Z_\text{vMF} = \log \int e^{\kappa \mu^\top x} dx
              = \log \frac{(2\pi)^{d/2} I_{d/2-1}(\kappa)}{\kappa^{d/2-1}}

    for any unit vector mu, with respect to the surface measure. Source: Wang & Isola, Section 4.2.
    The computation uses the identical form: area times 0F1(; d/2; kappa^2 / 4).

    Args:
      d: dimension of the space around the sphere, >= 1.
      kappa: concentration, > 0; 1 / tau in the contrastive loss.

    Returns:
      The log of the normalizer.

    Raises:
      ValueError: for d < 1, or kappa that is not positive or beyond 1e6.

    >>> round(vmf_log_normalizer(3, 2.0) - math.log(4 * math.pi * math.sinh(2.0) / 2.0), 12)
    0.0
    """
    if d < 1 or not 0 < kappa <= 1e6:
        raise ValueError(
            f"vmf_log_normalizer needs d >= 1 and 0 < kappa <= 1e6, got d={d}, kappa={kappa}"
        )
    return sphere_log_area(d) + kappa + _log_0f1_scaled(d / 2, kappa / 2)


def vmf_kde_entropy(x: jax.Array, kappa: float) -> jax.Array:
    r"""Estimate the entropy of features with a von Mises-Fisher kernel density.

    .. math:: \hat H = \log Z_\text{vMF}
              - \frac{1}{n} \sum_i \log \frac{1}{n} \sum_j e^{\kappa x_i^\top x_j}

    Source: Wang & Isola, Section 4.2, the resubstitution estimate, whose density at a point counts
    the point itself. The unit is nats, with respect to the surface measure of the sphere. The
    estimate for uniform points approaches `sphere_log_area(d)`; it may be negative. Because the
    encoder is deterministic, this number is also the paper's estimate of the mutual information of
    image and feature. The second term also occurs in `contrastive_limit` with tau = 1 / kappa.

    Args:
      x: `[n, d]` features, unit norm.
      kappa: concentration of the kernel, > 0; not traced, even under `jit`.

    Returns:
      float32 scalar.

    Raises:
      ValueError: for x that is not `[n, d]`, no points, or kappa that is not positive and finite.

    >>> import jax.numpy as jnp
    >>> one = vmf_kde_entropy(jnp.array([[1.0, 0.0, 0.0]]), kappa=2.0)
    >>> round(float(one) - (vmf_log_normalizer(3, 2.0) - 2.0), 6)
    0.0
    """
    (x,) = _points(x, names="x")
    return vmf_log_normalizer(x.shape[1], kappa) - _mean_log_mean_exp(x, kappa)


def prototype_bias(x: jax.Array, same_class: jax.Array) -> jax.Array:
    r"""Return the mean distance between features of images of the same class.

    .. math:: \frac{1}{n} \sum_i \|f(t_i(x'_i)) - f(t_i(x_i))\|_2

    Source: balanced paper, Eq. (51), an estimate of Eq. (16) with one draw of the augmentation and
    the other image for each image. Its expectation is above Eq. (16).

    Args:
      x: `[n, d]` features of one augmentation of each image.
      same_class: `[n, d]` features of another random image of the same class, with the augmentation
        of the same row of `x`.

    Returns:
      float32 scalar.

    Raises:
      ValueError: for shapes that differ, or no rows.

    >>> import jax.numpy as jnp
    >>> x, same_class = jnp.array([[3.0, 0.0], [0.0, 1.0]]), jnp.array([[0.0, 4.0], [0.0, 1.0]])
    >>> float(prototype_bias(x, same_class))
    2.5
    """
    x, same_class = _points(x, same_class, names="x, same_class")
    return align_loss(x, same_class, alpha=1.0)


def uniform_sphere(key: jax.Array, n: int, d: int) -> jax.Array:
    """Draw points from the uniform distribution on the unit sphere in R^d.

    The points are normalized Gaussian vectors.

    Args:
      key: random key.
      n: number of points, >= 0.
      d: dimension of the space around the sphere, >= 1.

    Returns:
      `[n, d]` float32, unit norm.

    Raises:
      ValueError: for n < 0 or d < 1.

    >>> import jax
    >>> uniform_sphere(jax.random.key(0), 5, 3).shape
    (5, 3)
    """
    if n < 0 or d < 1:
        raise ValueError(f"uniform_sphere needs n >= 0 and d >= 1, got n={n}, d={d}")
    return l2_normalize(jax.random.normal(key, (n, d), jnp.float32))


def attracting_bound(anchors: jax.Array, views: jax.Array) -> AttractingBound:
    r"""Return both sides of the bound of the attracting component for each anchor.

    .. math:: -s(f(t(x)), E_T f(T(x))) \le -E_T s(f(t(x)), f(T(x)))

    Source: balanced paper, Theorem 4.4, Eq. (8); s is the cosine, E_T the mean over the views. With
    the mean m of the views, the sides are -f.m / |m| and -f.m. The bound is true where f.m >= 0
    (Assumption 4.3) or where all views coincide, and false elsewhere.

    Args:
      anchors: `[n, d]` features f(t(x)) of a view of each image, unit norm.
      views: `[v, n, d]` features f(T(x)) of v views of the same images, unit norm.

    Returns:
      The sides, float32, and whether Assumption 4.3 is true. The left side is NaN where the views
      of an image cancel and the cosine with their mean is undefined.

    Raises:
      ValueError: for shapes that do not fit, no anchors, or no views.

    >>> import jax.numpy as jnp
    >>> anchors = jnp.array([[1.0, 0.0]])
    >>> bound = attracting_bound(anchors, jnp.array([[[0.6, 0.8]], [[0.6, -0.8]]]))
    >>> round(float(bound.left[0]), 4), round(float(bound.right[0]), 4), bool(bound.assumed[0])
    (-1.0, -0.6, True)
    """
    anchors, views = _anchors_and_views(anchors, views)
    if views.shape[1] != anchors.shape[0]:
        raise ValueError(
            f"views must be of the images of the anchors, [v, {anchors.shape[0]}, d], "
            f"got {views.shape}"
        )
    mean = jnp.mean(views, axis=0)
    along = jnp.sum(anchors * mean, axis=-1)
    return AttractingBound(-along / jnp.linalg.norm(mean, axis=-1), -along, along >= 0)


def repelling_bound(
    anchors: jax.Array,
    labels: jax.Array,
    views: jax.Array,
    view_labels: jax.Array,
    alpha: float,
    classes: int,
) -> RepellingBound:
    r"""Return both sides of the bound of the repelling component for each anchor.

    .. math::
        \max_{y' \ne y} s(f(t(x)), E_{T', X'|y'} f(T'(X'))) \le
        \frac{1}{\nu} \Big( \frac{1}{\alpha} E_{T'} \log E_{X'} e^{\alpha s(f(t(x)), f(T'(X')))}
        + \frac{\log n}{\alpha} \Big), \quad
        \nu = \min_{y' \ne y} \| E_{T', X'|y'} f(T'(X')) \|

    Source: balanced paper, Theorem 4.6, Eq. (10); n is the number of classes. T' is "view j of each
    image" with uniform j, and X' is a random image: E_T' is the mean over j outside the logarithm.

    The proof needs a condition that the paper does not state: the bracket (the right side times nu)
    must not be negative. Step (iv), Eq. (38), divides a maximum that may be negative by nu <= 1 and
    takes the result to be larger. With three or more classes the bound can be false (see
    `tests/test_theory.py`). The left side is always at most the larger of bracket and bracket / nu.
    The bound is true for all anchors if alpha <= log(n), and for each anchor that has an angle of
    at most 90 degrees to the mean of some class.

    Args:
      anchors: `[n, d]` features f(t(x)), unit norm.
      labels: integers `[n]`, the classes of the anchors, starting at 0.
      views: `[v, m, d]` features of v views of each of m images, unit norm.
      view_labels: integers `[m]`, the classes of the images, in equal numbers (Assumption 4.5).
      alpha: scale of the log-mean-exp, > 0.
      classes: number of classes, >= 2.

    Returns:
      The sides, the bracket and nu, float32. The left side is NaN where the features of a class
      cancel and the cosine with their mean is undefined.

    Raises:
      ValueError: for shapes that do not fit, fewer than two classes, alpha that is not positive,
        labels out of range, or classes of different sizes. Traced labels are not checked.

    >>> import jax.numpy as jnp
    >>> points, classes = jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([0, 1])
    >>> bound = repelling_bound(points, classes, points[None], classes, alpha=1.0, classes=2)
    >>> round(float(bound.left[0]), 4), round(float(bound.right[0]), 4)  # log(e + 1)
    (0.0, 1.3133)
    """
    anchors, views = _anchors_and_views(anchors, views)
    alpha = check_positive("alpha", alpha, anchors.dtype)
    if classes < 2:
        raise ValueError(f"repelling_bound needs at least two classes, got classes={classes}")
    labels = _labels("labels", labels, anchors.shape[0], classes)
    view_labels = _labels("view_labels", view_labels, views.shape[1], classes, even=True)
    images = views.shape[1]
    members = (view_labels[None, :] == jnp.arange(classes)[:, None]).astype(jnp.float32)
    mean_views = jnp.mean(views, axis=0)
    means = jnp.matmul(members, mean_views, precision=PRECISION) * (classes / images)
    norms = jnp.linalg.norm(means, axis=-1)[None, :]
    others = labels[:, None] != jnp.arange(classes)[None, :]
    cosines = jnp.matmul(anchors, means.T, precision=PRECISION) / norms
    left = jnp.max(jnp.where(others, cosines, -jnp.inf), axis=1)
    nu = jnp.min(jnp.where(others, norms, jnp.inf), axis=1)

    def log_sum(view: jax.Array) -> jax.Array:
        similarities = jnp.matmul(anchors, view.T, precision=PRECISION)
        return jax.nn.logsumexp(alpha * similarities, axis=1)

    # One view at a time needs memory for n times m similarities.
    mean_log_sums = jnp.mean(lax.map(log_sum, views), axis=0)
    bracket = (mean_log_sums - np.log(images / classes)) / alpha
    return RepellingBound(left, bracket / nu, bracket, nu)


def _anchors_and_views(anchors: jax.Array, views: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return `[n, d]` and `[v, m, d]` as float32; raise ValueError for empty arrays."""
    if jnp.ndim(views) != 3 or 0 in jnp.shape(views):
        raise ValueError(f"views must be [v, m, d], none of these 0, got {jnp.shape(views)}")
    anchors, *views = _points(anchors, *views, names="anchors, each of views", same_n=False)
    return anchors, jnp.stack(views)


def _labels(name: str, labels: jax.Array, n: int, classes: int, even: bool = False) -> jax.Array:
    """Return labels `[n]`, checked unless traced; with `even`, classes must have equal sizes."""
    if jnp.shape(labels) != (n,):
        raise ValueError(f"{name} must be [{n}], got shape {jnp.shape(labels)}")
    if not isinstance(labels, jax.core.Tracer):
        known = np.asarray(labels)
        integers = np.issubdtype(known.dtype, np.integer)
        if not integers or known.min() < 0 or known.max() >= classes:
            raise ValueError(f"{name} must be integers from 0 to {classes - 1}, got {labels}")
        if even and len(set(np.bincount(known, minlength=classes))) > 1:
            raise ValueError(f"{name} must have equally many of each class (Assumption 4.5)")
    return jnp.asarray(labels)


def _at_least_two(n: int, value: Any) -> Any:
    """Return the array module of a value; raise ValueError for fewer than two points."""
    if n < 2:
        raise ValueError(f"this estimator of uniformity needs n >= 2, got n={n}")
    return jnp if isinstance(value, jax.Array) else np


def _points(*arrays: jax.Array, names: str, same_n: bool = True) -> list[jax.Array]:
    """Return checked features; raise ValueError for arrays without rows."""
    arrays = validate_features(*arrays, names=names, same_n=same_n)
    if arrays[0].shape[0] == 0:
        raise ValueError(f"{names} must have at least one row, got shape {arrays[0].shape}")
    return arrays


def _mean_log_mean_exp(x: jax.Array, scale: float | jax.Array) -> jax.Array:
    """Return `mean_i log mean_j exp(scale * x_i . x_j)` of `[n, d]`, with memory linear in n."""
    pairs = PairsWithin(PairOptions(), Exclude.NONE)
    sums = mean_row_logsumexp(pairs, make_points(x * jnp.sqrt(scale)))
    return sums - math.log(x.shape[0])


def _log_0f1_scaled(b: float, r: float) -> float:
    """Return `log(exp(-2 r) 0F1(; b; r^2))` for b > 0 and r > 0, which is at most 0."""
    # 0F1(; b; z) = sum_k z^k / ((b)_k k!) has positive terms. A sum in the log domain neither
    # overflows nor cancels. The terms peak before k = r and are negligible at 4r + 50.
    k = np.arange(1, int(4 * r) + 50)
    log_terms = np.cumsum(2 * math.log(r) - np.log(b + k - 1) - np.log(k))
    peak = max(0.0, float(log_terms.max()))
    others = math.expm1(-peak) + float(np.sum(np.exp(log_terms - peak)))
    return (peak - 2 * r) + math.log1p(others)
