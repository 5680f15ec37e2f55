"""Image files, folders and zip files of them; tensors."""

import io
import zipfile

import numpy as np
from PIL import Image

equal = np.testing.assert_array_equal


def images(source):
    return [sample["image"] for sample in source]


def encoded(image, kind="PNG"):
    stream = io.BytesIO()
    image.save(stream, kind)
    return stream.getvalue()


def picture(rng, h=9, w=12, mode="RGB"):
    smooth = rng.integers(0, 256, (3, 4, 3), dtype=np.uint8)
    return Image.fromarray(smooth).resize((w, h), Image.Resampling.BICUBIC).convert(mode)


def write(root, files):
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def zipped(path, files, method=zipfile.ZIP_STORED, member=zipfile.ZipInfo):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(member(name), data, method)
    return path


class MacMember(zipfile.ZipInfo):
    """A member as macOS writes it: UTF-8 without the flag that declares it."""

    def _encodeFilenameFlags(self):
        return self.filename.encode(), self.flag_bits


class Tensor(np.ndarray):
    """A PyTorch tensor."""

    __module__ = "torch"

    def detach(self):
        return self

    def cpu(self):
        return self

    def float(self):
        return self.astype(np.float32)

    def is_floating_point(self):
        return self.dtype.kind in "fV"

    def element_size(self):
        return self.itemsize


def tensor(values):
    return np.asarray(values).view(Tensor)
