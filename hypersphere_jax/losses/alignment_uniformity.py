"""Alignment and uniformity (Wang & Isola, ICML 2020)."""

import jax
import jax.numpy as jnp

from hypersphere_jax.losses.common import AxisName, features, gather, global_mean, positive


def align_loss(
    x: jax.Array, y: jax.Array, alpha: float = 2.0, *, axis_name: AxisName = None
) -> jax.Array:
    r"""Alignment: the mean distance of positive pairs, to the power alpha.

    .. math:: \frac{1}{n} \sum_i \|x_i - y_i\|_2^\alpha

    (Wang & Isola, Section 4.1.1; minibatch form in B.1.) The gradient at coincident pairs is
    zero for alpha > 1, and taken as zero for alpha <= 1, where the mathematical one is not defined.

    Args:
      x: `[n, d]` features, unit norm in the paper.
      y: `[n, d]` features of the positives, in the order of `x`.
      alpha: power of the distance, > 0.
      axis_name: a mapped axis: the pairs are those of all devices.

    Returns:
      float32 scalar.

    Raises:
      ValueError: for shapes that differ, no pairs, or alpha that is not positive.

    >>> import jax.numpy as jnp
    >>> x, y = jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([[0.0, 1.0], [0.0, 1.0]])
    >>> float(align_loss(x, y))
    1.0
    """
    positive(alpha=alpha)
    x, y = features(x, y, names="x, y")
    if x.shape[0] == 0:
        raise ValueError(f"align_loss needs at least one pair, got shapes {x.shape}, {y.shape}")
    squares = jnp.sum(jnp.square(x - y), axis=-1)
    # The paper's `norm` then `pow` has NaN gradients at zero distance; a power of the square is
    # differentiable there once the zero is taken out before it.
    apart = squares > 0
    powers = jnp.where(apart, jnp.where(apart, squares, 1.0) ** (alpha / 2), 0.0)
    return global_mean(jnp.mean(powers), axis_name)


def uniform_loss(
    x: jax.Array, t: float = 2.0, *, include_self: bool = False, axis_name: AxisName = None
) -> jax.Array:
    r"""Uniformity: the log of the mean Gaussian potential of all pairs of points.

    .. math:: \log \frac{1}{n (n - 1)} \sum_{i \ne j} e^{-t \|x_i - x_j\|_2^2}

    (Wang & Isola, Section 4.1.2 and B.1; estimator (9) of A.1.1.) `include_self` adds the pairs of
    a point with itself and divides by n^2 instead, which is estimator (8).

    Args:
      x: `[n, d]` features, unit norm in the paper.
      t: scale of the potential, > 0.
      include_self: estimator (8) in place of (9).
      axis_name: a mapped axis: the points are those of all devices.

    Returns:
      float32 scalar, at most 0.

    Raises:
      ValueError: for shapes that do not fit, fewer than two points (one with `include_self`), or t
        that is not positive.

    >>> import jax.numpy as jnp
    >>> float(uniform_loss(jnp.array([[1.0, 0.0], [-1.0, 0.0]])))
    -8.0
    """
    positive(t=t)
    (x,) = features(x, names="x")
    everyone = gather(x, axis_name)
    n = everyone.shape[0]
    if n < (1 if include_self else 2):
        raise ValueError(f"uniform_loss needs at least two points, got shape {x.shape}")
    # Squared distances from inner products: a matrix product, where differences need [n, n, d].
    # Centring changes no distance, and spares the cancellation for points that lie close together.
    centred = everyone - jax.lax.stop_gradient(jnp.mean(everyone, axis=0, keepdims=True))
    norms = jnp.sum(jnp.square(centred), axis=-1)
    products = jnp.matmul(centred, centred.T, precision=jax.lax.Precision.HIGHEST)
    squares = jnp.maximum(norms[:, None] + norms[None, :] - 2 * products, 0.0)
    self_pairs = jnp.eye(n, dtype=bool)
    if include_self:
        exponents, pairs = jnp.where(self_pairs, 0.0, -t * squares), n * n
    else:
        exponents, pairs = jnp.where(self_pairs, -jnp.inf, -t * squares), n * (n - 1)
    loss = jax.nn.logsumexp(exponents) - jnp.log(jnp.float32(pairs))
    return global_mean(loss, axis_name)
