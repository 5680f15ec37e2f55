"""User-supplied features in NumPy files, which may be larger than memory."""

import tempfile
from pathlib import Path

import numpy as np

from hypersphere_jax.configs import require
from hypersphere_jax.evaluate.checks import (
    BLOCK,
    check_features,
    check_matrix,
    check_unit_norm,
    row_blocks,
)
from hypersphere_jax.utils.arrays import array_names, open_array

# What a probe needs: features `[n, d]` and labels `[n]` of both splits.
SPLITS = ("train_x", "train_y", "test_x", "test_y")


def are_features(path: Path) -> bool:
    """Whether a path names features of both splits, rather than a run."""
    if path.is_dir():
        return any((path / f"{name}.npy").is_file() for name in SPLITS)
    return path.suffix.lower() in (".npz", ".npy")


def read_splits(path: Path) -> tuple[np.ndarray, ...]:
    """train_x, train_y, test_x, test_y of an .npz file, or of a folder of .npy files, mapped.

    Raises:
      UserError: when one is missing.
    """
    if path.is_dir():
        arrays = [open_array(path / f"{name}.npy") for name in SPLITS]
    else:
        needs = f"an .npz file with {', '.join(SPLITS)}, or a folder of such .npy files"
        require(bool(array_names(path)), f"{path}: a probe needs {needs}")
        arrays = [open_array(path, name) for name in SPLITS]
    return tuple(arrays)


def load_features(path: str | Path, normalize: bool = False) -> np.ndarray:
    """Unit features `[n, d]` of an .npy file of any real dtype, on disk, or of an .npz file.

    With `normalize` rows are divided by their norm, into a temporary file of float32. UserError for
    another file, and for rows that are not finite or have no unit norm.
    """
    x = open_array(path, "features")
    check_matrix(str(path), x)
    if not normalize:
        check_features(str(path), x)
        check_unit_norm(str(path), x, ": normalize= divides each row by its norm")
        return x
    with tempfile.TemporaryFile() as file:
        unit = np.memmap(file, np.float32, "w+", shape=x.shape)
    for rows in row_blocks(*x.shape, BLOCK):
        block = x[rows].astype(np.float64)
        with np.errstate(invalid="ignore"):  # rows of zeros become NaN
            # By the largest entry first: the squares of others may not fit.
            block /= np.abs(block).max(axis=1, keepdims=True)
            unit[rows] = block / np.linalg.norm(block, axis=1, keepdims=True)
    return check_features(f"{path}: normalized (zeros have no norm)", unit)
