"""What every loss shares: checks of its inputs, and float32."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hypersphere_jax.losses.devices import AxisName, global_sum


def l2_normalize(x: jax.Array, axis: int = -1, eps: float = 1e-12) -> jax.Array:
    """Scales vectors to unit Euclidean norm, `x / max(|x|, eps)`.

    A vector shorter than `eps` is divided by `eps`, so that zero stays zero, and its gradient is
    finite (that of `x / eps`), as in PyTorch's `normalize`.

    Args:
      x: `[..., d]`, any floating type. Half precisions are computed in float32.
      axis: the axis of the vectors.
      eps: the smallest norm to divide by.

    Returns:
      Unit vectors, shape and dtype of `x`.

    >>> import jax.numpy as jnp
    >>> l2_normalize(jnp.array([[3.0, 4.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929]]
    """
    x = jnp.asarray(x)
    wide = x.astype(jnp.float32)
    # Dividing by the largest entry first keeps the squares inside float32's range.
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(wide), axis=axis, keepdims=True))
    scale = jnp.maximum(largest, eps)
    squares = jnp.sum(jnp.square(wide / scale), axis=axis, keepdims=True)
    # The inner `where` keeps sqrt away from zero, where its derivative is infinite.
    small = scale * jnp.sqrt(squares) <= eps
    norm = scale * jnp.sqrt(jnp.where(small, 1.0, squares))
    return (wide / jnp.where(small, eps, norm)).astype(
        x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else jnp.float32
    )


def features(*arrays: jax.Array, names: str, same_n: bool = True) -> list[jax.Array]:
    """The arrays as float32, after a check that all are `[n, d]` of one shape.

    Args:
      *arrays: features of equal shape.
      names: how the caller names them, for the message, such as "x, y".
      same_n: False where only d needs to be equal.

    Raises:
      ValueError: naming the shapes when they are not two-dimensional or differ.
    """
    arrays = [jnp.asarray(array) for array in arrays]
    shapes = ", ".join(str(array.shape) for array in arrays)
    differ = {array.shape if same_n else array.shape[1:] for array in arrays}
    if any(array.ndim != 2 for array in arrays) or len(differ) > 1:
        what = "[n, d] of one shape" if same_n else "two-dimensional, with one d"
        raise ValueError(f"{names} must be {what}, got {shapes}")
    if not all(jnp.issubdtype(array.dtype, jnp.floating) for array in arrays):
        dtypes = ", ".join(str(array.dtype) for array in arrays)
        raise ValueError(f"{names} must be floating point, got {dtypes}")
    return [array.astype(jnp.float32) for array in arrays]


def positive(name: str, value: Any) -> Any:
    """An option that must be positive, as a float, or as a float32 scalar if it is an array.

    An array can have a gradient. Under a transformation its value is not known and not checked.

    Raises:
      ValueError: for a value that is not positive and finite, or an array of several.
    """
    return _option(name, value, "positive", lambda v: v > 0)


def not_negative(name: str, value: Any) -> Any:
    """Likewise, for an option that may be zero too."""
    return _option(name, value, "zero or positive", lambda v: v >= 0)


def _option(name: str, value: Any, what: str, fits: Callable[[float], bool]) -> Any:
    if jnp.size(value) != 1:
        raise ValueError(f"{name} must be one number, got shape {jnp.shape(value)}")
    if not isinstance(value, jax.core.Tracer):
        number = float(jnp.reshape(value, ())) if jnp.ndim(value) else float(value)
        if not (fits(number) and math.isfinite(number)):
            raise ValueError(f"{name} must be {what} and finite, got {value}")
        if not isinstance(value, jax.Array):
            return number
    return jnp.reshape(value, ()).astype(jnp.float32)


def log_count(n: int) -> Any:
    """The log of a number of points, which `jax.export` may not know."""
    return math.log(n) if isinstance(n, int) else jnp.log(jnp.asarray(n, jnp.float32))


def masked(mask: Any, weights: Any, *arrays: jax.Array) -> tuple[Any, ...]:
    """What is real, how much it counts, and arrays `[n, d]` with zeros in place of the rest.

    Args:
      mask: bool `[n]`, or None where all are real.
      weights: `[n]`, or None where all count the same.
      *arrays: features, which may hold anything where the mask is False.

    Returns:
      The mask, the weights (zero where it is False; None without mask and weights), the arrays.

    Raises:
      ValueError: for shapes or types that do not fit, or weights that are known and negative.
    """
    if mask is None and weights is None:
        return None, None, *arrays
    n = arrays[0].shape[0]
    given = {"mask": mask, "weights": weights}
    given = {name: jnp.asarray(array) for name, array in given.items() if array is not None}
    for name, array in given.items():
        if array.shape != (n,):
            raise ValueError(f"{name} must be [{n}], got shape {array.shape}")
    weights = given.get("weights", jnp.ones_like(arrays[0], shape=(n,))).astype(jnp.float32)
    if mask is not None:
        mask = given["mask"]
        if mask.dtype != bool:
            raise ValueError(f"mask must be bool, True for what is real, got {mask.dtype}")
        weights = jnp.where(mask, weights, 0.0)
        arrays = tuple(jnp.where(mask[:, None], array, 0.0) for array in arrays)
    if not isinstance(weights, jax.core.Tracer) and not (weights >= 0).all():
        raise ValueError(f"weights must be zero or positive, got {float(weights.min())}")
    return mask, weights, *arrays


def shares_of(weights: jax.Array | None, axis_name: AxisName) -> jax.Array | None:
    """The weights, divided by the sum of all devices' weights. All zero where that is zero."""
    if weights is None:
        return None
    total = global_sum(jnp.sum(weights), axis_name)
    return weights / jnp.where(total > 0, total, 1.0)


def at_least(least: int, loss: str, what: str, x: jax.Array, axis_name: AxisName = None) -> int:
    """The number of points on all devices, or ValueError if that is fewer than the loss needs."""
    shape = jnp.shape(x)
    n = shape[0] * (1 if axis_name is None else jax.lax.axis_size(axis_name)) if shape else 0
    if isinstance(n, int) and n < least:
        number = {1: "one", 2: "two"}[least]
        raise ValueError(f"{loss} needs at least {number} {what}{'s'[: least - 1]}, got {shape}")
    return n
