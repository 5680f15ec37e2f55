"""Features `[n, d]` on disk, which may be larger than memory: caches and files of users."""

import contextlib
import logging
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from hypersphere_jax.configs import require
from hypersphere_jax.evaluation.checks import (
    CHECKED_ENTRIES,
    check_features,
    check_matrix,
    check_unit_norm,
    row_blocks,
)
from hypersphere_jax.utils import caches
from hypersphere_jax.utils.arrays import array_names, open_array

logger = logging.getLogger("hypersphere_jax")

# Features `[n, d]` and labels `[n]` of both splits, in files for a probe.
SPLIT_ARRAYS = ("train_x", "train_y", "test_x", "test_y")


class Features(NamedTuple):
    """Features and labels of the images that could be read."""

    x: np.ndarray  # float32 [n, d], on disk
    labels: np.ndarray  # int32 [n]


def collect_features(
    batches: Iterable[tuple[tuple[dict[str, np.ndarray]], np.ndarray]],
    folder: Path | None = None,
) -> dict[str, Features]:
    """Return all batches as features on disk, in temporary files without names.

    Args:
      batches: layers float32 `[b, d]` of a single view by name, and labels int32 `[b]`.
      folder: existing folder of the temporary files. Defaults to the system's.
    """
    labels = []
    widths: dict[str, int] = {}
    with contextlib.ExitStack() as stack:
        files: dict[str, BinaryIO] = {}
        for (layers,), batch_labels in batches:
            labels.append(batch_labels)
            for layer, x in layers.items():
                if layer not in files:
                    files[layer] = stack.enter_context(tempfile.TemporaryFile(dir=folder))
                    widths[layer] = x.shape[1]
                files[layer].write(np.ascontiguousarray(x).data)
        y = np.concatenate(labels)
        features = {}
        for layer, file in files.items():
            file.flush()
            x = np.memmap(file, np.float32, "r", shape=(len(y), widths[layer]))
            features[layer] = Features(x, y)
        return features


def read_cached(file: Path | None) -> Features | None:
    """Return the features in a file of the cache; None if it is missing or damaged."""
    arrays = None
    if file is not None:
        arrays = caches.read(file)
    return None if arrays is None else Features(*arrays)


def write_cached(file: Path | None, features: Features) -> None:
    """Write features to a file of the cache, or log a warning."""
    try:
        if file is not None:
            caches.write(file, *features)
    except OSError as error:
        logger.warning("features are not cached: %s", error)


def is_feature_path(path: Path) -> bool:
    """Return whether a path is a file or folder of features, and not a run."""
    if path.is_dir():
        return any((path / f"{name}.npy").is_file() for name in SPLIT_ARRAYS)
    return path.suffix.lower() in (".npz", ".npy")


def read_splits(path: Path) -> list[np.ndarray]:
    """Return `SPLIT_ARRAYS` from an .npz file, or from a folder of .npy files, which are mapped.

    Raises:
      UserError: for another file, or a missing array.
    """
    if path.is_dir():
        return [open_array(path / f"{name}.npy") for name in SPLIT_ARRAYS]
    names = ", ".join(SPLIT_ARRAYS)
    is_npz = bool(array_names(path))
    require(is_npz, f"{path}: a probe needs an .npz file with {names}, or a folder of .npy files")
    return [open_array(path, name) for name in SPLIT_ARRAYS]


def load_features(path: str | Path, normalize: bool = False) -> Any:
    """Return unit-norm features `[n, d]` from an .npy file, which is mapped, or an .npz file.

    Args:
      path: file of any real dtype. An .npz file has `features`.
      normalize: divide rows by their norm, into a temporary float32 file.

    Raises:
      UserError: for another file, and rows that are not finite or not of unit norm.
    """
    x = open_array(path, "features")
    check_matrix(str(path), x)
    if not normalize:
        check_features(str(path), x)
        check_unit_norm(str(path), x, "normalize=True divides each row by its norm")
        return x
    with tempfile.TemporaryFile() as file:
        unit = np.memmap(file, np.float32, "w+", shape=x.shape)
    for rows in row_blocks(*x.shape, CHECKED_ENTRIES):
        block = x[rows].astype(np.float64)
        with np.errstate(invalid="ignore"):  # rows of zeros become NaN
            # The largest entry first, because squares may overflow.
            block /= np.abs(block).max(axis=1, keepdims=True)
            unit[rows] = block / np.linalg.norm(block, axis=1, keepdims=True)
    return check_features(f"{path}: normalized (rows of zeros have no norm)", unit)
