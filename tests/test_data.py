"""The digits, .npz files, and the order of batches."""

import numpy as np
import pytest

from hypersphere_jax import data
from hypersphere_jax.config import DataConfig, UserError
from hypersphere_jax.data.sampling import Sampler


def test_digits():
    digits = data.load(DataConfig())
    assert digits.train.images.shape == (1400, 8, 8, 1)
    assert digits.test.images.shape == (397, 8, 8, 1)
    assert digits.train.images.dtype == np.uint8
    assert digits.train.images.min() == 0 and digits.train.images.max() == 255
    assert digits.class_names == tuple("0123456789")
    for split in digits[:2]:
        assert set(split.labels) == set(range(10))
    # The split is fixed for ever: recorded results depend on it.
    assert digits.test.labels[:10].tolist() == data.digits().test.labels[:10].tolist()
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
