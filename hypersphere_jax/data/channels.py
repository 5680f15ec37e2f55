"""Channels of images: gray, RGB, and random bits (Chen et al., Sections C and E)."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from hypersphere_jax.configs import require
from hypersphere_jax.data.source import Arrays, Sample, Shape, Source
from hypersphere_jax.utils.caches import fingerprint

LUMA_16_BITS = (19595, 38470, 7471)  # ITU-R 601 times 2**16, as in Pillow


class ChangedImages:
    """A source with the labels of another source, and a function of its images.

    Args:
      source: the other source.
      change: (index, image) -> image; can be pickled.
      name: the change in messages and in the fingerprint.
    """

    def __init__(self, source: Source, change: Callable[[int, np.ndarray], np.ndarray], name: str):
        self.source = source
        self.class_names = source.class_names
        self.origin = f"{source.origin} {name}"
        self.image_shape: Shape | None = None
        if source.image_shape is not None:
            self.image_shape = change(0, np.zeros(source.image_shape, np.uint8)).shape
        self._change = change
        self._name = name

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, i: int) -> Sample:
        i = range(len(self))[i]
        sample = self.source[i]
        return {**sample, "image": self._change(i, sample["image"])}

    @property
    def labels(self) -> np.ndarray:
        return self.source.labels

    @property
    def digest(self) -> str:
        return fingerprint(f"{self.source.digest} {self._name}")


def with_channels(source: Source, channels: int) -> Source:
    """Return a source with 1 (gray) or 3 (RGB) channels; UserError for other images."""
    if source.image_shape is not None and source.image_shape[2] == channels:
        return source
    convert = partial(_convert, source.origin, channels)
    return ChangedImages(source, convert, f"with {channels} channels")


def _convert(name: str, channels: int, i: int, image: np.ndarray) -> np.ndarray:
    present = image.shape[-1]
    message = f"image {i} of {name} has {present} channels; channels= converts gray and RGB only"
    require(present in (1, 3), message)
    return as_channels(image, channels)


def same_channels(images: Sequence[np.ndarray], name: str) -> list[np.ndarray]:
    """Convert gray images among RGB images to RGB; UserError for other mixtures of channels."""
    counts = sorted({image.shape[-1] for image in images})
    if len(counts) == 1:
        return list(images)
    listed = " and ".join(map(str, counts))
    require(counts == [1, 3], f"{name}: images of {listed} channels; pass one number of channels")
    return [as_channels(image, 3) for image in images]


def as_channels(images: np.ndarray, channels: int) -> np.ndarray:
    """Convert uint8 images `[…, 1 or 3]` to `[…, 1 or 3]`.

    RGB becomes Pillow's luma; gray is repeated three times.
    """
    if images.shape[-1] == channels:
        return images
    if channels == 3:
        return np.repeat(images, 3, axis=-1)
    weighted = images @ np.array(LUMA_16_BITS, np.uint32)
    return ((weighted + 2**15) >> 16).astype(np.uint8)[..., None]


def random_bits(n: int, k: int, image_size: int = 32, seed: int = 0, part: int = 0) -> Source:
    """Return n unlabeled images of k <= 256 random bits, a channel each: 0 or 255 at all pixels.

    Each `part`, such as the test split, has independent bits.

    Source: Chen et al., Section C.
    """
    blank = np.broadcast_to(np.uint8(0), (n, image_size, image_size, 1))
    draw = partial(_bits, k, seed, 2 * part)
    return ChangedImages(Arrays(blank, None, (), f"{n} images"), draw, _name(k, seed, part))


def with_bits(source: Source, k: int, seed: int = 0, part: int = 0) -> Source:
    """Return a source with k <= 256 random bits as further channels, 0 or 255 at all pixels.

    The bits are not augmented: both views of an image share them, and they compete with its
    content. Each `part`, such as the test split, has independent bits.

    Source: Chen et al., Section E.
    """
    append = partial(_append_bits, k, seed, 2 * part + 1)
    return ChangedImages(source, append, _name(k, seed, part))


def _name(k: int, seed: int, part: int) -> str:
    return f"with {k} random bits (seed {seed}, part {part})"


def _append_bits(k: int, seed: int, stream: int, i: int, image: np.ndarray) -> np.ndarray:
    return np.concatenate([image, _bits(k, seed, stream, i, image)], axis=2)


def _bits(k: int, seed: int, stream: int, i: int, image: np.ndarray) -> np.ndarray:
    """Return the bits of image i as uint8 `[h, w, k]`, from a counter-based generator."""
    words = np.random.Philox(counter=i, key=[seed, stream]).random_raw(4)
    octets = words.astype("<u8").view(np.uint8)
    bits = np.unpackbits(octets, count=k, bitorder="little")
    return np.broadcast_to(255 * bits, (*image.shape[:2], k)).copy()
