"""What every loss shares: checks of its inputs, and the type that it computes in."""

import math
import reprlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hypersphere_jax.losses.devices import AxisName, global_sum


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
    wide = x.astype(computed_in(x))
    # Dividing by the largest entry first keeps the squares inside the type's range; so is what XLA
    # multiplies by instead, 1 / scale.
    largest = jnp.max(jnp.abs(wide), axis=axis, keepdims=True, initial=0.0)
    scale = lax.stop_gradient(jnp.clip(largest, eps, jnp.finfo(wide.dtype).max / 256))
    wide = wide / scale
    squares = jnp.sum(jnp.square(wide), axis=axis, keepdims=True)
    norms = scale * jnp.sqrt(lax.stop_gradient(squares))
    unit = wide / jnp.sqrt(jnp.where(norms <= eps, 1.0, squares))  # scale is eps there
    dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else wide.dtype
    steep = norms <= max(eps, 1 / float(jnp.finfo(dtype).max))
    return jnp.where(steep, lax.stop_gradient(unit), unit).astype(dtype)


def computed_in(*arrays: jax.Array) -> Any:
    """The type that a loss of these arrays computes in: float64 if one has it, else float32."""
    return jnp.float64 if any(array.dtype == jnp.float64 for array in arrays) else jnp.float32


def features(*arrays: jax.Array, names: str, same_n: bool = True) -> list[jax.Array]:
    """The arrays in the type to compute in, after a check that all are `[n, d]` of one shape.

    Args:
      *arrays: features of equal shape.
      names: how the caller names them, for the message, such as "x, y".
      same_n: False where only d needs to be equal.

    Raises:
      ValueError: naming the shapes when they are not two-dimensional, have no d or differ.
    """
    arrays = [jnp.asarray(array) for array in arrays]
    shapes = ", ".join(str(array.shape) for array in arrays)
    differ = {array.shape if same_n else array.shape[1:] for array in arrays}
    if any(array.ndim != 2 or array.shape[1] == 0 for array in arrays) or len(differ) > 1:
        what = "[n, d] of one shape" if same_n else "two-dimensional, with one d"
        what += ", d at least 1"
        raise ValueError(f"{names} must be {what}, got {shapes}")
    if not all(jnp.issubdtype(array.dtype, jnp.floating) for array in arrays):
        dtypes = ", ".join(str(array.dtype) for array in arrays)
        raise ValueError(f"{names} must be floating point, got {dtypes}")
    return [array.astype(computed_in(*arrays)) for array in arrays]


def number(name: str, value: Any, dtype: Any) -> jax.Array:
    """An option that must be one positive number (`lam` may be zero), as a scalar of this type.

    Under a transformation its value is not known and not checked.

    Raises:
      ValueError: for anything else, and for what is not positive and finite in this type.
    """
    limits = jnp.finfo(dtype)
    what, least = ("zero or positive", 0) if name == "lam" else ("positive", limits.tiny)
    try:
        of_jax = isinstance(value, jax.Array) or hasattr(value, "__jax_array__")
        array = jnp.asarray(value) if of_jax else np.asarray(value)
        kinds = jnp.floating, jnp.integer
        fits = array.size == 1 and any(jnp.issubdtype(array.dtype, kind) for kind in kinds)
        if fits and not isinstance(array, jax.core.Tracer):
            fits = float(least) <= float(np.asarray(array).reshape(())) <= float(limits.max)
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        what += f" and finite in {jnp.dtype(dtype).name}"
        raise ValueError(f"{name} must be one number, {what}, got {_shown(value)}")
    return jnp.reshape(array, ()).astype(dtype)


def as_array(name: str, value: Any, labels: bool = False) -> jax.Array:
    """Convert an argument of a loss to an array, or raise TypeError.

    JAX wraps integers beyond its default type. Labels are only compared, so their ranks replace
    such labels.
    """
    try:
        if labels and _is_on_host(value):
            array = np.asarray(value)
            if array.dtype.kind in "iu" and array.size:
                limits = jnp.iinfo(jax.dtypes.canonicalize_dtype(array.dtype))
                if array.min() < limits.min or array.max() > limits.max:
                    value = np.unique(array, return_inverse=True)[1].reshape(array.shape)
        return jnp.asarray(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} must be an array of numbers, got {_shown(value)}") from None


