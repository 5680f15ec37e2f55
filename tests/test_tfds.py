"""Data sets of TensorFlow Datasets: read without TensorFlow; what stops one says what to do."""

import importlib.util
import json
import pickle
import subprocess
import sys
import threading
import time
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from tfds_cases import example, pictures, write

from hypersphere_jax.config import UserError
from hypersphere_jax.data import tfds_prepare
from hypersphere_jax.data.source import UnreadableImage
from hypersphere_jax.data.tfds_prepare import prepare
from hypersphere_jax.data.tfds_source import TfdsSource, find_prepared, open_tfds

LABELS = [1, 0, 1, 1, 0, 1, 0]
IMAGES = pictures(len(LABELS))
EXAMPLES = [example(image, label) for image, label in zip(IMAGES, LABELS, strict=True)]
OTHERS = pictures(3, seed=1)
UNLABELLED = [example(image, -1) for image in OTHERS]


@pytest.fixture
def root(tmp_path):
    """Two shards of training images, one of test images, and some without label."""
    splits = {"train": [EXAMPLES[:4], EXAMPLES[4:]], "test": [EXAMPLES[:2]]}
    write(tmp_path, splits | {"unlabelled": [UNLABELLED]})
    return tmp_path


def test_reads_what_was_written(root):
    train, test, pretrain = open_tfds("shapes", root)
    assert [len(train), len(test), len(pretrain)] == [7, 2, 10]
    for source, images, labels in (
        (train, IMAGES, LABELS),
        (test, IMAGES, LABELS[:2]),
        (pretrain, [*IMAGES, *OTHERS], [*LABELS, -1, -1, -1]),
    ):
        for i, label in enumerate(labels):
            assert source[i].keys() == {"image", "label"}
            np.testing.assert_array_equal(source[i]["image"], images[i])
            assert source[i]["image"].dtype == np.uint8
            assert source[i]["label"] == label
        assert source.labels.dtype == np.int32
        assert source.labels.tolist() == labels
        assert source.class_names == ("circle", "square")
        assert source.image_shape == (8, 8, 3)
        with pytest.raises(IndexError):
            source[len(labels)]
    assert "shapes/1.0.0" in train.origin and str(root) in train.origin


def test_part_of_a_split(root):
    part = TfdsSource(find_prepared("shapes", root), "train[3:6]")
    assert part.labels.tolist() == [part[i]["label"] for i in range(3)] == LABELS[3:6]


def test_from_threads_and_other_processes(root):
    train, _, _ = open_tfds("shapes", root)
    with ThreadPoolExecutor(8) as pool:
        images = list(pool.map(lambda i: train[i % 7]["image"], range(70)))
    np.testing.assert_array_equal(images, np.tile(IMAGES, (10, 1, 1, 1)))
    again = pickle.loads(pickle.dumps(train))
    np.testing.assert_array_equal(again[5]["image"], IMAGES[5])
    assert again.digest == train.digest


