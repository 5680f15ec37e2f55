"""What `load` makes of a config: arrays, folders, names, and parts; the order of batches."""

import numpy as np
import pytest
from PIL import Image

from hypersphere_jax import data
from hypersphere_jax.config import DataConfig, UserError
from hypersphere_jax.data.sampling import Sampler


def test_digits():
    digits = data.load(DataConfig())
    assert digits.pretrain is digits.train and digits.recipe == "digits"
    assert digits.train.images.shape == (1400, 8, 8, 1) and len(digits.train) == 1400
    assert digits.test.images.shape == (397, 8, 8, 1)
    assert digits.train.images.dtype == np.uint8
    assert digits.train.images.min() == 0 and digits.train.images.max() == 255
    assert digits.class_names == tuple("0123456789")
    for split in digits[:2]:
        assert set(split.labels) == set(range(10))
    # The split is fixed for ever: recorded results depend on it.
    assert int(digits.test.labels.sum()) == TEST_LABEL_SUM
    from sklearn.datasets import load_digits

    both = np.concatenate([digits.train.labels, digits.test.labels])
    assert np.bincount(both).tolist() == np.bincount(load_digits().target).tolist()


TEST_LABEL_SUM = 1815


@pytest.fixture
def arrays(rng):
    images = rng.integers(0, 256, (6, 5, 5, 3), dtype=np.uint8)
    return {
        "train_images": images[:4],
        "train_labels": np.array([0, 1, 2, 0]),
        "test_images": images[4:],
        "test_labels": np.array([1, 2], np.uint8),
    }


def test_npz(tmp_path, arrays):
    file = tmp_path / "mine.npz"
    np.savez(file, **arrays)
    dataset = data.load(DataConfig(name=str(file)))
    np.testing.assert_array_equal(dataset.train.images, arrays["train_images"])
    np.testing.assert_array_equal(dataset.test.labels, [1, 2])
    assert dataset.test.labels.dtype == np.int32
    assert dataset.class_names == ("0", "1", "2") and dataset.origin == str(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test_labels": None}, "lacks test_labels"),
        ({"train_images": np.zeros((4, 5, 5, 3))}, r"uint8 \[n, h, w, c\], not float64"),
        ({"train_images": np.zeros((4, 5, 5), np.uint8)}, r"not uint8 \(4, 5, 5\)"),
        ({"train_labels": np.array([0, 1])}, r"4 integers from 0 .*, not int64 \(2,\)"),
        ({"test_labels": np.array([0, -1])}, "2 integers from 0"),
        ({"test_images": np.zeros((2, 4, 5, 3), np.uint8)}, "differ in shape"),
    ],
)
def test_bad_npz(tmp_path, arrays, change, message):
    file = tmp_path / "bad.npz"
    np.savez(file, **{k: v for k, v in (arrays | change).items() if v is not None})
    with pytest.raises(UserError, match=message):
        data.load(DataConfig(name=str(file)))


def test_no_npz(tmp_path):
    with pytest.raises(UserError, match="no file"):
        data.load(DataConfig(name=str(tmp_path / "none.npz")))
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 cut short")
    (tmp_path / "empty.npz").touch()
    np.save(tmp_path / "array.npy", np.zeros(3))
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    for name in ("cut", "empty", "array"):
        with pytest.raises(UserError, match="not a readable"):
            data.load(DataConfig(name=str(tmp_path / f"{name}.npz")))
    with pytest.raises(UserError, match="did you mean 'digits'"):
        data.load(DataConfig(name="digit"))


def test_npy(tmp_path, arrays):
    """A folder of .npy files is as the .npz of them; a lone file has images only."""
    np.savez(tmp_path / "mine.npz", **arrays)
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    packed = data.load(DataConfig(name=str(tmp_path / "mine.npz")))
    loose = data.load(DataConfig(name=str(folder)))
    for one, other in zip(packed[:2], loose[:2], strict=True):
        np.testing.assert_array_equal(one.images, other.images)
        np.testing.assert_array_equal(one.labels, other.labels)
        assert one.digest == other.digest
    alone = data.load(DataConfig(name=str(folder / "train_images.npy")))
    assert alone.test is None and set(alone.train.labels) == {-1} and alone.class_names == ()
    np.testing.assert_array_equal(alone.train[2]["image"], arrays["train_images"][2])
    (folder / "test_labels.npy").unlink()
    with pytest.raises(UserError, match=r"lacks test_labels\.npy"):
        data.load(DataConfig(name=str(folder)))


