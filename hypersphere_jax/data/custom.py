"""Data of the user's own: arrays, and anything with `__len__` and `__getitem__`."""

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hypersphere_jax.config import UserError, require
from hypersphere_jax.data.source import Arrays, Sample, Source, UnreadableImage

IMAGE_KEYS, LABEL_KEYS = ("image", "img", "pixels"), ("label", "labels", "fine_label", "target")
IN_MEMORY = 2**31  # bytes of images up to which all are read at once
DIGESTED = 64  # samples, evenly spread, whose content identifies the data


def as_source(data: Any, labels: Any = None, what: str = "data") -> Source:
    """Images with labels, or without, as a source.

    Args:
      data: images uint8 `[n, h, w, c]` or `[n, h, w]`; or anything with `__len__` and
        `__getitem__`, such as data sets of PyTorch, Hugging Face or Grain, whose items are an
        image, (image, label), or a dict with "image" and perhaps "label". An image is an array or
        tensor, uint8 or of floats from 0 to 1, `[h, w, c]`, `[c, h, w]` of a tensor, or
        `[h, w]`; or of Pillow. The same index must give the same item always.
      labels: integers `[n]`, -1 for an image without one; None: those of the items, if any.
      what: for messages.

    Raises:
      UserError: for data or labels that do not fit this.
    """
    if hasattr(data, "class_names") and hasattr(data, "digest"):
        return data  # a source already
    if isinstance(data, np.ndarray) or hasattr(data, "__jax_array__") or _is_jax(data):
        images = np.asarray(data)
        images = images[..., None] if images.ndim == 3 else images
        require(
            images.dtype == np.uint8 and images.ndim == 4 and len(images) > 0,
            f"{what}: images must be uint8 [n, h, w, c], not {images.dtype} {images.shape}",
        )
        known = np.full(len(images), -1) if labels is None else np.asarray(labels)
        return _arrays(images, known, what)
    require(
        hasattr(data, "__len__") and hasattr(data, "__getitem__"),
        f"{what}: a {type(data).__name__} has no length or no items: give arrays, or a data set "
        "with __len__ and __getitem__",
    )
    require(len(data) > 0, f"{what} is empty")
    items = Items(data, labels, what)
    if len(items) * items[0]["image"].nbytes > IN_MEMORY:
        return items
    samples = [items[i] for i in range(len(items))]
    shapes = {sample["image"].shape for sample in samples}
    if len(shapes) > 1:
        return items
    images = np.stack([sample["image"] for sample in samples])
    return _arrays(images, np.array([sample["label"] for sample in samples]), what)


class Items:
    """A source of anything with a length and items; see `as_source`."""

    def __init__(self, data: Any, labels: Any, what: str):
        self._data = data
        self.origin = what
        self.image_shape: tuple[int, int, int] | None = None
        self._labels = None if labels is None else np.asarray(labels)
        self.class_names = _names(self.labels)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, i: int) -> Sample:
        image, label = _parts(self._data[int(i)], self.origin)
        try:
            image = as_image(image)
        except (ValueError, TypeError) as error:
            raise UnreadableImage(f"item {i} of {self.origin}: {error}") from error
        if self._labels is not None:
            label = self._labels[i]
        return {"image": image, "label": int(label)}

    @functools.cached_property
    def labels(self) -> np.ndarray:
        """Int32 `[n]`, from a list of them that the data set has, else from its items."""
        if self._labels is None:
            self._labels = _listed(self._data)
        if self._labels is None:
            parts = (_parts(self._data[i], self.origin) for i in range(len(self)))
            self._labels = np.array([int(label) for _, label in parts])
        return _checked(self._labels, len(self), self.origin)

    @functools.cached_property
    def digest(self) -> str:
        digest = hashlib.sha256(self.labels.tobytes())
        for i in np.unique(np.linspace(0, len(self) - 1, DIGESTED).astype(int)):
            image = self[i]["image"]
            digest.update(repr(image.shape).encode() + image.tobytes())
        return digest.hexdigest()[:16]


def as_image(image: Any) -> np.ndarray:
    """An image as uint8 `[h, w, c]`, see `as_source`; ValueError for what is none."""
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


def _arrays(images: np.ndarray, labels: np.ndarray, what: str) -> Arrays:
    labels = _checked(labels, len(images), what)
    return Arrays(images, labels, _names(labels), what)


def _checked(labels: np.ndarray, n: int, what: str) -> np.ndarray:
    labels = np.asarray(labels)
    require(
        labels.shape == (n,) and np.issubdtype(labels.dtype, np.integer) and labels.min() >= -1,
        f"{what}: labels must be {n} integers from 0, or -1 for none, not {labels.dtype} "
        f"{labels.shape}",
    )
    return labels.astype(np.int32)


def _names(labels: np.ndarray) -> tuple[str, ...]:
    return tuple(str(label) for label in range(int(labels.max(initial=-1)) + 1))


def _parts(item: Any, what: str) -> tuple[Any, int]:
    """Image and label of an item; -1 where it has none."""
    if isinstance(item, Mapping):
        image = next((item[key] for key in IMAGE_KEYS if key in item), None)
        if image is None:
            raise UserError(f"{what}: items have {', '.join(map(str, item))}, and no 'image'")
        return image, next((int(item[key]) for key in LABEL_KEYS if key in item), -1)
    if isinstance(item, Sequence) and len(item) == 2:
        return item[0], int(item[1])
    return item, -1


def _listed(data: Any) -> np.ndarray | None:
    """All labels, where a data set lists them: as torchvision's or a column of Hugging Face's."""
    for name in ("targets", "labels"):
        listed = getattr(data, name, None)
        if listed is not None and np.shape(listed) == (len(data),):
            return np.asarray(listed)
    columns = getattr(data, "column_names", ())
    return next((np.asarray(data[key]) for key in LABEL_KEYS if key in columns), None)


def _is_jax(data: Any) -> bool:
    return type(data).__module__.startswith("jax")
