"""Data sets of TensorFlow Datasets, read without TensorFlow."""

import json
import pickle
import sys

import numpy as np
import processes
import pytest
from data_cases import equal, images, why
from tfds_cases import example, noise, write

from hypersphere_jax.data.source import UnreadableImage
from hypersphere_jax.data.tfds import TfdsSource, find_prepared, open_tfds, prepare
from hypersphere_jax.utils import caches

LABELS = [1, 0, 1, 1, 0, 1, 0]
IMAGES, OTHERS = noise(7), noise(3, seed=1)
EXAMPLES = [example(image, label) for image, label in zip(IMAGES, LABELS, strict=True)]
# Two shards of training images, and one of test images.
SPLITS = {"train": [EXAMPLES[:4], EXAMPLES[4:]], "test": [EXAMPLES[:2]]}


def test_records_are_read_without_tensorflow(tmp_path):
    write(tmp_path, SPLITS | {"unlabelled": [[example(image, -1) for image in OTHERS]]})
    train, test, pretrain = open_tfds("shapes", tmp_path)
    part = TfdsSource(tmp_path / "shapes/1.0.0", "train[3:6]")
    for source, expected, labels in (
        (train, IMAGES, LABELS),
        (test, IMAGES, LABELS[:2]),
        (pretrain, [*IMAGES, *OTHERS], [*LABELS, -1, -1, -1]),
        (part, IMAGES[3:], LABELS[3:6]),
        (pickle.loads(pickle.dumps(part)), IMAGES[3:], LABELS[3:6]),
    ):
        assert source.labels.tolist() == labels and source.labels.dtype == np.int32
        assert [sample["label"] for sample in source] == labels
        equal(images(source), expected[: len(labels)])
        assert source.class_names == ("circle", "square") and source.image_shape == (8, 8, 3)
    assert "tensorflow" not in sys.modules


def test_depths_and_other_shapes(tmp_path):
    depths = np.random.default_rng(2).random((2, 4, 4)).astype(np.float32)
    records = [example(IMAGES[i], depth=depths[i]) for i in (0, 1)]
    source = TfdsSource(write(tmp_path, {"train": [records]}, depth=(4, 4)), "train")
    equal([sample["depth"] for sample in source], depths)
    equal(images(source), IMAGES[:2])
    assert source[1]["label"] == -1 and source.labels.tolist() == [-1, -1]
    for shape, expected in (((5, 6, 1), (5, 6, 1)), ((None, None, 4), None)):
        (image,) = noise(1, (5, 6, shape[2]))
        folder = write(tmp_path / f"{shape}", {"train": [[example(image)]]}, shape=shape)
        source = TfdsSource(folder, "train")
        assert source.image_shape == expected
        equal(source[0]["image"], image)


def test_fingerprint_and_cached_labels(tmp_path, monkeypatch):
    changed = [[example(255 - IMAGES[0], 1), *EXAMPLES[1:]], [example(IMAGES[0]), *EXAMPLES[1:]]]
    contents = enumerate([EXAMPLES, EXAMPLES[:-1], *changed, EXAMPLES])
    folders = [write(tmp_path / str(n), {"train": [records]}) for n, records in contents]
    digests = [TfdsSource(f, part).digest for f in folders for part in ("train", "train[:3]")]
    assert len(set(digests)) == 8 and digests[:2] == digests[-2:]
    monkeypatch.setattr(caches, "SLOW_SECONDS", -1)
    parts = (("train", LABELS), ("train[:4]", LABELS[:4]), ("train[1:5]", LABELS[1:5]))
    for part, labels in parts * 2:
        assert TfdsSource(folders[0], part).labels.tolist() == labels
    assert len(list(folders[0].glob("labels-*"))) == 3


def test_choice_of_the_test_split(tmp_path):
    splits = {"train": [EXAMPLES], "validation": [EXAMPLES[2:]]}
    unlabeled = [example(OTHERS[0], -1)]
    for name, records, labels in (("a", EXAMPLES[:2], LABELS[:2]), ("b", unlabeled, LABELS[2:])):
        write(tmp_path / name, splits | {"test": [records]})
        train, test, pretrain = open_tfds("shapes", tmp_path / name)
        assert test.labels.tolist() == labels and pretrain is train
    # Without a test split a tenth is held out, and not pretrained on.
    splits = {"train": [[example(image, i % 2) for i, image in enumerate(noise(40))]]}
    for name, more in (("shapes", {}), ("more", {"unlabelled": [unlabeled]})):
        write(tmp_path, splits | more, f"{name}/1.0.0")
        train, test, pretrain = open_tfds(name, tmp_path)
        assert np.bincount(train.labels).tolist() == [18, 18]
        assert np.bincount(test.labels).tolist() == [2, 2]
        assert set(train.indices) | set(test.indices) == set(range(40))
        equal(images(pretrain), [*images(train), *OTHERS[: len(more)]])


