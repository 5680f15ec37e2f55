"""Image files as a source: order, labels, shapes, fingerprints, damage; pixels against Pillow's."""

import contextlib
import io
import os
import pickle
import shutil
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
from hypersphere_jax.data.image_files import is_image_tree, open_image_files, read_classes
from hypersphere_jax.data.source import UnreadableImage
from hypersphere_jax.utils import caches


def train_split(root, on_bad="error"):
    return open_image_files(root, on_bad=on_bad)[0]


def test_order_and_labels_follow_torchvisions_image_folder(tmp_path, folder, tree):
    """Files of inner folders come last, in a folder, in a zip file, and in a zip file per split."""
    order = ["ant/1.webp", "cat/a.PNG", "cat/b.jpg", "cat/zz.png", "cat/z/c.png", "dog/0.jpeg"]
    tests = ["ant/a.bmp", "cat/a.png", "dog/a.png"]
    wrapped = {f"images/{name}": data for name, data in tree.items()}
    wrapped |= {"README": b"", "__MACOSX/images/train/cow/x.png": b""}
    roots = [folder]
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        root = tmp_path / str(method)
        for split in ("train", "test"):
            part = {k.partition("/")[2]: v for k, v in tree.items() if k.startswith(split)}
            zipped(root / f"{split}.zip", part, method)
        one = zipped(tmp_path / f"{method}.zip", tree, method)
        roots += [root, one, zipped(tmp_path / f"{method}w.zip", wrapped, method)]
    for root in roots:
        train, test = open_image_files(root)
        assert train.class_names == test.class_names == ("ant", "cat", "dog")
        for split, names, source in (("train", order, train), ("test", tests, test)):
            equal(images(source), [decode(tree[f"{split}/{name}"]) for name in names])
            labels = [("ant", "cat", "dog").index(name[:3]) for name in names]
            assert source.labels.tolist() == [sample["label"] for sample in source] == labels
            assert source.image_shape == (9, 12, 3) and source.labels.dtype == np.int32
        assert is_image_tree(root)
        copy = pickle.loads(pickle.dumps(train))
        with ThreadPoolExecutor(8) as pool:
            equal(images(pool.map(copy.__getitem__, range(6))), images(train))
        assert copy.digest == train.digest
        for part in open_image_files(root, ("dog", "ant")):
            assert part.class_names == ("ant", "dog") and part.labels.tolist() == [0, 1]


def test_image_shape_is_cached_only_if_all_images_are_readable(folder, rng, monkeypatch, tmp_path):
    monkeypatch.setattr(caches, "SLOW_SECONDS", -1)
    cache = tmp_path / "cache"
    shape = lambda: open_image_files(folder, cache_dir=cache)[0].image_shape  # noqa: E731
    assert train_split(folder).image_shape == shape() == (9, 12, 3)
    with monkeypatch.context() as patched:
        patched.setattr(image_files, "image_size", lambda stream: pytest.fail("reads a header"))
        assert shape() == (9, 12, 3)
    write(folder, {"train/dog/0.jpeg": encoded(picture(rng, 8, 8))})
    assert train_split(folder).image_shape is shape() is None
    write(folder, {"train/dog/0.jpeg": b"cut short"})
    assert shape() == (9, 12, 3)
    assert len(list(cache.iterdir())) == 1


def test_splits_have_the_classes_of_the_training_split(folder, tmp_path):
    shutil.rmtree(folder / "test/cat")
    assert open_image_files(folder)[1].labels.tolist() == [0, 2]
    (folder / "test/dog").rename(folder / "test/cow")
    assert "'cow'" in why(open_image_files, folder)
    (folder / "test/cow").rename(folder / "test/dog")
    (folder / "train/bee").mkdir()
    assert "'bee'" in why(open_image_files, folder)
    assert train_split(folder, "skip").labels.tolist() == [0, 2, 2, 2, 2, 3]
    assert "'cow'" in why(open_image_files, folder, ["cow"])
    path = tmp_path / "classes.txt"
    path.write_bytes(b'\xef\xbb\xbf# a comment\r\nn02\r\n\r\n n01 # a dog\r\n"n03",three,3\n')
    assert read_classes(path) == ("n02", "n01", "n03")


@pytest.mark.parametrize(("loop", "target"), [("up", ".."), ("z/again", "../../cat")])
def test_broken_links_are_unreadable_and_loops_end(folder, loop, target):
    cat = folder / "train" / "cat"
    (cat / "gone.png").symlink_to("nowhere.png")
    (cat / "loop.png").symlink_to("loop.png")
    (cat / loop).symlink_to(target)
    message = why(train_split, folder)
    assert "cat/gone.png" in message and "cat/loop.png" in message
    source = train_split(folder, "skip")
    assert len(source) == 6 + 2
    unreadable = []
    for i in range(len(source)):
        try:
            assert source[i]["image"].shape == (9, 12, 3)
        except UnreadableImage as error:
            unreadable.append(str(error).partition(":")[0])
    assert unreadable == [str(cat / "gone.png"), str(cat / "loop.png")]


