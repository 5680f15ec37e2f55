"""From the bytes of an image file to its pixels, as the ImageFolder convention has it: RGB."""

import functools
import io
import logging
import warnings
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

if TYPE_CHECKING:  # Pillow is imported where it is used: arrays need none
    from PIL import Image

MAX_PIXELS = 2**27  # of one image, above cameras of 100 megapixels; decoding takes 11 bytes a pixel
# By content, not by name. Formats that run other programs are not among them.
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "GIF", "TIFF", "WEBP")
# What Pillow converts without a choice; "CMYK" of Adobe's files is inverted on reading.
CONVERTED = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")


def decode(data: bytes, mode: str = "RGB") -> np.ndarray:
    """The pixels of a whole image file, uint8 `[h, w, c]`.

    Grey, palette and CMYK images become RGB as Pillow converts them, 16-bit grey after division by
    257 (Pillow would clip it at 255). Alpha is dropped, not blended; of an animation the first
    frame counts. EXIF's orientation is ignored as in torchvision (but Pillow applies TIFF's own).

    Args:
      data: of the file.
      mode: Pillow's "RGB", "L" or "RGBA".

    Raises:
      Exception: of nearly any type, for a damaged file, one cut short, or of another format.
    """
    from PIL import Image

    _silence_pillow()
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        return pixels(image, mode)


def pixels(image: "Image.Image", mode: str = "RGB") -> np.ndarray:
    """The pixels of an image of Pillow, as those that `decode` gives of its file."""
    from PIL import Image

    _check_size(image)
    if image.mode == mode:
        return np.atleast_3d(np.array(image))
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        grey = np.asarray(image).astype(np.int32)
        image = Image.fromarray(((grey + 128) // 257).astype(np.uint8))
    if image.mode not in CONVERTED:
        raise ValueError(f"has pixels of Pillow's mode {image.mode!r}, not 8-bit colour")
    return np.atleast_3d(np.array(image.convert(mode)))


def image_size(stream: BinaryIO) -> tuple[int, int]:
    """Height and width of an image, from the header alone; raises as `decode`."""
    from PIL import Image

    _silence_pillow()
    with Image.open(stream, formats=FORMATS) as image:
        _check_size(image)
        return image.height, image.width


def _check_size(image: "Image.Image") -> None:
    """Raise ValueError for an image that is too large, before its pixels are read."""
    if image.width * image.height > MAX_PIXELS:
        size = f"{image.width} x {image.height} pixels"
        raise ValueError(f"has {size}, more than {MAX_PIXELS:,} in all; scale it down")


def reason(error: Exception) -> str:
    """Why an image cannot be read, on one line."""
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return f"is no image that can be read ({', '.join(FORMATS)}), or its header is damaged"
    return " ".join(str(error).split()) or type(error).__name__


@functools.cache
def _silence_pillow() -> None:
    """What matters comes as an exception; the rest is about EXIF data and palettes."""
    warnings.filterwarnings("ignore", module=r"PIL\.")
    logging.getLogger("PIL").setLevel(logging.CRITICAL)
