"""Pictures, their files, and folders and zip files of them."""

import io
import zipfile

import numpy as np
from PIL import Image


def encoded(image, kind="PNG", **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def picture(rng, h=9, w=12, mode="RGB"):
    smooth = rng.integers(0, 256, (3, 4, 3), dtype=np.uint8)
    return Image.fromarray(smooth).resize((w, h), Image.Resampling.BICUBIC).convert(mode)


def write(root, files):
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def zipped(path, files, method=zipfile.ZIP_STORED):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def same(a, b):
    assert len(a) == len(b) and a.class_names == b.class_names
    np.testing.assert_array_equal(a.labels, b.labels)
    for i in range(len(a)):
        x, y = a[i], b[i]
        np.testing.assert_array_equal(x["image"], y["image"])
        assert x["label"] == y["label"] == a.labels[i]


def files_of_a_tree(rng):
    """Files of two splits, three classes, one of them with an inner folder."""
    names = ["train/cat/b.jpg", "train/cat/a.PNG", "train/cat/z/c.png", "train/dog/0.jpeg"]
    names += ["train/ant/1.webp", "test/cat/a.png", "test/dog/a.png", "test/ant/a.bmp"]
    kinds = {"jpg": "JPEG", "jpeg": "JPEG", "png": "PNG", "webp": "WEBP", "bmp": "BMP"}
    return {name: encoded(picture(rng), kinds[name.rpartition(".")[2].lower()]) for name in names}
