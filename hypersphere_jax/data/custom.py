"""Data of the user's own: arrays, and anything with `__len__` and `__getitem__`."""

import functools
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.data.channels import as_channels, same_channels
from hypersphere_jax.data.decode import reason
from hypersphere_jax.data.inputs import as_image, as_labels, is_array, plain_label
from hypersphere_jax.data.source import Arrays, Sample, Source, UnreadableImage, name_classes

IMAGE_KEYS, LABEL_KEYS = ("image", "img", "pixels"), ("label", "labels", "fine_label", "target")
IN_MEMORY = 2**31  # bytes of images up to which all are read at once
FIRST = 64  # items that tell how large images are, and whether they are grey
DIGESTED = 64  # samples, evenly spread, whose content identifies the data


def as_source(data: Any, labels: Any = None, what: str = "data") -> Source:
    """Images with labels, or without, as a source.

    Args:
      data: an array or tensor as for `inputs.as_images`; or anything with `__len__` and
        `__getitem__`, such as data sets of PyTorch, Hugging Face or Grain, whose items are an
        image, (image, label, …), or a dict with "image" and perhaps "label". An image is as for
        `inputs.as_image`. Grey images among RGB ones become RGB. The same index must give the same
        item always.
      labels: `[n]`, as for `inputs.as_labels`; defaults to the labels of the items, or of a list
        beside them (`targets`, `labels`).
      what: for messages.

    Raises:
      UserError: for data or labels that do not fit this.
    """
    if hasattr(data, "class_names") and hasattr(data, "digest"):
        return data  # a source already
    if is_array(data):
        return Arrays(data, labels, (), what)
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
    if labels is not None:
        as_labels(labels, n, what)  # fails before the images are read
    try:
        read = [_read(data, i, what) for i in range(min(n, FIRST))]
        channels = same_channels([image for image, _ in read], what)[0].shape[-1]
        if n * max(image.nbytes for image, _ in read) > IN_MEMORY:
            return Items(data, _labels(data, what) if labels is None else labels, channels, what)
        read += [_read(data, i, what) for i in range(len(read), n)]
    except UnreadableImage as error:
        raise UserError(str(error)) from error
    images = same_channels([image for image, _ in read], what)
    if labels is None:
        labels = [label for _, label in read]
        listed = _listed(data) if all(label is None for label in labels) else None
        labels = labels if listed is None else listed
    if len({image.shape for image in images}) > 1:
        return Items(data, labels, images[0].shape[-1], what)
    return Arrays(np.stack(images), labels, (), what)


class Items:
    """A source of anything with a length and items, read one by one; see `as_source`.

    Args:
      data: whose items are images, with labels or without.
      labels: `[n]`, as for `inputs.as_labels`.
      channels: of all images.
      what: for messages.
    """

    labels: np.ndarray
    class_names: tuple[str, ...]

    def __init__(self, data: Any, labels: Any, channels: int, what: str):
        self._data, self._channels = data, channels
        self.origin = what
        self.image_shape: tuple[int, int, int] | None = None
        self.given = as_labels(labels, len(data), what)
        name_classes(self)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, i: int) -> Sample:
        image = _read(self._data, i, self.origin)[0]
        if image.shape[-1] == 1 and self._channels == 3:
            image = as_channels(image, 3)
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


def _labels(data: Any, what: str) -> Any:
    """Labels of a large data set: a list beside the items that agrees with them, or each item's."""
    listed = _listed(data)
    ends = (0, len(data) - 1)
    if listed is not None and all(_agrees(_item(data, i, what)[1], listed[i]) for i in ends):
        return listed
    return [_item(data, i, what)[1] for i in range(len(data))]


def _agrees(label: Any, listed: Any) -> bool:
    try:
        return label is None or plain_label(label) == plain_label(listed)
    except ValueError:
        return False


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
        if labels.shape == (len(data),) and labels.dtype.kind in "biuSU":
            return labels
    return None
