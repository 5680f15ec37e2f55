"""Features from anybody's NumPy files, larger than memory if need be."""

import zipfile
from pathlib import Path

import numpy as np

from hypersphere_jax.config import UserError, require
from hypersphere_jax.evaluate.checks import as_float32, check_features

# Half precisions keep norms to a few thousandths.
TOLERANCE = 0.01
ROWS = 65536
# What a probe needs: features `[n, d]` and labels `[n]` of both splits.
SPLITS = ("train_x", "train_y", "test_x", "test_y")


def are_features(path: Path) -> bool:
    """Whether this names features of both splits, rather than a run."""
    if path.is_dir():
        return any((path / f"{name}.npy").is_file() for name in SPLITS)
    return path.suffix.lower() in (".npz", ".npy")


def read_splits(path: Path) -> tuple[np.ndarray, ...]:
    """Features and labels of both splits: train_x, train_y, test_x, test_y.

    Args:
      path: an .npz file of these four arrays, or a folder of four .npy files, which stay on disk.

    Raises:
      UserError: when they are not there, hold no row, or the labels are no integers from 0 on.
    """
    if path.is_dir():
        missing = [f"{name}.npy" for name in SPLITS if not (path / f"{name}.npy").is_file()]
        require(not missing, f"{path} lacks {', '.join(missing)}")
        arrays = [_loaded(path / f"{name}.npy") for name in SPLITS]
    else:
        arrays = _loaded_npz(path)
    for name, x, y in (("train", *arrays[:2]), ("test", *arrays[2:])):
        where = f"{path}: {name}"
        require(x.shape[:1] != (0,), f"{where}_x has no rows, its shape is {list(x.shape)}")
        require(
            y.ndim == 1 and y.shape == x.shape[:1],
            f"{where}_y must be one label for each of the rows of {name}_x {list(x.shape)}, but "
            f"its shape is {list(y.shape)}",
        )
        kind = {"b": "booleans", "f": f"{y.dtype} numbers"}.get(y.dtype.kind, str(y.dtype))
        integers = np.issubdtype(y.dtype, np.integer)
        require(integers, f"{where}_y holds {kind}, no class labels: save them as integers")
        require(
            y.min() >= 0 and y.max() <= np.iinfo(np.int64).max,
            f"{where}_y must be integers from 0 on that int64 holds, but they go from {y.min()} to "
            f"{y.max()}",
        )
    return tuple(arrays)


def numbered(train_y, test_y) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels of both splits as int32 places in the sorted ids that occur, and these ids `[c]`."""
    ids = np.concatenate([np.asarray(y).astype(np.int64) for y in (train_y, test_y)])
    classes, places = np.unique(ids, return_inverse=True)
    train, test = np.split(places.astype(np.int32), [len(train_y)])
    return train, test, classes


def _loaded_npz(path: Path) -> list[np.ndarray]:
    needs = f"a probe needs an .npz file with {', '.join(SPLITS)}, or a folder of such .npy files"
    require(path.is_file(), f"{path}: there is no such file; {needs}")
    require(path.suffix.lower() != ".npy", f"{path} is a single array, but {needs}")
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as file:
            missing = [name for name in SPLITS if name not in file]
            require(not missing, f"{path} lacks {', '.join(missing)}: {needs}")
            return [file[name] for name in SPLITS]
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is not a readable .npz file of arrays: {error}") from error


def _loaded(path: Path) -> np.ndarray:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise UserError(f"{path} is not a readable .npy file: {error}") from error
    require(isinstance(array, np.ndarray), f"{path} holds several arrays: save one as .npy")
    return array


class FeatureFile:
    """The rows `[n, d]` of an .npy file, read when they are asked for: `features[slice]`.

    Args:
      path: the file; any real dtype.
      normalize: divide each row by its norm.

    Raises:
      UserError: when there is no such file, or something else is in it.
    """

    def __init__(self, path: str | Path, normalize: bool = False):
        self.path, self.normalize = Path(path), normalize
        require(self.path.is_file(), f"{path}: there is no such file")
        try:
            rows = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise UserError(f"{path} cannot be read as an .npy array: {error}") from error
        require(isinstance(rows, np.ndarray), f"{path} holds several arrays: save one as .npy")
        expected = "expected real features of shape [n, d]"
        require(rows.ndim == 2 and rows.size > 0, f"{path}: {expected}, got shape {rows.shape}")
        hint = " (bfloat16? save it as float32)" if rows.dtype.kind == "V" else ""
        require(rows.dtype.kind in "fiu", f"{path}: {expected}, got {rows.dtype}{hint}")
        self._rows, self.shape = rows, rows.shape

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        """float32 `[m, d]`."""
        x = self._rows[rows]
        if self.normalize:
            x = x.astype(np.float64)
            # By the largest entry first: the squares of others may not fit.
            x = x / np.abs(x).max(axis=1, keepdims=True)
            x = x / np.linalg.norm(x, axis=1, keepdims=True)
        return as_float32(check_features(str(self.path), x))

    def check_unit(self) -> None:
        """Raises UserError, naming the norms, unless all rows have (or are given) unit norm.

        Rows of zeros have no direction: with `normalize` they are the error.
        """
        norms = np.empty(len(self))
        for begin in range(0, len(self), ROWS):
            rows = slice(begin, begin + ROWS)
            x = self._rows[rows].astype(np.float64)
            bad = np.flatnonzero(~np.isfinite(x).all(axis=1))
            if bad.size:  # named by its row in the file
                where = f"row {begin + bad[0]}"
                raise UserError(
                    f"{self.path}: {where} holds NaN or infinity; did training diverge?"
                )
            largest = np.abs(x).max(axis=1)
            scaled = x / np.where(largest > 0, largest, 1.0)[:, None]
            norms[rows] = largest * np.linalg.norm(scaled, axis=1)
        if self.normalize:
            zero = np.flatnonzero(norms == 0)
            rows = f"row {zero[0]}" if zero.size else ""
            require(not zero.size, f"{self.path}: {rows} is all zeros and has no direction")
            return
        worst = int(np.argmax(np.abs(norms - 1)))
        require(
            abs(norms[worst] - 1) <= TOLERANCE,
            f"{self.path}: features must have unit norm, but norms go from {norms.min():.4g} to "
            f"{norms.max():.4g} (mean {norms.mean():.4g}; row {worst} has {norms[worst]:.4g}): "
            "--normalize divides each row by its norm",
        )
