"""Images, folders and zip files of them, and names."""

import io
import itertools
import json
import warnings
import zipfile
from pathlib import Path

import numpy as np
from fuzzing import fuzz
from hypothesis import strategies as st
from junk import NAMES, damage, damaged, names
from PIL import Image

FORMATS = {"png": "1 L LA P RGB RGBA I;16", "jpg": "L RGB CMYK", "gif": "L P RGB"}
FORMATS |= {"tif": "1 L RGB RGBA CMYK F I;16", "webp": "RGB RGBA", "bmp": "1 L RGB"}
ODD = ("../beside/x.png", "/x.png", "a/../../x.png", "a\\x.png", "C:x.png", "a//x.png", "a/0.png")
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
TYPES = (0, 0o100644, 0o120777, 0o010644)  # of members: none, a file, a link, a FIFO


def image(ending="png", mode="RGB", size=(8, 8)):
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    stream, made = io.BytesIO(), Image.fromarray(pixels)
    made = made.convert("L").convert("I").convert(mode) if mode == "I;16" else made.convert(mode)
    made.save(stream, {"jpg": "JPEG", "tif": "TIFF"}.get(ending, ending.upper()))
    return stream.getvalue()


GOOD = image()


@st.composite
def image_files(draw):
    """An ending, and an image's bytes: of any mode and size, or damaged."""
    ending, side = draw(st.sampled_from(list(FORMATS))), st.sampled_from((1, 2, 8, 9, 33))
    mode = draw(st.sampled_from(FORMATS[ending].split()))
    content = image(ending, mode, (draw(side), draw(side)))
    for how in draw(st.lists(damage, max_size=2)):
        content = damaged(content, how)
    if ending == "png" and draw(st.integers(0, 4)) == 0:  # another width in the header
        width = draw(st.sampled_from((0, 1, 10**4, 10**5, 2**31 - 1)))
        content = content[:16] + width.to_bytes(4, "big") + content[20:]
    return draw(st.sampled_from((ending, "png", "JPG"))), content


def is_whole(content):
    """Whether Pillow decodes it."""
    try:
        Image.open(io.BytesIO(content)).load()
    except Exception:
        return False
    return True


@fuzz(20, made=image_files(), skip=st.booleans())
def test_image_files(place, made, skip):
    """A damaged image is an error, or counted."""
    for number in range(10):
        place.put(f"photos/{'ab'[number % 2]}/{number}.png", GOOD)
    place.put(f"photos/a/x.{made[0]}", made[1])
    more = ["--bad-images", "skip"] if skip else []
    line = ("data", "inspect", "photos", "--sample", "0", "--out", "o.json", *more)
    if place.call(*line).status == 0:
        splits = json.loads(Path("o.json").read_text())
        unreadable = sum(splits[name]["unreadable"] for name in ("train", "test"))
        assert unreadable == (not is_whole(made[1])) or (skip and unreadable)
        assert sum(splits[name]["read"] for name in ("train", "test")) + unreadable == 11


@st.composite
def zips(draw):
    """A zip file of images, some with odd names, types or contents; or damaged."""
    stream, method = io.BytesIO(), draw(st.sampled_from(METHODS))
    parts = names.map(lambda name: f"train/{name}/x.png") | names.map(lambda name: f"a/{name}.png")
    with zipfile.ZipFile(stream, "w", method) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are there twice
        for name in [f"{part}/{i}.png" for part in "ab" for i in range(6)]:
            file.writestr(name, GOOD)
        for name in draw(st.lists(st.sampled_from(ODD) | parts, max_size=2)):
            info = zipfile.ZipInfo(name.encode("utf-8", "replace").decode())
            info.external_attr = draw(st.sampled_from(TYPES)) << 16
            file.writestr(info, draw(st.sampled_from((GOOD, b"", b"x", bytes(10**6)))), method)
    content = stream.getvalue()
    if draw(st.integers(0, 4)) == 0:  # "encrypted"
        content = content.replace(b"PK\1\2\x14\3\x14\0\0\0", b"PK\1\2\x14\3\x14\0\1\0", 1)
    for how in draw(st.lists(damage, max_size=2)):
        content = damaged(content, how)
    return content


@fuzz(23, content=zips())
def test_zips(place, content):
    place.put("z.zip", content)
    place.call("data", "inspect", "z.zip", "--sample", "2")


def on_disk(name):
    """A name as a part of a path, of what the file system holds."""
    name = name.replace("/", "").encode("utf-8", "surrogateescape")[:200]
    return "x" if name in (b"", b".", b"..") else name.decode("utf-8", "surrogateescape")


VERBS = ("inspect", "inspect", "classes", "probe", "export", "pretrain", "show", "report")


@fuzz(10, name=names, other=st.sampled_from(NAMES), verb=st.sampled_from(VERBS))
def test_names(place, name, other, verb):
    """Of runs, classes and images."""
    name, other = on_disk(name), on_disk(other)
    data, folder = f"photos {other}", f"runs/{name}"
    if verb in ("inspect", "classes", "show"):
        for part, number in itertools.product(("a", name, other), range(4)):
            place.put(f"{data}/{part}/{name}{number}.png", GOOD)
        place.put("classes.txt", f"a\n{name}\n".encode(errors="surrogateescape"))
    else:
        place.run("images", name)
    lines = {
        "inspect": ("data", "inspect", data, "--sample", "1"),
        "classes": ("data", "inspect", data, "--sample", "1", "--classes", "classes.txt"),
        "show": ("data", "show", data, "--count", "1", "--out", "o.png"),
        "probe": ("probe", folder, other, "--protocols", "balanced", "--layers", name),
        "export": ("export", folder, "--out", f"{other}.npz"),
        "pretrain": ("pretrain", "--name", name, "--resume", "never"),
        "report": ("report", folder),
    }
    place.call(*lines[verb], changes=("runs/*",))
