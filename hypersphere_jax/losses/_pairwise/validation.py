"""Checks and conversions of the arguments of losses."""

import math
import reprlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hypersphere_jax.losses._pairwise.collectives import global_size
from hypersphere_jax.losses._pairwise.options import AxisName


def computation_dtype(*arrays: jax.Array) -> Any:
    """Return the type that a loss computes in: float64 if an array has it, else float32."""
    if any(array.dtype == jnp.float64 for array in arrays):
        return jnp.float64
    return jnp.float32


def validate_features(*arrays: jax.Array, names: str, same_n: bool = True) -> list[jax.Array]:
    """Check that all arrays are features `[n, d]`, and convert them to the computation's type.

    Args:
      *arrays: features with equal d.
      names: names of the arrays for the message, such as "x, y".
      same_n: whether n must be equal, too.

    Raises:
      ValueError: if arrays have other shapes, no rows, d = 0, or are not floating point.
    """
    arrays = [jnp.asarray(array) for array in arrays]
    # A symbolic n of `jax.export` is not compared with 0.
    valid = all(array.ndim == 2 and 0 not in array.shape for array in arrays)
    equal_d = len({array.shape[1:] for array in arrays}) == 1
    equal_n = len({array.shape[:1] for array in arrays}) == 1 or not same_n
    if not (valid and equal_d and equal_n):
        shapes = ", ".join(str(array.shape) for array in arrays)
        equal = "n and d" if same_n else "d"
        raise ValueError(f"{names} must be [n, d] with equal {equal}, n >= 1, d >= 1, got {shapes}")
    if not all(jnp.issubdtype(array.dtype, jnp.floating) for array in arrays):
        dtypes = ", ".join(str(array.dtype) for array in arrays)
        raise ValueError(f"{names} must be floating point, got {dtypes}")
    return [array.astype(computation_dtype(*arrays)) for array in arrays]


def count_points(x: jax.Array, least: int, kind: str, axis_name: AxisName = None) -> int:
    """Return the number of points `[n, d]` on all devices, or raise ValueError for too few."""
    n = global_size(x.shape[0], axis_name)
    if isinstance(n, int) and n < least:
        raise ValueError(f"the loss needs at least {least} {kind}, got an array {x.shape}")
    return n


def log_count(n: Any) -> Any:
    """Return the log of a number of points, which is symbolic in `jax.export`."""
    return math.log(n) if isinstance(n, int) else jnp.log(1.0 * n)


def check_positive(name: str, value: Any, dtype: Any, allow_zero: bool = False) -> jax.Array:
    """Convert an option to a scalar, after a check that it is one positive number.

    The value of a traced option is not known and not checked.

    Raises:
      ValueError: if the option is not one number, or not positive and finite in this type.
    """
    limits = jnp.finfo(dtype)
    smallest = 0.0 if allow_zero else float(limits.tiny)
    array = _as_number(value)
    valid = array is not None
    if valid and not isinstance(array, jax.core.Tracer):
        valid = smallest <= float(np.asarray(array).item()) <= float(limits.max)
    if not valid:
        sign = "zero or positive" if allow_zero else "positive"
        expected = f"one number, {sign} and finite in {jnp.dtype(dtype).name}"
        raise ValueError(f"{name} must be {expected}, got {_shown(value)}")
    return jnp.reshape(array, ()).astype(dtype)


def _as_number(value: Any) -> Any:
    """Convert to an array with one real number, or return None for anything else."""
    array = _as_numpy(value)
    if array is None:
        try:
            array = jnp.asarray(value)
        except (TypeError, ValueError, OverflowError):
            return None
    real = any(jnp.issubdtype(array.dtype, kind) for kind in (jnp.floating, jnp.integer))
    return array if real and array.size == 1 else None


def as_array(name: str, value: Any) -> jax.Array:
    """Convert an argument to an array.

    Raises:
      TypeError: if it is not an array of numbers.
    """
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} must be an array of numbers, got {_shown(value)}") from None


def as_labels(name: str, value: Any) -> jax.Array:
    """Convert labels to an array; ranks replace integers beyond JAX's default type.

    Labels are only compared, and JAX would wrap such integers.
    """
    labels = _as_numpy(value)
    if labels is not None and labels.dtype.kind in "iu" and labels.size:
        limits = jnp.iinfo(jax.dtypes.canonicalize_dtype(labels.dtype))
        if labels.min() < limits.min or labels.max() > limits.max:
            value = np.unique(labels, return_inverse=True)[1].reshape(labels.shape)
    return as_array(name, value)


def as_weights(value: Any, mask: Any = None) -> jax.Array:
    """Convert weights to an array; weights on the host are divided by the largest in float64.

    Raises:
      ValueError: if unmasked weights are known to be negative or not finite.
    """
    weights = _as_numpy(value)
    if weights is None or isinstance(mask, jax.Array):
        weights = as_array("weights", value)
    misfit = mask is not None and np.shape(mask) != weights.shape
    if isinstance(weights, jax.core.Tracer) or misfit:
        return jnp.asarray(weights)
    on_host = isinstance(weights, np.ndarray)
    numpy: Any = np if on_host else jnp
    if mask is not None:
        weights = numpy.where(mask, weights, 0)
    largest = numpy.max(weights, initial=0)
    for extreme in (numpy.min(weights, initial=0), largest):
        if not isinstance(extreme, jax.core.Tracer) and not 0 <= extreme < math.inf:
            raise ValueError(f"weights must be finite, zero or positive, got {float(extreme)}")
    if on_host and largest > 0:
        weights = weights / np.float64(largest)
    return jnp.asarray(weights)


def _as_numpy(value: Any) -> np.ndarray | None:
    """Convert a value on the host to an array of real numbers, or return None for others."""
    if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value)):
        return None
    try:
        array = np.asarray(value)
    except ValueError:
        return None
    return array if array.dtype.kind in "biuf" else None


def _shown(value: Any) -> str:
    return " ".join(reprlib.repr(value).split())
