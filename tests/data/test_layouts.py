"""Layouts of folders and zip files from different systems, and the split of data without one.

Most files are not images, since layouts depend on names only.
"""

import unicodedata

import numpy as np
import pytest
from data_cases import MacMember, encoded, equal, picture, write, zipped

from hypersphere_jax.configs import DataConfig, UserError
from hypersphere_jax.data import load
from hypersphere_jax.data.decode import decode
from hypersphere_jax.data.image_files import open_image_files
from hypersphere_jax.data.subsets import by_class


def files(names):
    return {name: name.encode() for name in names.split()}


def both_forms(place, tree):
    return write(place / "set [1]", tree), zipped(place / "set [1].zip", tree)


def classes_by_file(root):
    """Return the class of each file, None without a label, for each split."""
    found = []
    for split in filter(None, open_image_files(root)):
        names = [split.file(i).removeprefix(f"{split.origin}/") for i in range(len(split))]
        classes = [(*split.class_names, None)[label] for label in split.labels]
        found.append(dict(zip(names, classes, strict=True)))
    return found


CLASSES = {"cat/1.jpg": "cat", "cat/x/2.JPG": "cat", "dog/1.PnG": "dog"}
JUNK = "Thumbs.db cat/.DS_Store cat/._1.jpg .old/a.png __MACOSX/cat/x.png @eaDir/x.jpg desktop.ini"


@pytest.mark.parametrize("start", ["", "pets/", "a/b/"])
def test_classes_are_folders_that_contain_images(start, tmp_path):
    """Folders that contain all images do not count, nor do junk and folders without images."""
    tree = files(f"{' '.join(CLASSES)} notes/x.txt {JUNK}")
    for root in both_forms(tmp_path, {start + name: data for name, data in tree.items()}):
        assert classes_by_file(root) == [CLASSES]


@pytest.mark.parametrize(
    "names",
    [
        "b.jpg a.png",
        "2018/05/a.jpg 2019/05/a.jpg 2019/06/b.jpg",
        "cat/a.jpg dog/a.jpg cover.png",
        "cat/a.jpg cat/x/a.jpg dog/x/a.jpg",
    ],
)
def test_images_in_other_layouts_have_no_labels(names, tmp_path):
    for root in both_forms(tmp_path, files(f"{names} c.txt .d.png")):
        assert classes_by_file(root) == [dict.fromkeys(names.split())]
        assert open_image_files(root)[0].class_names == ()


@pytest.mark.parametrize("start", ["", "mine/"])
@pytest.mark.parametrize(
    ("train", "test"), [("train", "test"), ("TRAIN", "VAL"), ("Training", "validation")]
)
def test_splits_with_and_without_classes(train, test, start, tmp_path):
    names = f"{start}{train}/{{}} {start}{test}/{{}} {start}README.txt"
    for form, first, second in (("classes", "cat/1.jpg", "cat/2.gif"), ("flat", "a.jpg", "b.JPG")):
        expected = [{first: first[:-6] or None}, {second: second[:-6] or None}]
        for root in both_forms(tmp_path / form, files(names.format(first, second))):
            assert classes_by_file(root) == expected


@pytest.mark.parametrize(("image", "split"), [("c.png", "val"), ("a/c.png", "test")])
def test_the_test_split_is_the_first_with_classes(image, split, tmp_path):
    """ImageNet's `test` has no labels, so `val` is used."""
    for root in both_forms(tmp_path, files(f"train/a/1.png val/a/2.png test/{image} more/a/3.png")):
        assert open_image_files(root)[1].origin == f"{root}/{split}"


def test_class_folders_without_images_are_reported(tmp_path, caplog):
    for root in both_forms(tmp_path, files("train/cat/1.heic train/dog/1.png train/.DS_Store")):
        caplog.clear()
        assert open_image_files(root)[0].class_names == ("dog",)
        assert any("cat" in message for message in caplog.messages)


