"""Data that come as arrays: the digits, NumPy's files, and the source made of them."""

import numpy as np
from data_cases import equal, images, why
from sklearn.datasets import load_digits

from hypersphere_jax.config import DataConfig
from hypersphere_jax.data import Arrays, load


def arrays():
    pixels = np.random.default_rng(0).integers(0, 256, (6, 5, 5, 3), dtype=np.uint8)
    labels = {"train_labels": np.array([0, 1, 2, 0]), "test_labels": np.array([1, 2], np.uint8)}
    return {"train_images": pixels[:4], "test_images": pixels[4:], **labels}


def test_digits_are_those_of_scikit_learn_in_a_split_for_ever():
    bunch, digits = load_digits(), load(DataConfig())
    grey = np.floor(bunch.images * 255 / 16 + 0.5).astype(np.uint8)
    known = {image.tobytes(): label for image, label in zip(grey, bunch.target, strict=True)}
    assert digits.pretrain is digits.train and digits.recipe == "digits"
    assert digits.class_names == tuple("0123456789")
    for split, n in ((digits.train, 1400), (digits.test, 397)):
        assert split.images.shape == (n, 8, 8, 1) and split.images.dtype == np.uint8
        assert [known[image.tobytes()] for image in images(split)] == split.labels.tolist()
    seen = [image.tobytes() for image in [*images(digits.train), *images(digits.test)]]
    assert sorted(seen) == sorted(image.tobytes() for image in grey)
    # Recorded results depend on the split.
    assert int(digits.test.labels.sum()) == 1815
    assert digits.test.labels[:8].tolist() == [0, 4, 2, 7, 7, 9, 1, 9]


def test_npz_npy_and_a_lone_file(tmp_path):
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
    alone = load(DataConfig(str(folder / "test_images.npy")))
    assert alone.test is None and alone.train.labels.tolist() == [-1, -1]
    equal(images(alone.train), whole["test_images"])


def test_arrays_that_are_no_data_set(tmp_path):
    for name, array, message in (
        ("train_images", np.zeros((4, 5, 5, 3)), "uint8 [n, h, w, c], not float64"),
        ("train_labels", np.array([0, 1]), "4 integers from 0 to 999999"),
        ("test_labels", np.array([0, -1]), "2 integers from 0"),
        ("test_images", np.zeros((2, 4, 5, 3), np.uint8), "differ in shape"),
    ):
        np.savez(tmp_path / "bad.npz", **arrays() | {name: array})
        assert message in why(load, DataConfig(str(tmp_path / "bad.npz")))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "bad.npz").read_bytes()[:99])
    assert "not a readable" in why(load, DataConfig(str(tmp_path / "cut.npz")))


def test_digest_of_arrays():
    blank, labels = np.zeros((3, 2, 2, 1), np.uint8), np.array([0, 1, -1])
    other = blank.copy()
    other[2, 1, 1] = 1
    variants = [(blank, labels), (other, labels), (blank, labels + 1), (blank[:2], labels[:2])]
    variants += [(blank.reshape(3, 4, 1, 1), labels)]
    assert len({Arrays(*variant, (), "here").digest for variant in variants}) == 5
    same = Arrays(blank.copy(), labels.astype(np.int8), ("a", "b"), "there")
    assert same.digest == Arrays(blank, labels, (), "here").digest
