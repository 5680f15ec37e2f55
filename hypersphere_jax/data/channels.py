"""Grey images, or RGB ones, of images of either kind."""

import hashlib
from collections.abc import Sequence

import numpy as np

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.data.source import Sample, Source


class Channels:
    """The images of a source with one channel, or with three, see `with_channels`."""

    def __init__(self, source: Source, channels: int):
        self.source, self.channels = source, channels
        self.class_names = source.class_names
        self.origin = f"{source.origin} ({'grey' if channels == 1 else 'RGB'})"
        shape = source.image_shape
        self.image_shape = None if shape is None else (*shape[:2], channels)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, i: int) -> Sample:
        sample = self.source[i]
        try:
            return {**sample, "image": as_channels(sample["image"], self.channels)}
        except ValueError as error:
            raise UserError(f"channels={self.channels}: image {i} {error}") from error

    @property
    def labels(self) -> np.ndarray:
        """Those of the source, int32 `[n]`."""
        return self.source.labels

    @property
    def digest(self) -> str:
        """Of the source and the number of channels."""
        text = f"{self.source.digest} channels {self.channels}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def with_channels(source: Source, channels: int) -> Source:
    """The source with images of one channel (grey) or three (RGB); itself, where it has as many.

    Raises:
      UserError: for images of neither one channel nor three.
    """
    shape = source.image_shape
    if shape is None:
        return Channels(source, channels)
    require(
        shape[2] in (1, 3),
        f"channels={channels}: the images of {source.origin} have {shape[2]} channels, and only "
        "grey and RGB ones are changed",
    )
    return source if shape[2] == channels else Channels(source, channels)


def same_channels(images: Sequence[np.ndarray], name: str) -> list[np.ndarray]:
    """Return images of one number of channels; grey images among RGB ones become RGB."""
    counts = sorted({image.shape[-1] for image in images})
    listed = " and ".join(map(str, counts))
    same = len(counts) == 1 or counts == [1, 3]
    require(same, f"{name}: images of {listed} channels; pass images with equally many channels")
    return [as_channels(image, 3) if len(counts) == 2 else image for image in images]


def as_channels(images: np.ndarray, channels: int) -> np.ndarray:
    """uint8 `[…, 1 or 3]` as `[…, channels]`: the luma of RGB as Pillow has it; grey three times.

    Raises:
      ValueError: for another number of channels.
    """
    given = images.shape[-1]
    if given not in (1, 3):
        raise ValueError(f"has {given} channels, and only 1 (grey) or 3 (RGB) are changed")
    if given == channels:
        return images
    if channels == 3:
        return np.repeat(images, 3, axis=-1)
    weighted = images @ np.array([19595, 38470, 7471], np.uint32)
    return ((weighted + 2**15) >> 16).astype(np.uint8)[..., None]
