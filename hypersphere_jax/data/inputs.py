"""One rule for images and one rule for labels, wherever a user passes them."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.data.decode import pixels

ARRAY_PACKAGES = ("jax", "jaxlib", "torch", "torchvision")


class Labels(NamedTuple):
    """Labels of n images or rows, see `as_labels`."""

    ids: np.ndarray  # int32 [n]: places in `classes`; -1 for unlabelled rows
    classes: list  # the distinct labels in ascending order: integers, or strings


def is_array(x: Any) -> bool:
    """Return whether x is an array of NumPy or JAX or a tensor of PyTorch."""
    known = type(x).__module__.partition(".")[0] in ARRAY_PACKAGES
    return isinstance(x, np.ndarray) or (known and hasattr(x, "__array__"))


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
      name: for messages.

    Raises:
      UserError: for other values, channels-first images, or a single image.
    """
    array = as_numpy(images)
    if array.ndim == 3:
        single = array.shape[2] in (1, 3, 4) and array.shape[1] != array.shape[2]
        require(not single, f"{name}: shape {array.shape} is one image: pass images[None]")
        array = array[..., None]
    method = "permute" if _is_tensor(images) else "transpose"
    try:
        return _as_uint8(array, "[n, h, w, c]", f"images.{method}(0, 2, 3, 1)")
    except ValueError as error:
        raise UserError(f"{name}: {error}") from error


def as_image(image: Any) -> np.ndarray:
    """Return one image, an item of a list or of a data set, as uint8 `[h, w, c]`.

    The rule is that of `as_images`, with one exception: a tensor of PyTorch is `[c, h, w]`, as in
    the data sets of torchvision, unless its last axis is clearly the channels.

    Raises:
      ValueError: for anything but an array, a tensor or an image of Pillow that fits.
    """
    pillow = sys.modules.get("PIL.Image")  # no image of Pillow exists before its import
    if pillow is not None and isinstance(image, pillow.Image):
        grey = image.mode in ("1", "L", "LA") or image.mode.startswith("I")
        return pixels(image, "L" if grey else "RGB")
    array = as_numpy(image)
    if array.ndim == 2:
        array = array[..., None]
    elif array.ndim == 3 and _is_tensor(image) and not _channels_first(array.shape[::-1]):
        array = np.moveaxis(array, 0, -1)
    return np.ascontiguousarray(_as_uint8(array, "[h, w, c]", "image.transpose(1, 2, 0)"))


def as_labels(labels: Any, n: int, name: str) -> Labels:
    """Return n labels as class ids.

    Args:
      labels: integers or booleans of any dtype, whole floats, or strings: an array, a tensor, a
        column of a data frame or a list. -1 and None mark unlabelled rows.
      n: number of labels.
      name: for messages.

    Raises:
      UserError: for anything else, such as NaN, or integers among strings.
    """
    values = labels if isinstance(labels, list | tuple) else as_numpy(labels)
    shape = values.shape if isinstance(values, np.ndarray) else (len(values),)
    require(shape == (n,), f"{name}: expected {n} integers or strings, got shape {shape}")
    places = np.arange(n)
    if isinstance(values, np.ndarray):
        if values.dtype.kind in "biufSU":
            values, places = np.unique(values, return_inverse=True)
        values = values.tolist()
    plain = []
    for place, value in enumerate(values):
        try:
            plain.append(plain_label(value))
        except ValueError as error:
            raise UserError(f"item {np.argmax(places == place)} of {name}: {error}") from error
    classes = _sorted({value for value in plain if value not in (None, -1)}, name)
    ids = {label: number for number, label in enumerate(classes)}
    return Labels(np.array([ids.get(value, -1) for value in plain], np.int32)[places], classes)


def plain_label(label: Any) -> int | str | None:
    """Return a label as an int, a str, or None; ValueError for anything else."""
    if hasattr(label, "__array__") and as_numpy(label).size == 1:
        label = as_numpy(label).item()
    if isinstance(label, bytes):
        return label.decode(errors="surrogateescape")
    if label is None or isinstance(label, str):
        return label
    whole = isinstance(label, int) or (isinstance(label, float) and label.is_integer())
    if whole and label >= -1:
        return int(label)
    text = " ".join(repr(label).split())
    raise ValueError(f"label {text:.40} is no integer from 0 on, or -1 for none, and no string")


def joint_classes(labels: Iterable[Labels]) -> list:
    """Return the classes of several splits, in ascending order."""
    return _sorted({label for split in labels for label in split.classes}, "labels")


def ids_among(classes: Sequence, labels: Labels) -> np.ndarray:
    """Return labels as int32 places in a sequence of classes that contains theirs."""
    ids = {label: number for number, label in enumerate(classes)}
    unknown = [label for label in labels.classes if label not in ids]
    require(not unknown, f"labels {unknown[:3]} are not class ids: expected 0 to {len(ids) - 1}")
    return np.array([*(ids[label] for label in labels.classes), -1], np.int32)[labels.ids]


def _sorted(classes: set, name: str) -> list:
    one_kind = len({type(label) for label in classes}) < 2
    require(one_kind, f"{name}: some are integers and some are strings; use one kind")
    return sorted(classes)


def _is_tensor(x: Any) -> bool:
    return type(x).__module__.startswith("torch")


def _channels_first(shape: Sequence[int]) -> bool:
    """Return whether the axes of an image look like `[c, h, w]`."""
    c, h, w = shape
    return c <= 4 < min(h, w) or c < h == w > 3


def _as_uint8(array: np.ndarray, layout: str, moved: str) -> np.ndarray:
    shape = array.shape
    fits = len(shape) == layout.count(",") + 1 and 0 not in shape
    if fits and _channels_first(shape[-3:]):
        raise ValueError(f"has shape {shape}, which is channels-first, not {layout}: pass {moved}")
    if not fits or shape[-1] > max(4, shape[-2] * shape[-3]):
        raise ValueError(f"has shape {shape}, not {layout}")
    if array.dtype == np.uint8:
        return array
    if array.dtype == bool:
        return array * np.uint8(255)
    import jax.numpy as jnp  # not at the top: `data list` needs no JAX

    top = 1 if jnp.issubdtype(array.dtype, jnp.floating) else 255
    if top == 255 and not jnp.issubdtype(array.dtype, jnp.integer):
        raise ValueError(f"has dtype {array.dtype}, not uint8 or floats from 0 to 1")
    if top == 1 and array.dtype.itemsize < 4:
        array = array.astype(np.float32)
    low, high = array.min(), array.max()
    if not (low >= 0 and high <= top):  # refuses NaN, too
        raise ValueError(f"has values from {low:g} to {high:g}, not 0 to {top}")
    if top == 1:
        array = np.rint(255 * array)
    return array.astype(np.uint8)
