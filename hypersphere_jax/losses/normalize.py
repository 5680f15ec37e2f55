"""Normalization of features."""

import jax
import jax.numpy as jnp
from jax import lax

from hypersphere_jax.losses._pairwise.validation import computation_dtype


def l2_normalize(x: jax.Array, axis: int = -1, eps: float = 1e-12) -> jax.Array:
    """Scale vectors to unit Euclidean norm, `x / max(|x|, eps)`.

    A vector of norm `eps` or less is divided by `eps` and has gradient zero, so a vector of zeros
    stays zero. The gradient is also zero where one over the norm overflows the dtype, in float16
    at norms up to 1.5e-5. Vectors whose squared norm overflows are normalized correctly. A vector
    that contains NaN or infinity becomes NaN.

    Args:
      x: `[..., d]`, any floating type. Half precisions are computed in float32.
      axis: the axis of the vectors.
      eps: smallest norm to divide by, > 0.

    Returns:
      Unit vectors, shape and dtype of `x`.

    >>> import jax.numpy as jnp
    >>> l2_normalize(jnp.array([[3.0, 4.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929]]
    """
    x = jnp.asarray(x)
    wide = x.astype(computation_dtype(x))
    # Division by the largest entry keeps the squares within the range of the type. So is
    # 1 / scale, by which XLA multiplies instead.
    largest = jnp.max(jnp.abs(wide), axis=axis, keepdims=True, initial=0.0)
    scale = lax.stop_gradient(jnp.clip(largest, eps, jnp.finfo(wide.dtype).max / 256))
    wide = wide / scale
    squares = jnp.sum(jnp.square(wide), axis=axis, keepdims=True)
    norms = scale * jnp.sqrt(lax.stop_gradient(squares))
    unit = wide / jnp.sqrt(jnp.where(norms <= eps, 1.0, squares))  # scale is eps there
    dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else wide.dtype
    no_gradient = norms <= max(eps, 1 / float(jnp.finfo(dtype).max))
    return jnp.where(no_gradient, lax.stop_gradient(unit), unit).astype(dtype)
