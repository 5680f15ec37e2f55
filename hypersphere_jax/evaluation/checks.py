"""What every probe asks of its features and labels, each mistake as one clear line."""

import math

import jax.numpy as jnp
import numpy as np

from hypersphere_jax.config import UserError, require


def check_features(name: str, x) -> np.ndarray:
    """Return the features as float32 `[n, d]` on the host.

    Args:
      name: how the messages call them, such as "train".
      x: `[n, d]`, any real dtype, half precisions included.

    Raises:
      UserError: for another shape or dtype, no rows, or rows that hold NaN or infinity.
    """
    x = np.asarray(x)
    check_matrix(name, x)
    with np.errstate(over="ignore"):  # what float32 cannot hold is reported below
        x = x.astype(np.float32, copy=False)
    check_finite(name, np.isfinite(x).all(axis=1))
    return x


def check_matrix(name: str, x) -> None:
    """Raise `UserError` unless x is `[n, d]` of a real dtype, and not empty. Reads one row."""
    shaped = len(x.shape) == 2 and math.prod(x.shape) > 0
    require(shaped, f"{name} features: expected [n, d], got shape {x.shape}")
    dtype = np.asarray(x[:1]).dtype
    real = jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)
    require(real, f"{name} features: expected real numbers, got {dtype}")


def check_finite(name: str, finite: np.ndarray) -> None:
    """Raise `UserError` that names rows `[n]` of features that are not finite, if there are any."""
    bad = np.flatnonzero(~finite)
    if bad.size:
        first = ", ".join(str(row) for row in bad[:5])
        raise UserError(
            f"{name} features: {bad.size} of {len(finite)} rows hold NaN or infinity (rows {first}"
            f"{', ...' if bad.size > 5 else ''}); did the training diverge?"
        )


def check_labels(name: str, y, n: int, num_classes: int) -> np.ndarray:
    """Return the labels as int32 `[n]` on the host.

    Args:
      name: how the messages call them, such as "train".
      y: `[n]` integers from 0 to `num_classes - 1`.
      n: rows of the features that they belong to.
      num_classes: how many classes there are, also where some have no sample.

    Raises:
      UserError: for another length or dtype, or a label out of range.
    """
    y = np.asarray(y)
    require(y.shape == (n,), f"{name} labels: expected shape ({n},), got {y.shape}")
    require(np.issubdtype(y.dtype, np.integer), f"{name} labels: expected integers, got {y.dtype}")
    outside = np.flatnonzero((y < 0) | (y >= num_classes))
    if outside.size:
        raise UserError(
            f"{name} labels: {y[outside[0]]} (row {outside[0]}) is not one of the {num_classes} "
            f"classes 0 to {num_classes - 1}"
        )
    return y.astype(np.int32)


def check_same_dim(name: str, x: np.ndarray, other_name: str, other: np.ndarray) -> None:
    """Raise `UserError` unless both sets of features have the same dimension."""
    require(
        x.shape[1] == other.shape[1],
        f"{name} features have {x.shape[1]} dimensions, {other_name} features {other.shape[1]}: "
        "were they taken from the same layer?",
    )
