"""Folders of images, and zip files that are as folders: layout, order, faults, links."""

import logging
import os
import pickle
import shutil
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from image_cases import encoded, files_of_a_tree, picture, same, write, zipped

from hypersphere_jax.config import UserError
from hypersphere_jax.data import files
from hypersphere_jax.data.decode import decode
from hypersphere_jax.data.files import (
    ImageFiles,
    NoSplit,
    is_image_tree,
    open_image_files,
    read_classes,
)
from hypersphere_jax.data.source import UnreadableImage

ROOT = Path(__file__).parents[1]
CIFAR10 = Path(__file__).parents[2] / "shared/data/cifar10"


@pytest.fixture
def tree(rng):
    return files_of_a_tree(rng)


@pytest.fixture
def folder(tmp_path, tree):
    return write(tmp_path / "set", tree)


def test_folder_is_read_as_an_image_folder(folder, tree):
    train, test = open_image_files(folder)
    assert train.class_names == test.class_names == ("ant", "cat", "dog")
    assert train.labels.dtype == np.int32 and train.labels.tolist() == [0, 1, 1, 1, 2]
    order = ["ant/1.webp", "cat/a.PNG", "cat/b.jpg", "cat/z/c.png", "dog/0.jpeg"]
    for i, name in enumerate(order):
        np.testing.assert_array_equal(train[i]["image"], decode(tree[f"train/{name}"], name))
    assert test.labels.tolist() == [0, 1, 2] and train.origin == str(folder / "train")
    assert train.image_shape == (9, 12, 3)
    with pytest.raises(IndexError):
        train[5]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("form", ["one", "below a folder", "one a split", "plain, one a split"])
def test_zips_are_as_folders(tmp_path, folder, tree, form, method):
    if form == "one":
        root = zipped(tmp_path / "set.zip", tree, method)
    elif form == "below a folder":
        files = {f"images/{name}": data for name, data in tree.items()}
        root = zipped(tmp_path / "set.zip", {"README": b"", "__MACOSX/._x": b"", **files}, method)
    else:
        root = tmp_path / "zips"
        for split in ("train", "test"):
            files = {name: data for name, data in tree.items() if name.startswith(split)}
            if form == "plain, one a split":
                files = {name.partition("/")[2]: data for name, data in files.items()}
            zipped(root / f"{split}.zip", files, method)
    assert is_image_tree(root) and is_image_tree(folder)
    for a, b in zip(open_image_files(root), open_image_files(folder), strict=True):
        same(a, b)
        assert a.image_shape == b.image_shape == (9, 12, 3)


def test_sizes_that_differ(tmp_path, folder, rng):
    write(folder, {"train/dog/last.png": encoded(picture(rng, 10, 12))})
    train = ImageFiles(folder, "train")
    assert train.image_shape is None
    assert {train[i]["image"].shape for i in range(len(train))} == {(9, 12, 3), (10, 12, 3)}


def test_size_stands_behind_a_long_header(tmp_path, rng):
    data = encoded(picture(rng), "JPEG", comment=b"x" * 60000, icc_profile=rng.bytes(90000))
    root = zipped(tmp_path / "a.zip", {"train/a/1.jpg": data}, zipfile.ZIP_DEFLATED)
    assert ImageFiles(root, "train").image_shape == (9, 12, 3)


def test_an_image_that_changes_its_shape_is_refused(folder, rng):
    train = ImageFiles(folder, "train")
    assert train.image_shape == (9, 12, 3)
    path = folder / "train/dog/0.jpeg"
    length = path.stat().st_size
    other = encoded(picture(rng, 8, 8), "GIF")
    path.write_bytes(other + bytes(length - len(other)))
    with pytest.raises(UnreadableImage, match=r"shape \(8, 8, 3\), all others \(9, 12, 3\)"):
        train[4]


@pytest.mark.parametrize("name", ["val", "validation"])
def test_other_names_of_the_test_split(folder, name):
    (folder / "test").rename(folder / name)
    assert len(ImageFiles(folder, "test")) == len(ImageFiles(folder, "val")) == 3
    assert open_image_files(folder)[1].origin == str(folder / name)


def test_which_split_is_asked_for(folder):
    shutil.copytree(folder / "test", folder / "val")
    assert ImageFiles(folder, "test").origin == str(folder / "test")
    assert ImageFiles(folder, "val").origin == str(folder / "val")
    (folder / "test").rename(folder / "validation")
    with pytest.raises(UserError, match="holds val and validation: which one is the split 'test'"):
        ImageFiles(folder, "test")
    zipped(folder / "train.zip", {"cat/a.png": b"x"})
    with pytest.raises(UserError, match=r"holds train and train\.zip"):
        ImageFiles(folder, "train")


def test_no_split(tmp_path, folder):
    with pytest.raises(NoSplit, match=r"no split 'train'.*'ant', 'cat', 'dog'; if these are the"):
        ImageFiles(folder / "train", "train")
    with pytest.raises(UserError, match="no file or folder"):
        ImageFiles(tmp_path / "nothing", "train")
    shutil.rmtree(folder / "test")
    assert open_image_files(folder)[1] is None
    assert not is_image_tree(folder / "train") and not is_image_tree(tmp_path / "no.zip")


