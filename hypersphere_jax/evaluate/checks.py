"""What every probe asks of its features and labels; a refusal is one clear line."""

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.data.inputs import as_labels, as_numpy, ids_among, is_array, joint_classes

BLOCK = 2**22  # numbers that are read at a time
UNIT_TOLERANCE = 0.01  # half precisions keep norms to a few thousandths


def check_splits(
    train_x, train_y, test_x, test_y, num_classes: int | None
) -> tuple[Any, np.ndarray, Any, np.ndarray | None, Sequence]:
    """Check features and labels of a training split and a test split (or None).

    Returns:
      Features and int32 class ids of both splits, and the classes: the distinct labels of both
      splits in ascending order, or 0 to `num_classes - 1`.

    Raises:
      UserError: see `check_features` and `inputs.as_labels`; for unlabelled rows, labels that are
        not below `num_classes`, different dimensions, and a training split of one class.
    """
    train_x = check_features("train", train_x)
    splits = {"train": as_labels(train_y, len(train_x), "train labels")}
    if test_x is not None:
        test_x = check_features("test", test_x)
        splits["test"] = as_labels(test_y, len(test_x), "test labels")
        require(
            train_x.shape[1] == test_x.shape[1],
            f"train features have {train_x.shape[1]} dimensions, test features {test_x.shape[1]}: "
            "were they taken from the same layer?",
        )
    for name, labels in splits.items():
        require(
            labels.ids.min() >= 0,
            f"{name} labels: -1 (row {labels.ids.argmin()}) marks an unlabelled row: drop all such "
            "rows, x[labels >= 0] and labels[labels >= 0]",
        )
        one = name == "train" and len(labels.classes) == 1
        require(not one, f"train labels: only class {labels.classes[0]}, two are needed")
    classes: Sequence = joint_classes(splits.values())
    if num_classes is not None:
        whole = isinstance(num_classes, int | np.integer) and num_classes > 1
        require(whole, f"{num_classes=}: must be an integer, 2 or more")
        for name, labels in splits.items():
            largest = labels.classes[-1]
            below = isinstance(largest, int) and largest < num_classes
            require(below, f"{name} labels: {largest!r} is not an integer below {num_classes=}")
        classes = range(num_classes)
    ids = {name: ids_among(classes, labels) for name, labels in splits.items()}
    return train_x, ids["train"], test_x, ids.get("test"), classes


def classes_entry(classes: Sequence) -> dict[str, list]:
    """Return the entry `classes` of a result; none for classes 0, 1, 2, …, n - 1."""
    count = len(classes)
    numbered = isinstance(classes, range) or list(classes) == list(range(count))
    return {} if numbered else {"classes": list(classes)}


def check_features(name: str, x):
    """Return features `[n, d]` that can be read by rows; a memory map stays on disk.

    Raises:
      UserError: for another shape or dtype, no rows, or rows that hold NaN or infinity as float32.
    """
    # Rows of a data frame are not x[rows]; arrays of h5py and zarr are read in slices of rows.
    if is_array(x) or not hasattr(x, "dtype") or not hasattr(x, "shape"):
        x = as_numpy(x)
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


def as_float32(rows) -> np.ndarray:
    """A block of rows of any real dtype as the probes compute with it."""
    return np.asarray(rows, np.float32)


def row_blocks(n: int, d: int, numbers: int) -> list[slice]:
    """Slices of the rows of `[n, d]`, each of at most so many numbers, or one row."""
    size = max(1, numbers // d)
    return [slice(begin, min(begin + size, n)) for begin in range(0, n, size)]
