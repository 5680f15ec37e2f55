"""What a source of images is, and the plainest one: arrays in memory."""

import functools
import hashlib
from typing import Any, NotRequired, Protocol, TypedDict

import numpy as np

from hypersphere_jax.data.inputs import as_images, as_labels, ids_among, joint_classes


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
      images: as for `inputs.as_images`; uint8 images are not copied.
      labels: `[n]`, as for `inputs.as_labels`; None for unlabelled images.
      class_names: of label 0, 1, …; empty: the labels that occur, see `name_classes`.
      origin: where they came from, for messages.

    Raises:
      UserError: for other arrays.
    """

    labels: np.ndarray
    class_names: tuple[str, ...]

    def __init__(self, images: Any, labels: Any, class_names: tuple[str, ...], origin: str):
        self.images = as_images(images, origin)
        n = len(self.images)
        self.given = as_labels([None] * n if labels is None else labels, n, origin)
        name_classes(self, names=class_names)
        self.origin = origin
        self.image_shape = self.images.shape[1:]

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


def name_classes(*sources: Any, names: tuple[str, ...] = ()) -> None:
    """Set `labels` and `class_names` of sources from their `given` labels.

    Given labels are class ids where `names` has the class names. Otherwise the classes are the
    labels that occur in any source, numbered from 0 in ascending order.
    """
    classes = range(len(names)) or joint_classes(source.given for source in sources)
    for source in sources:
        source.labels = ids_among(classes, source.given)
        source.class_names = tuple(map(str, names or classes))