def as_weights(value: Any, mask: Any = True) -> jax.Array:
    """Convert weights to an array; those on the host are divided by the largest in float64.

    Raises:
      ValueError: for concrete unmasked weights that are negative or not finite.
    """
    on_host = _is_on_host((value, mask)) and np.asarray(value).dtype.kind in "biuf"
    weights = np.asarray(value) if on_host else as_array("weights", value)
    if isinstance(weights, jax.core.Tracer) or np.shape(mask) not in ((), weights.shape):
        return jnp.asarray(weights)
    numpy: Any = np if on_host else jnp
    unmasked = numpy.where(mask, weights, 0)
    largest = numpy.max(unmasked, initial=0)
    for extreme in (numpy.min(unmasked, initial=0), largest):
        if not isinstance(extreme, jax.core.Tracer) and not 0 <= extreme < math.inf:
            raise ValueError(f"weights must be finite, zero or positive, got {float(extreme)}")
    if on_host and largest > 0:
        weights = unmasked / np.float64(largest)
    return jnp.asarray(weights)


def _is_on_host(value: Any) -> bool:
    return not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value))


def _shown(value: Any) -> str:
    return " ".join(reprlib.repr(value).split())


def log_count(n: int) -> Any:
    """The log of a number of points, which `jax.export` may not know."""
    return math.log(n) if isinstance(n, int) else jnp.log(1.0 * jnp.asarray(n))


def masked(mask: Any, weights: Any, *arrays: jax.Array) -> tuple[Any, ...]:
    """Apply mask and weights; masked rows become zero.

    Args:
      mask: bool `[n]`, or None where all are real.
      weights: `[n]`, or None where all count the same.
      *arrays: features, which may hold anything where the mask is False.

    Returns:
      The mask, the weights (zero where it is False; None without mask and weights), the arrays.

    Raises:
      ValueError: for shapes or types that do not fit.
    """
    if mask is None and weights is None:
        return None, None, *arrays
    n = arrays[0].shape[0]
    given = {"mask": mask, "weights": weights}
    given = {name: jnp.asarray(array) for name, array in given.items() if array is not None}
    for name, array in given.items():
        if array.shape != (n,):
            raise ValueError(f"{name} must be [{n}], got shape {array.shape}")
    weights = given.get("weights", jnp.ones(n)).astype(arrays[0].dtype)
    if mask is not None:
        mask = given["mask"]
        if mask.dtype != bool:
            raise ValueError(f"mask must be bool, True for what is real, got {mask.dtype}")
        weights = jnp.where(mask, weights, 0.0)
        arrays = tuple(jnp.where(mask[:, None], array, 0.0) for array in arrays)
    return mask, weights, *arrays


def shares_of(weights: jax.Array | None, axis_name: AxisName) -> jax.Array | None:
    """Normalize weights to sum to one over all devices. Zero weights stay zero."""
    if weights is None:
        return None
    largest = lax.stop_gradient(jnp.max(weights, initial=0.0))
    largest = largest if axis_name is None else lax.pmax(largest, axis_name)
    weights = _in_safe_range(weights, largest)
    total = global_sum(jnp.sum(weights), axis_name)
    return weights / jnp.where(total == 0, 1.0, total)


def _in_safe_range(weights: jax.Array, largest: jax.Array) -> jax.Array:
    """Scale very large and very small weights by a power of two, so that their sum is exact.

    XLA takes subnormal numbers for zero, but their bits are integers.
    """
    info = jnp.finfo(weights.dtype)
    factor = math.sqrt(info.tiny)
    bits = lax.bitcast_convert_type(weights, f"uint{info.bits}")
    subnormal = bits.astype(weights.dtype) * (factor * 2.0**-info.nmant)
    raised = jnp.where(bits < 2**info.nmant, subnormal, weights * (1 / factor))
    raised = jnp.where(largest < factor, raised, weights)
    return jnp.where(largest > 1 / factor, weights * factor, raised)


def at_least(least: int, loss: str, what: str, x: jax.Array, axis_name: AxisName = None) -> int:
    """The number of points on all devices, or ValueError if that is fewer than the loss needs."""
    shape = jnp.shape(x)
    n = shape[0] * (1 if axis_name is None else lax.axis_size(axis_name)) if shape else 0
    if isinstance(n, int) and n < least:
        number = {1: "one", 2: "two"}[least]
        raise ValueError(f"{loss} needs at least {number} {what}{'s'[: least - 1]}, got {shape}")
    return n
