"""Data sets of TensorFlow Datasets, read without TensorFlow."""

import json
import pickle
import sys

import numpy as np
import pytest
from data_cases import equal, images
from tfds_cases import example, noise, write

from hypersphere_jax.configs import UserError
from hypersphere_jax.data.source import UnreadableImage
from hypersphere_jax.data.tfds import TfdsSource, find_prepared, open_tfds, prepare

LABELS = [1, 0, 1, 1, 0, 1, 0]
IMAGES = noise(7)
OTHERS = noise(3, seed=1)
EXAMPLES = [example(image, label) for image, label in zip(IMAGES, LABELS, strict=True)]
UNLABELED = [example(image, -1) for image in OTHERS]
# Two shards of training images, and one of test images.
SPLITS = {"train": [EXAMPLES[:4], EXAMPLES[4:]], "test": [EXAMPLES[:2]]}


def test_records_are_read_without_tensorflow(tmp_path):
    write(tmp_path, SPLITS | {"unlabelled": [UNLABELED]})
    train, test, pretrain = open_tfds("shapes", tmp_path)
    part = TfdsSource(tmp_path / "shapes/1.0.0", "train[3:6]")
    for source, expected, labels in (
        (train, IMAGES, LABELS),
        (test, IMAGES[:2], LABELS[:2]),
        (pretrain, [*IMAGES, *OTHERS], [*LABELS, -1, -1, -1]),
        (pickle.loads(pickle.dumps(part)), IMAGES[3:6], LABELS[3:6]),
    ):
        assert source.labels.tolist() == [sample["label"] for sample in source] == labels
        equal(images(source), expected)
        assert source.class_names == ("circle", "square")
        assert source.image_shape == (8, 8, 3)
    assert "tensorflow" not in sys.modules


def test_depths(tmp_path):
    depths = np.random.default_rng(2).random((2, 4, 4)).astype(np.float32)
    records = [example(IMAGES[i], depth=depths[i]) for i in (0, 1)]
    source = TfdsSource(write(tmp_path, {"train": [records]}, depth=(4, 4)), "train")
    equal([sample["depth"] for sample in source], depths)
    assert source.labels.tolist() == [source[0]["label"]] * 2 == [-1, -1]


def test_fingerprint_depends_on_records_and_split(tmp_path):
    changed = [[example(255 - IMAGES[0], 1), *EXAMPLES[1:]], [example(IMAGES[0]), *EXAMPLES[1:]]]
    digests = []
    for number, records in enumerate([EXAMPLES, EXAMPLES[:-1], *changed, EXAMPLES]):
        folder = write(tmp_path / str(number), {"train": [records]})
        digests += [TfdsSource(folder, part).digest for part in ("train", "train[:3]")]
    assert len(set(digests)) == 8
    assert digests[:2] == digests[-2:]


@pytest.mark.parametrize(
    ("records", "labels"), [(EXAMPLES[:2], LABELS[:2]), (UNLABELED, LABELS[2:])]
)
def test_the_test_split_is_the_first_with_labels(records, labels, tmp_path):
    """`test`, otherwise `validation` (imagenet2012)."""
    write(tmp_path, {"train": [EXAMPLES], "validation": [EXAMPLES[2:]], "test": [records]})
    assert open_tfds("shapes", tmp_path)[1].labels.tolist() == labels


@pytest.mark.parametrize("more", [{}, {"unlabelled": [UNLABELED]}])
def test_without_a_test_split_a_tenth_is_held_out_and_not_pretrained_on(more, tmp_path):
    records = [example(image, i % 2) for i, image in enumerate(noise(40))]
    write(tmp_path, {"train": [records]} | more)
    train, test, pretrain = open_tfds("shapes", tmp_path)
    assert np.bincount(train.labels).tolist() == [18, 18]
    assert np.bincount(test.labels).tolist() == [2, 2]
    assert set(train.indices) | set(test.indices) == set(range(40))
    equal(images(pretrain), [*images(train), *(OTHERS if more else [])])


def test_versions_configs_and_the_default_folder(tmp_path, monkeypatch):
    for place in ("shapes/1.9.0", "shapes/1.10.0", "solids/round/1.0.0", "solids/flat/1.0.0"):
        write(tmp_path, SPLITS, place)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    names = ("shapes", "shapes:1.9.0", "solids/flat")
    found = [str(find_prepared(name)[0].relative_to(tmp_path)) for name in names]
    assert found == ["shapes/1.10.0", "shapes/1.9.0", "solids/flat/1.0.0"]
    with pytest.raises(UserError, match="solids"):
        find_prepared("solids", tmp_path)


def test_missing_and_damaged_data_are_refused(tmp_path):
    (write(tmp_path, SPLITS) / "shapes-train.array_record-00001-of-00002").unlink()
    with pytest.raises(UserError, match="00001-of-00002"):
        open_tfds("shapes", tmp_path)
    with pytest.raises(UserError, match="cifar10"):
        open_tfds("cifar10", tmp_path)
    for name in ("features", "dataset_info"):
        (tmp_path / f"shapes/1.0.0/{name}.json").write_text("{")
        with pytest.raises(UserError, match="shapes"):
            open_tfds("shapes", tmp_path)
    records = [EXAMPLES[0], example(b"no image", 1)]
    source = TfdsSource(write(tmp_path, {"train": [records]}, "cut/1.0.0"), "train")
    with pytest.raises(UnreadableImage, match="cut"):
        source[1]


# A class inside a string of JSON.
EVIL = {"type": "shapes.evil.Feature", "content": {}}
LABEL = {
    "pythonClassName": "tensorflow_datasets.core.features.sequence_feature.Sequence",
    "jsonFeature": {"json": f" {json.dumps({'feature': EVIL, 'length': 2})}"},
}


@pytest.mark.parametrize("label", [{"pythonClassName": "shapes.evil.Feature"}, LABEL])
def test_foreign_classes_are_refused_before_they_run(label, tmp_path, monkeypatch):
    """TFDS imports the modules of all classes that `features.json` names."""
    monkeypatch.syspath_prepend(tmp_path)
    file = write(tmp_path, SPLITS) / "features.json"
    (tmp_path / "shapes/evil.py").write_text("open(__file__ + '.ran', 'w')")
    content = json.loads(file.read_text())
    content["featuresDict"]["features"]["label"] = label
    file.write_text(json.dumps(content))
    for action, *arguments in (
        (open_tfds, "shapes", tmp_path),
        (prepare, "shapes", tmp_path),
        (TfdsSource, file.parent, "train"),
    ):
        with pytest.raises(UserError, match=r"shapes\.evil\.Feature"):
            action(*arguments)
    assert not list(tmp_path.rglob("*.ran"))
