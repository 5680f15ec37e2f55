"""Colors and blur against Pillow, colorsys and formulas; distributions of random numbers."""

import colorsys
import itertools
from functools import partial

import jax
import numpy as np
from augment_cases import LEVEL, assert_probability, assert_uniform, draws, random_image, to_float
from PIL import Image, ImageEnhance, ImageFilter

from hypersphere_jax.augment import color

SIGMAS = (0.1, 0.5, 0.8, 1.0, 1.41, 1.42, 2.0, 3.3)
LUMA = np.array([0.299, 0.587, 0.114])


def test_adjustments_and_gray_match_pillow():
    image = random_image(24, 24)
    pillows = Image.fromarray(image)
    factors = np.array([0.0, 0.6, 1.0, 1.4], np.float32)
    for adjust, enhance in (
        (color.adjust_brightness, ImageEnhance.Brightness),
        (color.adjust_contrast, ImageEnhance.Contrast),
        (color.adjust_saturation, ImageEnhance.Color),
    ):
        results = jax.jit(jax.vmap(partial(adjust, to_float(image))))(factors)
        for factor, result in zip(factors, results, strict=True):
            expected = np.asarray(enhance(pillows).enhance(float(factor))) / 255
            # Pillow rounds its gray to 8 bits, then truncates the blend.
            np.testing.assert_allclose(result, expected, atol=1.5 * LEVEL, err_msg=str(factor))
    gray = color.grayscale(to_float(image))[..., 0]
    np.testing.assert_allclose(gray, np.asarray(pillows.convert("L")) / 255, atol=LEVEL)


def turned(image, shift):
    """Return the image with another hue by colorsys."""

    def turn(pixel):
        hue, saturation, value = colorsys.rgb_to_hsv(*map(float, pixel))
        return colorsys.hsv_to_rgb((hue + shift) % 1.0, saturation, value)

    return np.apply_along_axis(turn, -1, image)


def test_hue_matches_colorsys():
    corners = list(itertools.product([0, 255], repeat=3))
    grays = [[30 * level] * 3 for level in range(8)]
    image = to_float(np.concatenate([random_image(9, 8), np.uint8([corners, grays])]))
    shifts = np.array([-0.5, -0.4, -1 / 6, 0.01, 0.25, 1 / 3, 0.4, 1.0])
    results = jax.jit(jax.vmap(partial(color.adjust_hue, image)))(np.float32(shifts))
    for shift, result in zip(shifts, results, strict=True):
        np.testing.assert_allclose(result, turned(image, shift), atol=3e-5, err_msg=str(shift))
        np.testing.assert_array_equal(result[-1], image[-1])  # grays have no hue


def test_jitter_uses_every_random_number(monkeypatch):
    """Four strengths (factors are never negative), the order of the turns, the chance to act."""
    monkeypatch.setattr(color, "units", lambda key, *shape: key)  # the key is the numbers
    image = np.array([[[0.9, 0.2, 0.4], [0.3, 0.95, 0.1], [0.05, 0.5, 0.8]]], np.float32)
    strengths = {"brightness": 0.4, "contrast": 1.2, "saturation": 0.3, "hue": 0.4}
    turns = np.array(list(itertools.permutations(range(4)))) / 4
    extremes = [np.hstack([np.full((24, 4), end), turns, np.full((24, 1), 0.49)]) for end in (0, 1)]
    numbers = [0.9, 0.3, 0.7, 0.9, 0.1, 0.2, 0.3, 0.4, 0.1]
    others = [0.2, 0.6, 0.1, 0.1, 0.9, 0.9, 0.05, 0.05, 0.51]
    one_changed = np.where(np.eye(9, dtype=bool), others, numbers)
    keys = np.vstack([*extremes, numbers, one_changed]).astype("f")
    draw = partial(color.color_jitter, image=image, size=0, p=0.5, **strengths)
    found = np.asarray(jax.jit(jax.vmap(draw))(keys))
    low, high = np.array([[0.6, 0.0, 0.7, -0.4], [1.4, 2.2, 1.3, 0.4]])
    for key, result in zip(keys, found, strict=True):
        factors, expected = low + (high - low) * key[:4], image
        for number in np.argsort(key[4:8]) if key[8] < 0.5 else ():
            luma, factor = (expected @ LUMA)[..., None], factors[number]
            if number == 3:
                expected = turned(expected, factor)
            else:
                base = (0.0, np.mean(luma), luma)[number]
                expected = np.clip(base + factor * (expected - base), 0, 1)
        np.testing.assert_allclose(result, expected, atol=1e-5, err_msg=str(key))
    for one, other in itertools.combinations(found[48:], 2):
        assert np.abs(one - other).max() > 1e-4


