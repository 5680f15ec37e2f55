"""Conversion of images and labels that users pass: one rule for each, at every entry point."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.data.decode import decode, pixels, reason
from hypersphere_jax.utils.files import open_file

ARRAY_PACKAGES = ("jax", "jaxlib", "torch", "torchvision")


class Labels(NamedTuple):
    """Labels of n images or rows, see `as_labels`."""

    ids: np.ndarray  # int32 [n]: positions in `classes`; -1 for unlabeled rows
    classes: list  # the distinct labels in ascending order: integers, or strings


def is_array(x: Any) -> bool:
    """Return whether x is a NumPy array, a JAX array or a PyTorch tensor."""
    package = type(x).__module__.partition(".")[0]
    return isinstance(x, np.ndarray) or (package in ARRAY_PACKAGES and hasattr(x, "__array__"))


def as_numpy(x: Any) -> np.ndarray:
    """Return an array, a tensor on any device, or a data frame as a NumPy array."""
    if hasattr(x, "detach"):
        x = x.detach().cpu()
        if x.is_floating_point() and x.element_size() < 4:  # NumPy has no bfloat16
            x = x.float()
    return np.asanyarray(x)


def as_images(images: Any, name: str) -> np.ndarray:
    """Return a batch of images as uint8 `[n, h, w, c]`; uint8 images are not copied.

    Args:
      images: an array or tensor `[n, h, w, c]` or `[n, h, w]`: uint8, other integers from 0 to
        255, booleans, or floats of any width from 0 to 1.
      name: name of the images in messages.

    Raises:
      UserError: for other values, channels-first images, or a single image.
    """
    array = as_numpy(images)
    if array.ndim == 3:
        is_single = array.shape[2] in (1, 3, 4) and array.shape[1] != array.shape[2]
        require(not is_single, f"{name}: shape {array.shape} is one image: pass images[None]")
        array = array[..., None]
    try:
        _check_layout(array.shape, "[n, h, w, c]")
        return _as_uint8(array)
    except ValueError as error:
        raise UserError(f"{name}: {error}") from error


def as_image(image: Any) -> np.ndarray:
    """Return one image, an item of a list or of a data set, as uint8 `[h, w, c]`.

    Values are as in `as_images`. A PyTorch tensor is `[c, h, w]`, as in the data sets of
    torchvision, unless its last axis is clearly the channels.

    Raises:
      ValueError: for anything but an array, a tensor or a Pillow image that fits.
    """
    pillow = sys.modules.get("PIL.Image")  # a Pillow image implies this import
    if pillow is not None and isinstance(image, pillow.Image):
        if image.mode in ("1", "L", "LA") or image.mode.startswith("I"):
            return pixels(image, "L")
        return pixels(image)
    array = as_numpy(image)
    if array.ndim == 2:
        array = array[..., None]
    elif array.ndim == 3 and _is_tensor(image) and not _is_channels_first(array.shape[::-1]):
        array = np.moveaxis(array, 0, -1)
    _check_layout(array.shape, "[h, w, c]")
    return np.ascontiguousarray(_as_uint8(array))


def as_labels(labels: Any, n: int, name: str) -> Labels:
    """Return n labels as class ids.

    Args:
      labels: integers or booleans of any dtype, whole floats, or strings: an array, a tensor, a
        column of a data frame or a list. -1 and None mark unlabeled rows.
      n: number of labels.
      name: name of the labels in messages.

    Raises:
      UserError: for anything else, such as NaN, or integers among strings.
    """
    if isinstance(labels, list | tuple):
        shape: tuple = (len(labels),)
    else:
        labels = as_numpy(labels)
        shape = labels.shape
    require(shape == (n,), f"{name}: expected {n} integers or strings, got shape {shape}")
    if isinstance(labels, np.ndarray):
        labels = labels.tolist()
    plain = []
    for number, label in enumerate(labels):
        try:
            plain.append(_plain(label))
        except ValueError as error:
            raise UserError(f"item {number} of {name}: {error}") from error
    classes = _sorted_classes({label for label in plain if label not in (None, -1)}, name)
    ids = {label: number for number, label in enumerate(classes)}
    return Labels(np.array([ids.get(label, -1) for label in plain], np.int32), classes)


def _plain(label: Any) -> int | str | None:
    """Return a label as an int, a str, or None; ValueError for anything else."""
    if hasattr(label, "__array__") and as_numpy(label).size == 1:
        label = as_numpy(label).item()
    if isinstance(label, bytes):
        return label.decode(errors="surrogateescape")
    if label is None or isinstance(label, str):
        return label
    is_whole = isinstance(label, int) or (isinstance(label, float) and label.is_integer())
    if is_whole and label >= -1:
        return int(label)
    text = " ".join(repr(label).split())
    raise ValueError(f"label {text:.40} is neither a string nor an integer from -1 on")


def joint_classes(labels: Iterable[Labels]) -> list:
    """Return the classes of several splits, in ascending order."""
    return _sorted_classes({label for split in labels for label in split.classes}, "labels")


def ids_among(classes: Sequence, labels: Labels) -> np.ndarray:
    """Return labels as int32 positions in a sequence that contains their classes."""
    ids = {label: number for number, label in enumerate(classes)}
    unknown = [label for label in labels.classes if label not in ids]
    require(not unknown, f"labels {unknown[:3]} are not class ids: expected 0 to {len(ids) - 1}")
    return np.array([*(ids[label] for label in labels.classes), -1], np.int32)[labels.ids]


def _sorted_classes(classes: set, name: str) -> list:
    is_one_kind = len({type(label) for label in classes}) < 2
    require(is_one_kind, f"{name}: some are integers and some are strings; use one kind")
    return sorted(classes)


def _is_tensor(x: Any) -> bool:
    return type(x).__module__.startswith("torch")


def _is_channels_first(shape: Sequence[int]) -> bool:
    """Return whether the axes of an image look like `[c, h, w]`."""
    c, h, w = shape
    return c <= 4 < min(h, w) or c < h == w > 3


def _check_layout(shape: tuple[int, ...], layout: str) -> None:
    """Raise ValueError if a shape does not fit."""
    has_axes = len(shape) == layout.count(",") + 1 and 0 not in shape
    if has_axes and _is_channels_first(shape[-3:]):
        raise ValueError(f"has shape {shape}: move the channels to the last axis, as in {layout}")
    if not has_axes or shape[-1] > max(4, shape[-2] * shape[-3]):
        raise ValueError(f"has shape {shape}, not {layout}")


def _as_uint8(array: np.ndarray) -> np.ndarray:
    """Convert pixel values to uint8; ValueError for values out of range."""
    if array.dtype == np.uint8:
        return array
    import jax.numpy as jnp  # here, because `data list` does without JAX

    if array.dtype == bool:
        return array * np.uint8(255)
    maximum = 255
    if jnp.issubdtype(array.dtype, jnp.floating):
        maximum = 1
        if array.dtype.itemsize < 4:
            array = array.astype(np.float32)
    elif not jnp.issubdtype(array.dtype, jnp.integer):
        raise ValueError(f"has dtype {array.dtype}, not uint8 or floats from 0 to 1")
    low = array.min()
    high = array.max()
    if not (low >= 0 and high <= maximum):  # also true for NaN
        raise ValueError(
            f"has {array.dtype} values from {low:g} to {high:g}, not 0 to {maximum}: scale them, "
            "or convert them to uint8 (0 to 255)"
        )
    return np.rint(255 // maximum * array).astype(np.uint8)


def read_image(image: Any) -> np.ndarray:
    """Return an image of any supported form, or in a file, as uint8 `[h, w, c]`."""
    name = "an image"
    try:
        if not isinstance(image, str | Path):
            return as_image(image)
        name = str(image)
        with open_file(image) as stream:
            return decode(stream.read())
    except Exception as error:  # a damaged file may raise nearly any type
        raise UserError(f"{name}: {reason(error)}") from error
