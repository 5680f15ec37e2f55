"""Folders and zip files without splits, or in parts: what they are taken for, and what is held out.

Most of these files are no images: what they are taken for goes by names alone.
"""

import numpy as np
import pytest
from data_cases import encoded, equal, images, picture, why, write, zipped

from hypersphere_jax.configs import DataConfig
from hypersphere_jax.data import load
from hypersphere_jax.data.decode import decode
from hypersphere_jax.data.image_files import is_image_tree, open_image_files
from hypersphere_jax.data.source import UnreadableImage


def files(names, start=""):
    """Files by name, whose content is that name after `start`."""
    return {name: f"{start}{name}".encode() for name in names.split()}


def taken(root):
    """Splits as dicts of names to classes (None: no label), and what data without splits are."""
    found = []
    for split in open_image_files(root):
        if split is not None:
            labels = [split.class_names[k] if k >= 0 else None for k in split.labels]
            found.append(dict(zip(split._names, labels, strict=True)))
            layout = split.layout
    return found if len(found) > 1 else (found[0], layout)


UNLABELLED = {
    "flat": ("b.jpg a.png c.txt .d.png", "a.png b.jpg", ""),
    "below one folder": ("photos/b.jpg photos/a.png readme", "a.png b.jpg", ""),
    "nested": ("2018/05/a.jpg 2019/05/a.jpg 2019/06/b.jpg 2019/c.txt",) * 2
    + ("2018 has no image",),
    "loose": ("cat/a.jpg dog/a.jpg cover.png",) * 2 + ("cover.png is in none",),
    "mixed depths": ("cat/a.jpg cat/x/a.jpg dog/x/a.jpg",) * 2 + ("dog has no image",),
}


@pytest.mark.parametrize("case", UNLABELLED)
def test_images_without_labels(case, tmp_path):
    names, shown, reason = UNLABELLED[case]
    for root in (write(tmp_path / "set", files(names)), zipped(tmp_path / "a.zip", files(names))):
        found, layout = taken(root)
        assert found == {n: None for n in shown.split() if n.endswith(("jpg", "png"))}
        assert layout.startswith("images without labels") and reason in layout
        assert not open_image_files(root)[0].class_names


def test_class_folders(tmp_path):
    """Folders with images right in them, and perhaps more below; also below a common folder."""
    names, classes = "dog/1.jpg cat/1.jpg cat/greg/2.jpg notes/x.txt", ("cat", "dog")
    for start in ("", "pets/", "a/b/"):
        tree = {start + name: data for name, data in files(names).items()}
        place = tmp_path / f"at{start.count('/')}"
        for root in (write(place, tree), zipped(place / "x" / "cats.zip", tree), place / "x"):
            found, layout = taken(root)
            assert found == {"cat/1.jpg": "cat", "cat/greg/2.jpg": "cat", "dog/1.jpg": "dog"}
            assert layout == "2 classes, a folder each"
            assert open_image_files(root)[0].class_names == classes
            assert open_image_files(root, ["dog"])[0].labels.tolist() == [0]


def test_splits_without_classes_and_in_parts(tmp_path):
    both = files("train/a.jpg train/b.jpg val/c.jpg")
    flat = [{"a.jpg": None, "b.jpg": None}, {"c.jpg": None}]
    for root in (write(tmp_path / "flat", both), zipped(tmp_path / "flat.zip", both)):
        assert taken(root) == flat
    whole = [{"cat/1.jpg": "cat", "dog/1.jpg": "dog"}, {"cat/2.jpg": "cat"}]
    for name, start in (("shards", ""), ("inside", "mine/train/")):
        root = tmp_path / name
        for number, animal in enumerate(("cat", "dog")):
            zipped(root / f"train-{number:03}.zip", files(f"{start}{animal}/1.jpg", name))
        zipped(root / "val-0.zip", files(f"{start.replace('train', 'val')}cat/2.jpg"))
        assert taken(root) == whole and is_image_tree(root)
    root = tmp_path / "downloaded"  # as Google Drive cuts what it sends
    zipped(root / "mine-001.zip", files("mine/train/cat/1.jpg mine/test/cat/2.jpg"))
    zipped(root / "mine-002.zip", files("mine/train/dog/1.jpg"))
    assert taken(root) == whole


def test_several_zips_count_as_one_folder(tmp_path):
    """Of images alone, each zip is a class, unless the names differ in digits alone."""
    for stems, expected in (
        (("cats", "dogs"), {"cats/1.jpg": "cats", "dogs/1.jpg": "dogs"}),
        (("part1", "part2"), {"1.jpg": None}),
    ):
        for inner in ("", "images/"):
            root = tmp_path / f"{stems[0]}-{inner[:-1]}"
            for stem in stems:
                zipped(root / f"{stem}.zip", files(f"{inner}1.jpg", stem))
            assert taken(root)[0] == expected
            source = open_image_files(root)[0]
            assert [source._read(i).decode() for i in range(2)] == [
                f"{s}{inner}1.jpg" for s in stems
            ]
            assert f"{stems[1]}.zip" in why(source.__getitem__, 1, error=UnreadableImage)
    root = tmp_path / "classes"
    zipped(root / "a.zip", files("cat/1.jpg dog/1.jpg", "a"))
    zipped(root / "b.zip", files("cat/1.jpg bee/1.jpg", "b"))
    before = open_image_files(root)[0]
    assert before.class_names == ("bee", "cat", "dog") and before.labels.tolist() == [0, 1, 1, 2]
    assert [before._read(i)[:1] for i in range(4)] == [b"b", b"a", b"b", b"a"]
    zipped(root / "b.zip", files("cat/1.jpg bee/1.jpg", "c"))
    assert open_image_files(root)[0].digest != before.digest
    zipped(root / "c (1).zip", files("cat/1.jpg dog/1.jpg", "a"))
    assert "a.zip and c (1).zip hold the same images (2): 'cat/1.jpg'" in why(
        open_image_files, root
    )
    # Beside images or folders, a zip is what these came in.
    write(root, files("cat/1.jpg dog/1.jpg"))
    assert len(open_image_files(root)[0]) == 2


