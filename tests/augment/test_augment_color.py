"""Colors and blur against Pillow, colorsys and NumPy, with the random numbers of each key."""

import colorsys
import itertools

import jax
import numpy as np
import pytest
from augment_cases import (
    LEVEL,
    assert_probability,
    assert_uniform,
    draws,
    keys,
    random_image,
    to_float,
)
from PIL import Image, ImageFilter

from hypersphere_jax.augment import color
from hypersphere_jax.augment.operations import units

LUMA = np.array([0.299, 0.587, 0.114])


def turn_hue(image, shift):
    def turn(pixel):
        hue, saturation, value = colorsys.rgb_to_hsv(*map(float, pixel))
        return colorsys.hsv_to_rgb((hue + shift) % 1.0, saturation, value)

    return np.apply_along_axis(turn, -1, image)


def test_hue_matches_colorsys():
    corners = list(itertools.product([0, 255], repeat=3))
    grays = [[30 * level] * 3 for level in range(8)]
    image = to_float(np.concatenate([random_image(9, 8), np.uint8([corners, grays])]))
    for shift in (-0.5, -1 / 6, 0.01, 1 / 3, 1.0):
        found = jax.jit(color.adjust_hue)(image, shift)
        np.testing.assert_allclose(found, turn_hue(image, shift), atol=3e-5)
        np.testing.assert_array_equal(found[-1], image[-1])  # grays have no hue


def jittered(image, numbers, brightness, contrast, saturation, hue, p):
    """Color jitter by NumPy: four strengths, the order of the turns, the chance to act."""
    strengths = np.array([brightness, contrast, saturation])
    low = np.append(np.maximum(0, 1 - strengths), -hue)
    high = np.append(1 + strengths, hue)
    factors = low + (high - low) * numbers[:4]
    if numbers[8] >= p:
        return image
    for turn in np.argsort(numbers[4:8]):
        luma = (image @ LUMA)[..., None]
        if turn == 3:
            image = turn_hue(image, factors[3])
        else:
            base = (0.0, np.mean(luma), luma)[turn]
            image = np.clip(base + factors[turn] * (image - base), 0, 1)
    return image


def test_color_jitter_matches_numpy():
    image = np.float32([[[0.9, 0.2, 0.4], [0.3, 0.95, 0.1], [0.05, 0.5, 0.8]]])
    strengths = {"brightness": 0.4, "contrast": 1.2, "saturation": 0.3, "hue": 0.4, "p": 0.8}
    found = draws(color.color_jitter, image, n=200, size=0, **strengths)
    numbers = np.asarray(jax.vmap(lambda key: units(key, 9))(keys(200)))
    expected = [jittered(image, drawn, **strengths) for drawn in numbers]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_random_grayscale_acts_with_probability_p():
    pixel = np.float32([[[1.0, 0.5, 0.0]]])
    found = draws(color.random_grayscale, pixel, size=1, p=0.2)[:, 0, 0]
    gray = (found != pixel[0, 0]).any(axis=1)
    assert_probability(gray, 0.2)
    np.testing.assert_allclose(found[gray], np.full((gray.sum(), 3), pixel @ LUMA), atol=1e-6)


def test_random_intensity_draws_one_factor():
    image = np.float32([0.25, 0.0, 0.5, 1.0]).reshape(2, 2, 1)
    found = draws(color.random_intensity, image, size=2, scale=(0.7, 1.3))
    factors = found[:, :1, :1] / 0.25
    assert_uniform(factors.ravel(), 0.7, 1.3)
    np.testing.assert_allclose(found, np.minimum(1, factors * image), rtol=1e-6)


def blurred(image, largest, **params):
    """Blurred images, and the standard deviations that their keys draw."""
    found = draws(color.gaussian_blur, image, n=20, size=0, sigma=(0.1, largest), p=1.0, **params)
    numbers = jax.vmap(lambda key: units(key, 2))(keys(20))
    return zip(0.1 + (largest - 0.1) * np.asarray(numbers)[:, 0], found, strict=True)


def test_blur_matches_pillow():
    image = random_image(40, 29)
    for sigma, found in blurred(to_float(image), 3.3):
        pillow = (
            np.asarray(Image.fromarray(image).filter(ImageFilter.GaussianBlur(float(sigma)))) / 255
        )
        # Pillow rounds to 8 bits after each of its six passes, and repeats the edge of each.
        assert np.abs(found - pillow)[10:-10, 10:-10].max() < 2.5 * LEVEL, sigma


@pytest.mark.parametrize(
    ("shape", "kernel", "taps"), [((64, 70), 0.1, 7), ((21, 24), 0.5, 11), ((8, 8), 0.1, 3)]
)
def test_blur_with_a_kernel_is_a_truncated_gaussian(shape, kernel, taps):
    """Torchvision's: the density at whole pixels, and reflected edges."""
    image = to_float(random_image(*shape))
    reach = taps // 2
    for sigma, found in blurred(image, 2.0, kernel=kernel):
        weights = np.exp(-((np.arange(taps) - reach) ** 2) / (2 * sigma**2))
        weights /= weights.sum()
        expected = np.pad(image, ((reach, reach), (reach, reach), (0, 0)), mode="reflect")
        for axis in (0, 1):
            expected = np.apply_along_axis(np.convolve, axis, expected, weights, "valid")
        np.testing.assert_allclose(found, expected, atol=3e-6)


def test_blur_acts_with_probability_p():
    impulse = np.zeros((19, 19, 1), np.float32)
    impulse[9, 9] = 1
    found = draws(color.gaussian_blur, impulse, size=19, sigma=(0.7, 1.5), p=0.4)[..., 0]
    acted = found[:, 9, 9] < 1
    assert_probability(acted, 0.4)
    assert (found[~acted] == impulse[..., 0]).all()
    variances = found[acted].sum(axis=1) @ (np.arange(19) - 9) ** 2
    assert_uniform(np.sqrt(variances), 0.7, 1.5)
