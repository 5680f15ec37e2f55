"""Random bits: a function of seed and number, fair, independent, one value over the image."""

import pickle

import numpy as np
import pytest

from hypersphere_jax.config import UserError
from hypersphere_jax.data.source import Arrays
from hypersphere_jax.data.synthetic import BitChannels, RandomBits

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
    return [number >> place & 1 for place in range(k)]


def pictures(n, shape=(4, 5, 3)):
    images = np.random.default_rng(0).integers(0, 256, (n, *shape), dtype=np.uint8)
    return Arrays(images, np.arange(n) % 3, ("a", "b", "c"), "made here")


@pytest.mark.parametrize("k", [1, 9, 256])
def test_bits_are_those_of_philox(k):
    source = RandomBits(5, k, 3, seed=7)
    added = BitChannels(pictures(5), k, seed=7)
    for i in range(5):
        alone = np.array(bits_by_definition(7, 0, i, k))
        np.testing.assert_array_equal(source[i]["image"][0, 0], 255 * alone)
        beside = np.array(bits_by_definition(7, 1, i, k))
        np.testing.assert_array_equal(added[i]["image"][0, 0, 3:], 255 * beside)


def test_an_image_has_one_value_a_channel():
    source = RandomBits(20, 6, 5, seed=1)
    assert source.image_shape == (5, 5, 6) and len(source) == 20
    for i, sample in enumerate(source):
        assert sample["image"].shape == (5, 5, 6) and sample["image"].dtype == np.uint8
        assert (sample["image"] == sample["image"][0, 0]).all()
        np.testing.assert_array_equal(sample["image"][0, 0] > 0, source.bits[i])
        assert sample["label"] == -1
    assert source.labels.tolist() == [-1] * 20 and source.class_names == ()


def test_entropy_is_k_bits():
    """All integers are equally frequent: mean and variance of the counts as of a multinomial."""
    n, k = 64_000, 6
    integers = RandomBits(n, k, 1).bits @ (1 << np.arange(k))
    counts = np.bincount(integers, minlength=2**k)
    expected = n / 2**k
    chi2 = ((counts - expected) ** 2 / expected).sum()  # of 63 degrees: 63 ± 11
    assert 30 < chi2 < 110
    share = counts / n
    assert -(share * np.log2(share)).sum() == pytest.approx(k, abs=1e-3)


def test_other_seeds_give_other_bits():
    bits = [RandomBits(1000, 10, 1, seed).bits for seed in (0, 1, 2**32 - 1)]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert abs((bits[a] == bits[b]).mean() - 0.5) < 0.02
    np.testing.assert_array_equal(bits[1], RandomBits(2000, 10, 1, 1).bits[:1000])


def test_channels_are_added_to_the_image():
    source = pictures(6)
    wide = BitChannels(source, 4, seed=3)
    assert wide.image_shape == (4, 5, 7) and len(wide) == 6 and wide.extra_channels == 4
    assert wide.class_names == source.class_names
    np.testing.assert_array_equal(wide.labels, source.labels)
    for i in range(6):
        sample = wide[i]
        np.testing.assert_array_equal(sample["image"][..., :3], source[i]["image"])
        added = sample["image"][..., 3:]
        assert (added == added[0, 0]).all() and set(added.ravel()) <= {0, 255}
        np.testing.assert_array_equal(added[0, 0] > 0, wide.bits[i])
        assert sample["label"] == source[i]["label"]
    with pytest.raises(IndexError):
        wide[6]


def test_no_added_bits_change_nothing():
    source = pictures(3)
    np.testing.assert_array_equal(BitChannels(source, 0)[2]["image"], source[2]["image"])


def test_images_of_differing_size():
    class Two:
        class_names, origin, image_shape = (), "two", None

        def __len__(self):
            return 2

        def __getitem__(self, i):
            return {"image": np.zeros((3 + i, 4, 3), np.uint8), "label": -1, "depth": i}

    wide = BitChannels(Two(), 2)
    assert wide.image_shape is None
    assert [wide[i]["image"].shape for i in (0, 1)] == [(3, 4, 5), (4, 4, 5)]
    assert wide[1]["depth"] == 1


def test_pickled_and_in_any_order():
    for source in (RandomBits(9, 5, 2, 4), BitChannels(pictures(9), 5, 4)):
        again = pickle.loads(pickle.dumps(source))
        for i in (8, 0, 3):
            np.testing.assert_array_equal(again[i]["image"], source[i]["image"])
        assert again.digest == source.digest


def test_digest():
    sources = [RandomBits(*args) for args in ((9, 5, 2, 4), (8, 5, 2, 4), (9, 4, 2, 4))]
    sources += [RandomBits(9, 5, 3, 4), RandomBits(9, 5, 2, 5)]
    sources += [BitChannels(pictures(9), *args) for args in ((5, 4), (4, 4), (5, 5))]
    sources += [BitChannels(pictures(8), 5, 4), pictures(9)]
    assert len({source.digest for source in sources}) == len(sources)


@pytest.mark.parametrize("n, k, size, seed", [(0, 1, 1, 0), (1, 0, 1, 0), (1, 257, 1, 0)])
def test_impossible(n, k, size, seed):
    with pytest.raises(UserError, match=r"at least 1|from 1 to 256"):
        RandomBits(n, k, size, seed)


def test_impossible_channels():
    with pytest.raises(UserError, match="from 1 to 256"):
        BitChannels(pictures(2), 300)
    with pytest.raises(UserError, match="seed -1"):
        BitChannels(pictures(2), 3, -1)