def test_valid_is_a_test_split_and_other_folders_are_named(tmp_path, caplog):
    """As Kaggle and Roboflow have them; with `test` beside it, `valid` is left out."""
    split, others = files("train/a/1.jpg valid/a/2.jpg README.txt"), files("more/x/a/3.jpg")
    for start in ("", "pets/"):
        place = tmp_path / f"at{len(start)}"
        for number, more in enumerate((split, split | others, split | files("test/a/4.jpg"))):
            tree = {start + name: data for name, data in more.items()}
            folder = write(place / f"tree{number}", tree) / start
            for root in (folder, zipped(place / f"{number}.zip", tree)):
                caplog.clear()
                train, test = open_image_files(root)
                name, left = (("valid", None), ("valid", "more"), ("test", "valid"))[number]
                assert test.origin.endswith(f"{name}") and len(train) == len(test) == 1
                lines = [line for line in caplog.messages if "folders" in line]
                said = f"{root}: left out folders with images beside train and {name}: '{left}'"
                assert lines == ([said] if left else [])


def test_what_fits_no_layout_is_refused(tmp_path):
    for names, said in (
        ("a.mp4 b.MP4 c.heic x/d.txt", "has no image, but 2 .mp4, 1 .heic, 1 .txt: accepted are"),
        ("Training/a/1.jpg Testing/a/1.jpg", "holds 'Training' and 'Testing': if these are splits"),
        ("x/train/a/1.jpg x/test/a/1.jpg y.txt", "/x holds 'train' and 'test'"),
        ("test/a/1.jpg", "has no split 'train', but 'test': accepted are"),
        ("train/1.jpg bus/1.jpg", "there are images in 'bus' beside it"),
    ):
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        assert said in why(open_image_files, write(root, files(names))), names
    (tmp_path / "empty").mkdir()
    assert "empty has no files: accepted are" in why(open_image_files, tmp_path / "empty")
    assert "neither a folder nor a zip file" in why(open_image_files, root / "train/1.jpg")
    for names in ("train_station/1.jpg valley/1.jpg", "latest/1.jpg trainset/1.jpg"):
        root = tmp_path / names[:5]
        assert len(taken(write(root, files(names)))[0]) > 0  # classes as well as others


def test_digests_of_splits_are_those_of_the_first_version(tmp_path):
    """So that their runs continue: computed by version 0.1.0."""
    tree = files(
        "train/cat/b.jpg train/cat/a.PNG train/cat/z/c.png train/dog/0.jpeg train/stray.png "
        "val/dog/1.png"
    )
    for root, digests in (
        (write(tmp_path / "set", tree), ["9b4abc1449faa504", "2d47b77863e25ac1"]),
        (zipped(tmp_path / "set.zip", tree), ["735b984733bbb94f", "ccd3e9f5a7e3839e"]),
    ):
        assert [split.digest for split in open_image_files(root)] == digests


def test_a_tenth_of_each_class_is_held_out(tmp_path, rng, capsys):
    """The same of a folder and a zip file, wherever they are; by the seed; or a fold."""
    tree = {f"{animal}/{i}.png": encoded(picture(rng)) for animal in "ab" for i in range(20)}
    roots = write(tmp_path / "pets", tree), zipped(tmp_path / "else" / "pets.zip", tree)
    split, said = load(DataConfig(str(roots[0]))), []
    zipped_split = load(DataConfig(str(roots[1])), said.append)
    names = [set(), set()]
    for part, numbers in zip(names, (split.train.indices, split.test.indices), strict=True):
        part |= set(numbers.tolist())
    assert not names[0] & names[1] and len(names[0] | names[1]) == 40
    assert np.bincount(split.test.labels).tolist() == [2, 2] and split.pretrain is split.train
    for part, other in zip(split[:2], zipped_split[:2], strict=True):
        equal(part.indices, other.indices)
    first = split.test.source._names[split.test.indices[0]]
    equal(split.test[0]["image"], decode(tree[first]))
    line = (
        "2 classes, a folder each; no split of its own: 36 images to train on, 4 held out (fold 0"
    )
    assert f"{roots[0]}: {line}" in capsys.readouterr().err and [
        str(roots[1]) in text for text in said
    ] == [1]
    others = [
        load(DataConfig(str(roots[0]), **options), said.append)
        for options in ({"subset_seed": 1}, {"folds": 5}, {"folds": 10, "fold": 1})
    ]
    assert [len(other.test) for other in others] == [4, 8, 4] and "fold 1 of 10" in said[-1]
    assert len({part.digest() for part in (split, *others)}) == 4
    assert load(DataConfig(str(roots[0]), folds=10), said.append).digest() == split.digest()
    # What has a split of its own, or is one image, is as it was.
    assert load(DataConfig(str(write(tmp_path / "own", {"train/1.png": b"x"})))).test is None
    assert load(DataConfig(str(write(tmp_path / "one", {"1.png": b"x"})))).test is None
    assert not capsys.readouterr().err and images(split.test)[0].shape == (9, 12, 3)
