"""What a source of images is, and the plainest one: arrays in memory."""

import functools
import hashlib
from typing import NotRequired, Protocol, TypedDict

import numpy as np


class Sample(TypedDict):
    """One image with its label."""

    image: np.ndarray  # uint8 [h, w, c]
    label: int  # -1 where there is none
    file: NotRequired[str]  # its path, of images in files
    depth: NotRequired[np.ndarray]  # float32 [h, w], metres, where the data have it


class UnreadableImage(Exception):
    """One image that cannot be used; the text names it and says why."""


class Source(Protocol):
    """Images with labels, by index, always the same; picklable, and read from any thread."""

    class_names: tuple[str, ...]  # of label 0, 1, …; empty where nothing has a label
    origin: str  # where it came from, for messages

    def __len__(self) -> int: ...

    def __getitem__(self, i: int) -> Sample: ...

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """`[h, w, c]` of all images; None where they may differ."""
        ...

    @property
    def labels(self) -> np.ndarray:
        """All labels, int32 `[n]`, without decoding an image."""
        ...

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that change with any image or label; quick, so by file or sum."""
        ...


class Arrays:
    """A source whose images are in memory (or memory-mapped).

    Args:
      images: uint8 `[n, h, w, c]`.
      labels: integers `[n]`; -1 marks an image without one.
      class_names: of label 0, 1, …
      origin: where they came from, for messages.
    """

    def __init__(
        self, images: np.ndarray, labels: np.ndarray, class_names: tuple[str, ...], origin: str
    ):
        if images.dtype != np.uint8 or images.ndim != 4:
            raise ValueError(
                f"images must be uint8 [n, h, w, c], not {images.dtype} {images.shape}"
            )
        if labels.shape != images.shape[:1] or not np.issubdtype(labels.dtype, np.integer):
            raise ValueError(
                f"labels must be integers [{len(images)}], not {labels.dtype} {labels.shape}"
            )
        self.images = images
        self.labels = labels.astype(np.int32)
        self.class_names = tuple(class_names)
        self.origin = origin
        self.image_shape = images.shape[1:]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> Sample:
        return {"image": self.images[i], "label": int(self.labels[i])}

    @functools.cached_property
    def digest(self) -> str:
        digest = hashlib.sha256(repr(self.images.shape).encode())
        for array in (self.images, self.labels):
            digest.update(np.ascontiguousarray(array).view(np.uint8))
        return digest.hexdigest()[:16]
