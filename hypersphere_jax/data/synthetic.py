"""Images that carry random bits, made on the fly (Chen et al., Sections C and E).

Bits are a function of (seed, index): a counter-based generator gives those of any image.
"""

import functools
import hashlib

import numpy as np

from hypersphere_jax.configs import require
from hypersphere_jax.data.source import Sample, Source

MAX_BITS = 256  # what one step of the generator's counter gives


class _Bits:
    """Random bits of n images; each kind and each part of the data has a stream of its own."""

    def __init__(self, n: int, k: int, seed: int, stream: int):
        require(0 <= k <= MAX_BITS, f"{k} random bits: at most {MAX_BITS}")
        self._n, self._k, self._seed, self._stream = n, k, seed, stream

    def __len__(self) -> int:
        return self._n

    def _planes(self, i: int, height: int, width: int) -> np.ndarray:
        """Channels of image i: uint8 `[h, w, k]`, each 0 or 255 at all pixels."""
        words = np.random.Philox(counter=i, key=[self._seed, self._stream]).random_raw(4)
        octets = words.astype("<u8").view(np.uint8)
        bits = np.unpackbits(octets, count=self._k, bitorder="little")
        return np.broadcast_to(255 * bits, (height, width, self._k)).copy()


class RandomBits(_Bits):
    """n images of k binary channels, each with one random value at all pixels: k bits of entropy.

    There are no labels. Each `part` of the data, such as a test split, has bits of its own.

    Source: Chen et al., Section C.
    """

    def __init__(self, n: int, k: int, image_size: int = 32, seed: int = 0, part: int = 0):
        super().__init__(n, k, seed, 2 * part)
        self.class_names: tuple[str, ...] = ()
        self.origin = f"{n} images of {k} random bits, seed {seed}"
        self.image_shape = (image_size, image_size, k)

    def __getitem__(self, i: int) -> Sample:
        i = range(self._n)[i]
        return {"image": self._planes(i, *self.image_shape[:2]), "label": -1}

    @functools.cached_property
    def labels(self) -> np.ndarray:
        """-1, int32 `[n]`."""
        return np.full(self._n, -1, np.int32)

    @property
    def digest(self) -> str:
        """Of the arguments."""
        return _digest(f"bits {self._n} {self.image_shape} {self._seed} {self._stream}")


class BitChannels(_Bits):
    """The images of a source with k more binary channels, of one random value at all pixels each.

    They come after the source's own, and are not for augmentation: both views of an image share its
    bits, which compete with what the image shows. Each `part` of the data has bits of its own.

    Source: Chen et al., Section E.
    """

    def __init__(self, source: Source, bits: int, seed: int = 0, part: int = 0):
        super().__init__(len(source), bits, seed, 2 * part + 1)
        self.source = source
        self.class_names = source.class_names
        self.origin = f"{source.origin} with {bits} random bits, seed {seed}"
        shape = source.image_shape
        self.image_shape = None if shape is None else (*shape[:2], shape[2] + bits)

    def __getitem__(self, i: int) -> Sample:
        i = range(len(self))[i]
        sample = self.source[i]
        planes = self._planes(i, *sample["image"].shape[:2])
        return {**sample, "image": np.concatenate([sample["image"], planes], axis=2)}

    @property
    def labels(self) -> np.ndarray:
        """Those of the source, int32 `[n]`."""
        return self.source.labels

    @property
    def digest(self) -> str:
        """Of the source and the arguments."""
        return _digest(f"{self.source.digest} {self._k} {self._seed} {self._stream}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
