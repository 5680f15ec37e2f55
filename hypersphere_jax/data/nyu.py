"""The 1,449 labelled images of NYU-Depth-V2 with their depth maps (Silberman et al. 2012).

`nyu_depth_v2_labeled.mat` is of MATLAB 7.3, so HDF5, which has MATLAB's axes in reverse order.
"""

import contextlib
import functools
import hashlib
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.data.source import Sample, UnreadableImage
from hypersphere_jax.data.subsets import Subset
from hypersphere_jax.utils.arrays import MAX_DEFLATED
from hypersphere_jax.utils.files import open_file

logger = logging.getLogger("hypersphere_jax")

SPLITS = "splits.mat"
TRAIN_SHARE = 795 / 1449  # of the images, in the authors' split
WINDOWS, WINDOW_BYTES = 500, 65536  # that the digest reads, spread evenly
MAX_PIXELS, MAX_CHUNK, MAX_NAME = 2**22, 2**28, 1000  # of an image; numbers; letters
DAMAGED = (OSError, KeyError, ValueError, TypeError, RuntimeError, AttributeError, MemoryError)


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    """UserError for what h5py, and whoever believes a damaged file, raises."""
    try:
        yield
    except DAMAGED as error:
        message = f"{path} is no HDF5 file of NYU-Depth-V2 (MATLAB 7.3), or is damaged: {error}"
        raise UserError(" ".join(message.split())) from error


class MatSource:
    """All images of a file; a sample also holds "depth", float32 `[h, w]` metres.

    The file has `images` uint8 `[n, 3, w, h]` and `depths` `[n, w, h]`.
    """

    def __init__(self, path: Path):
        self._path = Path(path)
        self.class_names: tuple[str, ...] = ()
        self.origin = str(path)
        with _damage(path):
            images, depths = (self._file[name] for name in ("images", "depths"))
            self._length, width, height = depths.shape
            fits = images.shape == (self._length, 3, width, height) and images.size > 0
            fits = fits and images.dtype == np.uint8 and depths.dtype.kind in "fiu"
            if not fits or width * height > MAX_PIXELS:
                raise ValueError("expected uint8 images [n, 3, w, h] and depths [n, w, h]")
            for part in (images, depths):
                there = min(part.id.get_storage_size(), self._path.stat().st_size)
                most = there * MAX_DEFLATED if part.chunks else there
                if part.nbytes > most or math.prod(part.chunks or ()) > MAX_CHUNK:
                    raise ValueError(f"{part.name} of {part.shape} cannot be in {there:,} bytes")
        self.image_shape = (height, width, 3)

    @functools.cached_property
    def _file(self) -> Any:
        import h5py

        open_file(self._path).close()
        with _damage(self._path):
            return h5py.File(self._path, "r")

    def __reduce__(self):
        return MatSource, (self._path,)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, i: int) -> Sample:
        i = range(len(self))[i]
        try:
            image, depth = self._file["images"][i], self._file["depths"][i]
        except DAMAGED as error:
            raise UnreadableImage(f"image {i} of {self.origin}: {error}") from error
        # MATLAB's [h, w, 3, n] comes as [n, 3, w, h].
        return {
            "image": np.ascontiguousarray(image.transpose(2, 1, 0)),
            "label": -1,
            "depth": np.ascontiguousarray(depth.T, np.float32),
        }

    @property
    def labels(self) -> np.ndarray:
        """None is known: -1, int32 `[n]`."""
        return np.full(len(self), -1, np.int32)

    @functools.cached_property
    def digest(self) -> str:
        """Of the file's size and windows of its content."""
        size = self._path.stat().st_size
        digest = hashlib.sha256(str(size).encode())
        with open(self._path, "rb") as stream:
            for place in np.linspace(0, max(0, size - WINDOW_BYTES), WINDOWS, dtype=np.int64):
                stream.seek(int(place))
                digest.update(stream.read(WINDOW_BYTES))
        return digest.hexdigest()[:16]

    def scenes(self) -> list[str]:
        """The name of each image's scene; its number where the file names none."""
        if "scenes" not in self._file:
            return [str(number) for number in range(len(self))]
        with _damage(self._path):
            scenes = self._file["scenes"]
            if scenes.size != len(self):
                raise ValueError(f"{scenes.size} scenes of {len(self)} images")
            names = [self._file[each] for each in np.ravel(scenes)]
            if max(name.size for name in names) > MAX_NAME:
                raise ValueError("a scene has no name")
            return ["".join(map(chr, np.ravel(name))) for name in names]


def open_mat(path: Path) -> tuple[Subset, Subset]:
    """Training and test images of the file.

    The split is the authors' (795 and 654 images) where their `splits.mat` lies beside the file.
    Else whole scenes are drawn, once and for all, until the training split has its share.
    """
    source = MatSource(path)
    beside = Path(path).with_name(SPLITS)
    if beside.is_file():
        (train, test), what = _read_splits(beside, len(source)), f"(split of {SPLITS})"
    else:
        logger.info("no %s beside %s: the test split is of scenes drawn at random", SPLITS, path)
        (train, test), what = _by_scene(source), "(split by scene)"
    train = Subset(source, train, f"training images {what}")
    return train, Subset(source, test, f"test images {what}")


def _read_splits(path: Path, n: int) -> tuple[np.ndarray, np.ndarray]:
    from scipy.io import loadmat

    try:
        content = loadmat(path)
        parts = [content[name].ravel().astype(np.int64) - 1 for name in ("trainNdxs", "testNdxs")]
        every = np.concatenate(parts)
    except Exception as error:  # damaged files bring about many types
        raise UserError(f"{path} cannot be read as the authors' split ({error})") from error
    require(
        len(np.unique(every)) == len(every) > 0 <= every.min() <= every.max() < n,
        f"{path} does not fit the {n} images beside it: move it away for a split by scene",
    )
    train, test = map(np.sort, parts)
    return train, test


def _by_scene(source: MatSource) -> tuple[np.ndarray, np.ndarray]:
    scenes = np.array(source.scenes())
    names, numbers, counts = np.unique(scenes, return_inverse=True, return_counts=True)
    require(len(names) > 1, f"{source.origin}: all images are of one scene: put {SPLITS} beside it")
    order = np.random.RandomState(0).permutation(len(names))
    before = np.cumsum(counts[order]) - counts[order]
    in_train = np.zeros(len(names), bool)
    in_train[order] = before < TRAIN_SHARE * len(source)
    in_train[order[-1]] = False
    return np.flatnonzero(in_train[numbers]), np.flatnonzero(~in_train[numbers])