def test_versions_configs_and_the_default_folder(tmp_path, monkeypatch):
    for place in ("shapes/1.9.0", "shapes/1.10.0", "solids/round/1.0.0", "solids/flat/1.0.0"):
        write(tmp_path, SPLITS, place)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    names = ("shapes", "shapes:1.9.0", "solids/flat")
    found = [find_prepared(name)[0].relative_to(tmp_path) for name in names]
    assert list(map(str, found)) == ["shapes/1.10.0", "shapes/1.9.0", "solids/flat/1.0.0"]
    assert "solids/CONFIG" in why(find_prepared, "solids", tmp_path)


def test_missing_and_damaged_data(tmp_path):
    (write(tmp_path, SPLITS) / "shapes-train.array_record-00001-of-00002").unlink()
    assert "00001-of-00002" in why(open_tfds, "shapes", tmp_path)
    assert f"prepare cifar10 --data-dir {tmp_path}" in why(open_tfds, "cifar10", tmp_path)
    (tmp_path / "shapes/1.0.0/features.json").write_text("{")
    assert "shapes" in why(open_tfds, "shapes", tmp_path)
    records = [EXAMPLES[0], example(b"no image", 1)]
    source = TfdsSource(write(tmp_path, {"train": [records]}, "cut/1.0.0"), "train")
    assert "cut/1.0.0" in why(source.__getitem__, 1, error=UnreadableImage)


def test_only_other_formats_are_prepared_again(tmp_path):
    folder = write(tmp_path, SPLITS)
    assert prepare("shapes", tmp_path) == folder
    write(tmp_path, SPLITS, "cones/1.0.0", form="tfrecord")
    assert "tfrecord" in why(open_tfds, "cones", tmp_path)
    if "tensorflow" not in sys.modules:
        assert "TensorFlow" in why(prepare, "cones", tmp_path)


def write_foreign_classes(root, where="shapes/1.0.0"):
    """Write a data set that names a class next to it, in each form that TFDS reads."""
    (root / "shapes").mkdir(exist_ok=True)
    (root / "shapes/evil.py").write_text("open(__file__ + '.ran', 'w')")
    file = write(root, SPLITS, where) / "features.json"
    whole, evil = json.loads(file.read_text()), {"type": "shapes.evil.Feature", "content": {}}
    features = "tensorflow_datasets.core.features"
    inner = json.dumps({"feature": evil, "length": 2})
    for label in (
        {"pythonClassName": "shapes.evil.Feature", "classLabel": {"numClasses": "2"}},
        {"python_class_name": "shapes.evil.Feature", "tensor": {}},
        {
            "pythonClassName": f"{features}.sequence_feature.Sequence",
            "jsonFeature": {"json": f" {inner}"},
        },
    ):
        whole["featuresDict"]["features"]["label"] = label
        file.write_text(json.dumps(whole))
        yield
    whole = {"type": f"{features}.features_dict.FeaturesDict", "content": {"label": evil}}
    text = json.dumps(whole)
    for content in (text, text.replace("{", '{"type": "", ', 1)):  # TFDS uses the last key
        file.write_text(content)
        yield


def test_foreign_classes_are_refused_before_they_run(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    elsewhere = tmp_path / "shapes/.config/metadata.json"
    elsewhere.parent.mkdir(parents=True)
    for where in ("shapes/1.0.0", "other/deeply/nested/1.0.0"):
        if where.startswith("other"):
            (tmp_path / "shapes/1.0.0/features.json").unlink()
            elsewhere.write_text('{"default_config_name": "../other/deeply/nested"}')
        for _ in write_foreign_classes(tmp_path, where):
            for action, *arguments in (
                (open_tfds, "shapes", tmp_path),
                (open_tfds, "Shapes", tmp_path),  # the same name for TFDS
                (prepare, "shapes", tmp_path),
                (TfdsSource, tmp_path / where, "train"),
            ):
                assert "shapes.evil.Feature" in why(action, *arguments)
    assert "shapes.evil" not in sys.modules and not list(tmp_path.rglob("*.ran"))


@pytest.mark.slow
def test_command_line_refuses_foreign_classes(tmp_path):
    for _ in write_foreign_classes(tmp_path):
        command = ("run.py", "data", "inspect", "shapes", "--data-dir", str(tmp_path))
        done = processes.python(*command, env=processes.environment(PYTHONPATH=str(tmp_path)))
        assert done.returncode == 2 and done.stdout == "" and "shapes.evil.Feature" in done.stderr
        assert not list(tmp_path.rglob("*.ran"))
