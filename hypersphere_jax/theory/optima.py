"""Optima and lower bounds of the losses, their limits, and entropies on the hypersphere."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hypersphere_jax.losses import l2_normalize
from hypersphere_jax.losses._pairwise.options import Exclude, PairOptions
from hypersphere_jax.losses._pairwise.pair_sets import PairsWithin
from hypersphere_jax.losses._pairwise.points import make_points
from hypersphere_jax.losses._pairwise.reductions import mean_row_logsumexp
from hypersphere_jax.losses._pairwise.validation import check_positive, validate_features


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
    x, y = checked_points(x, y, names="x, y")
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
    (x,) = checked_points(x, names="x")
    return vmf_log_normalizer(x.shape[1], kappa) - _mean_log_mean_exp(x, kappa)


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


def _at_least_two(n: int, value: Any) -> Any:
    """Return the array module of a value; raise ValueError for fewer than two points."""
    if n < 2:
        raise ValueError(f"this estimator of uniformity needs n >= 2, got n={n}")
    return jnp if isinstance(value, jax.Array) else np


def checked_points(*arrays: jax.Array, names: str, same_n: bool = True) -> list[jax.Array]:
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
