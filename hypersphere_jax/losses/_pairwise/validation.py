"""Checks and conversions of the arguments of losses; masks and weights."""

import math
import reprlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hypersphere_jax.losses._pairwise.collectives import global_max, global_size, global_sum
from hypersphere_jax.losses._pairwise.options import AxisName
from hypersphere_jax.losses._pairwise.points import OptionalArray


def computation_dtype(*arrays: jax.Array) -> Any:
    """Return the type that a loss computes in: float64 if an array has it, else float32."""
    if any(array.dtype == jnp.float64 for array in arrays):
        return jnp.float64
    return jnp.float32


def validate_features(*arrays: jax.Array, names: str, same_n: bool = True) -> list[jax.Array]:
    """Check that arrays are features `[n, d]` of equal d, and convert them to one floating type."""
    arrays = [jnp.asarray(array) for array in arrays]
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
    if n < least:
        raise ValueError(f"the loss needs at least {least} {kind}, got an array {x.shape}")
    return n


def check_positive(name: str, value: Any, dtype: Any, allow_zero: bool = False) -> jax.Array:
    """Convert an option to a scalar; check that it is one number, and positive unless traced."""
    array = _as_numbers(value)
    valid = array is not None and array.size == 1 and array.dtype != bool
    if valid and not isinstance(array, jax.core.Tracer):
        limits = jnp.finfo(dtype)
        smallest = 0.0 if allow_zero else float(limits.tiny)
        valid = smallest <= float(array.item()) <= float(limits.max)
    if not valid:
        sign = "zero or positive" if allow_zero else "positive"
        expected = f"one number, {sign} and finite in {jnp.dtype(dtype).name}"
        raise ValueError(f"{name} must be {expected}, got {_shown(value)}")
    return jnp.reshape(array, ()).astype(dtype)


def as_labels(value: Any) -> jax.Array:
    """Convert labels to an array; ranks replace integers of 64 bits, which JAX would wrap."""
    labels = _as_numbers(value)
    if isinstance(labels, np.ndarray) and labels.dtype.kind in "iu" and labels.dtype.itemsize > 4:
        value = np.unique(labels, return_inverse=True)[1].reshape(labels.shape)
    return jnp.asarray(value)


def as_weights(value: Any, mask: Any = None) -> jax.Array:
    """Convert weights to an array; those on the host are checked, and divided by the largest."""
    weights = _as_numbers(value)
    if weights is None:
        raise ValueError(f"weights must be an array of numbers, got {_shown(value)}")
    if isinstance(weights, jax.Array) or isinstance(mask, jax.Array):
        return jnp.asarray(weights)
    if mask is not None and np.shape(mask) == weights.shape:
        weights = np.where(mask, weights, 0)
    largest = np.max(weights, initial=0)
    for extreme in (np.min(weights, initial=0), largest):
        if not 0 <= extreme < math.inf:
            raise ValueError(f"weights must be finite, zero or positive, got {float(extreme)}")
    if largest > 0:
        weights = weights / np.float64(largest)
    return jnp.asarray(weights)


def _as_numbers(value: Any) -> Any:
    """Convert to an array of real numbers, of NumPy if it is on the host; None if it is not one."""
    on_device = any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value))
    numpy: Any = jnp if on_device else np
    try:
        array = numpy.asarray(value)
    except (TypeError, ValueError, OverflowError):
        return None
    kinds = (jnp.floating, jnp.integer, jnp.bool_)
    is_real = any(jnp.issubdtype(array.dtype, kind) for kind in kinds)
    return array if is_real else None


def _shown(value: Any) -> str:
    return " ".join(reprlib.repr(value).split())


def apply_mask(mask: Any, weights: Any, *arrays: jax.Array) -> tuple[Any, ...]:
    """Apply mask and weights; masked rows become zero.

    A loss calls it before any division: the gradient of a division is NaN for masked rows that
    contain NaN, even if their cotangent is zero. Without mask and weights, both stay None.
    """
    if mask is None and weights is None:
        return None, None, *arrays
    n = arrays[0].shape[0]
    for name, array in (("mask", mask), ("weights", weights)):
        if array is not None and array.shape != (n,):
            raise ValueError(f"{name} must be [{n}], got shape {array.shape}")
    if weights is None:
        weights = jnp.ones(n)
    weights = weights.astype(arrays[0].dtype)
    if mask is not None:
        if mask.dtype != bool:
            raise ValueError(f"mask must be bool, False for masked rows, got {mask.dtype}")
        weights = jnp.where(mask, weights, 0.0)
        arrays = tuple(jnp.where(mask[:, None], array, 0.0) for array in arrays)
    return mask, weights, *arrays


def normalize_weights(weights: OptionalArray, axis_name: AxisName) -> OptionalArray:
    """Normalize weights to sum to one over all devices. Zero weights stay zero."""
    if weights is None:
        return None
    # The sum of very large weights would overflow, also within XLA, which merges two divisions.
    largest = global_max(lax.stop_gradient(jnp.max(weights, initial=0.0)), axis_name)
    limits = jnp.finfo(weights.dtype)
    weights = weights * (1 / jnp.clip(largest, limits.tiny, limits.max / 256))
    total = global_sum(jnp.sum(weights), axis_name)
    return weights / jnp.where(total == 0, 1.0, total)
