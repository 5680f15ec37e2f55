"""User-supplied features in NumPy files, which may be larger than memory."""

import tempfile
import zipfile
from pathlib import Path

import numpy as np

from hypersphere_jax.config import UserError, require
from hypersphere_jax.evaluate.checks import check_matrix
from hypersphere_jax.evaluate.metrics import row_slices

# Half precisions keep norms to a few thousandths.
TOLERANCE = 0.01
# What a probe needs: features `[n, d]` and labels `[n]` of both splits.
SPLITS = ("train_x", "train_y", "test_x", "test_y")


def are_features(path: Path) -> bool:
    """Whether a path names features of both splits, rather than a run."""
    if path.is_dir():
        return any((path / f"{name}.npy").is_file() for name in SPLITS)
    return path.suffix.lower() in (".npz", ".npy")


def read_splits(path: Path) -> tuple[np.ndarray, ...]:
    """Features and labels of both splits: train_x, train_y, test_x, test_y.

    Args:
      path: an .npz file of these four arrays, or a folder of four .npy files, which stay on disk.

    Raises:
      UserError: when one is missing, or labels are not integers from 0 on.
    """
    if path.is_dir():
        arrays = [load_array(path / f"{name}.npy") for name in SPLITS]
    else:
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = [file[name] for name in SPLITS]
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            needs = f"an .npz file with {', '.join(SPLITS)}, or a folder of such .npy files"
            raise UserError(f"{path} ({error}): a probe needs {needs}") from error
    for name, y in zip(SPLITS[1::2], arrays[1::2], strict=True):
        integers = y.ndim == 1 and y.size > 0 and np.issubdtype(y.dtype, np.integer)
        require(integers, f"{path}: {name} must be integers [n], not {y.dtype} {list(y.shape)}")
        require(y.min() >= 0, f"{path}: {name} must be integers from 0 on, and holds {y.min()}")
    return tuple(arrays)


def numbered(train_y, test_y) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels of both splits as int32 places in the sorted ids that occur, and these ids `[c]`."""
    ids = np.concatenate([np.asarray(y).astype(np.int64) for y in (train_y, test_y)])
    classes, places = np.unique(ids, return_inverse=True)
    train, test = np.split(places.astype(np.int32), [len(train_y)])
    return train, test, classes


def load_array(path: str | Path) -> np.ndarray:
    """The array of an .npy file, memory-mapped; UserError where it is none."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except (ValueError, EOFError, OSError) as error:
        raise UserError(f"{path} cannot be read as an .npy array: {error}") from error
    require(isinstance(array, np.ndarray), f"{path} holds several arrays: save one as .npy")
    return array


def load_features(path: str | Path, normalize: bool = False) -> np.ndarray:
    """Unit features `[n, d]` of an .npy file of any real dtype, on disk.

    Args:
      path: the file.
      normalize: divide each row by its norm, into a temporary file of float32.

    Raises:
      UserError: when there is no such file, something else is in it, or a row is not finite or (all
        zeros, where they are normalized) not of unit norm.
    """
    rows = x = load_array(path)
    check_matrix(str(path), rows)
    norms = np.ones(len(rows))
    if normalize:
        with tempfile.TemporaryFile() as file:
            x = np.memmap(file, np.float32, "w+", shape=rows.shape)
    for part in row_slices(len(rows)):
        block = rows[part].astype(np.float64)
        largest = np.abs(block).max(axis=1)
        bad = ~np.isfinite(largest) | (normalize & (largest == 0))
        row = part.start + int(bad.argmax())
        require(not bad.any(), f"{path}: row {row} holds NaN or infinity, or nothing but zeros")
        if normalize:  # by the largest entry first: the squares of others may not fit
            block /= largest[:, None]
            x[part] = block / np.linalg.norm(block, axis=1, keepdims=True)
        else:
            with np.errstate(over="ignore"):
                norms[part] = np.linalg.norm(block, axis=1)
    worst = int(np.argmax(np.abs(norms - 1)))
    require(
        abs(norms[worst] - 1) <= TOLERANCE,
        f"{path}: features must have unit norm, but norms go from {norms.min():.4g} to "
        f"{norms.max():.4g} (row {worst} has {norms[worst]:.4g}): --normalize divides each row by "
        "its norm",
    )
    return x