def test_views_of_a_data_set():
    whole = data.load(DataConfig())
    fifth = data.load(DataConfig(folds=5, fold=1, subset_seed=2))
    assert len(fifth.train) == 1120 and len(fifth.test) == 280
    assert fifth.pretrain is fifth.train  # the encoder sees nothing of the fold either
    tenth = data.load(DataConfig(fraction=0.1))
    assert 138 <= len(tenth.train) <= 142 and len(tenth.test) == 397
    even = data.load(DataConfig(subset="uniform", subset_size=50))
    assert np.bincount(even.train.labels).tolist() == [5] * 10
    digests = {d.digest() for d in (whole, fifth, tenth, even)}
    assert len(digests) == 4
    assert data.load(DataConfig(fraction=0.1)).digest() == tenth.digest()


def test_classes(tmp_path):
    (tmp_path / "some.txt").write_text("7\n3  # the three\n")
    some = data.load(DataConfig(classes=str(tmp_path / "some.txt")))
    whole = data.load(DataConfig())
    assert some.class_names == some.test.class_names == ("3", "7")
    for part, split in ((some.train, whole.train), (some.test, whole.test)):
        assert len(part) == np.isin(split.labels, (3, 7)).sum()
        assert set(part.labels) == {0, 1} and part[0]["label"] == part.labels[0]


def test_a_part_may_not_be_empty(tmp_path, arrays):
    arrays |= {"test_labels": np.array([1, 1])}
    np.savez(tmp_path / "mine.npz", **arrays)
    (tmp_path / "some.txt").write_text("0\n2\n")
    with pytest.raises(UserError, match="no test image is left"):
        data.load(DataConfig(name=str(tmp_path / "mine.npz"), classes=str(tmp_path / "some.txt")))


def test_a_folder_is_for_names(tmp_path):
    for name in ("digits", str(tmp_path / "mine.npz")):
        with pytest.raises(UserError, match="--data-dir says where"):
            data.load(DataConfig(name=name, data_dir=str(tmp_path)))


def test_bits_are_more_channels():
    plain, added = data.load(DataConfig()), data.load(DataConfig(bits=5))
    assert added.train.image_shape == (8, 8, 6) and added.pretrain is added.train
    image = added.train[3]["image"]
    np.testing.assert_array_equal(image[..., :1], plain.train[3]["image"])
    assert all(len(np.unique(image[..., channel])) == 1 for channel in range(1, 6))
    assert added.digest() != plain.digest()
    random = data.load(DataConfig(name="random_bits", bits=9))
    assert random.train.image_shape == (32, 32, 9) and random.recipe == "none"
    # No seed makes the test split of another one's training split.
    digests = {
        split.digest
        for seed in range(3)
        for split in data.load(DataConfig(name="random_bits", bits=9, subset_seed=seed))[:2]
    }
    assert len(digests) == 6


def test_names_and_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    with pytest.raises(UserError, match=r"data prepare cifar10"):
        data.load(DataConfig(name="cifar10"))
    with pytest.raises(UserError, match="no file or folder"):
        data.load(DataConfig(name=str(tmp_path / "nothing")))
    # A data set's name goes with a folder of its images.
    for split in ("train", "test"):
        for label, name in enumerate(("cat", "dog")):
            folder = tmp_path / "images" / split / name
            folder.mkdir(parents=True)
            for i in range(3):
                pixels = np.full((6, 6, 3), 60 * i + label, np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    named = data.load(DataConfig(name="cifar10", data_dir=str(tmp_path / "images")))
    by_path = data.load(DataConfig(name=str(tmp_path / "images")))
    assert named.recipe == "cifar10" and named.class_names == ("cat", "dog")
    assert named.digest() == by_path.digest() and len(named.train) == len(named.test) == 6
    monkeypatch.chdir(tmp_path)
    found = data.located(DataConfig(name="images"))
    assert found == {"name": str(tmp_path / "images"), "data_dir": None, "classes": None}


def test_sampler():
    sampler = Sampler(n=23, batch_size=5, seed=3)
    assert sampler.steps_per_epoch == 4
    epochs = [np.concatenate([sampler(e * 4 + s) for s in range(4)]) for e in range(3)]
    for order in epochs:
        assert len(set(order.tolist())) == 20 and order.min() >= 0 and order.max() < 23
    assert epochs[0].tolist() != epochs[1].tolist()
    # A function of (seed, step): in any order of calls, in any process.
    again = Sampler(n=23, batch_size=5, seed=3)
    np.testing.assert_array_equal(again(11), sampler(11))
    np.testing.assert_array_equal(again(2), sampler(2))
    assert Sampler(n=23, batch_size=5, seed=4)(2).tolist() != sampler(2).tolist()
    with pytest.raises(UserError, match="24 is more than the 23"):
        Sampler(n=23, batch_size=24, seed=0)
