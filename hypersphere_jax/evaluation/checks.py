"""Features `[n, d]` that are read in blocks of rows, and checks of features and labels."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.data.inputs import (
    Labels,
    as_labels,
    as_numpy,
    ids_among,
    is_array,
    joint_classes,
)

CHECKED_ENTRIES = 2**22  # numbers in a block of rows
UNIT_NORM_TOLERANCE = 0.01  # half precisions round norms by a few thousandths


def as_float32(rows: Any) -> np.ndarray:
    """Return rows of any real dtype as float32, in which all probes compute."""
    return np.asarray(rows, np.float32)


def row_blocks(n: int, d: int, entries: int) -> list[slice]:
    """Return slices that cut n rows into blocks of at most `entries` numbers, or of one row."""
    size = max(1, entries // d)
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def row_shardings(devices: Sequence[jax.Device]) -> tuple[NamedSharding, NamedSharding]:
    """Return shardings that divide the first axis of arrays over devices, and that copy arrays."""
    mesh = Mesh(np.asarray(devices), ("rows",))
    return NamedSharding(mesh, PartitionSpec("rows")), NamedSharding(mesh, PartitionSpec())


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
    train_rows: np.ndarray | None  # kept rows of the training split, or None if all are

    @property
    def tested_y(self) -> np.ndarray:
        """Class ids of the test split, or of the training split without one."""
        return self.train_y if self.test_y is None else self.test_y


def check_splits(
    train_x: Any,
    train_y: Any,
    test_x: Any,
    test_y: Any,
    num_classes: int | None = None,
    ignore_label: int | None = None,
) -> CheckedSplits:
    """Check features and labels of a training split and a test split (or None).

    Args:
      train_x: `[n_train, d]` features.
      train_y: `[n_train]` labels, see `inputs.as_labels`.
      test_x: `[n, d]` features, or None.
      test_y: `[n]` labels, or None.
      num_classes: classes are 0 to `num_classes - 1`. Defaults to the distinct labels of both
        splits in ascending order.
      ignore_label: rows with this label are left out.

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
    classes: Sequence = joint_classes(labels.values())
    if num_classes is not None:
        is_valid = isinstance(num_classes, int | np.integer) and num_classes > 1
        require(is_valid, f"{num_classes=} must be an integer, 2 or more")
        largest = classes[-1]
        is_below = isinstance(largest, int) and largest < num_classes
        require(is_below, f"labels: {largest!r} is not an integer below {num_classes=}")
        classes = range(num_classes)
    ids = {name: ids_among(classes, split) for name, split in labels.items()}
    return CheckedSplits(train_x, ids["train"], test_x, ids.get("test"), classes, train_rows)


def _check_split(
    name: str, x: Any, y: Any, ignore_label: int | None
) -> tuple[Any, Labels, np.ndarray | None]:
    """Return features, labels and positions of the kept rows, None for all rows."""
    x = check_features(name, x)
    labels = as_labels(y, len(x), f"{name} labels")
    values = np.array([*labels.classes, -1], object)[labels.ids]
    unlabelled = np.flatnonzero((labels.ids < 0) & (ignore_label != -1))
    if len(unlabelled):
        raise UserError(
            f"{name} labels: row {unlabelled[0]} is unlabelled (-1); pass ignore_label=-1 to leave "
            "such rows out"
        )
    kept = np.flatnonzero(values != ignore_label)
    if len(kept) == len(x):
        return x, labels, None
    require(len(kept) > 0, f"{name} labels: all are {ignore_label}, which is ignored")
    return SelectedRows(x, kept), as_labels(values[kept], len(kept), f"{name} labels"), kept


def describe_splits(splits: CheckedSplits) -> dict[str, Any]:
    """Return the entries of a result about the data.

    `classes` lists the labels unless they are 0, 1, …, n - 1.
    """
    n_train, d = splits.train_x.shape
    about = {"n": len(splits.tested_y), "n_train": n_train, "d": d}
    about["num_classes"] = len(splits.classes)
    if list(splits.classes) != list(range(len(splits.classes))):
        about["classes"] = list(splits.classes)
    return about


def check_features(name: str, x: Any) -> Any:
    """Return features `[n, d]` that can be read by rows; a memory map stays on disk.

    Raises:
      UserError: for another shape or dtype, no rows, or rows with NaN or infinity as float32.
    """
    # Indexing a data frame selects columns; arrays of h5py and zarr are sliced by rows.
    if is_array(x) or not hasattr(x, "dtype") or not hasattr(x, "shape"):
        x = as_numpy(x)
    check_matrix(name, x)
    blocks = row_blocks(*x.shape, CHECKED_ENTRIES)
    with np.errstate(over="ignore"):  # values that overflow float32 become infinite
        is_finite = [np.isfinite(as_float32(x[rows])).all(axis=1) for rows in blocks]
    bad = np.flatnonzero(~np.concatenate(is_finite))
    if bad.size:
        listed = ", ".join(map(str, bad[:5]))
        raise UserError(
            f"{name} features: {bad.size} of {len(x)} rows have NaN or infinity, first rows "
            f"{listed}; check whether the training diverged"
        )
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
