"""The labelled images of NYU-Depth-V2 with their depth maps (Silberman et al. 2012)."""

import functools
from pathlib import Path
from typing import Any

import numpy as np

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.data.decode import reason
from hypersphere_jax.data.source import Sample, UnreadableImage
from hypersphere_jax.data.subsets import Subset
from hypersphere_jax.utils.caches import fingerprint
from hypersphere_jax.utils.files import open_file

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
        content = np.memmap(self._path, np.uint8, "r")
        last = max(0, len(content) - WINDOW_BYTES)
        starts = np.linspace(0, last, WINDOWS, dtype=np.int64)
        windows = (content[start : start + WINDOW_BYTES] for start in starts)
        return fingerprint(str(len(content)), *windows)


def open_mat(path: Path) -> tuple[Subset, Subset]:
    """Open the training and test images: the authors' 795 and 654, by their `splits.mat`.

    Raises:
      UserError: for a damaged file, or without `splits.mat` in the same folder.
    """
    from scipy.io import loadmat

    source = MatSource(path)
    file = Path(path).with_name("splits.mat")
    advice = "put the authors' splits.mat, with their training and test images, next to the images"
    require(file.is_file(), f"no file {file}: {advice}")
    try:
        content = loadmat(file)
        parts = [content[name].ravel().astype(np.int64) - 1 for name in ("trainNdxs", "testNdxs")]
    except Exception as error:  # SciPy raises many types for a damaged file
        raise UserError(f"{file} is damaged ({reason(error)}): {advice}") from error
    train, test = map(np.sort, parts)
    indices, counts = np.unique(np.concatenate(parts), return_counts=True)
    is_valid = len(train) > 0 and counts.max() == 1 and 0 <= indices[0] <= indices[-1] < len(source)
    require(is_valid, f"{file} does not fit the {len(source)} images: {advice}")
    return Subset(source, train, "training images"), Subset(source, test, "test images")
