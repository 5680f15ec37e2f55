"""What every probe asks of its features and labels; a refusal is one clear line."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from hypersphere_jax.config import UserError, require

BLOCK = 2**22  # numbers that are read at a time
UNIT_TOLERANCE = 0.01  # half precisions keep norms to a few thousandths


def number_of_classes(*labels) -> int:
    """One more than the largest label; `check_labels` refuses those that are not integers."""
    integers = [x for x in map(np.asarray, labels) if np.issubdtype(x.dtype, np.integer)]
    return 1 + max((int(np.max(x, initial=-1)) for x in integers), default=0)


def check_splits(train_x, train_y, test_x, test_y, num_classes: int) -> tuple:
    """Features and labels of a training and a test split (or None), checked.

    Raises:
      UserError: as `check_features` and `check_labels`, for different dimensions, and for a
        training split of one class only.
    """
    train_x = check_features("train", train_x)
    train_y = check_labels("train", train_y, len(train_x), num_classes)
    require((train_y != train_y[0]).any(), f"train labels: only class {train_y[0]}, two are needed")
    if test_x is not None:
        test_x = check_features("test", test_x)
        test_y = check_labels("test", test_y, len(test_x), num_classes)
        require(
            train_x.shape[1] == test_x.shape[1],
            f"train features have {train_x.shape[1]} dimensions, test features {test_x.shape[1]}: "
            "were they taken from the same layer?",
        )
    return train_x, train_y, test_x, test_y


def check_features(name: str, x):
    """Features `[n, d]` that can be read in slices of rows; a memory map stays on disk.

    Raises:
      UserError: for another shape or dtype, no rows, or rows that hold NaN or infinity as float32.
    """
    if isinstance(x, jax.Array) or not hasattr(x, "shape"):
        x = np.asarray(x)
    check_matrix(name, x)
    with np.errstate(over="ignore"):  # what float32 cannot hold counts as infinite
        blocks = row_blocks(*x.shape, BLOCK)
        finite = [np.isfinite(as_float32(x[rows])).all(axis=1) for rows in blocks]
    bad = np.flatnonzero(~np.concatenate(finite))
    if bad.size:
        first = ", ".join(str(row) for row in bad[:5])
        raise UserError(
            f"{name} features: {bad.size} of {len(x)} rows hold NaN or infinity (rows {first}"
            f"{', ...' if bad.size > 5 else ''}); did the training diverge?"
        )
    return x


def check_unit_norm(name: str, x, advice: str = "") -> None:
    """Raises `UserError` unless all rows of finite x `[n, d]` have unit norm."""
    blocks = (np.asarray(x[rows], np.float64) for rows in row_blocks(*x.shape, BLOCK))
    norms = np.concatenate([np.linalg.norm(block, axis=1) for block in blocks])
    worst = int(np.argmax(np.abs(norms - 1)))
    require(
        abs(norms[worst] - 1) <= UNIT_TOLERANCE,
        f"{name}: features must have unit norm, but norms go from {norms.min():.4g} to "
        f"{norms.max():.4g} (row {worst} has {norms[worst]:.4g}){advice}",
    )


def check_matrix(name: str, x) -> None:
    """Raises `UserError` unless x is `[n, d]` of a real dtype, and not empty. Reads one row."""
    shaped = len(x.shape) == 2 and math.prod(x.shape) > 0
    require(shaped, f"{name} features: expected [n, d], got shape {tuple(x.shape)}")
    dtype = np.asarray(x[:1]).dtype
    real = jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)
    require(real, f"{name} features: expected real numbers, got {dtype}")


def check_labels(name: str, y, n: int, num_classes: int) -> np.ndarray:
    """Labels y as int32 `[n]` on the host.

    Raises:
      UserError: for another length or dtype, or a label that is not below `num_classes`.
    """
    y = np.asarray(y)
    require(y.shape == (n,), f"{name} labels: expected shape ({n},), got {y.shape}")
    integers = np.issubdtype(y.dtype, np.integer)
    require(integers, f"{name} labels: expected integers, got {y.dtype}: save them as integers")
    outside = (y < 0) | (y >= num_classes)
    row = int(outside.argmax())
    require(not outside.any(), f"{name} labels: {y[row]} (row {row}) is not below {num_classes}")
    return y.astype(np.int32)


def as_float32(rows) -> np.ndarray:
    """A block of rows of any real dtype as the probes compute with it."""
    return np.asarray(rows, np.float32)


def row_blocks(n: int, d: int, numbers: int) -> list[slice]:
    """Slices of the rows of `[n, d]`, each of at most so many numbers, or one row."""
    size = max(1, numbers // d)
    return [slice(begin, min(begin + size, n)) for begin in range(0, n, size)]