def test_links_to_each_other_end(tmp_path):
    root = write(tmp_path / "set", files("a/1.png b/2.png"))
    (root / "a/more").symlink_to("../b")
    (root / "b/more").symlink_to("../a")
    names = {"a/1.png": "a", "a/more/2.png": "a", "b/2.png": "b", "b/more/1.png": "b"}
    assert classes_by_file(root) == [names]


SCRIPTS = ("zebra", "é", "Ångström", "한국", "だ", "日本語", "Ελλάδα", "й")


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("separator", ["/", "\\"])
def test_class_names_do_not_depend_on_the_system(tmp_path, form, separator):
    """macOS decomposes letters and sets no flag for UTF-8; old Windows tools write backslashes."""
    tree = {unicodedata.normalize(form, f"{name}/ü{name}.png"): b"x" for name in SCRIPTS}
    tree |= {f"__MACOSX/._{path}": b"x" for path in tree}
    archive = {name.replace("/", separator): data for name, data in tree.items()}
    digests = []
    for root in (
        write(tmp_path / "folder", tree),
        zipped(tmp_path / "flag.zip", {f"./{name}": data for name, data in archive.items()}),
        zipped(tmp_path / "noflag.zip", archive, member=MacMember),
    ):
        source, _ = open_image_files(root)
        assert source.class_names == tuple(sorted(SCRIPTS))
        assert source.labels.tolist() == list(range(len(SCRIPTS)))
        kept = by_class(source, [unicodedata.normalize("NFD", "é"), "zebra"])
        assert kept.class_names == ("zebra", "é")
        digests.append(source.digest)
    assert digests[1] == digests[2]


@pytest.mark.parametrize(
    ("names", "named"),
    [
        ("a.mp4 b.MP4 c.heic x/d.txt", r"\.mp4"),
        ("test/a/1.jpg", "test"),
        ("train/1.jpg bus/1.jpg", "bus"),  # a class or a split
        ("", "set"),
    ],
)
def test_unknown_layouts_are_refused(names, named, tmp_path):
    root = write(tmp_path / "set", files(names))
    root.mkdir(exist_ok=True)
    with pytest.raises(UserError, match=named):
        open_image_files(root)


def test_a_tenth_of_each_class_is_held_out(tmp_path, rng):
    """The same images of a folder and of a zip file, by seed and fold."""
    tree = {f"{animal}/{i}.png": encoded(picture(rng)) for animal in "ab" for i in range(20)}
    folder, archive = both_forms(tmp_path, tree)
    split = load(DataConfig(str(folder)))
    assert split.pretrain is split.train
    assert sorted([*split.train.indices, *split.test.indices]) == list(range(40))
    assert np.bincount(split.test.labels).tolist() == [2, 2]
    for part, other in zip(split[:2], load(DataConfig(str(archive)))[:2], strict=True):
        equal(part.indices, other.indices)
    name = split.test[0]["file"].removeprefix(f"{folder}/")
    equal(split.test[0]["image"], decode(tree[name]))
    options = [{}, {"subset_seed": 1}, {"folds": 5}, {"folds": 10, "fold": 1}]
    splits = [load(DataConfig(str(folder), **each)) for each in options]
    assert [len(split.test) for split in splits] == [4, 4, 8, 4]
    assert len({split.digest() for split in splits}) == 4


def test_data_with_a_training_split_have_no_other_test_split(tmp_path):
    root = write(tmp_path, {"train/1.png": b"x"})
    assert load(DataConfig(str(root))).test is None


def test_selected_classes_are_independent_of_the_others(tmp_path, rng):
    """The test split may contain more classes."""
    image = encoded(picture(rng), "PNG")
    names = ("train/cat/1.png", "train/dog/1.png", "test/cat/1.png", "test/owl/1.png")
    write(tmp_path, dict.fromkeys(names, image) | {"names.txt": b"cat"})
    dataset = load(DataConfig(str(tmp_path), classes=str(tmp_path / "names.txt")))
    assert dataset.train.class_names == ("cat",)
    assert len(dataset.train) == len(dataset.test) == 1
