"""Loading a config's data, parts of data sets without leakage, and the command `data`."""

import data_cases as files
import numpy as np
import pytest
from data_cases import equal, images, why
from PIL import Image
from tfds_cases import example, noise, write

from hypersphere_jax import data
from hypersphere_jax.configs import DataConfig, InspectConfig
from hypersphere_jax.data import load, subsets
from hypersphere_jax.data.describe import describe
from hypersphere_jax.data.pipeline import BadImages
from hypersphere_jax.reporting import datasets, plots


def test_parts_are_views_of_the_training_split(tmp_path):
    whole, classes = load(DataConfig()), tmp_path / "some.txt"
    train, test = whole.train, whole.test
    classes.write_text("7\n3  # the three\n")
    tail, fold = subsets.long_tailed(train, 3), subsets.fold(train, 5, 2, 3)
    for options, expected, tested in (
        ({"fraction": 0.1}, subsets.fraction(train, 0.1, 3), test),
        ({"subset": "long_tailed"}, tail, test),
        ({"subset": "uniform"}, subsets.uniform(train, 3, len(tail)), test),
        ({"subset": "uniform", "subset_size": 50}, subsets.uniform(train, 3, 50), test),
        ({"subset": "long_tailed", "fraction": 0.5}, subsets.fraction(tail, 0.5, 3), test),
        ({"folds": 5, "fold": 2, "fraction": 0.2}, subsets.fraction(fold[0], 0.2, 3), fold[1]),
        ({"classes": str(classes)}, *(subsets.by_class(part, "37") for part in (train, test))),
    ):
        found = load(DataConfig(subset_seed=3, **options))
        assert found.pretrain is found.train
        assert found.digest() == f"{expected.digest}-{tested.digest}" != whole.digest(), options
        assert found.class_names == expected.class_names


def test_pretraining_on_a_part_adds_only_unlabeled_images(tmp_path):
    """A held-out fold and images outside of a fraction are not pretrained on (STL-10)."""
    labelled = [example(image, i % 2) for i, image in enumerate(noise(20))]
    unlabelled = noise(7, seed=1)
    records = [example(image, -1) for image in unlabelled]
    write(tmp_path, {"train": [labelled], "test": [labelled[:2]], "unlabelled": [records]})
    for part, n in (({}, 20), ({"fraction": 0.5}, 10), ({"folds": 4, "fold": 1}, 15)):
        found = load(DataConfig(data="shapes", data_dir=str(tmp_path), **part))
        assert len(found.train) == n
        assert found.pretrain.labels.tolist() == [*found.train.labels.tolist(), *[-1] * 7]
        equal(images(found.pretrain), [*images(found.train), *unlabelled])


def test_bits_are_more_channels():
    plain, added = load(DataConfig()), load(DataConfig(bits=60))
    assert added.train.image_shape == (8, 8, 61) and added.pretrain is added.train
    for split, before in ((added.train, plain.train), (added.test, plain.test)):
        equal(split[3]["image"][..., :1], before[3]["image"])
        equal(split.labels, before.labels)
    # No image of the test split has the bits of a training image.
    bits = [{split[i]["image"][0, 0, 1:].tobytes() for i in range(397)} for split in added[:2]]
    other = load(DataConfig(bits=60, subset_seed=1)).train
    assert not bits[0] & (bits[1] | {other[i]["image"][0, 0, 1:].tobytes() for i in range(397)})
    # Nor does a seed make the test split of another one's training split.
    configs = [DataConfig(data="random_bits", bits=9, subset_seed=seed) for seed in range(3)]
    splits = [split for config in configs for split in load(config)[:2]]
    assert len({split.digest for split in splits}) == 6 and load(configs[0]).recipe == "none"


