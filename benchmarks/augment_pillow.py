"""Recipes as users of PyTorch have them: image by image, in Pillow and NumPy."""

import math
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter

BILINEAR = Image.Resampling.BILINEAR


def pillow_views(rng: np.random.Generator, steps, size: int, batch: np.ndarray) -> np.ndarray:
    """One view of each image of uint8 [n, h, w, 3], as float32 [n, size, size, 3]."""
    return np.stack([_view(rng, steps, size, image) for image in batch])


def _view(rng, steps, size, image):
    image = Image.fromarray(image)
    for name, params in steps:
        image = PILLOW[name](rng, image, size=size, **params)
    if isinstance(image, Image.Image):
        image = np.asarray(image, np.float32) / 255
    return image


def rgb(rng, image, *, size):
    return image.convert("RGB")


def random_resized_crop(rng, image, *, size, scale, ratio):
    width, height = image.size
    for _ in range(10):
        area = width * height * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = rng.integers(width - w + 1), rng.integers(height - h + 1)
            break
    else:
        w, h = min(width, round(height * ratio[1])), min(height, round(width / ratio[0]))
        left, top = (width - w) // 2, (height - h) // 2
    return image.crop((left, top, left + w, top + h)).resize((size, size), BILINEAR)


def random_horizontal_flip(rng, image, *, size, p):
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < p else image


def random_rotation(rng, image, *, size):
    quarters = rng.integers(4)
    return image.transpose(Image.Transpose(quarters + 1)) if quarters else image


def _turn_hue(image, shift):
    hue, saturation, value = image.convert("HSV").split()
    turned = np.asarray(hue) + np.uint8(round(255 * shift) % 256)
    return Image.merge("HSV", (Image.fromarray(turned), saturation, value)).convert("RGB")


def color_jitter(rng, image, *, size, brightness, contrast, saturation, hue, p):
    if rng.random() >= p:
        return image
    enhancers = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    spread = (brightness, contrast, saturation)
    factors = [rng.uniform(max(0, 1 - strength), 1 + strength) for strength in spread]
    shift = rng.uniform(-hue, hue)
    for turn in rng.permutation(4):
        if turn == 3:
            image = _turn_hue(image, shift)
        else:
            image = enhancers[turn](image).enhance(factors[turn])
    return image


def random_grayscale(rng, image, *, size, p):
    return image.convert("L").convert("RGB") if rng.random() < p else image


def gaussian_blur(rng, image, *, size, sigma, p, kernel=None):
    """Pillow has its own blur alone, which does not cut a Gaussian off at `kernel`."""
    if rng.random() >= p:
        return image
    return image.filter(ImageFilter.GaussianBlur(rng.uniform(*sigma)))


def cutout(rng, image, *, size, side, value):
    width, height = image.size
    length = round(side * size)
    left, top = rng.integers(width) - length // 2, rng.integers(height) - length // 2
    fill = tuple(round(255 * channel) for channel in value)
    image = image.copy()
    image.paste(fill, tuple(int(edge) for edge in (left, top, left + length, top + length)))
    return image


def normalize(rng, image, *, size, mean, std):
    values = np.asarray(image, np.float32) / 255
    return (values - np.array(mean, np.float32)) / np.array(std, np.float32)


OPERATIONS: tuple[Callable, ...] = (
    *(rgb, random_resized_crop, random_horizontal_flip, random_rotation, color_jitter),
    *(random_grayscale, gaussian_blur, cutout, normalize),
)
PILLOW = {operation.__name__: operation for operation in OPERATIONS}
