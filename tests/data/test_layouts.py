"""Layouts of folders and zip files from different systems, and the split of data without one.

Most files are not images, since layouts depend on names only.
"""

import unicodedata

import numpy as np
import pytest
from data_cases import WithoutFlag, encoded, equal, images, picture, why, write, zipped
from PIL import Image

from hypersphere_jax.configs import DataConfig
from hypersphere_jax.data import load
from hypersphere_jax.data.decode import decode
from hypersphere_jax.data.image_files import open_image_files


def files(names):
    return {name: name.encode() for name in names.split()}


def labels_by_file(root):
    """Class of each file, None without a label, for each split of a folder or zip file."""
    found = []
    for split in open_image_files(root):
        if split is not None:
            classes = (*split.class_names, None)
            names = [split.file(i).removeprefix(f"{split.origin}/") for i in range(len(split))]
            found.append(dict(zip(names, [classes[k] for k in split.labels], strict=True)))
    return found


def both_forms(place, tree):
    return write(place / "set", tree), zipped(place / "set.zip", tree)


CLASSES = {"cat/1.jpg": "cat", "cat/x/2.JPG": "cat", "dog/1.PnG": "dog"}
FLAT = {"a.png": None, "b.jpg": None}
JUNK = "Thumbs.db cat/.DS_Store cat/._1.jpg .old/a.png __MACOSX/cat/x.png @eaDir/x.jpg desktop.ini"


@pytest.mark.parametrize("start", ["", "pets/", "a/b/"])
@pytest.mark.parametrize("junk", ["", JUNK])
def test_classes_are_folders_that_contain_images(start, junk, tmp_path):
    """Folders that contain all images do not count, nor do folders without images."""
    tree = files(f"{' '.join(CLASSES)} notes/x.txt {junk}")
    for root in both_forms(tmp_path, {start + name: data for name, data in tree.items()}):
        assert labels_by_file(root) == [CLASSES]
        train, _ = open_image_files(root)
        assert train.class_names == ("cat", "dog") and train.layout
        assert open_image_files(root, ["dog"])[0].labels.tolist() == [0]


@pytest.mark.parametrize(
    "names",
    [
        "b.jpg a.png c.txt .d.png",
        "2018/05/a.jpg 2019/05/a.jpg 2019/06/b.jpg 2019/c.txt",
        "cat/a.jpg dog/a.jpg cover.png",
        "cat/a.jpg cat/x/a.jpg dog/x/a.jpg",
    ],
)
def test_other_images_have_no_labels(names, tmp_path):
    shown = [name for name in names.split() if name[0] != "." and not name.endswith("txt")]
    for root in both_forms(tmp_path, files(names)):
        assert labels_by_file(root) == [dict.fromkeys(shown)]
        train, test = open_image_files(root)
        assert test is None and train.class_names == () and train.layout


@pytest.mark.parametrize("test", ["test", "val", "valid", "validation", "Testing", "VAL"])
@pytest.mark.parametrize("start", ["", "mine/"])
def test_splits_with_and_without_classes(test, start, tmp_path):
    train = {"test": "train", "Testing": "Training"}.get(test, "TRAIN")
    names = f"{start}{train}/{{}} {start}{test}/{{}} {start}README.txt"
    for form, first, second in (("classes", "cat/1.jpg", "cat/2.gif"), ("flat", "a.jpg", "b.JPG")):
        expected = [{first: first[:-6] or None}, {second: second[:-6] or None}]
        for root in both_forms(tmp_path / form, files(names.format(first, second))):
            assert labels_by_file(root) == expected
            assert not any(split.layout for split in open_image_files(root))


def test_splits_in_zip_files(tmp_path):
    expected = [{"cat/1.jpg": "cat", "dog/1.jpg": "dog"}, {"cat/2.jpg": "cat"}]
    for number, start in enumerate(("", "{}/", "mine/{}/")):
        root = tmp_path / str(number)
        for name, inside in (("train", "cat/1.jpg dog/1.jpg"), ("val", "cat/2.jpg")):
            tree = {start.format(name) + file: b"x" for file in inside.split()}
            zipped(root / f"{name}.{'ZIP' if number else 'zip'}", tree)
        assert labels_by_file(root) == expected
        # A zip file next to folders of classes is ignored.
        write(root, files("bee/1.jpg ant/1.jpg"))
        assert labels_by_file(root) == [{"ant/1.jpg": "ant", "bee/1.jpg": "bee"}]


def test_the_test_split_is_the_first_with_classes(tmp_path):
    """ImageNet's `test` has no labels, so `val` is used."""
    for second, expected in (("c.png", "val"), ("a/c.png", "test")):
        tree = files(f"train/a/1.png val/a/2.png test/{second} more/a/3.png")
        for root in both_forms(tmp_path / expected, tree):
            assert open_image_files(root)[1].origin == f"{root}/{expected}"


