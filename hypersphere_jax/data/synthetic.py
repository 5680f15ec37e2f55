"""Random bits as images, or as further channels of images (Chen et al., Sections C and E).

The bits of an image are a function of a seed, a stream and its index.
"""

import functools

import numpy as np

from hypersphere_jax.data.source import ChangedImages, Sample, Source
from hypersphere_jax.utils.caches import fingerprint


class RandomBits:
    """n unlabeled images of k <= 256 bits of entropy: k channels, each 0 or 255 at all pixels.

    Each `part`, such as the test split, has independent bits.

    Source: Chen et al., Section C.
    """

    def __init__(self, n: int, k: int, image_size: int = 32, seed: int = 0, part: int = 0):
        self.class_names: tuple[str, ...] = ()
        self.origin = f"{n} images of {k} random bits, seed {seed}"
        self.image_shape = (image_size, image_size, k)
        self.labels = np.full(n, -1, np.int32)
        self._seed = seed
        self._stream = 2 * part

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> Sample:
        i = range(len(self))[i]
        return {"image": _bit_planes(i, self.image_shape, self._seed, self._stream), "label": -1}

    @property
    def digest(self) -> str:
        return fingerprint(f"bits {len(self)} {self.image_shape} {self._seed} {self._stream}")


def with_bits(source: Source, k: int, seed: int = 0, part: int = 0) -> Source:
    """Return a source with k <= 256 random bits as further channels, 0 or 255 at all pixels.

    The bits are not augmented: both views of an image share them, and they compete with its
    content. Each `part`, such as the test split, has independent bits.

    Source: Chen et al., Section E.
    """
    shape = source.image_shape
    channels = None if shape is None else shape[2] + k
    stream = 2 * part + 1
    append = functools.partial(_append_bits, k, seed, stream)
    what = f"with {k} random bits, seed {seed}"
    return ChangedImages(source, append, channels, what, f"{k} {seed} {stream}")


def _append_bits(k: int, seed: int, stream: int, i: int, image: np.ndarray) -> np.ndarray:
    planes = _bit_planes(i, (*image.shape[:2], k), seed, stream)
    return np.concatenate([image, planes], axis=2)


def _bit_planes(i: int, shape: tuple[int, int, int], seed: int, stream: int) -> np.ndarray:
    """Return the bits of image i as uint8 `[h, w, k]`, from a counter-based generator."""
    words = np.random.Philox(counter=i, key=[seed, stream]).random_raw(4)
    octets = words.astype("<u8").view(np.uint8)
    bits = np.unpackbits(octets, count=shape[2], bitorder="little")
    return np.broadcast_to(255 * bits, shape).copy()
