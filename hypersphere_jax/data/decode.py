"""From the bytes of an image file to its pixels, as the ImageFolder convention has it: RGB."""

import io
import logging
import re
import warnings
from typing import BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError

from hypersphere_jax.data.source import UnreadableImage

# By what is in the file, whatever it is called. Formats that run other programs are not here.
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "GIF", "TIFF", "WEBP")
# Below the number from which Pillow itself refuses an image, 179 million.
MAX_PIXELS = 150_000_000

# What Pillow converts to RGB without a choice; "CMYK" of Adobe's files is inverted on reading.
CONVERTED = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")

Image.init()  # all formats now, not in the first thread that meets one
logging.getLogger("PIL").setLevel(logging.CRITICAL)  # what is wrong comes as an exception
_QUIET = ("ignore", None, Warning, re.compile(r"PIL\."), 0)


def decode(data: bytes, name: str) -> np.ndarray:
    """The pixels of an image file, uint8 `[h, w, 3]`.

    Grey, palette and CMYK images become RGB as Pillow converts them, 16-bit grey after division by
    257 (Pillow would clip it at 255). Alpha is dropped, not blended; of an animation the first
    frame counts. EXIF's orientation is left alone as in torchvision (but Pillow applies TIFF's
    own). Truncated data is an error. From any thread.

    Args:
      data: the whole file.
      name: what to call it in errors.

    Raises:
      UnreadableImage: for whatever is wrong with it, with the reason.
    """
    _silence_pillow()
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            _check_size(image)
            image.load()
            return _to_rgb(image)
    except Exception as error:  # damaged files bring about nearly any type, MemoryError too
        raise UnreadableImage(f"{name}: {_reason(error)}") from error


def image_size(stream: BinaryIO, name: str) -> tuple[int, int]:
    """Height and width of an image, from the header alone.

    Raises:
      UnreadableImage: when the header cannot be read. (What follows it may be damaged all the
        same.)
    """
    _silence_pillow()
    try:
        with Image.open(stream, formats=FORMATS) as image:
            _check_size(image)
            return image.height, image.width
    except Exception as error:
        raise UnreadableImage(f"{name}: {_reason(error)}") from error


def _check_size(image: Image.Image) -> None:
    if not 0 < image.width * image.height <= MAX_PIXELS:
        raise ValueError(
            f"has {image.width} x {image.height} pixels; it can have from 1 to {MAX_PIXELS:,}"
        )


def _to_rgb(image: Image.Image) -> np.ndarray:
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        grey = np.asarray(image).astype(np.int32)
        grey = ((grey + 128) // 257).astype(np.uint8)
        return np.repeat(grey[..., None], 3, axis=2)
    if image.mode not in CONVERTED:
        raise ValueError(f"has pixels of Pillow's mode {image.mode!r}, which is no 8-bit colour")
    return np.array(image.convert("RGB"))


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return f"is no image that can be read ({', '.join(FORMATS)}), or its header is damaged"
    return " ".join(str(error).split()) or type(error).__name__


def _silence_pillow() -> None:
    """Keeps Pillow's warnings (of EXIF data, of palettes) off the terminal, for good.

    `warnings.catch_warnings` would undo what other threads do meanwhile. Filters set later, as by
    `simplefilter("error")`, must not decide which images can be read, so this one has to be first.
    """
    if warnings.filters[:1] != [_QUIET]:
        warnings.filterwarnings("ignore", module=_QUIET[3].pattern)
