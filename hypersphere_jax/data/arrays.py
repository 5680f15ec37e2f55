"""Data sets that come as arrays: the embedded digits, and NumPy's files."""

import importlib.util
from pathlib import Path

import numpy as np

from hypersphere_jax.configs import require
from hypersphere_jax.data.source import Arrays, name_classes
from hypersphere_jax.utils.arrays import open_array

NAMES = ("train_images", "train_labels", "test_images", "test_labels")


def digits() -> tuple[Arrays, Arrays]:
    """The handwritten digits that come with scikit-learn: 1,797 grey images of 8x8 pixels.

    1,400 of them, drawn once and for all, are the training split and the other 397 the test split.
    """
    # Importing scikit-learn takes ten times as long as reading the file.
    package = importlib.util.find_spec("sklearn")
    if package is None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
    file = Path(package.origin).parent / "datasets/data/digits.csv.gz"
    table = np.loadtxt(file, delimiter=",")
    images = np.round(table[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    labels = table[:, -1].astype(np.int64)
    # A legacy generator: NumPy guarantees its stream, so the split is the same for ever.
    order = np.random.RandomState(0).permutation(len(images))
    names = tuple(str(number) for number in range(10))
    train, test = (
        Arrays(images[part], labels[part], names, "scikit-learn's load_digits")
        for part in (order[:1400], order[1400:])
    )
    return train, test


def from_npz(path: Path) -> tuple[Arrays, Arrays]:
    """Both splits from a file with train_images, train_labels, test_images, test_labels."""
    return _splits([open_array(path, name) for name in NAMES], path)


def from_npy_folder(folder: Path) -> tuple[Arrays, Arrays]:
    """As `from_npz`, of a folder with files train_images.npy and so on, which stay on disk."""
    return _splits([open_array(folder / f"{name}.npy") for name in NAMES], folder)


def from_npy(path: Path) -> Arrays:
    """Images without labels from an .npy file, which stay on disk."""
    return Arrays(open_array(path), None, (), str(path))


def _splits(arrays: list[np.ndarray], path: Path) -> tuple[Arrays, Arrays]:
    images, labels = arrays[::2], arrays[1::2]
    train, test = (Arrays(*split, (), f"{path}") for split in zip(images, labels, strict=True))
    require(
        train.image_shape == test.image_shape,
        f"{path}: train and test images differ in shape: {train.image_shape}, {test.image_shape}",
    )
    name_classes(train, test)
    return train, test
