"""Images in arrays: the embedded digits, and NumPy's files."""

import importlib.util
from pathlib import Path

import numpy as np

from hypersphere_jax.configs import require
from hypersphere_jax.data.source import Arrays, name_classes
from hypersphere_jax.utils.arrays import open_array

NAMES = ("train_images", "train_labels", "test_images", "test_labels")
DIGITS = "scikit-learn's load_digits"
DIGITS_TRAIN = 1400


def digits() -> tuple[Arrays, Arrays]:
    """Load scikit-learn's 1,797 handwritten digits, gray images of 8x8 pixels.

    A fixed random 1,400 of them are the training split, the other 397 the test split.
    """
    # The file is read directly, because importing scikit-learn takes ten times as long.
    package = importlib.util.find_spec("sklearn")
    if package is None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
    file = Path(package.origin).parent / "datasets/data/digits.csv.gz"
    table = np.loadtxt(file, delimiter=",")
    images = np.round(table[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    labels = table[:, -1].astype(np.int64)
    names = tuple(str(digit) for digit in range(10))
    # NumPy guarantees the stream of this legacy generator.
    parts = np.split(np.random.RandomState(0).permutation(len(images)), [DIGITS_TRAIN])
    train, test = (Arrays(images[part], labels[part], names, DIGITS) for part in parts)
    return train, test


def open_arrays(path: Path) -> tuple[Arrays, Arrays | None]:
    """Open the training and the test images in NumPy's files.

    Args:
      path: an .npz file with train_images, train_labels, test_images, test_labels; a folder with
        train_images.npy and so on, which are memory-mapped; or an .npy file of images without
        labels, which has no test split.
    """
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return Arrays(open_array(path), None, (), str(path)), None
    if suffix == ".npz":
        found = [open_array(path, name) for name in NAMES]
    else:
        found = [open_array(path / f"{name}.npy") for name in NAMES]
    train = Arrays(*found[:2], (), str(path))
    test = Arrays(*found[2:], (), str(path))
    shapes = f"{train.image_shape}, {test.image_shape}"
    message = f"{path}: train and test images differ in shape: {shapes}"
    require(train.image_shape == test.image_shape, message)
    name_classes(train, test)
    return train, test