def test_only_some_classes(folder, tmp_path):
    train, test = open_image_files(folder, ("dog", "ant"))
    assert train.class_names == test.class_names == ("ant", "dog")
    assert train.labels.tolist() == [0, 1] and test.labels.tolist() == [0, 1]
    with pytest.raises(
        UserError, match=r"lacks classes .*1 of 2\): 'dgo' \(did you mean 'dog'\?\)"
    ):
        ImageFiles(folder, "train", ("cat", "dgo"))


def test_classes_of_the_splits_have_to_agree(folder, caplog):
    shutil.rmtree(folder / "test/cat")
    assert open_image_files(folder)[1].labels.tolist() == [0, 2]
    assert "no folder for some classes (1 of 3): 'cat'" in caplog.text
    (folder / "test/dog").rename(folder / "test/cow")
    with pytest.raises(UserError, match=r"classes that .* lacks \(1\): 'cow'"):
        open_image_files(folder)


def test_an_empty_class(folder, tmp_path, caplog):
    (folder / "train/bee").mkdir()
    with pytest.raises(UserError, match=r"without an image \(1\): 'bee'.*--bad-images skip"):
        ImageFiles(folder, "train")
    train = ImageFiles(folder, "train", on_bad="skip")
    assert train.class_names == ("ant", "bee", "cat", "dog")
    assert train.labels.tolist() == [0, 2, 2, 2, 3]
    assert "classes without an image (1): 'bee'" in caplog.text
    root = zipped(tmp_path / "a.zip", {"train/a/": b"", "train/b/0.png": b"x"})
    with pytest.raises(UserError, match=r"without an image \(1\): 'a';"):
        ImageFiles(root, "train")


def test_other_files_are_left_out_and_told(folder, caplog):
    junk = ["Thumbs.db", ".DS_Store", "cat/._a.png", "cat/.hidden/a.png", ".checkpoints/a.png"]
    write(folder / "train", dict.fromkeys(junk, b"x"))
    assert len(ImageFiles(folder, "train")) == 5 and not caplog.text
    write(folder / "train", {"cat/notes.txt": b"x", "stray.png": b"x"})
    assert len(ImageFiles(folder, "train")) == 5
    assert "left out files that are no images in a class folder (2): cat/notes.txt" in caplog.text
    assert "stray.png" in caplog.text


def test_faults_that_show_at_the_start(folder, caplog):
    write(folder, {"train/dog/empty.png": b"", "train/ant/zero.png": b""})
    os.symlink("nowhere.png", folder / "train/cat/link.png")
    os.mkfifo(folder / "train/cat/pipe.png")
    with pytest.raises(
        UserError, match=r"\(4\): ant/zero\.png is empty, .*pipe\.png is no file, .* 1 more"
    ):
        ImageFiles(folder, "train")
    train = ImageFiles(folder, "train", on_bad="skip")
    assert "images that cannot be read (4)" in caplog.text and train.image_shape == (9, 12, 3)
    unreadable = []
    for i in range(len(train)):
        try:
            train[i]
        except UnreadableImage as error:
            unreadable.append(str(error))
    assert len(train) == 9 and len(unreadable) == 4
    assert all(str(folder) in text for text in unreadable)


def test_files_that_vanish_or_change(folder):
    train = ImageFiles(folder, "train")
    (folder / "train/ant/1.webp").unlink()
    (folder / "train/dog/0.jpeg").write_bytes(b"short")
    with pytest.raises(UnreadableImage, match=r"ant/1\.webp: No such file"):
        train[0]
    with pytest.raises(UnreadableImage, match=r"dog/0\.jpeg: is no longer the \d+ bytes"):
        train[4]
    train[1]


def test_digest(tmp_path, folder, tree):
    digest = ImageFiles(folder, "train").digest
    assert len(digest) == 16 and ImageFiles(folder, "test").digest != digest
    moved = folder.rename(tmp_path / "moved")
    assert ImageFiles(moved, "train").digest == digest
    # Contents count, not their times: an image of the same length is another data set.
    os.utime(moved / "train/cat/b.jpg", (1, 1))
    assert ImageFiles(moved, "train").digest == digest
    content = (moved / "train/cat/b.jpg").read_bytes()
    (moved / "train/cat/b.jpg").write_bytes(content[:-3] + bytes(3))
    os.utime(moved / "train/cat/b.jpg", (1, 1))
    changed = ImageFiles(moved, "train").digest
    (moved / "train/cat/b.jpg").rename(moved / "train/cat/bb.jpg")
    assert len({digest, changed, ImageFiles(moved, "train").digest}) == 3
    archives = [zipped(tmp_path / f"{name}.zip", tree) for name in "ab"]
    one, two = (ImageFiles(archive, "train").digest for archive in archives)
    tree["train/cat/b.jpg"] = tree["train/cat/b.jpg"][:-1] + b"?"
    other = ImageFiles(zipped(tmp_path / "c.zip", tree), "train").digest
    assert one == two != other


