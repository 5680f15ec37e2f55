"""Random bits as images, or as further channels of images (Chen et al., Sections C and E).

The bits of an image are a function of a seed, a stream and its index.
"""

import functools

import numpy as np

from hypersphere_jax.data.source import Arrays, ChangedImages, Source


def random_bits(n: int, k: int, image_size: int = 32, seed: int = 0, part: int = 0) -> Source:
    """Return n unlabeled images of k <= 256 random bits, a channel each: 0 or 255 at all pixels.

    Each `part`, such as the test split, has independent bits.

    Source: Chen et al., Section C.
    """
    blank = np.broadcast_to(np.uint8(0), (n, image_size, image_size, 1))
    draw = functools.partial(_bits, k, seed, 2 * part)
    return ChangedImages(Arrays(blank, None, (), f"{n} images"), draw, _name(k, seed, part))


def with_bits(source: Source, k: int, seed: int = 0, part: int = 0) -> Source:
    """Return a source with k <= 256 random bits as further channels, 0 or 255 at all pixels.

    The bits are not augmented: both views of an image share them, and they compete with its
    content. Each `part`, such as the test split, has independent bits.

    Source: Chen et al., Section E.
    """
    append = functools.partial(_append_bits, k, seed, 2 * part + 1)
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