SCRIPTS = ("zebra", "é", "Ångström", "한국", "だ", "日本語", "Ελλάδα", "й")


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("separator", ["/", "\\"])
def test_class_names_do_not_depend_on_the_system(tmp_path, form, separator):
    """macOS decomposes letters and sets no flag for UTF-8; old Windows tools write backslashes."""
    expected = tuple(sorted(SCRIPTS))
    tree, junk = {}, {}
    for i, name in enumerate(SCRIPTS):
        path = unicodedata.normalize(form, f"{name}/ü{name}.png")
        tree[path] = encoded(Image.new("L", (2, 2), i))
        junk |= {f"__MACOSX/._{path}": b"x", f"{path.partition('/')[0]}/.DS_Store": b"x"}
    tree |= junk
    archive = {name.replace("/", separator): data for name, data in tree.items()}
    digests = []
    for root in (
        write(tmp_path / "folder", tree),
        zipped(tmp_path / "flag.zip", archive),
        zipped(tmp_path / "macos.zip", {f"./{name}": data for name, data in archive.items()}),
        zipped(tmp_path / "noflag.zip", archive, encoding="utf-8"),
    ):
        source, _ = open_image_files(root)
        assert source.class_names == expected
        assert source.labels.tolist() == list(range(len(SCRIPTS)))
        values = [SCRIPTS.index(name) for name in expected]
        assert [image[0, 0, 0] for image in images(source)] == values
        kept, _ = open_image_files(root, [unicodedata.normalize("NFD", "é"), "zebra"])
        assert kept.class_names == ("zebra", "é") and len(kept) == 2
        digests.append(source.digest)
    assert len(set(digests[1:])) == 1


def test_one_name_in_two_normalizations_is_one_class(tmp_path):
    composed, separate = (unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))
    tree = {f"train/{composed}/0.png": b"x", f"train/{separate}/1.png": b"x", "train/z/2.png": b"x"}
    for root in both_forms(tmp_path, tree | {f"test/{separate}/3.png": b"x"}):
        train, test = open_image_files(root)
        assert train.class_names == test.class_names == ("z", "é")
        assert train.labels.tolist() == [0, 1, 1] and test.labels.tolist() == [1]
    # The zip standard's own encoding.
    old = zipped(tmp_path / "old.zip", {"é/1.png": b"x", "ü/2.png": b"x"}, encoding="cp437")
    assert open_image_files(old)[0].class_names == ("é", "ü")
    assert WithoutFlag("é").flag_bits == 0


def test_ignored_files_are_counted_in_a_warning(tmp_path, caplog):
    write(tmp_path, files(f"cat/1.jpg dog/1.jpg {JUNK}"))
    assert len(open_image_files(tmp_path)[0]) == 2 and not caplog.text
    write(tmp_path, files("cat/2.HEIC cat/3.heic"))
    assert len(open_image_files(tmp_path)[0]) == 2 and "2 .heic" in caplog.text


@pytest.mark.parametrize(
    ("names", "named"),
    [
        ("a.mp4 b.MP4 c.heic x/d.txt", "2 .mp4"),
        ("test/a/1.jpg", "test"),
        ("train/1.jpg bus/1.jpg", "bus"),  # a class or a split
        ("", "no files"),
    ],
)
def test_other_layouts_are_refused(names, named, tmp_path):
    root = write(tmp_path / "set", files(names))
    root.mkdir(exist_ok=True)
    message = why(open_image_files, root)
    assert str(root) in message and named in message
    (tmp_path / "lone.jpg").write_bytes(b"x")
    assert "lone.jpg" in why(open_image_files, tmp_path / "lone.jpg")


def test_a_tenth_of_each_class_is_held_out(tmp_path, rng, capsys):
    """The part depends on the seed and the fold, not on the place or on the form of the data."""
    tree = {f"{animal}/{i}.png": encoded(picture(rng)) for animal in "ab" for i in range(20)}
    roots = write(tmp_path / "pets", tree), zipped(tmp_path / "else" / "pets.zip", tree)
    lines = []
    split = load(DataConfig(str(roots[0])))
    zipped_split = load(DataConfig(str(roots[1])), lines.append)
    assert sorted([*split.train.indices, *split.test.indices]) == list(range(40))
    assert np.bincount(split.test.labels).tolist() == [2, 2] and split.pretrain is split.train
    for part, other in zip(split[:2], zipped_split[:2], strict=True):
        equal(part.indices, other.indices)
    name = split.test[0]["file"].removeprefix(f"{roots[0]}/")
    equal(split.test[0]["image"], decode(tree[name]))
    assert str(roots[0]) in capsys.readouterr().err and str(roots[1]) in lines[0]
    others = [
        load(DataConfig(str(roots[0]), **options), lines.append)
        for options in ({"subset_seed": 1}, {"folds": 5}, {"folds": 10, "fold": 1})
    ]
    assert [len(other.test) for other in others] == [4, 8, 4]
    assert len({part.digest() for part in (split, *others)}) == 4
    assert load(DataConfig(str(roots[0]), folds=10), lines.append).digest() == split.digest()
    # Data with a split, or of one image, have no other test split.
    assert load(DataConfig(str(write(tmp_path / "own", {"train/1.png": b"x"})))).test is None
    assert load(DataConfig(str(write(tmp_path / "one", {"1.png": b"x"})))).test is None
    assert not capsys.readouterr().err and images(split.test)[0].shape == (9, 12, 3)
