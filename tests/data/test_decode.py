"""Image files' pixels against Pillow's, and damaged files."""

import io
import struct
import zlib

import numpy as np
from data_cases import encoded, equal, picture, why
from PIL import Image

from hypersphere_jax.data.decode import decode, image_size
from hypersphere_jax.data.source import UnreadableImage

KINDS = ("JPEG", "PNG", "PPM", "BMP", "GIF", "TIFF", "WEBP")


def test_every_format_and_mode_has_pillows_pixels_in_rgb(rng):
    modes = [("1", "PNG"), ("L", "PNG"), ("L", "JPEG"), ("P", "PNG"), ("CMYK", "TIFF")]
    for mode, kind in modes + [("RGB", kind) for kind in KINDS]:
        data = encoded(picture(rng, mode=mode), kind)
        found = decode(data, "x")
        equal(found, np.asarray(Image.open(io.BytesIO(data)).convert("RGB")), f"{mode} {kind}")
        assert found.dtype == np.uint8 and found.shape == (9, 12, 3) and found.flags.writeable
        assert image_size(io.BytesIO(data), "x") == (9, 12)
    # Adobe's CMYK is stored inverted: not turned back, it would differ by up to 255.
    image = picture(rng, 16, 16)
    data = encoded(image.convert("CMYK"), "JPEG", quality=100, subsampling=0)
    assert np.abs(decode(data, "x").astype(int) - np.asarray(image)).max() < 30


def test_alpha_further_frames_and_orientation_are_dropped(rng):
    first, second, exif = picture(rng), picture(rng), Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    transparent = first.convert("RGBA")
    transparent.putalpha(second.convert("L"))
    frames = {"save_all": True, "append_images": [second]}
    for image, options in ((transparent, {}), (first, frames), (first, {"exif": exif})):
        equal(decode(encoded(image, "PNG", **options), "x"), np.asarray(first))


def test_16_bit_grey_is_scaled():
    values = np.arange(65536).reshape(256, 256)
    for kind, order in (("PNG", "<u2"), ("PPM", "<u2"), ("TIFF", ">u2")):
        found = decode(encoded(Image.fromarray(values.astype(order)), kind), "x")
        equal(found, np.stack([np.round(values / 257)] * 3, axis=2), kind)


def test_damaged_and_huge_images_are_refused(rng):
    files = [b"", b"<html>404 Not Found</html>", rng.bytes(99)]
    for data in files + [encoded(picture(rng, 24, 31), kind)[:-60] for kind in KINDS]:
        assert why(decode, data, "a.jpg", error=UnreadableImage).startswith("a.jpg: ")
    chunk = b"IHDR" + struct.pack(">IIBBBBB", 16000, 10000, 8, 0, 0, 0, 0)  # in the header
    header = b"\x89PNG\r\n\x1a\n\0\0\0\r" + chunk + struct.pack(">I", zlib.crc32(chunk))
    huge = header + encoded(Image.new("L", (1, 1)))[33:]
    assert "150,000,000" in why(decode, huge, "x", error=UnreadableImage)
