"""What every probe asks of its features and labels, each mistake as one clear line."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from hypersphere_jax.config import UserError, require

BLOCK = 2**22  # numbers that are read at a time


def check_features(name: str, x):
    """Return features that can be read in slices of rows, finite where float32 can hold them.

    A block of rows is read at a time, and none is kept: a memory map stays on disk, in its dtype.
    Whoever computes with a block converts it by `as_float32`.

    Args:
      name: how the messages call them, such as "train".
      x: `[n, d]`, any real dtype, half precisions included.

    Raises:
      UserError: for another shape or dtype, no rows, or rows that hold NaN or infinity.
    """
    if isinstance(x, jax.Array) or not hasattr(x, "shape"):
        x = np.asarray(x)
    check_matrix(name, x)
    check_finite(name, np.concatenate([_finite(x[r]) for r in row_blocks(*x.shape, BLOCK)]))
    return x


def check_matrix(name: str, x) -> None:
    """Raise `UserError` unless x is `[n, d]` of a real dtype, and not empty. Reads one row."""
    shape = tuple(x.shape)
    shaped = len(shape) == 2 and math.prod(shape) > 0
    require(shaped, f"{name} features: expected [n, d], got shape {shape}")
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


def as_float32(rows) -> np.ndarray:
    """A block of rows of any real dtype as the probes compute with it."""
    return np.asarray(rows, np.float32)


def row_blocks(n: int, d: int, numbers: int) -> list[slice]:
    """Slices of the rows of `[n, d]`, each of about so many numbers."""
    size = max(1, numbers // d)
    return [slice(begin, min(begin + size, n)) for begin in range(0, n, size)]


def _finite(rows) -> np.ndarray:
    with np.errstate(over="ignore"):  # what float32 cannot hold counts as infinite
        return np.isfinite(as_float32(rows)).all(axis=1)


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
    integers = np.issubdtype(y.dtype, np.integer)
    require(integers, f"{name} labels: expected integers, got {y.dtype}: save them as integers")
    outside = np.flatnonzero((y < 0) | (y >= num_classes))
    if outside.size:
        raise UserError(
            f"{name} labels: {y[outside[0]]} (row {outside[0]}) is not one of the {num_classes} "
            f"classes 0 to {num_classes - 1}"
        )
    return y.astype(np.int32)


def check_same_dim(name: str, x, other_name: str, other) -> None:
    """Raise `UserError` unless both sets of features have the same dimension."""
    require(
        x.shape[1] == other.shape[1],
        f"{name} features have {x.shape[1]} dimensions, {other_name} features {other.shape[1]}: "
        "were they taken from the same layer?",
    )
