"""Sources: images with labels, by index. `Arrays` is a source of arrays in memory."""

import functools
from typing import Any, NotRequired, Protocol, TypedDict

import numpy as np

from hypersphere_jax.data.inputs import as_images, as_labels, ids_among, joint_classes
from hypersphere_jax.utils.caches import fingerprint

Shape = tuple[int, int, int]  # (h, w, c)


class Sample(TypedDict):
    """One image with its label."""

    image: np.ndarray  # uint8 [h, w, c]
    label: int  # -1 for an unlabeled image
    file: NotRequired[str]  # path of the image file
    depth: NotRequired[np.ndarray]  # float32 [h, w], meters


class UnreadableImage(Exception):
    """An image that cannot be read. The message contains its name and the reason."""


class Source(Protocol):
    """Images with labels, by index.

    An index always returns the same sample. A source can be pickled, and read from any thread.
    """

    class_names: tuple[str, ...]  # names of the labels 0, 1, …; empty for unlabeled images
    origin: str  # name of the source in messages

    def __len__(self) -> int: ...

    def __getitem__(self, i: int) -> Sample: ...

    @property
    def image_shape(self) -> Shape | None:
        """Shape of all images, or None if shapes may differ."""
        ...

    @property
    def labels(self) -> np.ndarray:
        """All labels, int32 `[n]`, read without decoding images."""
        ...

    @property
    def digest(self) -> str:
        """Fingerprint of images and labels."""
        ...


class Arrays:
    """A source of images in memory, or memory-mapped.

    Args:
      images: as in `inputs.as_images`; uint8 images are not copied.
      labels: `[n]`, as in `inputs.as_labels`, or None for unlabeled images.
      class_names: names of the labels 0, 1, …; empty to name the classes after the labels that
        occur, see `name_classes`.
      origin: name of the source in messages.

    Raises:
      UserError: for invalid arrays.
    """

    labels: np.ndarray
    class_names: tuple[str, ...]

    def __init__(self, images: Any, labels: Any, class_names: tuple[str, ...], origin: str):
        self.images = as_images(images, origin)
        self.origin = origin
        self.image_shape = self.images.shape[1:]
        n = len(self.images)
        if labels is None:
            labels = np.full(n, -1)
        self.given = as_labels(labels, n, origin)
        name_classes(self, names=class_names)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> Sample:
        return {"image": self.images[i], "label": int(self.labels[i])}

    @functools.cached_property
    def digest(self) -> str:
        return fingerprint(repr(self.images.shape), self.images, self.labels)


def name_classes(*sources: Any, names: tuple[str, ...] = ()) -> None:
    """Set `labels` and `class_names` of sources from their `given` labels.

    With `names`, given labels are class ids. Otherwise the classes are the labels that occur in any
    source, numbered from 0 in ascending order.
    """
    classes = range(len(names)) or joint_classes(source.given for source in sources)
    for source in sources:
        source.labels = ids_among(classes, source.given)
        source.class_names = tuple(map(str, names or classes))
