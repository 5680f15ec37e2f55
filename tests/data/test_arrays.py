"""Sources of arrays: the embedded digits, and NumPy's files."""

import numpy as np
import pytest
from data_cases import equal, images
from sklearn.datasets import load_digits

from hypersphere_jax.configs import DataConfig, UserError
from hypersphere_jax.data import Arrays, load

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 5, 5, 3), dtype=np.uint8)
SPLITS = {
    "train_images": PIXELS[:4],
    "train_labels": np.array([0, 1, 2, 0]),
    "test_images": PIXELS[4:],
    "test_labels": np.array([1, 2], np.uint8),
}


def test_digits_are_scikit_learns_in_a_fixed_split():
    bunch = load_digits()
    digits = load(DataConfig())
    gray = np.floor(bunch.images * 255 / 16 + 0.5).astype(np.uint8)
    labels = {image.tobytes(): label for image, label in zip(gray, bunch.target, strict=True)}
    assert digits.pretrain is digits.train
    for split, n in ((digits.train, 1400), (digits.test, 397)):
        assert split.images.shape == (n, 8, 8, 1)
        assert [labels[image.tobytes()] for image in images(split)] == split.labels.tolist()
    seen = {image.tobytes() for image in [*images(digits.train), *images(digits.test)]}
    assert seen == set(labels)
    # Recorded results depend on the split.
    assert digits.test.labels[:8].tolist() == [0, 4, 2, 7, 7, 9, 1, 9]


@pytest.mark.parametrize("form", ["npz", "folder"])
def test_npz_file_and_npy_folder(form, tmp_path):
    if form == "npz":
        np.savez(tmp_path / "mine.npz", **SPLITS)
    for name, array in SPLITS.items():
        np.save(tmp_path / f"{name}.npy", array)
    found = load(DataConfig(str(tmp_path / "mine.npz" if form == "npz" else tmp_path)))
    for name, source in (("train", found.train), ("test", found.test)):
        equal(images(source), SPLITS[f"{name}_images"])
        equal(source.labels, SPLITS[f"{name}_labels"])
        assert source.image_shape == (5, 5, 3)
    assert found.class_names == ("0", "1", "2")


def test_npy_file_contains_images_without_labels(tmp_path):
    np.save(tmp_path / "mine.npy", PIXELS)
    found = load(DataConfig(str(tmp_path / "mine.npy")))
    equal(images(found.pretrain), PIXELS)
    assert found.test is None


def test_classes_of_both_splits_are_numbered_together(tmp_path):
    labels = {"train_labels": np.array([5, 1, 5, 5]), "test_labels": np.array([-1, 999_999])}
    np.savez(tmp_path / "gaps.npz", **SPLITS | labels)
    found = load(DataConfig(str(tmp_path / "gaps.npz")))
    assert found.class_names == found.test.class_names == ("1", "5", "999999")
    assert found.train.labels.tolist() == [1, 0, 1, 1]
    assert found.test.labels.tolist() == [-1, 2]


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("train_images", np.zeros((4, 6, 5, 3), np.uint8)),
        ("train_images", np.zeros((4, 0, 5, 3), np.uint8)),
        ("test_labels", np.array([0])),
    ],
)
def test_invalid_arrays_are_refused(name, array, tmp_path):
    np.savez(tmp_path / "mine.npz", **SPLITS | {name: array})
    with pytest.raises(UserError, match=r"mine\.npz"):
        load(DataConfig(str(tmp_path / "mine.npz")))


def test_fingerprint_depends_on_images_shape_and_labels():
    blank = np.zeros((3, 2, 2, 1), np.uint8)
    labels = np.array([0, 1, -1])
    other = blank.copy()
    other[2, 1, 1] = 1
    variants = [(blank, labels), (other, labels), (blank, labels + 1), (blank[:2], labels[:2])]
    variants += [(blank.reshape(3, 4, 1, 1), labels)]
    assert len({Arrays(*variant, (), "here").digest for variant in variants}) == 5
    same = Arrays(blank.copy(), labels.astype(np.int8), ("a", "b"), "there")
    assert same.digest == Arrays(blank, labels, (), "here").digest