def test_names_and_places(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    by_path = load(DataConfig(data=str(folder)))
    assert [len(by_path.train), len(by_path.test)] == [6, 3] and by_path.recipe == "stl10"
    for name, recipe in (("cifar100", "cifar10"), ("imagenet2012", "moco_v2"), ("stl10", "stl10")):
        named = load(DataConfig(data=name, data_dir=str(folder)))
        assert named.recipe == recipe and named.digest() == by_path.digest()
    for name, *named in (
        ("cifar10", "data prepare cifar10"),
        ("cifar", "'cifar10'?"),
        ("CIFAR10", "'cifar10'?"),
        ("my-fotos", "data list"),
    ):
        message = why(load, DataConfig(data=name))
        assert all(part in message for part in (name, str(tmp_path), *named)), message
    monkeypatch.chdir(tmp_path)
    config, some = DataConfig(data=folder.name, classes="some.txt"), str(tmp_path / "some.txt")
    assert data.located(config) == {"data": str(folder), "data_dir": None, "classes": some}


@pytest.fixture
def animals(tmp_path, rng):
    """10 cats and 3 dogs in two sizes, and a few of these for testing."""
    made, counts = {}, {"train/cat": 10, "train/dog": 3, "test/cat": 2, "test/dog": 2}
    for folder, number in ((folder, n) for folder, count in counts.items() for n in range(count)):
        shape = (6, 9, 3) if number % 2 else (5, 5, 3)
        pixels = rng.integers(0, (256, 200, 100), shape).astype(np.uint8)
        made[f"{folder}/{number}.png"] = files.encoded(Image.fromarray(pixels))
    return str(files.write(tmp_path / "animals", made))


def test_description_is_of_all_pixels(animals, monkeypatch):
    source = load(DataConfig(animals)).train
    found = describe(source, BadImages(source, "error"))
    pixels = np.concatenate([source[i]["image"].reshape(-1, 3) for i in range(13)]) / 255
    np.testing.assert_allclose(found["mean"], pixels.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found["std"], pixels.std(0), rtol=1e-10)
    assert found["class_counts"] == {"cat": 10, "dog": 3} and found["n"] == found["read"] == 13
    assert (found["smallest"], found["largest"]) == ((5, 5, 3), (6, 9, 3))
    # A sample is spread evenly over the split; all labels are counted.
    labels, read, item = np.arange(1400) % 3 - 1, [], data.Arrays.__getitem__
    source = data.Arrays(np.zeros((1400, 2, 2, 1), np.uint8), labels, ("a", "b"), "")
    monkeypatch.setattr(data.Arrays, "__getitem__", lambda it, i: read.append(i) or item(it, i))
    found = describe(source, BadImages(source, "error"), 14)
    assert (found["class_counts"], found["unlabeled"]) == ({"a": 467, "b": 466}, 467)
    assert sorted(read) == list(range(0, 1400, 100)) and (found["read"], found["n"]) == (14, 1400)


def test_inspect(capsys, tmp_path, animals):
    cut = tmp_path / "animals/train/cat/4.png"
    cut.write_bytes(cut.read_bytes()[:60])
    assert "cat/4.png" in why(datasets.inspect, InspectConfig(data=animals))
    datasets.inspect(InspectConfig(data=animals, bad_images="skip"))
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["train", "13", "0", "2", "3", "to", "10", "5x5x3", "to", "6x9x3"] in rows
    assert ["cat", "10", "2"] in rows and ["dog", "3", "2"] in rows
    assert ["train", "12", "1"] in [row[:3] for row in rows]  # one of 13 is unreadable


def test_show_draws_two_views_of_each_image(tmp_path, monkeypatch, animals):
    drawn, out = [], tmp_path / "sheet.png"
    monkeypatch.setattr(plots, "view_sheet", lambda *a: drawn.append(a))
    config = InspectConfig(data=animals, recipe="moco_v2:crop_flip")
    datasets.show(config, image_size=12, count=5, out=out)
    _, names, _, subsets, path = drawn[0]
    assert names == ["cat", "cat", "cat", "cat", "dog"] and path == out
    # Views for display are not normalized. The two views differ.
    assert subsets.shape == (5, 2, 12, 12, 3) and subsets.min() >= 0 and subsets.max() <= 1
    assert np.abs(subsets[:, 0] - subsets[:, 1]).max() > 0.1
    datasets.show(InspectConfig(data="digits", recipe="none", bits=2), count=3, out=out)
    _, _, shown, subsets, _ = drawn[1]
    np.testing.assert_allclose(subsets, np.stack([shown, shown], axis=1), atol=1e-6)
