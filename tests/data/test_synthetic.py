"""Random bits: Philox's, a function of seed, part and number, one value over the image."""

import pickle

import numpy as np
from data_cases import equal, why

from hypersphere_jax.data import Arrays
from hypersphere_jax.data.synthetic import BitChannels, RandomBits
from hypersphere_jax.data.views import Concatenated

# Philox4x64-10 by its definition (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2,
# 3"), independent of numpy's.
ROUND = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
BUMP = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)


def philox(counter, key):
    c, k, low = [counter, 0, 0, 0], list(key), 2**64 - 1
    for _ in range(10):
        a, b = ROUND[0] * c[0], ROUND[1] * c[2]
        c = [(b >> 64) ^ c[1] ^ k[0], b & low, (a >> 64) ^ c[3] ^ k[1], a & low]
        k = [(k[0] + BUMP[0]) & low, (k[1] + BUMP[1]) & low]
    return c


def bits_by_definition(seed, stream, i, k):
    """numpy counts up before it draws, so image 0 has counter 1."""
    number = sum(word << (64 * place) for place, word in enumerate(philox(i + 1, (seed, stream))))
    return np.array([number >> place & 1 for place in range(k)])


def pictures(n, shape=(4, 5, 3)):
    images = np.random.default_rng(0).integers(0, 256, (n, *shape), dtype=np.uint8)
    return Arrays(images, np.arange(n) % 3, ("a", "b", "c"), "made here")


def test_bits_are_those_of_philox_at_every_pixel():
    """Of the seed, the number, and a stream for each part of the data, alone or beside images."""
    source = pictures(5)
    for k, part in ((1, 0), (9, 0), (256, 0), (9, 1)):
        alone = RandomBits(5, k, 3, seed=7, part=part)
        beside = BitChannels(source, k, seed=7, part=part)
        assert alone.image_shape == (3, 3, k) and beside.image_shape == (4, 5, 3 + k)
        assert beside.class_names == source.class_names
        assert alone.labels.tolist() == [-1] * 5 and beside.labels.tolist() == [0, 1, 2, 0, 1]
        for bits, stream, before in ((alone, 0, 0), (beside, 1, 3)):
            again = pickle.loads(pickle.dumps(bits))
            assert again.digest == bits.digest and len(bits) == 5
            for i in (4, 0, 2, 1, 3):
                expected = bits_by_definition(7, stream + 2 * part, i, k)
                image, label = again[i]["image"], again[i]["label"]
                assert image.dtype == np.uint8 and image.shape == bits.image_shape
                assert (image[..., before:] == 255 * expected).all() and label == bits.labels[i]
                equal(bits.bits[i], expected)
                equal(beside[i]["image"][..., :3], source[i]["image"])


def test_sizes_may_differ_and_every_option_counts_in_the_digest():
    wide = BitChannels(Concatenated([pictures(1), pictures(1, (6, 2, 3))]), 2)
    assert wide.image_shape is None and [wide[i]["image"].shape[0] for i in (0, 1)] == [4, 6]
    alone = [(9, 5, 2, 4), (8, 5, 2, 4), (9, 4, 2, 4), (9, 5, 3, 4), (9, 5, 2, 5), (9, 5, 2, 4, 1)]
    sources = [RandomBits(*options) for options in alone]
    sources += [BitChannels(pictures(9), *options) for options in ((5, 4), (4, 4), (5, 5))]
    sources += [BitChannels(pictures(9), 5, 4, 1), BitChannels(pictures(8), 5, 4), pictures(9)]
    assert len({source.digest for source in sources}) == len(sources)
    assert "from 1 to 256" in why(BitChannels, pictures(2), 300)
