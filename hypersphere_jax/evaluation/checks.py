"""Features `[n, d]` that are read in blocks of rows, and checks of features and labels."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.data import inputs

CHECKED_ENTRIES = 2**22  # numbers in a block of rows
UNIT_NORM_TOLERANCE = 0.01  # half precisions round norms by a few thousandths


def as_float32(rows: Any) -> np.ndarray:
    """Return rows of any real dtype as float32, in which all probes compute."""
    return np.asarray(rows, np.float32)


def row_blocks(n: int, d: int, entries: int) -> list[slice]:
    """Return slices that cut n rows into blocks of at most `entries` numbers, or of one row."""
    size = max(1, entries // d)
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


class SelectedRows:
    """Rows of features by index; they are read when they are sliced.

    Args:
      x: `[n, d]` features, an array or a memory map.
      indices: integers `[m]`.
    """

    def __init__(self, x: Any, indices: np.ndarray):
        self._x = x
        self._indices = indices
        self.dtype = x.dtype
        self.shape = (len(indices), x.shape[1])

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, rows: Any) -> np.ndarray:
        return self._x[self._indices[rows]]


class CheckedSplits(NamedTuple):
    """Features and int32 class ids of a training split and a test split, which may be None."""

    train_x: Any
    train_y: np.ndarray
    test_x: Any
    test_y: np.ndarray | None
    classes: Sequence  # label of each class id
    train_rows: np.ndarray  # rows of the training split that are not left out

    @property
    def tested_y(self) -> np.ndarray:
        """Class ids of the test split, or of the training split without one."""
        return self.train_y if self.test_y is None else self.test_y

    def describe(self) -> dict[str, Any]:
        """Return the entries of a result about the data; `classes` unless they count from 0."""
        n_train, d = self.train_x.shape
        count = len(self.classes)
        about = {"n": len(self.tested_y), "n_train": n_train, "d": d, "num_classes": count}
        if list(self.classes) != list(range(count)):
            about["classes"] = list(self.classes)
        return about


def check_splits(
    train_x: Any,
    train_y: Any,
    test_x: Any,
    test_y: Any,
    num_classes: int | None = None,
    ignore_label: int | None = None,
) -> CheckedSplits:
    """Check features `[n, d]` and labels `[n]` of a training split and a test split (or None).

    Rows with the label `ignore_label` are left out. Classes are 0 to `num_classes - 1`, by default
    the distinct labels of both splits in ascending order.

    Raises:
      UserError: for features or labels that do not fit, unlabelled rows unless they are ignored,
        splits of different dimensions, and a training split of a single class.
    """
    require((test_x is None) == (test_y is None), "test features and test labels: pass both")
    train_x, train_labels, train_rows = _check_split("train", train_x, train_y, ignore_label)
    labels = {"train": train_labels}
    if test_x is not None:
        test_x, labels["test"], _ = _check_split("test", test_x, test_y, ignore_label)
        require(
            train_x.shape[1] == test_x.shape[1],
            f"train features have {train_x.shape[1]} dimensions, test features {test_x.shape[1]}; "
            "take both from the same layer",
        )
    require(
        len(train_labels.classes) > 1,
        f"train labels: class {train_labels.classes[0]} is the only one; a probe needs two",
    )
    classes: Sequence = inputs.joint_classes(labels.values())
    if num_classes is not None:
        is_valid = isinstance(num_classes, int | np.integer) and num_classes > 1
        require(is_valid, f"{num_classes=} must be an integer, 2 or more")
        classes = range(num_classes)
    ids = {name: inputs.ids_among(classes, split) for name, split in labels.items()}
    return CheckedSplits(train_x, ids["train"], test_x, ids.get("test"), classes, train_rows)


def _check_split(
    name: str, x: Any, y: Any, ignore_label: int | None
) -> tuple[Any, inputs.Labels, np.ndarray]:
    """Return features and labels of the rows that are not ignored, and these rows."""
    x = check_features(name, x)
    labels = inputs.as_labels(y, len(x), f"{name} labels")
    values = np.array([*labels.classes, -1], object)[labels.ids]
    rows = np.flatnonzero(values != ignore_label)
    require(len(rows) > 0, f"{name} labels: all are {ignore_label}, which is ignored")
    unlabelled = rows[labels.ids[rows] < 0]
    if len(unlabelled):
        advice = "pass ignore_label=-1 to leave such rows out"
        raise UserError(f"{name} labels: row {unlabelled[0]} is unlabelled (-1); {advice}")
    if len(rows) < len(x):
        x = SelectedRows(x, rows)
        labels = inputs.as_labels(values[rows], len(rows), f"{name} labels")
    return x, labels, rows


def check_features(name: str, x: Any) -> Any:
    """Return features `[n, d]` that can be read by rows; a memory map stays on disk.

    Raises:
      UserError: for another shape or dtype, no rows, or rows with NaN or infinity as float32.
    """
    # Indexing a data frame selects columns; arrays of h5py and zarr are sliced by rows.
    if inputs.is_array(x) or not hasattr(x, "dtype") or not hasattr(x, "shape"):
        x = inputs.as_numpy(x)
    check_matrix(name, x)
    blocks = row_blocks(*x.shape, CHECKED_ENTRIES)
    with np.errstate(over="ignore"):  # values that overflow float32 become infinite
        is_finite = [np.isfinite(as_float32(x[rows])).all(axis=1) for rows in blocks]
    bad = np.flatnonzero(~np.concatenate(is_finite))
    count = f"{name} features: {len(bad)} of {len(x)} rows have NaN or infinity"
    advice = "check whether the training diverged"
    require(len(bad) == 0, f"{count}, first rows {bad[:5].tolist()}; {advice}")
    return x


def check_matrix(name: str, x: Any) -> None:
    """Raise `UserError` unless x is `[n, d]` of a real dtype and not empty. Reads one row."""
    is_matrix = len(x.shape) == 2 and math.prod(x.shape) > 0
    require(is_matrix, f"{name} features: expected [n, d], got shape {tuple(x.shape)}")
    dtype = np.asarray(x[:1]).dtype
    is_real = jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)
    require(is_real, f"{name} features: expected real numbers, got {dtype}")


def check_unit_norm(name: str, x: Any, advice: str = "use l2_normalize") -> None:
    """Raise `UserError` unless all rows of finite features `[n, d]` have unit norm."""
    blocks = (np.asarray(x[rows], np.float64) for rows in row_blocks(*x.shape, CHECKED_ENTRIES))
    norms = np.concatenate([np.linalg.norm(block, axis=1) for block in blocks])
    worst = int(np.argmax(np.abs(norms - 1)))
    require(
        abs(norms[worst] - 1) <= UNIT_NORM_TOLERANCE,
        f"{name}: features must have unit norm, but norms go from {norms.min():.4g} to "
        f"{norms.max():.4g} (row {worst} has {norms[worst]:.4g}); {advice}",
    )
