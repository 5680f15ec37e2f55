"""Masks and weights of points."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hypersphere_jax.losses._pairwise.collectives import global_max, global_sum
from hypersphere_jax.losses._pairwise.options import AxisName
from hypersphere_jax.losses._pairwise.points import OptionalArray


def apply_mask(mask: Any, weights: Any, *arrays: jax.Array) -> tuple[Any, ...]:
    """Apply mask and weights; masked rows become zero.

    A loss calls it before any division: the gradient of a division is NaN for masked rows that
    contain NaN, even if their cotangent is zero.

    Args:
      mask: bool `[n]`, or None for no masked rows.
      weights: `[n]`, or None for equal weights.
      *arrays: features `[n, d]`; masked rows may contain anything.

    Returns:
      The mask, the weights (zero for masked rows, None without mask and weights), the features.

    Raises:
      ValueError: if shapes or types do not fit.
    """
    if mask is None and weights is None:
        return None, None, *arrays
    n = arrays[0].shape[0]
    _check_shape("mask", mask, n)
    _check_shape("weights", weights, n)
    if weights is None:
        weights = jnp.ones(n)
    weights = weights.astype(arrays[0].dtype)
    if mask is not None:
        if mask.dtype != bool:
            raise ValueError(f"mask must be bool, False for masked rows, got {mask.dtype}")
        weights = jnp.where(mask, weights, 0.0)
        arrays = tuple(jnp.where(mask[:, None], array, 0.0) for array in arrays)
    return mask, weights, *arrays


def _check_shape(name: str, array: OptionalArray, n: int) -> None:
    if array is not None and array.shape != (n,):
        raise ValueError(f"{name} must be [{n}], got shape {array.shape}")


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
