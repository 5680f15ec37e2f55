"""Blur against Pillow's, and against both definitions written out in NumPy."""

import math
from functools import partial

import jax
import numpy as np
import pytest
from augment_cases import LEVEL, assert_probability, assert_uniform, draws, random_image, to_float
from PIL import Image, ImageFilter

from hypersphere_jax import augment
from hypersphere_jax.augment import blur

SIGMAS = (0.1, 0.5, 0.8, 1.0, 1.41, 1.42, 2.0, 3.3)


@pytest.fixture
def blurred(monkeypatch):
    """`blurred(image, **params)`: the image blurred by each of the sigmas."""
    monkeypatch.setattr(blur, "units", lambda key, *shape: key)  # the key is the numbers

    def blurred(image, **params):
        op = partial(augment.gaussian_blur, image=image, size=0, sigma=(0.0, 4.0), p=1.0, **params)
        numbers = [[sigma / 4, 0] for sigma in SIGMAS]
        return np.asarray(jax.jit(jax.vmap(op))(np.float32(numbers)))

    return blurred


def box(radius):
    """A mean over 2 radius + 1 pixels, of which those at the ends count in part."""
    full = math.floor(radius)
    weights = np.array([radius - full] + [1.0] * (2 * full + 1) + [radius - full])
    return weights / weights.sum()


def variance(weights):
    return (weights * (np.arange(len(weights)) - len(weights) // 2) ** 2).sum()


def three_boxes(sigma):
    """Pillow's kernel: three boxes with the Gaussian's variance, found by bisection."""
    low, high = 0.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if variance(box(middle)) < sigma**2 / 3 else (low, middle)
    return np.convolve(np.convolve(box(low), box(low)), box(low))


def sampled(sigma, taps):
    """Torchvision's kernel: the density at whole pixels."""
    weights = [math.exp(-(t**2) / (2 * sigma**2)) for t in range(-(taps // 2), taps // 2 + 1)]
    return np.array(weights) / sum(weights)


def convolved(image, kernel, mode):
    reach = len(kernel) // 2
    padded = np.pad(image.astype(float), ((reach, reach), (reach, reach), (0, 0)), mode=mode)
    for axis in (0, 1):
        padded = np.apply_along_axis(np.convolve, axis, padded, kernel, "valid")
    return padded


def test_blur_is_three_boxes_and_pillows(blurred):
    image = random_image(40, 29)
    for sigma, result in zip(SIGMAS, blurred(to_float(image)), strict=True):
        expected = convolved(to_float(image), three_boxes(sigma), "edge")
        np.testing.assert_allclose(result, expected, atol=1e-5, err_msg=str(sigma))
        pillow = np.asarray(Image.fromarray(image).filter(ImageFilter.GaussianBlur(sigma))) / 255
        difference = np.abs(result - pillow)
        # Pillow rounds to 8 bits after each of its six passes, and at the border it repeats the
        # edge of each pass's result, where we repeat the image's.
        assert difference[10:-10, 10:-10].max() < 2.5 * LEVEL, sigma
        assert difference.max() < 14 * LEVEL and difference.mean() < LEVEL, sigma


@pytest.mark.parametrize(
    ("shape", "kernel", "taps"),
    [((64, 70), 0.1, 7), ((21, 24), 0.5, 11), ((8, 8), 0.1, 3)],
)
def test_blur_with_a_kernel_is_a_gaussian_cut_off(shape, kernel, taps, blurred):
    image = to_float(random_image(*shape))
    for sigma, result in zip(SIGMAS, blurred(image, kernel=kernel), strict=True):
        expected = convolved(image, sampled(sigma, taps), "reflect")
        np.testing.assert_allclose(result, expected, atol=3e-6, err_msg=str(sigma))


@pytest.mark.parametrize("params", [{}, {"kernel": 0.9}], ids=["pillow", "torchvision"])
def test_blur_draws_sigma_uniformly_with_probability_p(params):
    impulse = np.zeros((19, 19, 1), np.float32)
    impulse[9, 9] = 1
    out = draws(augment.gaussian_blur, impulse, size=19, sigma=(0.7, 1.5), p=0.4, **params)[..., 0]
    acted = out[:, 9, 9] < 1
    assert_probability(acted, 0.4)
    assert (out[~acted] == impulse[..., 0]).all()
    assert_uniform(np.sqrt([variance(rows) for rows in out[acted].sum(axis=1)]), 0.7, 1.5)
