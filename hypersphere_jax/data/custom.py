"""Sources from arrays, and from data sets with `__len__` and `__getitem__`."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.data.channels import as_channels, same_channels
from hypersphere_jax.data.decode import reason
from hypersphere_jax.data.inputs import as_image, as_labels, is_array
from hypersphere_jax.data.source import Arrays, Sample, Source, UnreadableImage, name_classes
from hypersphere_jax.utils.caches import fingerprint

IMAGE_KEYS = ("image", "img", "pixels")
LABEL_KEYS = ("label", "labels", "fine_label", "target")
MAX_BYTES_IN_MEMORY = 2**31  # larger data sets are read item by item
FIRST = 64  # items that determine the size of the images, and whether they are gray
DIGEST_ITEMS = 64


def as_source(data: Any, labels: Any = None, what: str = "data") -> Source:
    """Return images, with or without labels, as a source.

    Args:
      data: an array or tensor as in `inputs.as_images`; or anything with `__len__` and
        `__getitem__`, such as data sets of PyTorch, Hugging Face or Grain, whose items are an
        image, (image, label, …), or a dict with "image" and optionally "label". An image is as in
        `inputs.as_image`. Gray images among RGB images become RGB. An index must always return the
        same item.
      labels: `[n]`, as in `inputs.as_labels`. Defaults to the labels of the items, or for more than
        2 GiB of images to `data.targets`, if that exists.
      what: name of the data in messages.

    Raises:
      UserError: for invalid data or labels.
    """
    if hasattr(data, "class_names") and hasattr(data, "digest"):
        return data  # a source already
    if is_array(data):
        return Arrays(data, labels, (), what)
    _check_data_set(data, what)
    n = len(data)
    if labels is not None:
        as_labels(labels, n, what)  # fails before the images are read
    try:
        items = [_read(data, i, what) for i in range(min(n, FIRST))]
        is_large = n * max(image.nbytes for image, _ in items) > MAX_BYTES_IN_MEMORY
        if not is_large:
            items += [_read(data, i, what) for i in range(len(items), n)]
    except UnreadableImage as error:
        raise UserError(str(error)) from error
    images = same_channels([image for image, _ in items], what)
    if labels is None:
        labels = [label for _, label in items]
        if is_large:
            labels = _labels_of_large(data, what)
    if is_large or len({image.shape for image in images}) > 1:
        return Items(data, labels, images[0].shape[-1], what)
    return Arrays(np.stack(images), labels, (), what)


class Items:
    """A source of items that are read one by one, see `as_source`.

    Args:
      data: a data set whose items are images, with or without labels.
      labels: `[n]`, as in `inputs.as_labels`.
      channels: number of channels of all images.
      what: name of the data in messages.
    """

    labels: np.ndarray
    class_names: tuple[str, ...]

    def __init__(self, data: Any, labels: Any, channels: int, what: str):
        self._data = data
        self._channels = channels
        self.origin = what
        self.image_shape: tuple[int, int, int] | None = None
        self.given = as_labels(labels, len(data), what)
        name_classes(self)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, i: int) -> Sample:
        image, _ = _read(self._data, i, self.origin)
        if image.shape[-1] == 1 and self._channels == 3:
            image = as_channels(image, 3)
        require(
            image.shape[-1] == self._channels,
            f"item {i} of {self.origin} has {image.shape[-1]} channels, others have "
            f"{self._channels}; convert all images to the same number",
        )
        return {"image": image, "label": int(self.labels[i])}

    @functools.cached_property
    def digest(self) -> str:
        """Fingerprint of the labels and of some images."""
        parts: list[str | np.ndarray] = [self.labels]
        for i in np.unique(np.linspace(0, len(self) - 1, DIGEST_ITEMS).astype(int)):
            image = self[i]["image"]
            parts += [repr(image.shape), image]
        return fingerprint(*parts)


def _check_data_set(data: Any, what: str) -> None:
    kind = type(data).__name__
    is_data_set = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    require(is_data_set, f"{what}: a {kind} has no length or no items; pass arrays or a data set")
    require(len(data) > 0, f"{what} is empty")
    keys = [key for key in getattr(data, "keys", tuple)() if isinstance(key, str)]
    # Such as a DatasetDict of Hugging Face.
    require(not keys, f"{what}: a {kind} of {', '.join(keys)}; pass one of them")


def _read(data: Any, i: int, what: str) -> tuple[np.ndarray, Any]:
    """Return image, uint8 `[h, w, c]`, and label of an item; UnreadableImage for no image."""
    image, label = _item(data, i, what)
    try:
        return as_image(image), label
    except Exception as error:  # a damaged Pillow image raises many types
        raise UnreadableImage(f"item {i} of {what}: {reason(error)}") from error


def _item(data: Any, i: int, what: str) -> tuple[Any, Any]:
    """Return image and label of an item without conversion; the label may be None."""
    try:
        item = data[int(i)]
    except Exception as error:  # raised by custom code
        raise UserError(f"item {i} of {what}: {type(error).__name__}: {error}") from error
    if isinstance(item, Mapping):
        images = [item[key] for key in IMAGE_KEYS if key in item]
        labels = [item[key] for key in LABEL_KEYS if key in item]
        require(bool(images), f"{what}: items have {', '.join(map(str, item))}, but no 'image'")
        return images[0], next(iter(labels), None)
    if isinstance(item, tuple | list):
        require(len(item) > 0, f"item {i} of {what} is empty; expected an image, (image, label)")
        return item[0], next(iter(item[1:]), None)
    return item, None


def _labels_of_large(data: Any, what: str) -> Any:
    """Return `targets`, as torchvision's data sets list their labels, or the label of each item."""
    n = len(data)
    targets = getattr(data, "targets", None)
    is_list = hasattr(targets, "__len__") and len(targets) == n
    if is_list and getattr(data, "target_transform", None) is None:
        return targets
    return [_item(data, i, what)[1] for i in range(n)]
