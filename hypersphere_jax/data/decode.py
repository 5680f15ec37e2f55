"""Decoding of image files with Pillow."""

import io
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

if TYPE_CHECKING:  # Pillow is imported on first use, since arrays do not need it
    from PIL import Image

MAX_PIXELS = 2**27  # per image; decoding takes about 11 bytes per pixel
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "GIF", "TIFF", "WEBP")  # detected by content
CONVERTIBLE = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")


def decode(data: bytes, mode: str = "RGB") -> np.ndarray:
    """Decode an image file to uint8 `[h, w, c]`.

    Gray, palette and CMYK images are converted by Pillow, 16-bit gray is divided by 257. Alpha is
    dropped, and an animation is read as its first frame. The orientation in EXIF data is ignored,
    as in torchvision.

    Args:
      data: content of the file.
      mode: Pillow's mode of the result: "RGB", "L" or "RGBA".

    Raises:
      Exception: nearly any type, for a damaged file or another format.
    """
    with _open(io.BytesIO(data)) as image:
        return pixels(image, mode)


def pixels(image: "Image.Image", mode: str = "RGB") -> np.ndarray:
    """Convert a Pillow image to uint8 `[h, w, c]`; see `decode`."""
    from PIL import Image

    is_16_bit = image.mode.startswith("I;16")
    if is_16_bit or (image.mode == "I" and image.format in ("PNG", "PPM")):
        gray = np.asarray(image).astype(np.int32)
        image = Image.fromarray(((gray + 128) // 257).astype(np.uint8))
    if image.mode not in (mode, *CONVERTIBLE):
        raise ValueError(f"has pixels of Pillow's mode {image.mode!r}, not 8-bit colors")
    if image.mode != mode:
        image = image.convert(mode)
    return np.atleast_3d(np.array(image))


def image_size(stream: BinaryIO) -> tuple[int, int]:
    """Return height and width from the header of an image file; raises like `decode`."""
    with _open(stream) as image:
        return image.height, image.width


def reason(error: Exception) -> str:
    """Return in one line why an image or another file cannot be read."""
    if type(error).__name__ == "UnidentifiedImageError":  # a Pillow type
        return f"is not a readable image ({', '.join(FORMATS)}), or its header is damaged"
    return " ".join(str(error).split()) or type(error).__name__


def _open(stream: BinaryIO) -> "Image.Image":
    """Open an image file of one of the formats, unless it is too large to decode."""
    from PIL import Image

    image = Image.open(stream, formats=FORMATS)
    if image.width * image.height > MAX_PIXELS:
        size = f"{image.width} x {image.height} pixels"
        raise ValueError(f"has {size}, more than {MAX_PIXELS:,} in all; scale it down")
    return image
