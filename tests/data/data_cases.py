"""Image files, folders and zip files of them; tensors."""

import io
import zipfile

import numpy as np
import pytest
from PIL import Image

from hypersphere_jax.configs import UserError

equal = np.testing.assert_array_equal


def why(action, *arguments, error=UserError):
    """Return the text of the error that `action(*arguments)` raises."""
    with pytest.raises(error) as caught:
        action(*arguments)
    return str(caught.value)


def images(source):
    return [sample["image"] for sample in source]


def encoded(image, kind="PNG", **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def picture(rng, h=9, w=12, mode="RGB"):
    smooth = rng.integers(0, 256, (3, 4, 3), dtype=np.uint8)
    return Image.fromarray(smooth).resize((w, h), Image.Resampling.BICUBIC).convert(mode)


def write(root, files):
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def zipped(path, files, method=zipfile.ZIP_STORED, encoding=None):
    """Write a zip file; with an encoding, its names are in that one, and no flag declares it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items():
            member = zipfile.ZipInfo(name)
            if encoding is not None:
                member = WithoutFlag(name)
                member.encoding = encoding
            member.compress_type = method
            archive.writestr(member, data)
    return path


class WithoutFlag(zipfile.ZipInfo):
    """A member as macOS writes it."""

    def _encodeFilenameFlags(self):
        return self.filename.encode(self.encoding), self.flag_bits


class Tensor:
    """A PyTorch tensor, which NumPy cannot read if it is bfloat16."""

    __module__ = "torch"

    def __init__(self, array):
        self.array = array
        self.shape = array.shape

    def detach(self):
        return self

    def cpu(self):
        return self

    def float(self):
        return Tensor(self.array.astype(np.float32))

    def is_floating_point(self):
        return self.array.dtype.kind in "fV"

    def element_size(self):
        return self.array.itemsize

    def __array__(self, dtype=None, copy=None):
        if self.array.dtype.kind == "V":
            raise TypeError("unsupported")
        return np.asarray(self.array)

    def __len__(self):
        return len(self.array)

    def __getitem__(self, i):
        return Tensor(self.array[i])
