"""The labelled images of NYU-Depth-V2 with their depth maps (Silberman et al. 2012).

`nyu_depth_v2_labeled.mat` is an HDF5 file (MATLAB 7.3), in which the order of the axes is reversed.
"""

import contextlib
import functools
import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.data.source import Sample, UnreadableImage
from hypersphere_jax.data.subsets import Subset
from hypersphere_jax.utils.files import open_file

logger = logging.getLogger("hypersphere_jax")

SPLITS = "splits.mat"
TRAIN_SHARE = 795 / 1449  # of the images, in the authors' split
# The digest reads this many windows of the file, evenly spread.
WINDOWS = 500
WINDOW_BYTES = 65536
MAX_NAME = 1000  # characters in the name of a scene
# Errors of h5py, and of code that reads a damaged file.
DAMAGED = (OSError, KeyError, ValueError, TypeError, RuntimeError, AttributeError, MemoryError)


@contextlib.contextmanager
def _user_error(path: Path) -> Iterator[None]:
    try:
        yield
    except DAMAGED as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} is not NYU-Depth-V2 (HDF5), or is damaged: {reason}") from error


class MatSource:
    """Source of all images in a file; a sample also contains "depth", float32 `[h, w]` in metres.

    The file contains `images`, uint8 `[n, 3, w, h]`, and `depths`, `[n, w, h]`.
    """

    class_names: tuple[str, ...] = ()

    def __init__(self, path: Path):
        self._path = Path(path)
        self.origin = str(path)
        with _user_error(path):
            images = self._file["images"]
            depths = self._file["depths"]
            n, width, height = depths.shape
            is_valid = images.shape == (n, 3, width, height) and images.size > 0
            if not is_valid or images.dtype != np.uint8 or depths.dtype.kind not in "fiu":
                raise ValueError("expected uint8 images [n, 3, w, h] and depths [n, w, h]")
        self._length = n
        self.image_shape = (height, width, 3)

    @functools.cached_property
    def _file(self) -> Any:
        import h5py

        open_file(self._path).close()
        with _user_error(self._path):
            return h5py.File(self._path, "r")

    def __reduce__(self) -> tuple:
        return MatSource, (self._path,)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, i: int) -> Sample:
        i = range(len(self))[i]
        try:
            image = self._file["images"][i]
            depth = self._file["depths"][i]
        except DAMAGED as error:
            raise UnreadableImage(f"image {i} of {self.origin}: {error}") from error
        return {
            "image": np.ascontiguousarray(image.transpose(2, 1, 0)),
            "label": -1,
            "depth": np.ascontiguousarray(depth.T, np.float32),
        }

    @property
    def labels(self) -> np.ndarray:
        """-1 for each image, int32 `[n]`."""
        return np.full(len(self), -1, np.int32)

    @functools.cached_property
    def digest(self) -> str:
        """Changes with the size of the file, and with its content in evenly spread windows."""
        size = self._path.stat().st_size
        digest = hashlib.sha256(str(size).encode())
        with open(self._path, "rb") as stream:
            for start in np.linspace(0, max(0, size - WINDOW_BYTES), WINDOWS, dtype=np.int64):
                stream.seek(int(start))
                digest.update(stream.read(WINDOW_BYTES))
        return digest.hexdigest()[:16]

    def scenes(self) -> list[str]:
        """Return the name of each image's scene, its number if the file has no names."""
        if "scenes" not in self._file:
            return [str(number) for number in range(len(self))]
        with _user_error(self._path):
            references = np.ravel(self._file["scenes"])
            names = [self._file[reference] for reference in references]
            if len(names) != len(self) or max(name.size for name in names) > MAX_NAME:
                raise ValueError(f"expected {len(self)} names of scenes")
            return ["".join(map(chr, np.ravel(name))) for name in names]


def open_mat(path: Path) -> tuple[Subset, Subset]:
    """Open the training and test images of a file.

    The split is the authors' (795 and 654 images) if their `splits.mat` is in the same folder.
    Otherwise it consists of whole scenes, drawn with a fixed seed.

    Raises:
      UserError: for a damaged file, or a split that does not fit it.
    """
    source = MatSource(path)
    file = Path(path).with_name(SPLITS)
    if file.is_file():
        train, test = _read_splits(file, len(source))
        origin = f"(split of {SPLITS})"
    else:
        logger.info("no %s next to %s: the test split consists of random scenes", SPLITS, path)
        train, test = _split_by_scene(source)
        origin = "(split by scene)"
    return (
        Subset(source, train, f"training images {origin}"),
        Subset(source, test, f"test images {origin}"),
    )


def _read_splits(path: Path, n: int) -> tuple[np.ndarray, np.ndarray]:
    from scipy.io import loadmat

    try:
        content = loadmat(path)
        train = np.sort(content["trainNdxs"].ravel().astype(np.int64) - 1)
        test = np.sort(content["testNdxs"].ravel().astype(np.int64) - 1)
    except Exception as error:  # SciPy raises many types for a damaged file
        raise UserError(f"{path} is not the authors' split ({error})") from error
    indices = np.concatenate([train, test])
    is_valid = len(train) > 0 and len(np.unique(indices)) == len(indices)
    require(
        is_valid and indices.min() >= 0 and indices.max() < n,
        f"{path} does not fit the {n} images: remove it for a split by scene",
    )
    return train, test


def _split_by_scene(source: MatSource) -> tuple[np.ndarray, np.ndarray]:
    scenes, scene_of_image, counts = np.unique(
        source.scenes(), return_inverse=True, return_counts=True
    )
    require(len(scenes) > 1, f"{source.origin}: all images show one scene; {SPLITS} is needed")
    order = np.random.RandomState(0).permutation(len(scenes))
    images_before = np.cumsum(counts[order]) - counts[order]
    is_train = np.zeros(len(scenes), bool)
    is_train[order] = images_before < TRAIN_SHARE * len(source)
    is_train[order[-1]] = False
    return np.flatnonzero(is_train[scene_of_image]), np.flatnonzero(~is_train[scene_of_image])
