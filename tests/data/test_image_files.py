"""Folders and zips of images: order, labels, splits, digests, damage; pixels against Pillow's."""

import contextlib
import io
import os
import pickle
import shutil
import unicodedata
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from data_cases import encoded, equal, images, picture, why, write, zipped
from PIL import Image, ImageFile

from hypersphere_jax.configs import UserError
from hypersphere_jax.data import decode as decoding
from hypersphere_jax.data import image_files
from hypersphere_jax.data.decode import decode, image_size
from hypersphere_jax.data.image_files import ImageFiles, open_image_files, read_classes
from hypersphere_jax.data.source import UnreadableImage
from hypersphere_jax.utils import caches


def test_order_and_labels_are_those_of_torchvisions_image_folder(tmp_path, folder, tree):
    """Files of inner folders come last; so it is in zips, of all or of a split, below a folder."""
    order = ["ant/1.webp", "cat/a.PNG", "cat/b.jpg", "cat/zz.png", "cat/z/c.png", "dog/0.jpeg"]
    tests = ["ant/a.bmp", "cat/a.png", "dog/a.png"]
    below = {f"images/{name}": data for name, data in tree.items()}
    below |= {"README": b"", "__MACOSX/images/train/cow/x.png": b""}
    forms = [folder]
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        root = tmp_path / str(method)
        for split in ("train", "test"):
            part = {k.partition("/")[2]: v for k, v in tree.items() if k.startswith(split)}
            zipped(root / f"{split}.zip", part, method)
        one, other = tmp_path / f"{method}.zip", tmp_path / f"{method}b.zip"
        forms += [root, zipped(one, tree, method), zipped(other, below, method)]
    for form in forms:
        train, test = open_image_files(form)
        assert train.class_names == test.class_names == ("ant", "cat", "dog")
        for split, names, source in (("train", order, train), ("test", tests, test)):
            equal(images(source), [decode(tree[f"{split}/{name}"]) for name in names])
            labels = [("ant", "cat", "dog").index(name[:3]) for name in names]
            assert source.labels.tolist() == [sample["label"] for sample in source] == labels
            assert source.image_shape == (9, 12, 3) and source.labels.dtype == np.int32
        assert image_files.is_image_tree(form)
        copy = pickle.loads(pickle.dumps(train))
        with ThreadPoolExecutor(8) as pool:
            equal(images(pool.map(copy.__getitem__, range(6))), images(train))
        assert copy.digest == train.digest
        for part in open_image_files(form, ("dog", "ant")):
            assert part.class_names == ("ant", "dog") and part.labels.tolist() == [0, 1]


def test_sizes(folder, rng, monkeypatch, tmp_path):
    monkeypatch.setattr(image_files, "HEADERS", 1)
    monkeypatch.setattr(caches, "SLOW_SECONDS", -1)
    shape = lambda: open_image_files(folder, cache_dir=tmp_path / "cache")[0].image_shape  # noqa: E731
    assert ImageFiles(folder, "train").image_shape == shape() == (9, 12, 3)
    with monkeypatch.context() as patched:
        patched.setattr(ImageFiles, "_image_size", None)
        assert shape() == (9, 12, 3)  # without a look at the files' headers
    write(folder, {"train/dog/0.jpeg": encoded(picture(rng, 8, 8))})
    assert ImageFiles(folder, "train").image_shape is shape() is None
    write(folder, {"train/dog/0.jpeg": b"cut short"})
    assert shape() == (9, 12, 3)
    assert len(list((tmp_path / "cache").iterdir())) == 1  # which is not kept


def test_which_split_is_asked_for(folder):
    for name in ("val", "validation"):
        (folder / "test").rename(folder / name)
        assert open_image_files(folder)[1].origin == str(folder / name)
        (folder / name).rename(folder / "test")
    shutil.copytree(folder / "test", folder / "val")
    assert ImageFiles(folder, "test").origin == str(folder / "test")
    # ImageNet's own `test` is flat, as its labels are secret: `val` is the split to test on.
    shutil.rmtree(folder / "test")
    write(folder, {"test/1.png": b"x"})
    assert ImageFiles(folder, "test").origin.endswith("val")
    assert "no split 'train'" in why(ImageFiles, folder / "train", "train")


def test_classes_of_the_splits_and_lists_of_them(folder, tmp_path):
    shutil.rmtree(folder / "test/cat")
    assert open_image_files(folder)[1].labels.tolist() == [0, 2]
    (folder / "test/dog").rename(folder / "test/cow")
    assert "lacks the classes 'cow'" in why(open_image_files, folder)
    (folder / "train/bee").mkdir()
    assert ImageFiles(folder, "train", on_bad="skip").labels.tolist() == [0, 2, 2, 2, 2, 3]
    path = tmp_path / "classes.txt"
    path.write_bytes(b'\xef\xbb\xbf# a comment\r\nn02\r\n\r\n n01 # a dog\r\n"n03",three,3\n')
    assert read_classes(path) == ("n02", "n01", "n03")


