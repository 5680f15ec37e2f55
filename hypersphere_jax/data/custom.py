"""Data of the user's own: arrays, and anything with `__len__` and `__getitem__`."""

import functools
import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hypersphere_jax.config import UserError, require
from hypersphere_jax.data.decode import pixels, reason
from hypersphere_jax.data.source import (
    Arrays,
    Sample,
    Source,
    UnreadableImage,
    as_labels,
    numbers_as_names,
)

IMAGE_KEYS, LABEL_KEYS = ("image", "img", "pixels"), ("label", "labels", "fine_label", "target")
IN_MEMORY = 2**31  # bytes of images up to which all are read at once
FIRST = 64  # items that tell how large images are, and whether they are grey
DIGESTED = 64  # samples, evenly spread, whose content identifies the data


def as_source(data: Any, labels: Any = None, what: str = "data") -> Source:
    """Images with labels, or without, as a source.

    Args:
      data: images uint8 `[n, h, w, c]` or `[n, h, w]`; or anything with `__len__` and
        `__getitem__`, such as data sets of PyTorch, Hugging Face or Grain, whose items are an
        image, (image, label, …), or a dict with "image" and perhaps "label". An image is an array
        or tensor, uint8 or of floats from 0 to 1, `[h, w, c]`, `[c, h, w]` of a tensor, or
        `[h, w]`; or of Pillow. Grey images among RGB ones become RGB. The same index must give the
        same item always.
      labels: integers `[n]`, -1 for an image without one; None: those of the items, where None is
        for an image without one, or of a list beside them (`targets`, `labels`).
      what: for messages.

    Raises:
      UserError: for data or labels that do not fit this.
    """
    if hasattr(data, "class_names") and hasattr(data, "digest"):
        return data  # a source already
    if isinstance(data, np.ndarray) or hasattr(data, "__jax_array__") or _is_jax(data):
        images = np.asarray(data)
        images = images[..., None] if images.ndim == 3 else images
        return _arrays(images, np.full(images.shape[:1], -1) if labels is None else labels, what)
    require(
        hasattr(data, "__len__") and hasattr(data, "__getitem__"),
        f"{what}: a {type(data).__name__} has no length or no items: give arrays, or a data set "
        "with __len__ and __getitem__",
    )
    n = len(data)
    require(n > 0, f"{what} is empty")
    names = [*data.keys()] if hasattr(data, "keys") else [0]
    require(
        not all(isinstance(name, str) for name in names),
        f"{what}: a {type(data).__name__} of {', '.join(map(str, names))}: give one split, such as "
        f"data[{names[0]!r}]",
    )
    known = None if labels is None else as_labels(labels, n, what)
    try:
        read = [_read(data, i, what) for i in range(min(n, FIRST))]
        channels = _channels([image for image, _ in read], what)
        if n * max(image.nbytes for image, _ in read) > IN_MEMORY:
            return Items(data, _labels(data, what) if known is None else known, channels, what)
        read += [_read(data, i, what) for i in range(len(read), n)]
    except UnreadableImage as error:
        raise UserError(str(error)) from error
    channels = _channels([image for image, _ in read], what)
    if known is None:
        own = [label for _, label in read]
        listed = _listed(data) if all(label is None for label in own) else None
        known = _own_labels(own, what) if listed is None else listed
    if len({image.shape[:2] for image, _ in read}) > 1:
        return Items(data, known, channels, what)
    return _arrays(np.stack([_coloured(image, channels) for image, _ in read]), known, what)


class Items:
    """A source of anything with a length and items, read one by one; see `as_source`.

    Args:
      data: whose items are images, with labels or without.
      labels: integers `[n]`.
      channels: of all images.
      what: for messages.
    """

    def __init__(self, data: Any, labels: np.ndarray, channels: int, what: str):
        self._data, self._channels = data, channels
        self.origin = what
        self.image_shape: tuple[int, int, int] | None = None
        self.labels = as_labels(labels, len(data), what)
        self.class_names = numbers_as_names(self.labels)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, i: int) -> Sample:
        image = _coloured(_read(self._data, i, self.origin)[0], self._channels)
        if image.shape[-1] != self._channels:
            raise UserError(
                f"item {i} of {self.origin} has {image.shape[-1]} channels, others have "
                f"{self._channels}: all images must have as many"
            )
        return {"image": image, "label": int(self.labels[i])}

    @functools.cached_property
    def digest(self) -> str:
        digest = hashlib.sha256(self.labels.tobytes())
        for i in np.unique(np.linspace(0, len(self) - 1, DIGESTED).astype(int)):
            image = self[i]["image"]
            digest.update(repr(image.shape).encode() + image.tobytes())
        return digest.hexdigest()[:16]


