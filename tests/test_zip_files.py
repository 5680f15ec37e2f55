"""Zip files of images that are damaged or hostile."""

import os
import pickle
import stat
import zipfile

import numpy as np
import pytest
from image_cases import files_of_a_tree, same, zipped

from hypersphere_jax.config import UserError
from hypersphere_jax.data.files import ImageFiles
from hypersphere_jax.data.source import UnreadableImage


@pytest.fixture
def tree(rng):
    return files_of_a_tree(rng)


def test_zips_that_are_cut_short(tmp_path, tree):
    data = zipped(tmp_path / "whole.zip", tree).read_bytes()
    cut = tmp_path / "cut.zip"
    for end in [0, 10, *range(100, len(data), 97), len(data) - 1]:
        cut.write_bytes(data[:end])
        with pytest.raises(UserError, match=r"cut\.zip is no whole zip file"):
            ImageFiles(cut, "train")


def test_zips_with_damage_inside(tmp_path, tree, rng):
    data = zipped(tmp_path / "whole.zip", tree).read_bytes()
    whole = ImageFiles(tmp_path / "whole.zip", "train")
    path = tmp_path / "damaged.zip"
    refused = 0
    for _ in range(100):
        wrong = np.frombuffer(data, np.uint8).copy()
        part = wrong[rng.integers(0, len(wrong)) :][:5]
        part ^= rng.integers(1, 256, len(part), dtype=np.uint8)
        path.write_bytes(wrong.tobytes())
        try:
            train = ImageFiles(path, "train", on_bad="skip")
        except UserError:
            refused += 1
            continue
        for i in range(len(train)):
            try:
                image = train[i]["image"]
            except UnreadableImage:
                refused += 1
            else:
                assert any(np.array_equal(image, whole[k]["image"]) for k in range(len(whole)))
    assert refused > 50
    path.write_bytes(data[:50] + data[150:])  # a piece is missing, the directory is whole
    with pytest.raises(UserError):
        ImageFiles(path, "train")


def test_a_zip_that_shrinks_or_vanishes(tmp_path, tree):
    path = zipped(tmp_path / "a.zip", tree)
    train = ImageFiles(path, "train")
    train[0]
    data = path.read_bytes()
    copy = pickle.loads(pickle.dumps(train))
    with open(path, "r+b") as stream:
        stream.truncate(20)
    with pytest.raises(UnreadableImage, match=r"a\.zip: train/ant/1\.webp: .*cut short"):
        train[0]
    path.unlink()
    with pytest.raises(UnreadableImage, match="No such file"):
        copy[0]
    path.write_bytes(data)
    same(copy, ImageFiles(path, "train"))


def test_members_that_cannot_be_read(tmp_path, tree, caplog):
    path = zipped(tmp_path / "a.zip", {**tree, "train/dog/none.png": b""})
    with zipfile.ZipFile(path, "a", zipfile.ZIP_LZMA) as archive:
        archive.writestr("train/dog/x.png", tree["train/cat/a.PNG"])
    data = bytearray(path.read_bytes())
    entry = data.rindex(b"train/cat/a.PNG") - 46
    data[entry + 8] |= 1  # encrypted
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"read \(3\): cat/a\.PNG is encrypted, dog/none\.png is"):
        ImageFiles(path, "train")
    train = ImageFiles(path, "train", on_bad="skip")
    for i, why in ((1, "encrypted"), (5, "is empty"), (6, "method 14")):
        with pytest.raises(UnreadableImage, match=why):
            train[i]
    assert train[2]["label"] == 1 and "be read (3)" in caplog.text


@pytest.mark.parametrize(
    "name",
    [
        "../evil.png",
        "train/../../evil.png",
        "train/cat/../../../evil.png",
        "/etc/evil.png",
        "C:/evil.png",
        "c:evil.png",
        "train\\cat\\evil.png",
        "train/cat/..",
        "train//evil.png",
        "./train/cat/a.png",
        "train/cat/a\0.png",
        "//server/share/evil.png",
    ],
)
def test_names_that_escape_a_zip(tmp_path, tree, name):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in tree.items():
            archive.writestr(member, data)
        info = zipfile.ZipInfo("placeholder")
        info.filename = name
        archive.writestr(info, b"x")
    with pytest.raises(UserError, match=r"links or no plain names below it \(1\)"):
        ImageFiles(path, "train")


def test_links_and_doubles_in_a_zip(tmp_path, tree):
    path = zipped(tmp_path / "a.zip", tree)
    with zipfile.ZipFile(path, "a") as archive:
        info = zipfile.ZipInfo("train/cat/link.png")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(UserError, match=r"links or no plain names.*'train/cat/link\.png'"):
        ImageFiles(path, "train")
    path = zipped(tmp_path / "b.zip", tree)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("train/cat/b.jpg", b"x")
    with pytest.raises(UserError, match=r"members twice \(1\): 'train/cat/b\.jpg'"):
        ImageFiles(path, "train")


def test_a_zip_behind_a_link(tmp_path, tree):
    zipped(tmp_path / "real.zip", tree)
    (tmp_path / "set").mkdir()
    os.symlink(tmp_path / "real.zip", tmp_path / "set/train.zip")
    with pytest.raises(UserError, match="is a link that leads out of"):
        ImageFiles(tmp_path / "set", "train")
    os.symlink(tmp_path / "real.zip", tmp_path / "mine.zip")
    assert len(ImageFiles(tmp_path / "mine.zip", "train")) == 5