def test_what_is_no_image_or_cannot_be_read(folder, caplog):
    write(folder / "train", dict.fromkeys(("Thumbs.db", "cat/._a.png", ".old/a.png"), b"x"))
    assert len(ImageFiles(folder, "train")) == 6 and not caplog.text
    write(folder / "train", {"cat/notes.txt": b"x", "stray.png": b"x"})
    train = ImageFiles(folder, "train")
    assert len(train) == 6 and "(1 .txt): 'cat/notes.txt'" in caplog.text
    write(folder, {"train/ant/1.webp": b""})
    assert "(1): 'ant/1.webp is empty'" in why(ImageFiles, folder, "train")
    assert ImageFiles(folder, "train", on_bad="skip")[1]["label"] == 1


SCRIPTS = ("zebra", "é", "Ångström", "한국", "だ", "日本語", "Ελλάδα", "й")


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_classes_are_those_of_the_folder_whatever_wrote_the_zip(tmp_path, form):
    """Class names are compared and sorted in one Unicode normalization."""
    expected = tuple(sorted(unicodedata.normalize("NFC", name) for name in SCRIPTS))
    tree, junk = {}, {}
    for i, name in enumerate(SCRIPTS):
        path = unicodedata.normalize(form, f"{name}/ü{name}.png")
        tree[path] = encoded(Image.new("L", (2, 2), i))
        junk |= {f"__MACOSX/._{path}": b"x", f"{path.partition('/')[0]}/.DS_Store": b"x"}
    values = [SCRIPTS.index(unicodedata.normalize("NFC", name)) for name in expected]
    for root in (
        write(tmp_path / "folder", tree | junk),
        zipped(tmp_path / "flag.zip", tree | junk),
        zipped(tmp_path / "macos.zip", tree | junk, encoding="utf-8"),
    ):
        source = ImageFiles(root, None)
        assert source.class_names == expected
        assert source.labels.tolist() == list(range(len(SCRIPTS)))
        assert [image[0, 0, 0] for image in images(source)] == values
        kept = ImageFiles(root, None, [unicodedata.normalize("NFD", "é"), "zebra"])
        assert kept.class_names == ("zebra", "é") and len(kept) == 2
    assert source.digest == ImageFiles(tmp_path / "flag.zip", None).digest


def test_one_name_in_two_normalizations_is_one_class(tmp_path):
    composed, separate = (unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))
    tree = {f"train/{composed}/0.png": b"x", f"train/{separate}/1.png": b"x", "train/z/2.png": b"x"}
    tree |= {f"test/{separate}/3.png": b"x"}
    for root in (write(tmp_path / "set", tree), zipped(tmp_path / "set.zip", tree)):
        train, test = open_image_files(root)
        assert train.class_names == test.class_names == ("z", "é")
        assert train.labels.tolist() == [0, 1, 1] and test.labels.tolist() == [1]
        digests = {ImageFiles(root, "train", on_bad="skip").digest for _ in range(2)}
        assert len(digests) == 1
    # The zip standard's own encoding stays.
    old = zipped(tmp_path / "old.zip", {"é/1.png": b"x", "ü/2.png": b"x"}, encoding="cp437")
    assert ImageFiles(old, None).class_names == ("é", "ü")
    assert [ImageFiles(old, None)._read(i) for i in range(2)] == [b"x"] * 2


@pytest.mark.parametrize(("loop", "target"), [("up", ".."), ("z/again", "../../cat")])
def test_links_to_nothing_and_loops_of_links(folder, loop, target):
    """Dangling links count as unreadable images, and loops of links are read once."""
    cat = folder / "train" / "cat"
    (cat / "gone.png").symlink_to("nowhere.png")
    (cat / "loop.png").symlink_to("loop.png")
    (cat / loop).symlink_to(target)
    said = why(ImageFiles, folder, "train")
    assert "(2)" in said and "cat/gone.png" in said and "cat/loop.png" in said
    source = ImageFiles(folder, "train", on_bad="skip")
    assert len(source) == 6 + 2
    unreadable = []
    for i in range(len(source)):
        try:
            assert source[i]["image"].shape == (9, 12, 3)
        except UnreadableImage as error:
            unreadable.append(str(error).partition(":")[0])
    assert unreadable == [str(cat / "gone.png"), str(cat / "loop.png")]


def test_digest_is_of_contents_names_and_classes(tmp_path, folder, tree, monkeypatch):
    digest = lambda root, split="train": ImageFiles(root, split).digest  # noqa: E731
    digests = [digest(folder), digest(folder, "test")]
    root = folder.rename(tmp_path / "moved")
    image = root / "train/cat/b.jpg"
    os.utime(image, (1, 1))
    assert digest(root) == digests[0]
    image.write_bytes(image.read_bytes()[:-3] + bytes(3))  # of the same length
    digests += [digest(root)]
    image.rename(image.with_name("bb.jpg"))
    digests += [digest(root)]
    (root / "train/dog").rename(root / "train/fox")
    digests += [digest(root)]
    one, two = (digest(zipped(tmp_path / f"{n}.zip", tree)) for n in "ab")
    tree["train/cat/b.jpg"] = tree["train/cat/b.jpg"][:-1] + b"?"
    digests += [one, digest(zipped(tmp_path / "c.zip", tree))]
    assert one == two
    # Of a large folder it takes some contents.
    monkeypatch.setattr(image_files, "DIGEST_BYTES", 0)
    monkeypatch.setattr(image_files, "DIGEST_FILES", 1)
    assert len({*digests, digest(root)}) == len(digests) + 1 == 8


