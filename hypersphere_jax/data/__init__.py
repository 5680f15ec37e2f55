"""Images with labels, in memory, with a fixed train/test split."""

import difflib
import hashlib
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hypersphere_jax.config import DataConfig, UserError, require

MAX_CLASSES = 1_000_000  # more are surely no class labels


class Split(NamedTuple):
    """Part of a data set: `images` uint8 `[n, h, w, c]`, `labels` int32 `[n]`."""

    images: np.ndarray
    labels: np.ndarray


class Dataset(NamedTuple):
    """A data set; `origin` says where it came from, `recipe` how to augment it by default."""

    train: Split
    test: Split
    class_names: tuple[str, ...]
    origin: str
    recipe: str

    def digest(self) -> str:
        """Changes with any image or label."""
        digest = hashlib.sha256()
        for array in (*self.train, *self.test):
            digest.update(np.ascontiguousarray(array).view(np.uint8))
        return digest.hexdigest()[:16]


def load(config: DataConfig) -> Dataset:
    """The data set that a config names.

    Raises:
      UserError: for an unknown name, or a file that is not as described there.
    """
    if config.name.endswith(".npz"):
        return from_npz(Path(config.name))
    if config.name not in SOURCES:
        near = difflib.get_close_matches(config.name, SOURCES, n=1)
        meant = f" (did you mean {near[0]!r}?)" if near else ""
        raise UserError(
            f"unknown data {config.name!r}{meant}: known are {', '.join(SOURCES)}, "
            "or the path of an .npz file"
        )
    return SOURCES[config.name]()


def full_name(config: DataConfig) -> str:
    """The name of a data set, or the whole path of a file."""
    return str(Path(config.name).resolve()) if config.name.endswith(".npz") else config.name


def digits() -> Dataset:
    """The handwritten digits that come with scikit-learn: 1,797 grey images of 8x8 pixels.

    1,400 of them, drawn once and for all, are the training split and the other 397 the test split.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.round(bunch.images * (255 / 16)).astype(np.uint8)[..., None]
    # A legacy generator: NumPy guarantees its stream, so the split is the same for ever.
    order = np.random.RandomState(0).permutation(len(images))
    splits = (
        Split(images[part], bunch.target[part].astype(np.int32))
        for part in (order[:1400], order[1400:])
    )
    names = tuple(str(name) for name in bunch.target_names)
    return Dataset(*splits, names, "scikit-learn's load_digits", "digits")


def from_npz(path: Path) -> Dataset:
    """A data set from arrays train_images, train_labels, test_images, test_labels of a file."""
    require(path.is_file(), f"no file {path}: --data takes `digits` or an .npz file that exists")
    names = ("train_images", "train_labels", "test_images", "test_labels")
    try:
        with open(path, "rb") as stream, np.load(stream) as file:
            missing = [name for name in names if name not in file]
            require(not missing, f"{path} lacks {', '.join(missing)}")
            arrays = [file[name] for name in names]
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is not a readable .npz file: {error}") from error
    for part, images, labels in (("train", *arrays[:2]), ("test", *arrays[2:])):
        require(
            images.dtype == np.uint8 and images.ndim == 4 and len(images) > 0,
            f"{path}: {part}_images must be uint8 [n, h, w, c], not {images.dtype} {images.shape}",
        )
        require(
            labels.shape == (len(images),)
            and np.issubdtype(labels.dtype, np.integer)
            and labels.min() >= 0
            and labels.max() < MAX_CLASSES,
            f"{path}: {part}_labels must be {len(images)} integers from 0 to {MAX_CLASSES - 1}, "
            f"not {labels.dtype} {labels.shape}",
        )
    train = Split(arrays[0], arrays[1].astype(np.int32))
    test = Split(arrays[2], arrays[3].astype(np.int32))
    require(
        train.images.shape[1:] == test.images.shape[1:],
        f"{path}: train and test images differ in shape: {train.images.shape[1:]}, "
        f"{test.images.shape[1:]}",
    )
    classes = int(max(train.labels.max(), test.labels.max())) + 1
    class_names = tuple(str(label) for label in range(classes))
    return Dataset(train, test, class_names, str(path), "stl10")


SOURCES = {"digits": digits}
