"""Images that carry random bits, made on the fly (Chen et al., Sections C and E).

Bits are a function of (seed, number): a counter-based generator gives those of any image.
"""

import functools
import hashlib

import numpy as np

from hypersphere_jax.config import require
from hypersphere_jax.data.source import Sample, Source

MAX_BITS = 256  # what one step of the generator's counter gives
# The same seed gives other bits in the one and in the other class, and in each part of the data.
ALONE, ADDED = 0, 1
KINDS = 2


class RandomBits:
    """Images of k binary channels, each with one random value at all pixels: k bits of entropy.

    Without augmentation both views of an image are equal, so that alignment is no question and a
    distribution loss is seen alone. Nothing has a label: the section evaluates the loss only.

    Args:
      n: number of images.
      k: bits, and channels.
      image_size: side, pixels.
      seed: of the bits.
      part: of the data: each part has bits of its own, as a test split needs them.

    Source: Chen et al., Section C ("k binary channels (instead of RGB channels), and all pixels at
    different locations of a 32x32 image share the same value").
    """

    def __init__(self, n: int, k: int, image_size: int = 32, seed: int = 0, part: int = 0):
        require(n >= 1, f"{n} images of random bits: at least 1")
        require(image_size >= 1, f"images of {image_size} pixels: at least 1")
        _check(k, seed)
        self._n, self._k, self._seed, self._stream = n, k, seed, KINDS * part + ALONE
        self.class_names: tuple[str, ...] = ()
        self.origin = f"{n} images of {k} random bits, seed {seed}"
        self.image_shape = (image_size, image_size, k)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, i: int) -> Sample:
        i = range(self._n)[i]
        image = _planes(bits_of(self._seed, self._stream, i, self._k), self.image_shape)
        return {"image": image, "label": -1}

    @property
    def bits(self) -> np.ndarray:
        """Of all images, bool `[n, k]`."""
        return all_bits(self._seed, self._stream, self._n, self._k)

    @functools.cached_property
    def labels(self) -> np.ndarray:
        """-1, int32 `[n]`."""
        return np.full(self._n, -1, np.int32)

    @property
    def digest(self) -> str:
        """Of the arguments."""
        return _digest(f"bits {self._n} {self.image_shape} {self._seed} {self._stream}")


class BitChannels:
    """The images of a source with k more channels, which hold a random k-bit integer each.

    Each of the added binary channels has one value at all pixels. They come after the source's
    own, and are not for augmentation: both views of an image share its bits, which compete with
    what the image shows. Integers of several images may be equal, so the bits that they add are
    fewer than k where 2^k is not far above the number of images (Section E says so of Figure E.1).
    Labels are the source's, as the linear evaluation of Figure E.1 has them.

    Args:
      source: of any images; CIFAR-10 in the paper.
      bits: k; with 0 the images stay as they are.
      seed: of the bits.
      part: of the data: each part has bits of its own, as a test split needs them.

    Source: Chen et al., Section E.
    """

    def __init__(self, source: Source, bits: int, seed: int = 0, part: int = 0):
        if bits:
            _check(bits, seed)
        self.source = source
        self.extra_channels = bits
        self._seed, self._stream = seed, KINDS * part + ADDED
        self.class_names = source.class_names
        self.origin = f"{source.origin} with {bits} random bits, seed {seed}"
        shape = source.image_shape
        self.image_shape = None if shape is None else (*shape[:2], shape[2] + bits)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, i: int) -> Sample:
        i = range(len(self))[i]
        sample = self.source[i]
        image = sample["image"]
        bits = bits_of(self._seed, self._stream, i, self.extra_channels)
        planes = _planes(bits, (*image.shape[:2], self.extra_channels))
        return {**sample, "image": np.concatenate([image, planes], axis=2)}

    @property
    def bits(self) -> np.ndarray:
        """Of all images, bool `[n, k]`."""
        return all_bits(self._seed, self._stream, len(self), self.extra_channels)

    @property
    def labels(self) -> np.ndarray:
        """Those of the source, int32 `[n]`."""
        return self.source.labels

    @property
    def digest(self) -> str:
        """Of the source and the arguments."""
        return _digest(f"{self.source.digest} {self.extra_channels} {self._seed} {self._stream}")


def bits_of(seed: int, stream: int, i: int, k: int) -> np.ndarray:
    """The bits of image i, bool `[k]`."""
    return _unpack(np.random.Philox(counter=i, key=[seed, stream]).random_raw(4), k)


def all_bits(seed: int, stream: int, n: int, k: int) -> np.ndarray:
    """The bits of images 0 to n - 1, bool `[n, k]`."""
    return _unpack(np.random.Philox(key=[seed, stream]).random_raw(4 * n).reshape(n, 4), k)


def _unpack(words: np.ndarray, k: int) -> np.ndarray:
    octets = words.astype("<u8").view(np.uint8)
    return np.unpackbits(octets, axis=-1, count=k, bitorder="little").astype(bool)


def _planes(bits: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    """uint8 `[h, w, k]` of 0 and 255."""
    return np.broadcast_to(np.where(bits, 255, 0).astype(np.uint8), shape).copy()


def _check(k: int, seed: int) -> None:
    require(1 <= k <= MAX_BITS, f"{k} random bits: from 1 to {MAX_BITS}")
    require(0 <= seed < 2**63, f"seed {seed}: must be from 0 to 2^63 - 1")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
