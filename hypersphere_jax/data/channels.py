"""Conversion of images between gray and RGB."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from hypersphere_jax.configs import require
from hypersphere_jax.data.source import ChangedImages, Source

LUMA_16_BITS = (19595, 38470, 7471)  # ITU-R 601 times 2**16, as in Pillow


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
