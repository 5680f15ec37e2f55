"""Conversion of images between gray and RGB."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from hypersphere_jax.configs import require
from hypersphere_jax.data.source import ChangedImages, Source

LUMA_16_BITS = (19595, 38470, 7471)  # ITU-R 601 times 2**16, as in Pillow


def with_channels(source: Source, channels: int) -> Source:
    """Return a source with 1 (gray) or 3 (RGB) channels; the source itself if it has them.

    Raises:
      UserError: for images with another number of channels than 1 or 3.
    """
    if source.image_shape is not None:
        present = source.image_shape[2]
        if present == channels:
            return source
        _check_convertible(present, source.origin)
    what = {1: "(gray)", 3: "(RGB)"}[channels]
    convert = partial(_convert, source.origin, channels)
    return ChangedImages(source, convert, channels, what, f"channels {channels}")


def _convert(origin: str, channels: int, i: int, image: np.ndarray) -> np.ndarray:
    _check_convertible(image.shape[-1], f"image {i} of {origin}")
    return as_channels(image, channels)


def _check_convertible(present: int, name: str) -> None:
    message = f"{name} has {present} channels; channels= converts gray and RGB images only"
    require(present in (1, 3), message)


def same_channels(images: Sequence[np.ndarray], name: str) -> list[np.ndarray]:
    """Return images with the same number of channels: gray images become RGB among RGB images.

    Raises:
      UserError: for other mixtures. `name` is the name of the images in its message.
    """
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
