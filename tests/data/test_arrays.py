"""Arrays: the digits and NumPy's files; and random bits against their definition."""

import pickle

import numpy as np
from data_cases import equal, images, why
from sklearn.datasets import load_digits

from hypersphere_jax.configs import DataConfig
from hypersphere_jax.data import Arrays, load
from hypersphere_jax.data.subsets import Concatenated
from hypersphere_jax.data.synthetic import RandomBits, with_bits


def arrays():
    pixels = np.random.default_rng(0).integers(0, 256, (6, 5, 5, 3), dtype=np.uint8)
    labels = {"train_labels": np.array([0, 1, 2, 0]), "test_labels": np.array([1, 2], np.uint8)}
    return {"train_images": pixels[:4], "test_images": pixels[4:], **labels}


def test_digits_are_scikit_learns_in_a_fixed_split():
    bunch, digits = load_digits(), load(DataConfig())
    grey = np.floor(bunch.images * 255 / 16 + 0.5).astype(np.uint8)
    known = {image.tobytes(): label for image, label in zip(grey, bunch.target, strict=True)}
    assert digits.pretrain is digits.train and digits.recipe == "digits"
    assert digits.class_names == tuple("0123456789")
    for split, n in ((digits.train, 1400), (digits.test, 397)):
        assert split.images.shape == (n, 8, 8, 1) and split.images.dtype == np.uint8
        assert [known[image.tobytes()] for image in images(split)] == split.labels.tolist()
    seen = [image.tobytes() for image in [*images(digits.train), *images(digits.test)]]
    assert set(seen) == set(known)
    # Recorded results depend on the split.
    assert int(digits.test.labels.sum()) == 1815
    assert digits.test.labels[:8].tolist() == [0, 4, 2, 7, 7, 9, 1, 9]


def test_npz_and_npy_files(tmp_path):
    file, folder, whole = tmp_path / "mine.npz", tmp_path / "mine", arrays()
    np.savez(file, **whole)
    folder.mkdir()
    for name, array in whole.items():
        np.save(folder / f"{name}.npy", array)
    for place in (file, folder):
        found = load(DataConfig(str(place)))
        for part, source in (("train", found.train), ("test", found.test)):
            equal(images(source), whole[f"{part}_images"])
            equal(source.labels, whole[f"{part}_labels"])
            assert source[1]["label"] == source.labels[1] and source.labels.dtype == np.int32
            assert source.image_shape == (5, 5, 3) and source.origin == str(place)
        assert found.class_names == ("0", "1", "2") and found.pretrain is found.train
    assert load(DataConfig(str(file))).digest() == found.digest()
    # Classes that occur in either split are numbered for both splits and all folds.
    labels = {"train_labels": whole["train_labels"] * 0 + 5, "test_labels": np.array([-1, 999_999])}
    labels["train_labels"][0] = 1
    np.savez(tmp_path / "gaps.npz", **whole | labels)
    gaps = load(DataConfig(str(tmp_path / "gaps.npz")))
    assert gaps.class_names == gaps.test.class_names == ("1", "5", "999999")
    assert gaps.train.labels.tolist() == [0, *[1] * (len(gaps.train) - 1)]
    assert gaps.test.labels.tolist() == [-1, 2]
    part = load(DataConfig(str(tmp_path / "gaps.npz"), folds=2))
    assert part.class_names == gaps.class_names
    alone = load(DataConfig(str(folder / "test_images.npy")))
    assert alone.test is None and alone.train.labels.tolist() == [-1, -1]
    for array in (np.uint8(3), np.zeros((2, 0, 3, 1), np.uint8)):
        np.save(tmp_path / "a.npy", array)
        assert str(array.shape) in why(load, DataConfig(str(tmp_path / "a.npy")))
    for name, array, message in (
        ("train_images", np.full((4, 5, 5, 3), 2.0), "values from 2 to 2"),
        ("test_labels", np.array([0, -2]), "label -2"),
    ):
        np.savez(file, **whole | {name: array})
        assert message in why(load, DataConfig(str(file)))


def test_fingerprint_of_arrays():
    blank, labels = np.zeros((3, 2, 2, 1), np.uint8), np.array([0, 1, -1])
    other = blank.copy()
    other[2, 1, 1] = 1
    variants = [(blank, labels), (other, labels), (blank, labels + 1), (blank[:2], labels[:2])]
    variants += [(blank.reshape(3, 4, 1, 1), labels)]
    assert len({Arrays(*variant, (), "here").digest for variant in variants}) == 5
    same = Arrays(blank.copy(), labels.astype(np.int8), ("a", "b"), "there")
    assert same.digest == Arrays(blank, labels, (), "here").digest


def bits_by_definition(seed, stream, i, n):
    """Philox4x64-10 (Salmon et al. 2011); numpy counts before it draws: image 0 has counter 1."""
    c, k, low = [i + 1, 0, 0, 0], [seed, stream], 2**64 - 1
    for _ in range(10):
        a, b = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
        c = [(b >> 64) ^ c[1] ^ k[0], b & low, (a >> 64) ^ c[3] ^ k[1], a & low]
        k = [(k[0] + 0x9E3779B97F4A7C15) & low, (k[1] + 0xBB67AE8584CAA73B) & low]
    return np.array([c[place // 64] >> (place % 64) & 1 for place in range(n)])


def pictures(n, shape=(4, 5, 3)):
    images = np.random.default_rng(0).integers(0, 256, (n, *shape), dtype=np.uint8)
    return Arrays(images, np.arange(n) % 3, ("a", "b", "c"), "made here")


def test_bits_are_philox_bits_at_every_pixel():
    """A function of the seed, the index, and a stream for each split, with and without images."""
    source = pictures(5)
    for k, part in ((1, 0), (9, 0), (256, 0), (9, 1)):
        alone = RandomBits(5, k, 3, seed=7, part=part)
        beside = with_bits(source, k, seed=7, part=part)
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
                equal(beside[i]["image"][..., :3], source[i]["image"])


def test_sizes_may_differ_and_options_change_the_fingerprint():
    wide = with_bits(Concatenated([pictures(1), pictures(1, (6, 2, 3))]), 2)
    assert wide.image_shape is None and [sample["image"].shape[0] for sample in wide] == [4, 6]
    alone = [(9, 5, 2, 4), (8, 5, 2, 4), (9, 4, 2, 4), (9, 5, 3, 4), (9, 5, 2, 5), (9, 5, 2, 4, 1)]
    sources = [RandomBits(*options) for options in alone]
    sources += [with_bits(pictures(9), *options) for options in ((5, 4), (4, 4), (5, 5))]
    sources += [with_bits(pictures(9), 5, 4, 1), with_bits(pictures(8), 5, 4), pictures(9)]
    assert len({source.digest for source in sources}) == len(sources)
