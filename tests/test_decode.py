"""Image files' pixels against Pillow's, and damaged files."""

import io
import warnings

import numpy as np
import pytest
from image_cases import encoded, picture
from PIL import Image

from hypersphere_jax.data.decode import decode, image_size
from hypersphere_jax.data.source import UnreadableImage


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "PPM", "BMP", "GIF", "TIFF", "WEBP"])
def test_every_format_has_pillows_pixels(rng, kind):
    data = encoded(picture(rng), kind)
    found = decode(data, "x")
    assert found.dtype == np.uint8 and found.shape == (9, 12, 3) and found.flags.writeable
    with Image.open(io.BytesIO(data)) as image:
        np.testing.assert_array_equal(found, np.asarray(image.convert("RGB")))
    assert image_size(io.BytesIO(data), "x") == (9, 12)


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("1", "PNG"),
        ("L", "PNG"),
        ("L", "JPEG"),
        ("P", "PNG"),
        ("P", "BMP"),
        ("CMYK", "TIFF"),
    ],
)
def test_every_mode_becomes_rgb(rng, mode, kind):
    image = picture(rng, mode=mode)
    data = encoded(image, kind)
    with Image.open(io.BytesIO(data)) as again:
        assert again.mode == mode
        expected = np.asarray(again.convert("RGB"))
    np.testing.assert_array_equal(decode(data, "x"), expected)
    if mode in ("1", "L"):
        assert (expected == expected[..., :1]).all()


def test_cmyk_of_adobe_is_inverted_back(rng):
    image = picture(rng, 16, 16)
    data = encoded(image.convert("CMYK"), "JPEG", quality=100, subsampling=0)
    assert b"Adobe" in data
    difference = decode(data, "x").astype(int) - np.asarray(image)
    assert np.abs(difference).max() < 30  # inverted ones would differ by up to 255


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_alpha_is_dropped(rng, mode):
    image = picture(rng).convert("L").convert("RGB")
    expected = np.asarray(image)
    image = image.convert(mode)
    image.putalpha(Image.fromarray(rng.integers(0, 256, (9, 12), dtype=np.uint8)))
    np.testing.assert_array_equal(decode(encoded(image), "x"), expected)


def test_transparent_palette(rng):
    image = picture(rng, mode="P")
    expected = np.asarray(image.convert("RGB"))
    data = encoded(image, transparency=bytes(range(256)))  # Pillow warns of these
    np.testing.assert_array_equal(decode(data, "x"), expected)


@pytest.mark.parametrize(("kind", "mode"), [("PNG", "<u2"), ("PPM", "<u2"), ("TIFF", ">u2")])
def test_16_bit_grey_is_scaled(kind, mode):
    values = np.arange(65536).reshape(256, 256)
    data = encoded(Image.fromarray(values.astype(mode)), kind)
    expected = np.round(values / 257).astype(np.uint8)
    np.testing.assert_array_equal(decode(data, "x"), np.stack([expected] * 3, axis=2))


@pytest.mark.parametrize("mode", ["F", "I"])
def test_pixels_that_are_no_colours_are_refused(mode):
    with pytest.raises(UnreadableImage, match=rf"^a/b\.tif: has pixels of Pillow's mode '{mode}'"):
        decode(encoded(Image.new(mode, (3, 3)), "TIFF"), "a/b.tif")


def test_first_frame_and_orientation(rng):
    first, second = picture(rng), picture(rng)
    data = encoded(first, "PNG", save_all=True, append_images=[second])
    np.testing.assert_array_equal(decode(data, "x"), np.asarray(first))
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    data = encoded(first, "PNG", exif=exif)
    np.testing.assert_array_equal(decode(data, "x"), np.asarray(first))


def test_huge_images_are_refused_by_their_header():
    data = encoded(Image.new("1", (16000, 10000)))
    header = bytearray(encoded(Image.new("L", (1, 1))))
    header[16:24] = (2**31 - 1).to_bytes(4, "big") * 2
    for bomb in (data, bytes(header)):
        for read in (lambda b: decode(b, "x"), lambda b: image_size(io.BytesIO(b), "x")):
            with pytest.raises(UnreadableImage, match="x: "):
                read(bomb)


def test_pillows_warnings_stay_inside(rng, capfd):
    exif = Image.Exif()
    exif[0x010E] = "a text" * 10
    data = bytearray(encoded(picture(rng), "JPEG", exif=exif))
    start = data.index(b"MM\0*")
    data[start + 14 : start + 18] = b"\xff\xff\xff\xff"  # more entries than there are bytes
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        decode(bytes(data), "x")
    assert not caught and capfd.readouterr() == ("", "")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decode(bytes(data), "x").shape == (9, 12, 3)


# Damage


def damaged(rng):
    """A hundred and more files: truncated, with wrong bytes, empty, or no images at all."""
    for kind in ("JPEG", "PNG", "PPM", "BMP", "GIF", "TIFF", "WEBP"):
        options = {"compression": "tiff_lzw"} if kind == "TIFF" else {}
        data = encoded(picture(rng, 24, 31), kind, **options)
        for cut in rng.integers(1, len(data), 8):
            yield data[:cut]
        for spots, where in ((2, 64), (4, len(data))):
            for _ in range(8):
                wrong = np.frombuffer(data, np.uint8).copy()
                wrong[rng.integers(0, min(where, len(wrong)), spots)] = rng.integers(0, 256, spots)
                yield wrong.tobytes()
        yield data[:12] + rng.bytes(300)
        yield data[: len(data) // 2] + bytes(len(data) // 2)
        yield data[100:]
    for length in (1, 10, 1000):
        yield rng.bytes(length)
        yield bytes(length)
    yield b""
    yield b"<!DOCTYPE html><html><body>404 Not Found</body></html>"
    yield b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"


def test_damaged_images_are_refused_or_as_in_pillow(rng, capfd):
    refused = decoded = 0
    files = list(damaged(rng))
    for number, data in enumerate(files):
        try:
            expected = None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with Image.open(io.BytesIO(data)) as image:
                    expected = np.asarray(image.convert("RGB"))
        except Exception:
            expected = None
        try:
            found = decode(data, f"{number}.jpg")
        except UnreadableImage as error:
            refused += 1
            assert str(error).startswith(f"{number}.jpg: ") and "\n" not in str(error)
            assert "object at" not in str(error)
        else:
            decoded += 1
            assert expected is not None
            np.testing.assert_array_equal(found, expected)
        try:
            image_size(io.BytesIO(data), "x")
        except UnreadableImage:
            assert expected is None
        # The library that reads TIFF writes there itself.
        assert capfd.readouterr() == ("", "") or data[:2] in (b"II", b"MM")
    assert len(files) > 150 and refused > 80 and decoded > 10


def test_truncated_images_are_errors(rng):
    image = Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8))
    for kind in ("JPEG", "PNG", "PPM", "BMP", "GIF", "TIFF", "WEBP"):
        data = encoded(image, kind)
        for share in (0.3, 0.6, 0.9):
            with pytest.raises(UnreadableImage):
                decode(data[: int(share * len(data))], "x")
