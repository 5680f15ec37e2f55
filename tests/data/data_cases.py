"""Image files, folders and zip files of them, and why something is refused."""

import io
import zipfile

import numpy as np
import pytest
from PIL import Image

from hypersphere_jax.configs import UserError

equal = np.testing.assert_array_equal


def why(action, *arguments, error=UserError):
    """The text of the error that `action(*arguments)` ends with."""
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
    """A zip file; with an encoding its names are in that one, and no flag declares it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items():
            member = zipfile.ZipInfo(name)
            member.compress_type = method
            if encoding is not None:
                member = WithoutFlag(name)
                member.encoding = encoding
            archive.writestr(member, data)
    return path


class WithoutFlag(zipfile.ZipInfo):
    """A member as macOS writes it."""

    def _encodeFilenameFlags(self):
        return self.filename.encode(self.encoding), self.flag_bits
