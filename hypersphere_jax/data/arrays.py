"""Data sets that come as arrays: the embedded digits, and NumPy's files."""

import contextlib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hypersphere_jax.config import UserError, require
from hypersphere_jax.data.source import Arrays

MAX_CLASSES = 1_000_000  # more are surely no class labels
NAMES = ("train_images", "train_labels", "test_images", "test_labels")


def digits() -> tuple[Arrays, Arrays]:
    """The handwritten digits that come with scikit-learn: 1,797 grey images of 8x8 pixels.

    1,400 of them, drawn once and for all, are the training split and the other 397 the test split.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.round(bunch.images * (255 / 16)).astype(np.uint8)[..., None]
    # A legacy generator: NumPy guarantees its stream, so the split is the same for ever.
    order = np.random.RandomState(0).permutation(len(images))
    names = tuple(str(name) for name in bunch.target_names)
    train, test = (
        Arrays(images[part], bunch.target[part], names, "scikit-learn's load_digits")
        for part in (order[:1400], order[1400:])
    )
    return train, test


def from_npz(path: Path) -> tuple[Arrays, Arrays]:
    """Both splits from a file with train_images, train_labels, test_images, test_labels."""
    with _readable(path), open(path, "rb") as stream, np.load(stream) as file:
        missing = [name for name in NAMES if name not in file]
        require(not missing, f"{path} lacks {', '.join(missing)}")
        return _splits([file[name] for name in NAMES], path)


def from_npy_folder(folder: Path) -> tuple[Arrays, Arrays]:
    """As `from_npz`, of a folder with files train_images.npy and so on, which stay on disk."""
    missing = [f"{name}.npy" for name in NAMES if not (folder / f"{name}.npy").is_file()]
    require(not missing, f"{folder} lacks {', '.join(missing)}")
    return _splits([_mapped(folder / f"{name}.npy") for name in NAMES], folder)


def from_npy(path: Path) -> Arrays:
    """Images without labels from an .npy file, which stay on disk."""
    images = _mapped(path)
    _check_images(images, str(path))
    return Arrays(images, np.full(len(images), -1, np.int32), (), str(path))


def _mapped(path: Path) -> np.ndarray:
    with _readable(path):
        return np.lib.format.open_memmap(path, mode="r")


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is not a readable file of NumPy: {error}") from error


def _splits(arrays: list[np.ndarray], path: Path) -> tuple[Arrays, Arrays]:
    train, train_labels, test, test_labels = arrays
    for part, images, labels in (("train", train, train_labels), ("test", test, test_labels)):
        _check_images(images, f"{path}: {part}_images")
        require(
            labels.shape == (len(images),)
            and np.issubdtype(labels.dtype, np.integer)
            and 0 <= labels.min() <= labels.max() < MAX_CLASSES,
            f"{path}: {part}_labels must be {len(images)} integers from 0 to {MAX_CLASSES - 1}, "
            f"not {labels.dtype} {labels.shape}",
        )
    require(
        train.shape[1:] == test.shape[1:],
        f"{path}: train and test images differ in shape: {train.shape[1:]}, {test.shape[1:]}",
    )
    classes = int(max(train_labels.max(), test_labels.max())) + 1
    names = tuple(str(label) for label in range(classes))
    return (
        Arrays(train, train_labels, names, str(path)),
        Arrays(test, test_labels, names, str(path)),
    )


def _check_images(images: np.ndarray, what: str) -> None:
    require(
        images.dtype == np.uint8 and images.ndim == 4 and len(images) > 0,
        f"{what} must be uint8 [n, h, w, c], not {images.dtype} {images.shape}",
    )
