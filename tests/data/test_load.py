"""Loading a config's data, parts of data sets without leakage, and their description."""

import numpy as np
import pytest
from data_cases import encoded, equal, images
from data_cases import write as write_files
from PIL import Image
from tfds_cases import example, noise, write

from hypersphere_jax import data
from hypersphere_jax.configs import DataConfig
from hypersphere_jax.data import load, subsets
from hypersphere_jax.data.describe import describe
from hypersphere_jax.data.pipeline import BadImages

DIGITS = load(DataConfig())
TAIL = subsets.long_tailed(DIGITS.train, 3)

PARTS = [
    ({"fraction": 0.1}, subsets.fraction(DIGITS.train, 0.1, 3)),
    ({"subset": "uniform"}, subsets.uniform(DIGITS.train, 3, len(TAIL))),
    ({"subset": "uniform", "subset_size": 50}, subsets.uniform(DIGITS.train, 3, 50)),
    ({"subset": "long_tailed", "fraction": 0.5}, subsets.fraction(TAIL, 0.5, 3)),
]


@pytest.mark.parametrize(("options", "part"), PARTS)
def test_parts_are_drawn_from_the_training_split(options, part):
    found = load(DataConfig(subset_seed=3, **options))
    assert found.digest() == f"{part.digest}-{DIGITS.test.digest}"


def test_a_fold_replaces_the_test_split():
    part, held_out = subsets.fold(DIGITS.train, 5, 2, 3)
    found = load(DataConfig(subset_seed=3, folds=5, fold=2, fraction=0.2))
    assert found.digest() == f"{subsets.fraction(part, 0.2, 3).digest}-{held_out.digest}"


def test_classes_are_kept_in_both_splits(tmp_path):
    (tmp_path / "some.txt").write_text("7\n3  # the three\n")
    found = load(DataConfig(classes=str(tmp_path / "some.txt")))
    parts = [subsets.by_class(split, "37").digest for split in (DIGITS.train, DIGITS.test)]
    assert found.digest() == "-".join(parts)
    assert found.class_names == ("3", "7")


@pytest.mark.parametrize(
    ("part", "n"), [({}, 20), ({"fraction": 0.5}, 10), ({"folds": 4, "fold": 1}, 15)]
)
def test_pretraining_on_a_part_adds_only_unlabeled_images(part, n, tmp_path):
    """A held-out fold and images outside of a fraction are not pretrained on (STL-10)."""
    labelled = [example(image, i % 2) for i, image in enumerate(noise(20))]
    unlabelled = noise(7, seed=1)
    records = [example(image, -1) for image in unlabelled]
    root = tmp_path / "data.v2"
    write(root, {"train": [labelled], "test": [labelled[:2]], "unlabelled": [records]})
    found = load(DataConfig(data="shapes", data_dir=str(root), **part))
    assert len(found.train) == n
    assert found.pretrain.labels.tolist() == [*found.train.labels.tolist(), *[-1] * 7]
    equal(images(found.pretrain), [*images(found.train), *unlabelled])


def test_bits_are_more_channels_and_differ_between_splits_and_seeds():
    found = load(DataConfig(bits=60))
    assert found.train.image_shape == (8, 8, 61)
    equal(found.test[3]["image"][..., :1], DIGITS.test[3]["image"])
    other = load(DataConfig(bits=60, subset_seed=1))
    seen = set()
    for split in (found.train, found.test, other.train):
        seen |= {split[i]["image"][0, 0, 1:].tobytes() for i in range(397)}
    assert len(seen) == 3 * 397


def test_a_folder_may_replace_a_data_set_by_name(folder, tmp_path, monkeypatch):
    by_path = load(DataConfig(data=str(folder)))
    assert [len(by_path.train), len(by_path.test)] == [6, 3]
    for name, recipe in (("cifar100", "cifar10"), ("imagenet2012", "moco_v2"), ("stl10", "stl10")):
        named = load(DataConfig(data=name, data_dir=str(folder)))
        assert named.recipe == recipe
        assert named.digest() == by_path.digest()
    monkeypatch.chdir(tmp_path)
    found = data.located(DataConfig(data=folder.name, classes="some.txt"))
    assert found == {"data": str(folder), "classes": str(tmp_path / "some.txt")}


def test_description_is_of_all_pixels(tmp_path, rng):
    files = {}
    for name, count in {"train/cat": 10, "train/dog": 3}.items():
        for number in range(count):
            shape = (6, 9, 3) if number % 2 else (5, 5, 3)
            pixels = rng.integers(0, (256, 200, 100), shape).astype(np.uint8)
            files[f"{name}/{number}.png"] = encoded(Image.fromarray(pixels))
    source = load(DataConfig(str(write_files(tmp_path, files)))).train
    found = describe(source, BadImages(source, "error"))
    pixels = np.concatenate([image.reshape(-1, 3) for image in images(source)]) / 255
    np.testing.assert_allclose(found["mean"], pixels.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found["std"], pixels.std(0), rtol=1e-10)
    assert found["class_counts"] == {"cat": 10, "dog": 3}
    assert found["n"] == found["read"] == 13
    assert (found["smallest"], found["largest"]) == ((5, 5, 3), (6, 9, 3))
