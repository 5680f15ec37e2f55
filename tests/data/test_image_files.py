"""Image files as a source: order, labels, shapes, fingerprints, damage; pixels against Pillow's."""

import io
import os
import pickle
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from data_cases import encoded, equal, images, picture, write, zipped
from PIL import Image

from hypersphere_jax.configs import UserError
from hypersphere_jax.data.decode import decode, image_size
from hypersphere_jax.data.image_files import open_image_files
from hypersphere_jax.data.source import UnreadableImage

CLASSES = ("ant", "cat", "dog")
# In torchvision's order: files of inner folders come last.
TRAIN = ["ant/1.webp", "cat/a.PNG", "cat/b.jpg", "cat/zz.png", "cat/z/c.png", "dog/0.jpeg"]
TEST = ["ant/a.bmp", "cat/a.png", "dog/a.png"]


def train_split(root):
    return open_image_files(root)[0]


@pytest.fixture(params=["folder", "stored", "deflated", "wrapped", "zip per split"])
def place(request, tmp_path, tree):
    """Return a folder or a zip file with the images."""
    if request.param == "folder":
        return write(tmp_path / "set", tree)
    if request.param == "zip per split":
        for split in ("train", "test"):
            part = {k.partition("/")[2]: v for k, v in tree.items() if k.startswith(split)}
            zipped(tmp_path / "set" / f"{split}.zip", part)
        return tmp_path / "set"
    if request.param == "wrapped":
        tree = {f"images/{name}": data for name, data in tree.items()}
        tree |= {"README": b"", "__MACOSX/images/train/cow/x.png": b""}
    method = zipfile.ZIP_DEFLATED if request.param == "deflated" else zipfile.ZIP_STORED
    return zipped(tmp_path / "set.zip", tree, method)


def test_order_and_labels_follow_torchvisions_image_folder(place, tree):
    train, test = open_image_files(place)
    for split, names, source in (("train", TRAIN, train), ("test", TEST, test)):
        assert source.class_names == CLASSES
        equal(images(source), [decode(tree[f"{split}/{name}"]) for name in names])
        labels = [CLASSES.index(name[:3]) for name in names]
        assert source.labels.tolist() == [sample["label"] for sample in source] == labels
        assert source.image_shape == (9, 12, 3)
    copy = pickle.loads(pickle.dumps(train))
    assert copy.digest == train.digest
    with ThreadPoolExecutor(8) as pool:
        equal(images(pool.map(copy.__getitem__, range(6))), images(train))


def test_broken_links_are_unreadable_and_loops_end(folder):
    cat = folder / "train" / "cat"
    (cat / "gone.png").symlink_to("nowhere.png")
    (cat / "self.png").symlink_to("self.png")
    (cat / "up").symlink_to("..")
    (cat / "z/again").symlink_to("../../cat")
    source = train_split(folder)
    unreadable = []
    for i in range(len(source)):
        try:
            source[i]
        except UnreadableImage:
            unreadable.append(source.file(i))
    assert len(source) == 6 + 2
    assert unreadable == [str(cat / "gone.png"), str(cat / "self.png")]


def test_fingerprint_depends_on_contents_names_and_classes(tmp_path, folder, tree):
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
    for name in "ab":
        digests.append(train_split(zipped(tmp_path / f"{name}.zip", tree)).digest)
        tree["train/cat/b.jpg"] = tree["train/cat/b.jpg"][:-1] + b"?"
    assert len(set(digests)) == 7


def test_fingerprints_stay_the_same_between_versions(tmp_path):
    """Runs resume only with the fingerprint that they started with."""
    names = "train/cat/b.jpg train/cat/a.PNG train/cat/z/c.png train/dog/0.jpeg train/stray.png"
    tree = {name: name.encode() for name in [*names.split(), "val/dog/1.png"]}
    for root, digests in (
        (write(tmp_path / "set", tree), ["9b4abc1449faa504", "2d47b77863e25ac1"]),
        (zipped(tmp_path / "set.zip", tree), ["735b984733bbb94f", "ccd3e9f5a7e3839e"]),
    ):
        assert [split.digest for split in open_image_files(root)] == digests


MODES = ("1 PNG", "L PNG", "L JPEG", "P PNG", "CMYK TIFF")
KINDS = ("JPEG", "PNG", "PPM", "BMP", "GIF", "TIFF", "WEBP")


@pytest.mark.parametrize("form", [*MODES, *(f"RGB {kind}" for kind in KINDS)])
def test_pixels_are_pillows_in_rgb(form, rng):
    mode, kind = form.split()
    data = encoded(picture(rng, mode=mode), kind)
    found = decode(data)
    equal(found, np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))
    assert found.flags.writeable
    assert image_size(io.BytesIO(data)) == found.shape[:2] == (9, 12)


@pytest.mark.parametrize(("kind", "dtype"), [("PNG", "<u2"), ("PPM", "<u2"), ("TIFF", ">u2")])
def test_16_bit_gray_is_scaled(kind, dtype):
    values = np.arange(65536).reshape(256, 256)
    found = decode(encoded(Image.fromarray(values.astype(dtype)), kind))
    equal(found, np.stack([np.round(values / 257)] * 3, axis=2))


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_too_large_images_are_refused():
    data = encoded(Image.new("1", (12345, 12346)))
    for read in (decode, lambda data: image_size(io.BytesIO(data))):
        with pytest.raises(ValueError, match="12345"):
            read(data)


@pytest.mark.parametrize("kind", ["empty", *KINDS])
def test_damaged_images_are_unreadable(kind, folder, rng):
    data = b"" if kind == "empty" else encoded(picture(rng, 24, 31), kind)[:-60]
    write(folder, {"train/ant/1.webp": data})
    with pytest.raises(UnreadableImage, match=r"ant/1\.webp"):
        train_split(folder)[0]


def test_classes_of_the_test_split_must_be_in_the_training_split(folder):
    (folder / "test/dog").rename(folder / "test/cow")
    with pytest.raises(UserError, match="cow"):
        open_image_files(folder)