def test_damage_of_a_zip_gives_errors_and_no_other_image(tmp_path, tree, rng):
    data = zipped(tmp_path / "whole.zip", tree).read_bytes()
    known = {image.tobytes() for image in images(ImageFiles(tmp_path / "whole.zip", "train"))}
    path, unharmed = tmp_path / "damaged.zip", 0
    path.write_bytes(data[:-1])
    assert "no whole zip file" in why(ImageFiles, path, "train")
    place = data.index(tree["train/dog/0.jpeg"]) + 20
    path.write_bytes(data[:place] + b"???" + data[place + 3 :])
    said = why(ImageFiles(path, "train").__getitem__, 5, error=UnreadableImage)
    assert f"{path}/train/dog/0.jpeg: Bad CRC-32" in said
    for start in rng.integers(0, len(data), 100):
        wrong = bytes(byte ^ 85 for byte in data[start : start + 5])
        path.write_bytes(data[:start] + wrong + data[start + 5 :])
        with contextlib.suppress(UnreadableImage, UserError):
            assert {image.tobytes() for image in images(ImageFiles(path, "train"))} <= known
            unharmed += 1
    assert unharmed < 50
    for name in ("../evil.png", "train/../../evil.png", "/etc/evil.png", "C:/evil.png"):
        hostile = zipped(tmp_path / "hostile.zip", tree | {name: b"x"})
        assert "no plain names" in why(ImageFiles, hostile, "train"), name


MODES = ("1 PNG", "L PNG", "L JPEG", "P PNG", "CMYK TIFF")
KINDS = ("JPEG", "PNG", "PPM", "BMP", "GIF", "TIFF", "WEBP")


def test_every_format_and_mode_has_pillows_pixels_in_rgb(rng):
    for mode, kind in [*(pair.split() for pair in MODES), *(("RGB", kind) for kind in KINDS)]:
        data = encoded(picture(rng, mode=mode), kind)
        found = decode(data)
        equal(found, np.asarray(Image.open(io.BytesIO(data)).convert("RGB")), f"{mode} {kind}")
        assert found.dtype == np.uint8 and found.shape == (9, 12, 3) and found.flags.writeable
        assert image_size(io.BytesIO(data)) == (9, 12)
    # Adobe's CMYK is stored inverted: not turned back, it would differ by up to 255.
    image = picture(rng, 16, 16)
    data = encoded(image.convert("CMYK"), "JPEG", quality=100, subsampling=0)
    assert np.abs(decode(data).astype(int) - np.asarray(image)).max() < 30


def test_alpha_further_frames_and_orientation_are_dropped(rng):
    first, second, exif = picture(rng), picture(rng), Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    transparent = first.convert("RGBA")
    transparent.putalpha(second.convert("L"))
    frames = {"save_all": True, "append_images": [second]}
    for image, options in ((transparent, {}), (first, frames), (first, {"exif": exif})):
        equal(decode(encoded(image, "PNG", **options)), np.asarray(first))


def test_16_bit_grey_is_scaled():
    values = np.arange(65536).reshape(256, 256)
    for kind, order in (("PNG", "<u2"), ("PPM", "<u2"), ("TIFF", ">u2")):
        found = decode(encoded(Image.fromarray(values.astype(order)), kind))
        equal(found, np.stack([np.round(values / 257)] * 3, axis=2), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_of_too_many_pixels_is_refused_by_its_header(rng, monkeypatch, kind):
    """Cameras have 100 megapixels; what Pillow would still decode has 179."""
    assert 11648 * 8736 < decoding.MAX_PIXELS < 13_000**2
    monkeypatch.setattr(decoding, "MAX_PIXELS", 9 * 11)
    assert decode(encoded(picture(rng, 9, 11), kind)).shape == (9, 11, 3)
    large = encoded(picture(rng, 9, 12), kind)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("it is decoded"))
    for read in (decode, lambda data: image_size(io.BytesIO(data)), opened):
        assert "12 x 9 pixels" in why(read, large, error=ValueError)


def opened(data):
    return decoding.pixels(Image.open(io.BytesIO(data)))


def test_damaged_images_are_refused(folder, rng):
    cut = [encoded(picture(rng, 24, 31), kind)[:-60] for kind in KINDS]
    for data in (b"", b"<html>404 Not Found</html>", rng.bytes(99), *cut):
        write(folder, {"train/ant/1.webp": data})
        source = ImageFiles(folder, "train", on_bad="skip")
        assert "train/ant/1.webp: " in why(source.__getitem__, 0, error=UnreadableImage)