def test_random_grayscale_and_intensity():
    """The luma of all channels with probability p; one uniform factor for all pixels, clipped."""
    pixel = np.array([[[1.0, 0.5, 0.0]]], np.float32)
    out = draws(color.random_grayscale, pixel, size=1, p=0.2)[:, 0, 0]
    gray = (out != pixel[0, 0]).any(axis=1)
    assert_probability(gray, 0.2)
    np.testing.assert_allclose(out[gray], np.full((gray.sum(), 3), pixel @ LUMA), atol=1e-6)
    image = np.array([0.25, 0.0, 0.5, 1.0], np.float32).reshape(2, 2, 1)
    out = draws(color.random_intensity, image, size=2, scale=(0.7, 1.3))
    factors = out[:, :1, :1] / 0.25
    assert_uniform(factors.ravel(), 0.7, 1.3)
    np.testing.assert_allclose(out, np.minimum(1, factors * image), rtol=1e-6)


def test_normalize_and_rgb(rng):
    image, (mean, std) = rng.random((2, 3, 3)).astype("f"), ((0.1, 0.2, 0.4), (0.5, 0.25, 2.0))
    found = color.normalize(None, image, size=2, mean=mean, std=std)
    np.testing.assert_allclose(found, (image - mean) / std, atol=1e-6)
    np.testing.assert_array_equal(color.rgb(None, image, size=2), image)
    gray = color.rgb(None, image[..., :1], size=2)
    np.testing.assert_array_equal(gray, np.repeat(image[..., :1], 3, axis=-1))


def blurred(monkeypatch, image, **params):
    """Return the image blurred by each sigma."""
    monkeypatch.setattr(color, "units", lambda key, *shape: key)  # the key is the numbers
    op = partial(color.gaussian_blur, image=image, size=0, sigma=(0.0, 4.0), p=1.0, **params)
    return jax.jit(jax.vmap(op))(np.float32([[sigma / 4, 0] for sigma in SIGMAS]))


def variance(weights):
    return (weights * (np.arange(len(weights)) - len(weights) // 2) ** 2).sum()


def convolved(image, kernel, mode):
    reach = len(kernel) // 2
    padded = np.pad(image.astype(float), ((reach, reach), (reach, reach), (0, 0)), mode=mode)
    for axis in (0, 1):
        padded = np.apply_along_axis(np.convolve, axis, padded, kernel, "valid")
    return padded


def test_blur_matches_pillow(monkeypatch):
    image = random_image(40, 29)
    for sigma, result in zip(SIGMAS, blurred(monkeypatch, to_float(image)), strict=True):
        kernel = np.asarray(color.box_kernel(sigma, 4.0))
        np.testing.assert_allclose([kernel.sum(), variance(kernel)], [1, sigma**2], rtol=1e-4)
        expected = convolved(to_float(image), kernel, "edge")
        np.testing.assert_allclose(result, expected, atol=1e-5, err_msg=str(sigma))
        pillow = np.asarray(Image.fromarray(image).filter(ImageFilter.GaussianBlur(sigma))) / 255
        # Pillow rounds to 8 bits after each of its six passes, and repeats the edge of each.
        assert np.abs(result - pillow)[10:-10, 10:-10].max() < 2.5 * LEVEL, sigma


def test_blur_with_a_kernel_is_a_truncated_gaussian(monkeypatch):
    """Torchvision's: the density at whole pixels."""
    for shape, kernel, taps in (((64, 70), 0.1, 7), ((21, 24), 0.5, 11), ((8, 8), 0.1, 3)):
        image = to_float(random_image(*shape))
        for sigma, result in zip(SIGMAS, blurred(monkeypatch, image, kernel=kernel), strict=True):
            weights = np.exp(-((np.arange(taps) - taps // 2) ** 2) / (2 * sigma**2))
            expected = convolved(image, weights / weights.sum(), "reflect")
            np.testing.assert_allclose(result, expected, atol=3e-6, err_msg=f"{kernel} {sigma}")


def test_blur_draws_sigma_uniformly_with_probability_p():
    law, impulse = {"sigma": (0.7, 1.5), "p": 0.4}, np.zeros((19, 19, 1), np.float32)
    impulse[9, 9] = 1
    for params in ({}, {"kernel": 0.9}):
        out = draws(color.gaussian_blur, impulse, size=19, **law, **params)[..., 0]
        acted = out[:, 9, 9] < 1
        assert_probability(acted, 0.4)
        assert (out[~acted] == impulse[..., 0]).all()
        sigmas = np.sqrt([variance(rows) for rows in out[acted].sum(axis=1)])
        assert_uniform(sigmas, 0.7, 1.5)