def test_fingerprint_depends_on_contents_names_and_classes(tmp_path, folder, tree, monkeypatch):
    digests = [split.digest for split in open_image_files(folder)]
    root = folder.rename(tmp_path / "moved")
    image = root / "train/cat/b.jpg"
    os.utime(image, (1, 1))
    assert train_split(root).digest == digests[0]
    image.write_bytes(image.read_bytes()[:-3] + bytes(3))  # the same size
    digests.append(train_split(root).digest)
    image.rename(image.with_name("bb.jpg"))
    digests.append(train_split(root).digest)
    for split in ("train", "test"):
        (root / split / "dog").rename(root / split / "fox")
    digests.append(train_split(root).digest)
    one, two = (train_split(zipped(tmp_path / f"{n}.zip", tree)).digest for n in "ab")
    tree["train/cat/b.jpg"] = tree["train/cat/b.jpg"][:-1] + b"?"
    digests += [one, train_split(zipped(tmp_path / "c.zip", tree)).digest]
    assert one == two
    # The fingerprint of a large folder contains some contents.
    monkeypatch.setattr(image_files, "DIGEST_BYTES", 0)
    monkeypatch.setattr(image_files, "DIGEST_FILES", 1)
    assert len({*digests, train_split(root).digest}) == len(digests) + 1 == 8


def test_fingerprints_stay_the_same_between_versions(tmp_path):
    """Runs resume only with the fingerprint that they started with."""
    names = "train/cat/b.jpg train/cat/a.PNG train/cat/z/c.png train/dog/0.jpeg train/stray.png"
    tree = {name: name.encode() for name in [*names.split(), "val/dog/1.png"]}
    for root, digests in (
        (write(tmp_path / "set", tree), ["9b4abc1449faa504", "2d47b77863e25ac1"]),
        (zipped(tmp_path / "set.zip", tree), ["735b984733bbb94f", "ccd3e9f5a7e3839e"]),
    ):
        assert [split.digest for split in open_image_files(root)] == digests


def test_damaged_zip_gives_errors_but_no_other_image(tmp_path, tree, rng):
    data = zipped(tmp_path / "whole.zip", tree).read_bytes()
    known = {image.tobytes() for image in images(train_split(tmp_path / "whole.zip"))}
    path = tmp_path / "damaged.zip"
    path.write_bytes(data[:-1])
    assert str(path) in why(train_split, path)
    start = data.index(tree["train/dog/0.jpeg"]) + 20
    path.write_bytes(data[:start] + b"???" + data[start + 3 :])
    message = why(train_split(path).__getitem__, 5, error=UnreadableImage)
    assert f"{path}/train/dog/0.jpeg" in message
    unharmed = 0
    for start in rng.integers(0, len(data), 100):
        wrong = bytes(byte ^ 85 for byte in data[start : start + 5])
        path.write_bytes(data[:start] + wrong + data[start + 5 :])
        with contextlib.suppress(UnreadableImage, UserError):
            assert {image.tobytes() for image in images(train_split(path))} <= known
            unharmed += 1
    assert unharmed < 50


MODES = ("1 PNG", "L PNG", "L JPEG", "P PNG", "CMYK TIFF")
KINDS = ("JPEG", "PNG", "PPM", "BMP", "GIF", "TIFF", "WEBP")


def test_every_format_and_mode_has_pillows_pixels_in_rgb(rng):
    for mode, kind in [*(pair.split() for pair in MODES), *(("RGB", kind) for kind in KINDS)]:
        data = encoded(picture(rng, mode=mode), kind)
        found = decode(data)
        equal(found, np.asarray(Image.open(io.BytesIO(data)).convert("RGB")), f"{mode} {kind}")
        assert found.dtype == np.uint8 and found.shape == (9, 12, 3) and found.flags.writeable
        assert image_size(io.BytesIO(data)) == (9, 12)
    # Adobe's CMYK is stored inverted: without inversion it would differ by up to 255.
    image = picture(rng, 16, 16)
    data = encoded(image.convert("CMYK"), "JPEG", quality=100, subsampling=0)
    assert np.abs(decode(data).astype(int) - np.asarray(image)).max() < 30


def test_alpha_further_frames_and_orientation_are_dropped(rng):
    first, second, exif = picture(rng), picture(rng), Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees
    transparent = first.convert("RGBA")
    transparent.putalpha(second.convert("L"))
    frames = {"save_all": True, "append_images": [second]}
    for image, options in ((transparent, {}), (first, frames), (first, {"exif": exif})):
        equal(decode(encoded(image, "PNG", **options)), np.asarray(first))


def test_16_bit_gray_is_scaled():
    values = np.arange(65536).reshape(256, 256)
    for kind, order in (("PNG", "<u2"), ("PPM", "<u2"), ("TIFF", ">u2")):
        found = decode(encoded(Image.fromarray(values.astype(order)), kind))
        equal(found, np.stack([np.round(values / 257)] * 3, axis=2), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_too_large_image_is_refused_by_its_header(rng, monkeypatch, kind):
    """Cameras have 100 megapixels; Pillow's own limit is 179."""
    assert 11648 * 8736 < decoding.MAX_PIXELS < 13_000**2
    monkeypatch.setattr(decoding, "MAX_PIXELS", 9 * 11)
    assert decode(encoded(picture(rng, 9, 11), kind)).shape == (9, 11, 3)
    large = encoded(picture(rng, 9, 12), kind)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("it is decoded"))
    opened = lambda data: decoding.pixels(Image.open(io.BytesIO(data)))  # noqa: E731
    for read in (decode, lambda data: image_size(io.BytesIO(data)), opened):
        assert "12 x 9 pixels" in why(read, large, error=ValueError)


def test_damaged_images_are_refused(folder, rng):
    cut = [encoded(picture(rng, 24, 31), kind)[:-60] for kind in KINDS]
    for data in (b"", b"<html>404 Not Found</html>", rng.bytes(99), *cut):
        write(folder, {"train/ant/1.webp": data})
        source = train_split(folder, "skip")
        assert "train/ant/1.webp: " in why(source.__getitem__, 0, error=UnreadableImage)
    write(folder, {"train/ant/1.webp": b""})
    assert "ant/1.webp" in why(train_split, folder)