def as_image(image: Any) -> np.ndarray:
    """An image as uint8 `[h, w, c]`, see `as_source`; ValueError for what is none."""
    pillow = sys.modules.get("PIL.Image")  # there is no image of a package that nobody imported
    if pillow is not None and isinstance(image, pillow.Image):
        grey = image.mode in ("1", "L", "LA") or image.mode.startswith("I")
        return pixels(image, "L" if grey else "RGB")
    channels_first = type(image).__module__.startswith("torch")
    array = np.asarray(image)
    if array.ndim == 2:
        array = array[..., None]
    elif array.ndim == 3 and channels_first:
        array = np.moveaxis(array, 0, -1)
    if array.ndim != 3 or array.shape[-1] > array.shape[0] * array.shape[1]:
        raise ValueError(f"has shape {array.shape}, not [h, w, c]")
    if np.issubdtype(array.dtype, np.floating):
        if array.min() < 0 or array.max() > 1:
            raise ValueError(f"has values from {array.min():g} to {array.max():g}, not 0 to 1")
        array = np.round(255 * array)
    elif array.dtype == bool:
        array = 255 * array
    elif array.dtype != np.uint8 and (array.min() < 0 or array.max() > 255):
        raise ValueError(f"has values from {array.min()} to {array.max()}, not 0 to 255")
    return np.ascontiguousarray(array.astype(np.uint8))


def _arrays(images: np.ndarray, labels: Any, what: str) -> Arrays:
    source = Arrays(images, labels, (), what)
    source.class_names = numbers_as_names(source.labels)
    return source


def _read(data: Any, i: int, what: str) -> tuple[np.ndarray, Any]:
    """Image, uint8 `[h, w, c]`, and label of an item; UnreadableImage for what is no image."""
    image, label = _item(data, i, what)
    try:
        return as_image(image), label
    except Exception as error:  # of nearly any type, for a damaged file of Pillow
        raise UnreadableImage(f"item {i} of {what}: {reason(error)}") from error


def _item(data: Any, i: int, what: str) -> tuple[Any, Any]:
    """Image and label of an item, as they are; None where it has no label."""
    try:
        item = data[int(i)]
    except Exception as error:  # of the user's code
        raise UserError(f"item {i} of {what}: {type(error).__name__}: {error}") from error
    if isinstance(item, Mapping):
        image = next((item[key] for key in IMAGE_KEYS if key in item), None)
        if image is None:
            raise UserError(f"{what}: items have {', '.join(map(str, item))}, and no 'image'")
        return image, next((item[key] for key in LABEL_KEYS if key in item), None)
    if isinstance(item, tuple | list):
        require(len(item) > 0, f"item {i} of {what} is empty: expected an image, (image, label)")
        return item[0], item[1] if len(item) > 1 else None
    return item, None


def _own_labels(labels: Iterable[Any], what: str) -> np.ndarray:
    """Labels of items as integers; None becomes -1."""
    return np.array([_label(label, i, what) for i, label in enumerate(labels)])


def _label(label: Any, i: int, what: str) -> int:
    if label is None:
        return -1
    try:
        number = np.asarray(label).item()
        integral = not isinstance(number, str | bytes) and float(number).is_integer()
    except (TypeError, ValueError):  # of several numbers, or none
        integral = False
    if not integral:
        text = " ".join(repr(label).split())
        raise UserError(f"item {i} of {what}: label {text:.40} is no integer; None or -1 for none")
    return int(number)


def _labels(data: Any, what: str) -> np.ndarray:
    """Of data too large to hold: a list beside the items that agrees with them, or of each item."""
    n, listed = len(data), _listed(data)
    if listed is not None:
        own = {i: _item(data, i, what)[1] for i in (0, n - 1)}
        if all(x is None or _label(x, i, what) == listed[i] for i, x in own.items()):
            return listed
    return _own_labels((_item(data, i, what)[1] for i in range(n)), what)


def _listed(data: Any) -> np.ndarray | None:
    """All labels, where a data set lists them: as torchvision's or a column of Hugging Face's."""
    if getattr(data, "target_transform", None) is not None:
        return None
    lists = [getattr(data, name, None) for name in ("targets", "labels")]
    columns = getattr(data, "column_names", None) or ()
    for listed in [*lists, *(data[key] for key in LABEL_KEYS if key in columns)]:
        try:
            labels = np.asarray(listed)
        except ValueError:  # lists of unequal length
            continue
        if labels.shape == (len(data),) and np.issubdtype(labels.dtype, np.integer):
            return labels
    return None


def _channels(images: Sequence[np.ndarray], what: str) -> int:
    """Channels of all images, 3 for grey among RGB."""
    kinds = sorted({image.shape[-1] for image in images})
    require(
        len(kinds) == 1 or kinds == [1, 3],
        f"{what}: images of {' and '.join(map(str, kinds))} channels: all must have as many",
    )
    return kinds[-1]


def _coloured(image: np.ndarray, channels: int) -> np.ndarray:
    grey = image.shape[-1] == 1 and channels == 3
    return np.repeat(image, 3, axis=-1) if grey else image


def _is_jax(data: Any) -> bool:
    return type(data).__module__.startswith("jax")
