"""Conversion of images between gray and RGB."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.data.source import ChangedImages, Source

LUMA_16_BITS = (19595, 38470, 7471)  # ITU-R 601 times 2**16, as in Pillow


def with_channels(source: Source, channels: int) -> Source:
    """Return a source with 1 (gray) or 3 (RGB) channels; the source itself if it has them.

    Raises:
      UserError: for images with another number of channels than 1 or 3.
    """
    shape = source.image_shape
    if shape is not None and shape[2] == channels:
        return source
    require(
        shape is None or shape[2] in (1, 3),
        f"channels={channels}: the images of {source.origin} have {shape and shape[2]} channels; "
        "only gray and RGB images can be converted",
    )
    what = "(gray)" if channels == 1 else "(RGB)"
    return ChangedImages(
        source, partial(_convert, channels), channels, what, f"channels {channels}"
    )


def _convert(channels: int, i: int, image: np.ndarray) -> np.ndarray:
    try:
        return as_channels(image, channels)
    except ValueError as error:
        raise UserError(f"channels={channels}: image {i} {error}") from error


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
    """Convert uint8 images `[…, 1 or 3]` to `[…, channels]`.

    RGB becomes Pillow's luma; gray is repeated three times.

    Raises:
      ValueError: for another number of channels.
    """
    present = images.shape[-1]
    if present not in (1, 3):
        raise ValueError(f"has {present} channels; only 1 (gray) or 3 (RGB) can be converted")
    if present == channels:
        return images
    if channels == 3:
        return np.repeat(images, 3, axis=-1)
    weighted = images @ np.array(LUMA_16_BITS, np.uint32)
    return ((weighted + 2**15) >> 16).astype(np.uint8)[..., None]
