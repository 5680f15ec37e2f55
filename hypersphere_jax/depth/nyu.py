"""The labelled images of NYU-Depth-V2 with their depth maps (Silberman et al. 2012)."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.data.decode import reason
from hypersphere_jax.data.source import Sample, UnreadableImage
from hypersphere_jax.data.subsets import Subset
from hypersphere_jax.utils.caches import fingerprint
from hypersphere_jax.utils.files import open_file

SPLITS = "splits.mat"
# The fingerprint reads this many windows of the file, evenly spread.
WINDOWS = 500
WINDOW_BYTES = 65536


class MatSource:
    """Source of all images in `nyu_depth_v2_labeled.mat`, an HDF5 file (MATLAB 7.3).

    The file contains `images`, uint8 `[n, 3, w, h]`, and `depths`, `[n, w, h]` in metres. A sample
    also contains "depth", float32 `[h, w]`.

    Raises:
      UserError: for another or a damaged file.
    """

    class_names: tuple[str, ...] = ()

    def __init__(self, path: Path):
        self._path = Path(path)
        self.origin = str(path)
        try:
            images = self._file["images"]
            depths = self._file["depths"]
            n, width, height = depths.shape
            is_valid = images.shape == (n, 3, width, height) and images.size > 0
            if not is_valid or images.dtype != np.uint8 or depths.dtype.kind not in "fiu":
                raise ValueError("expected uint8 images [n, 3, w, h] and depths [n, w, h]")
        except (UserError, ImportError):
            raise
        except Exception as error:  # h5py raises many types for a damaged file
            message = f"{path} is not NYU-Depth-V2 (HDF5), or is damaged: {reason(error)}"
            raise UserError(message) from error
        self.image_shape = (height, width, 3)
        self.labels = np.full(n, -1, np.int32)

    @functools.cached_property
    def _file(self) -> Any:
        import h5py

        open_file(self._path).close()  # refuses pipes
        return h5py.File(self._path, "r")

    def __reduce__(self) -> tuple:
        return MatSource, (self._path,)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> Sample:
        i = range(len(self))[i]
        try:
            image = self._file["images"][i]
            depth = self._file["depths"][i]
        except Exception as error:  # h5py raises many types for a damaged file
            raise UnreadableImage(f"image {i} of {self.origin}: {reason(error)}") from error
        return {
            "image": np.ascontiguousarray(image.transpose(2, 1, 0)),
            "label": -1,
            "depth": np.ascontiguousarray(depth.T, np.float32),
        }

    @functools.cached_property
    def digest(self) -> str:
        """Fingerprint of the size of the file, and of its content in evenly spread windows."""
        return fingerprint(str(self._path.stat().st_size), *self._windows())

    def _windows(self) -> Iterator[bytes]:
        last = max(0, self._path.stat().st_size - WINDOW_BYTES)
        with open(self._path, "rb") as stream:
            for start in np.linspace(0, last, WINDOWS, dtype=np.int64):
                stream.seek(int(start))
                yield stream.read(WINDOW_BYTES)


def open_mat(path: Path) -> tuple[Subset, Subset]:
    """Open the training and test images: the authors' 795 and 654, by their `splits.mat`.

    Raises:
      UserError: for a damaged file, or without `splits.mat` in the same folder.
    """
    source = MatSource(path)
    train, test = _read_splits(Path(path).with_name(SPLITS), len(source))
    return Subset(source, train, "training images"), Subset(source, test, "test images")


def _read_splits(path: Path, n: int) -> tuple[np.ndarray, np.ndarray]:
    from scipy.io import loadmat

    advice = "put the authors' splits.mat, with their training and test images, next to the images"
    require(path.is_file(), f"no file {path}: {advice}")
    try:
        content = loadmat(path)
        train = np.sort(content["trainNdxs"].ravel().astype(np.int64) - 1)
        test = np.sort(content["testNdxs"].ravel().astype(np.int64) - 1)
    except Exception as error:  # SciPy raises many types for a damaged file
        raise UserError(f"{path} is damaged ({reason(error)}): {advice}") from error
    indices = np.concatenate([train, test])
    is_valid = len(train) > 0 and len(np.unique(indices)) == len(indices)
    is_valid = is_valid and indices.min() >= 0 and indices.max() < n
    require(is_valid, f"{path} does not fit the {n} images: {advice}")
    return train, test
