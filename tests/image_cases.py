"""Pictures, and their files."""

import io

import numpy as np
from PIL import Image


def encoded(image, kind="PNG", **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def picture(rng, h=9, w=12, mode="RGB"):
    smooth = rng.integers(0, 256, (3, 4, 3), dtype=np.uint8)
    return Image.fromarray(smooth).resize((w, h), Image.Resampling.BICUBIC).convert(mode)