@pytest.mark.parametrize("form", ["folder", "zip"])
def test_pickles_and_threads(tmp_path, folder, tree, form):
    root = folder if form == "folder" else zipped(tmp_path / "a.zip", tree)
    train = ImageFiles(root, "train")
    train[0]
    copy = pickle.loads(pickle.dumps(train))
    same(train, copy)
    assert copy.digest == train.digest
    expected = [train[i]["image"].sum() for i in range(5)]
    numbers = np.random.default_rng(0).integers(0, 5, 400)
    with ThreadPoolExecutor(8) as pool:
        sums = list(pool.map(lambda i: copy[i]["image"].sum(), numbers))
    assert sums == [expected[i] for i in numbers]


# Links, and names of files


@pytest.mark.parametrize("link", ["train/cat/x.png", "train/cat/x", "train/cow", "val"])
def test_links_that_lead_out_of_a_folder(tmp_path, folder, tree, link):
    outside = write(tmp_path / "set2", tree)
    target = outside / "train/cat/a.PNG" if link.endswith("png") else outside / "train"
    os.symlink(target, folder / link)
    with pytest.raises(UserError, match=r"links that lead out of it .*\(1\): .*set2"):
        ImageFiles(folder, link.partition("/")[0])


def test_links_inside_a_folder(tmp_path, folder):
    os.symlink("b.jpg", folder / "train/cat/linked.jpg")
    os.symlink("../test/dog", folder / "train/puppy")
    os.symlink(folder, tmp_path / "elsewhere")
    train = ImageFiles(tmp_path / "elsewhere", "train")
    assert train.class_names == ("ant", "cat", "dog", "puppy") and len(train) == 7
    same(train, ImageFiles(folder, "train"))
    os.symlink("..", folder / "train/cat/up")
    with pytest.raises(UserError, match=r"in a circle \(1\): cat/up"):
        ImageFiles(folder, "train")


@pytest.mark.skipif(sys.platform != "linux", reason="names of any bytes")
def test_names_that_are_no_text(folder, tree):
    name = os.fsencode(folder) + b"/train/cat/\xff\n\x1b.png"
    with open(name, "wb") as stream:
        stream.write(b"no image")
    train = pickle.loads(pickle.dumps(ImageFiles(folder, "train")))
    assert len(train.digest) == 16
    with pytest.raises(UnreadableImage) as caught:
        train[3]
    assert str(caught.value).isprintable()


# Lists of classes


def test_read_classes(tmp_path):
    path = tmp_path / "classes.txt"
    path.write_bytes(b'\xef\xbb\xbf# a comment\r\nn02\r\n\r\n n01 # a dog\r\n"n03",three,3\n')
    assert read_classes(path) == ("n02", "n01", "n03")
    for text, message in (
        (b"# nothing\n", "has no name in it"),
        (b"a\nb\na\n", "has a more than once"),
        (b"\xff\xfe\0", r"is no text \(UTF-8\)"),
    ):
        path.write_bytes(text)
        with pytest.raises(UserError, match=message):
            read_classes(path)
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_classes(tmp_path / "nothing")


def test_imagenet100():
    names = read_classes(ROOT / "experiments/imagenet100_classes.txt")
    assert len(set(names)) == 100 and names[0] == "n02869837" and names[-1] == "n02090622"
    assert all(len(name) == 9 and name[0] == "n" and name[1:].isdigit() for name in names)


# Real data


@pytest.mark.skipif(not CIFAR10.is_dir(), reason="no CIFAR-10 here")
def test_cifar10(caplog):
    caplog.set_level(logging.INFO)
    train, test = open_image_files(CIFAR10)
    assert np.bincount(train.labels).tolist() == [5000] * 10
    assert np.bincount(test.labels).tolist() == [1000] * 10
    assert train.class_names[:2] == ("airplane", "automobile") and len(train.class_names) == 10
    assert test.image_shape == (32, 32, 3) and not caplog.text
    with zipfile.ZipFile(CIFAR10 / "train.zip") as archive:
        data = archive.read("train/cat/0007.jpg")
    i = 3 * 5000 + 7
    np.testing.assert_array_equal(train[i]["image"], decode(data, "x"))
    assert train[i]["label"] == 3


def test_digest_of_a_large_folder_takes_times_and_some_contents(folder, monkeypatch):
    monkeypatch.setattr(files, "DIGEST_BYTES", 0)
    monkeypatch.setattr(files, "DIGEST_FILES", 1)
    digest = ImageFiles(folder, "train").digest
    assert ImageFiles(folder, "train").digest == digest
    os.utime(folder / "train/cat/b.jpg", (1, 1))
    assert ImageFiles(folder, "train").digest != digest


def test_imagenet_has_a_flat_test_folder(tmp_path, folder):
    """Its labels are secret, so that `val` is the split to test on."""
    folder.joinpath("test").rename(folder / "val")
    (folder / "test").mkdir()
    image = next((folder / "val").rglob("*.*"))
    shutil.copy(image, folder / "test" / "1.png")
    assert ImageFiles(folder, "test").origin.endswith("val")