def test_reading_imports_no_tensorflow(root):
    code = f"""
import sys
import hypersphere_jax.data
assert "tensorflow_datasets" not in sys.modules
from hypersphere_jax.data.tfds_source import open_tfds
train, test, pretrain = open_tfds("shapes", {str(root)!r})
assert train[3]["label"] == 1 and len(pretrain.labels) == 10 and test.digest
assert "tensorflow_datasets" in sys.modules and "tensorflow" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=Path.cwd())


def test_further_features_come_along(tmp_path):
    depths = np.random.default_rng(2).random((2, 4, 4)).astype(np.float32)
    records = [example(IMAGES[i], depth=depths[i]) for i in (0, 1)]
    write(tmp_path, {"train": [records], "validation": [records[1:]]}, names=(), depth=(4, 4))
    train, test, pretrain = open_tfds("shapes", tmp_path)
    assert pretrain is train and len(test) == 1
    sample = train[1]
    np.testing.assert_array_equal(sample["depth"], depths[1])
    np.testing.assert_array_equal(sample["image"], IMAGES[1])
    assert sample["label"] == -1 and train.labels.tolist() == [-1, -1]
    assert train.class_names == ()


@pytest.mark.parametrize("channels", [1, 4])
def test_other_channels_stay(tmp_path, channels):
    images = pictures(2, (5, 6, channels))
    write(tmp_path, {"train": [[example(image, 0) for image in images]]}, shape=(5, 6, channels))
    source = TfdsSource(find_prepared("shapes", tmp_path), "train")
    np.testing.assert_array_equal(source[1]["image"], images[1])
    assert source.image_shape == (5, 6, channels)


def test_sizes_may_differ(tmp_path):
    images = [pictures(1, (5, 6, 3))[0], pictures(1, (9, 4, 3))[0]]
    records = [example(image, 0) for image in images]
    write(tmp_path, {"train": [records]}, shape=(None, None, 3))
    source = TfdsSource(find_prepared("shapes", tmp_path), "train")
    assert source.image_shape is None
    assert [source[i]["image"].shape for i in (0, 1)] == [(5, 6, 3), (9, 4, 3)]


def test_digest_changes_with_an_image_a_label_and_the_split(tmp_path):
    digests = []
    for number, records in enumerate(
        (
            EXAMPLES,
            EXAMPLES[:-1],
            [example(IMAGES[0], 0), *EXAMPLES[1:]],
            [example(255 - IMAGES[0], 1), *EXAMPLES[1:]],
        )
    ):
        folder = write(tmp_path / str(number), {"train": [records]})
        digests += [TfdsSource(folder, split).digest for split in ("train", "train[:3]")]
    assert len(set(digests)) == len(digests)
    again = write(tmp_path / "again", {"train": [EXAMPLES]})
    assert TfdsSource(again, "train").digest == digests[0]


def test_labels_are_read_once(root, monkeypatch):
    folder = find_prepared("shapes", root)
    assert TfdsSource(folder, "train").labels.tolist() == LABELS
    later = TfdsSource(folder, "train")
    monkeypatch.setattr(later, "_parse", None)
    assert later.labels.tolist() == LABELS
    for file in folder.glob("labels-*.npy"):
        file.write_bytes(b"damaged")
    assert TfdsSource(folder, "train").labels.tolist() == LABELS


def test_labels_without_leave_to_write(root, monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(np, "save", refuse)
    assert open_tfds("shapes", root)[0].labels.tolist() == LABELS


def test_a_test_split_without_labels_gives_way(tmp_path):
    write(tmp_path, {"train": [EXAMPLES], "validation": [EXAMPLES[2:]], "test": [UNLABELLED]})
    assert open_tfds("shapes", tmp_path)[1].labels.tolist() == LABELS[2:]


def test_without_a_test_split_a_tenth_is_held_out(tmp_path):
    records = [example(image, i % 2) for i, image in enumerate(pictures(40))]
    write(tmp_path, {"train": [records]})
    train, test, pretrain = open_tfds("shapes", tmp_path)
    assert np.bincount(train.labels).tolist() == [18, 18]
    assert np.bincount(test.labels).tolist() == [2, 2]
    assert pretrain is train  # what is tested on is not trained on


def test_versions_and_configs(tmp_path):
    for version in ("1.9.0", "1.10.0"):
        write(tmp_path, {"train": [EXAMPLES]}, f"shapes/{version}")
    assert find_prepared("shapes", tmp_path).name == "1.10.0"
    assert find_prepared("shapes:1.9.0", tmp_path).name == "1.9.0"
    with pytest.raises(UserError, match=r"version 2\.0\.0 is not in .*shapes, but 1\.10\.0 is"):
        find_prepared("shapes:2.0.0", tmp_path)

    write(tmp_path, {"train": [EXAMPLES]}, "solids/round/1.0.0")
    assert find_prepared("solids", tmp_path) == tmp_path / "solids/round/1.0.0"
    write(tmp_path, {"train": [EXAMPLES]}, "solids/flat/1.0.0")
    assert TfdsSource(find_prepared("solids/flat:1.0.0", tmp_path), "train")[0]["label"] == 1
    with pytest.raises(UserError, match="has the configs flat, round: name one, as solids/flat"):
        find_prepared("solids", tmp_path)
    (tmp_path / "solids/.config").mkdir()
    metadata = tmp_path / "solids/.config/metadata.json"
    metadata.write_text(json.dumps({"default_config_name": "round"}))
    assert find_prepared("solids", tmp_path) == tmp_path / "solids/round/1.0.0"


def test_standard_folder(root, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(root))
    assert find_prepared("shapes") == root / "shapes/1.0.0"
    with pytest.raises(UserError, match=r"run `python run\.py data prepare cifar10`"):
        find_prepared("cifar10")


def test_damaged_image(tmp_path):
    write(tmp_path, {"train": [[EXAMPLES[0], example(b"no image", 1)]]})
    source = TfdsSource(find_prepared("shapes", tmp_path), "train")
    assert source[0]["label"] == 1
    with pytest.raises(UnreadableImage, match=r"image 1.*shapes/1\.0\.0"):
        source[1]


@pytest.mark.parametrize(
    "name, message",
    [
        (
            "cifar10",
            r"looked in .*/cifar10; run `python .* prepare cifar10 --data-dir",
        ),
        ("cifar", "no data set 'cifar' .did you mean cifar10"),
        ("shapes of mine", "is no name of TFDS"),
        ("../shapes", "is no name of TFDS"),
    ],
)
def test_not_there(root, name, message):
    with pytest.raises(UserError, match=message):
        open_tfds(name, root)


def test_unknown_split_and_missing_file(root):
    folder = find_prepared("shapes", root)
    for split in ("nope", "train+nope", "train[", "train[7:]"):
        with pytest.raises(UserError, match=r"split .*: .* has the splits test, train, unlabelled"):
            TfdsSource(folder, split)
    (folder / "shapes-train.array_record-00001-of-00002").unlink()
    with pytest.raises(UserError, match="1 of 2 files are missing"):
        TfdsSource(folder, "train")


def test_unreadable_description(root):
    folder = find_prepared("shapes", root)
    (folder / "features.json").write_text("{")
    with pytest.raises(UserError, match="no readable data set"):
        TfdsSource(folder, "train")
    (folder / "dataset_info.json").write_text("{")
    with pytest.raises(UserError, match="no readable data set"):
        open_tfds("shapes", root)


def test_only_8_bit_images(tmp_path):
    write(tmp_path, {"train": [EXAMPLES]}, dtype="uint16")
    with pytest.raises(UserError, match="must be uint8, not uint16"):
        open_tfds("shapes", tmp_path)


def test_no_training_split(tmp_path):
    write(tmp_path, {"everything": [EXAMPLES]})
    with pytest.raises(UserError, match="has no split 'train', only everything"):
        open_tfds("shapes", tmp_path)


def test_library_not_installed(root, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(UserError, match=r"pip install -r requirements\.txt"):
        open_tfds("shapes", root)


def test_tfrecord_files_get_array_record_beside_them(tmp_path):
    splits = {"train": [EXAMPLES[:4], EXAMPLES[4:]], "test": [EXAMPLES[:2]]}
    folder = write(tmp_path, splits, form="tfrecord")
    with pytest.raises(UserError, match=r"prepared as tfrecord.*prepare shapes --data-dir"):
        open_tfds("shapes", tmp_path)
    assert prepare("shapes", tmp_path) == folder
    train, _, _ = open_tfds("shapes", tmp_path)
    np.testing.assert_array_equal([sample["image"] for sample in train], IMAGES)
    assert train.labels.tolist() == LABELS
    assert not list(folder.glob("*.part"))


def test_damaged_tfrecord(tmp_path):
    folder = write(tmp_path, {"train": [EXAMPLES]}, form="tfrecord")
    file = folder / "shapes-train.tfrecord-00000-of-00001"
    whole = file.read_bytes()
    file.write_bytes(whole[:-9])
    with pytest.raises(UserError, match="ends within a record"):
        prepare("shapes", tmp_path)
    file.write_bytes(whole[: 16 + len(EXAMPLES[0])])
    with pytest.raises(UserError, match="has 1 of 7 records"):
        prepare("shapes", tmp_path)
    with pytest.raises(UserError, match="prepared as tfrecord"):
        find_prepared("shapes", tmp_path)


def test_prepared_data_need_no_tensorflow_to_be_found(root):
    assert prepare("shapes", root) == root / "shapes/1.0.0"


def test_preparing_without_tensorflow(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install -r requirements-prepare\.txt"):
        prepare("cifar10", tmp_path)


@pytest.fixture
def offline(monkeypatch):
    """As if TensorFlow were installed, and no server in reach."""

    def refuse(*_, **__):
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(tfds_prepare.urllib.request, "urlopen", refuse)


def test_without_network(tmp_path, offline):
    with pytest.raises(UserError) as caught:
        prepare("cifar10", tmp_path)
    manual = tmp_path / "downloads/manual"
    assert "put cifar-10-binary.tar.gz (162 MiB) from https://www.cs" in str(caught.value)
    assert f"into {manual}, then run `python run.py data prepare cifar10" in str(caught.value)
    with pytest.raises(UserError, match=r"ILSVRC2012_img_train\.tar and ILSVRC2012_img_val\.tar"):
        prepare("imagenet2012", tmp_path)
    with pytest.raises(UserError, match="did you mean cifar10"):
        prepare("cifar", tmp_path)
    with pytest.raises(UserError, match="only: 1"):
        prepare("stl10:9.9.9", tmp_path)


def test_a_silent_network_is_given_up(tmp_path, offline, monkeypatch):
    over = threading.Event()

    def wait(*_, **__):
        over.wait(5)
        raise urllib.error.URLError("too late")

    monkeypatch.setattr(tfds_prepare, "PATIENCE", 0.1)
    monkeypatch.setattr(tfds_prepare.urllib.request, "urlopen", wait)
    began = time.monotonic()
    with pytest.raises(UserError, match=r"cannot be downloaded .*no answer"):
        prepare("svhn_cropped", tmp_path)  # of three files
    assert time.monotonic() - began < 2
    over.set()


def test_files_fetched_by_hand_are_found(tmp_path, offline, monkeypatch):
    """Where TFDS itself looks for them, so that it is asked to go on without a network."""
    manual = tmp_path / "downloads/manual"
    manual.mkdir(parents=True)
    (manual / "cifar-10-binary.tar.gz").write_bytes(b"")
    calls = []

    def download_and_prepare(builder, **options):
        calls.append((builder.name, options["file_format"], options["download_dir"]))
        write(tmp_path, {"train": [EXAMPLES]}, f"{builder.name}/{builder.version}")

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", download_and_prepare)
    assert prepare("cifar10", tmp_path) == tmp_path / "cifar10/3.0.2"
    assert calls == [("cifar10", "array_record", str(tmp_path / "downloads"))]

    for name in ("ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"):
        with pytest.raises(UserError, match="fetched by hand"):
            prepare("imagenet2012", tmp_path)
        (manual / name).write_bytes(b"")
    assert prepare("imagenet2012", tmp_path).parent == tmp_path / "imagenet2012"


def test_a_failing_download_says_what_to_do(tmp_path, offline, monkeypatch):
    def fail(builder, **_):
        raise ConnectionError("reset\nby peer")

    monkeypatch.setattr(tfds_prepare, "_unreachable", lambda urls: None)
    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", fail)
    with pytest.raises(UserError, match=r"reset by peer; without network, put cifar-100-binary"):
        prepare("cifar100", tmp_path)
