"""Colour, intensity and blur against Pillow, colorsys and the formulas as loops in NumPy."""

import colorsys
import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from augment_cases import (
    ONE_LEVEL,
    assert_independent,
    assert_probability,
    assert_uniform,
    keys,
    random_image,
    to_float,
)
from PIL import Image, ImageEnhance, ImageFilter

from hypersphere_jax import augment
from hypersphere_jax.augment import colour

LUMA = np.array([0.299, 0.587, 0.114])

# Compiled, because one by one the small operations take longer.
adjust_hue = jax.jit(augment.adjust_hue)


@pytest.mark.parametrize("factor", [0.0, 0.6, 1.0, 1.4])
@pytest.mark.parametrize(
    ("adjust", "enhance"),
    [
        (augment.adjust_brightness, ImageEnhance.Brightness),
        (augment.adjust_contrast, ImageEnhance.Contrast),
        (augment.adjust_saturation, ImageEnhance.Color),
    ],
)
def test_adjustments_equal_pillow_enhance(adjust, enhance, factor):
    image = random_image(24, 24)
    expected = np.asarray(enhance(Image.fromarray(image)).enhance(factor)) / 255
    result = np.asarray(adjust(to_float(image), factor))
    # Pillow rounds its gray to 8 bits, then truncates the blend.
    np.testing.assert_allclose(result, expected, atol=1.5 * ONE_LEVEL)
    assert result.min() >= 0 and result.max() <= 1


def colorsys_hue(image, shift):
    def turn(pixel):
        hue, saturation, value = colorsys.rgb_to_hsv(*map(float, pixel))
        return colorsys.hsv_to_rgb((hue + shift) % 1.0, saturation, value)

    return np.apply_along_axis(turn, -1, image)


@pytest.mark.parametrize("shift", [-0.5, -0.4, -1 / 6, 0.01, 0.25, 0.4])
def test_hue_equals_colorsys(shift):
    corners = np.array(list(itertools.product([0, 255], repeat=3)), np.uint8)
    image = to_float(np.concatenate([random_image(9, 8), np.stack([corners] * 2)]))
    result = adjust_hue(image, shift)
    np.testing.assert_allclose(result, colorsys_hue(image, shift), atol=2e-6)


def test_hue_closed_forms():
    image = to_float(random_image(12, 12))
    np.testing.assert_allclose(adjust_hue(image, 1.0), image, atol=2e-6)
    there_and_back = adjust_hue(adjust_hue(image, 0.3), -0.3)
    np.testing.assert_allclose(there_and_back, image, atol=1e-5)
    a_third = adjust_hue(image, 1 / 3)
    np.testing.assert_allclose(a_third, np.roll(image, 1, axis=-1), atol=2e-6)


def test_grays_have_neither_hue_nor_saturation():
    grays = np.linspace(0, 1, 9, dtype=np.float32).reshape(3, 3, 1) * np.ones(3, np.float32)
    np.testing.assert_array_equal(adjust_hue(grays, 0.3), grays)
    np.testing.assert_allclose(augment.adjust_saturation(grays, 1.4), grays, atol=1e-6)
    np.testing.assert_allclose(augment.grayscale(grays), grays[..., :1], atol=1e-6)


FULL = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.4}
NOTHING = dict.fromkeys(FULL, 0.0)


@jax.jit
@partial(jax.vmap, in_axes=(0, None, None, None))
def jitter_each(key, image, strengths, p):
    return augment.color_jitter(key, image, size=0, p=p, **strengths)


def jitter(image, p=1.0, **strengths):
    """The image [1, 2, 3] under 2000 keys; compiled once for all tests."""
    image = np.asarray(image, np.float32)
    return np.asarray(jitter_each(keys(2000), image, NOTHING | strengths, p))


def measured_hue(pixels):
    hues = np.array([colorsys.rgb_to_hsv(*map(float, pixel))[0] for pixel in pixels])
    return (hues + 0.5) % 1.0 - 0.5


# How an image of two pixels shows the strength of one adjustment.
DARK_AND_LIGHT = [[[0.4] * 3, [0.6] * 3]]
REDDISH = [[[0.6, 0.4, 0.4], [0.6, 0.4, 0.4]]]
PROBES = {
    "brightness": (DARK_AND_LIGHT, lambda out: out[:, 0, 0, 0] / 0.4, 0.5, 1.5),
    "contrast": (DARK_AND_LIGHT, lambda out: np.diff(out[:, 0, :, 0])[:, 0] / 0.2, 0.5, 1.5),
    "saturation": (REDDISH, lambda out: (out[:, 0, 0, 0] - out[:, 0, 0, 1]) / 0.2, 0.5, 1.5),
    "hue": (REDDISH, lambda out: measured_hue(out[:, 0, 0]), -0.5, 0.5),
}


@pytest.mark.parametrize("name", PROBES)
def test_jitter_draws_each_strength_uniformly(name):
    image, measure, low, high = PROBES[name]
    out = jitter(image, **{name: 0.5})
    assert_uniform(measure(out), low, high)


def test_jitter_factors_are_never_negative():
    out = jitter(DARK_AND_LIGHT, contrast=1.5)
    assert_uniform(np.diff(out[:, 0, :, 0])[:, 0] / 0.2, 0.0, 2.5)


def test_jitter_strengths_are_drawn_independently():
    # Brightness scales the value of a single colour and hue turns it, in whatever order.
    out = jitter(REDDISH, brightness=0.4, hue=0.4)[:, 0, 0]
    assert_independent(out.max(axis=-1), measured_hue(out))


def adjust_in_order(image, adjustments):
    for adjustment in adjustments:
        image = adjustment(image)
    return image


def test_jitter_follows_every_number_that_it_draws(monkeypatch):
    monkeypatch.setattr(colour, "units", lambda key, *shape: key)  # the key is the numbers
    image = np.array([[[0.9, 0.2, 0.4], [0.3, 0.95, 0.1], [0.05, 0.5, 0.8]]], np.float32)
    draw = partial(augment.color_jitter, image=image, size=0, p=0.5, **FULL)

    # Four strengths at their highest, every order of the four turns, and the chance to act.
    orders = list(itertools.permutations(range(4)))
    turns = np.argsort(orders, axis=1) / 4
    by_order = np.concatenate([np.ones((24, 4)), turns, np.zeros((24, 1))], axis=1)
    numbers = [0.9, 0.3, 0.7, 0.9, 0.1, 0.2, 0.3, 0.4, 0.1]
    others = [0.2, 0.9, 0.1, 0.1, 0.9, 0.9, 0.05, 0.05, 0.9]
    one_changed = np.where(np.eye(9, dtype=bool), others, numbers)
    out = jax.jit(jax.vmap(draw))(jnp.array(np.vstack([by_order, numbers, one_changed]), "f"))

    def blend(image, base):
        return np.clip(1.4 * image - 0.4 * base, 0, 1)

    adjustments = (
        lambda image: blend(image, 0.0),
        lambda image: blend(image, np.mean(image @ LUMA)),
        lambda image: blend(image, (image @ LUMA)[..., None]),
        lambda image: colorsys_hue(image, 0.4),
    )
    expected = [adjust_in_order(image, [adjustments[i] for i in order]) for order in orders]
    np.testing.assert_allclose(out[:24], expected, atol=1e-5)
    for group in (out[:24], out[24:]):
        for one, other in itertools.combinations(np.asarray(group), 2):
            assert np.abs(one - other).max() > 1e-4


def test_jitter_without_strength_or_chance_changes_nothing():
    image = np.array([[[0.9, 0.2, 0.4], [0.3, 0.95, 0.1]]], np.float32)
    still = np.broadcast_to(image, (2000, 1, 2, 3))
    np.testing.assert_allclose(jitter(image), still, atol=1e-6)
    np.testing.assert_array_equal(jitter(image, p=0.0, **FULL), still)
    changed = (jitter(image, p=0.8, **FULL) != still).any(axis=(1, 2, 3))
    assert_probability(changed, 0.8)


def test_random_grayscale_equals_pillow_with_probability_p():
    image = random_image(16, 16)
    gray = partial(augment.random_grayscale, size=16)
    expected = np.asarray(Image.fromarray(image).convert("L").convert("RGB")) / 255
    result = gray(jax.random.key(0), to_float(image), p=1.0)
    np.testing.assert_allclose(result, expected, atol=ONE_LEVEL)
    pixel = jnp.array([[[1.0, 0.0, 0.0]]])
    grays = jax.vmap(lambda key: gray(key, pixel, p=0.2)[0, 0, 2] > 0)(keys(4000))
    assert_probability(grays, 0.2)


def test_random_intensity_multiplies_by_one_uniform_factor_and_clips():
    image = jnp.array([0.0, 0.25, 0.5, 1.0]).reshape(2, 2, 1)
    op = partial(augment.random_intensity, size=2, scale=(0.7, 1.3))
    black, quarter, half, white = (
        np.asarray(jax.vmap(lambda key: op(key, image))(keys(2000))).reshape(-1, 4).T
    )
    assert_uniform(quarter / 0.25, 0.7, 1.3)
    np.testing.assert_allclose(half, 2 * quarter, rtol=1e-6)
    assert not black.any() and white.max() == 1.0


def test_channels_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"rgb needs 1 or 3 channels, .*\(4, 4, 2\)"):
        augment.rgb(None, jnp.zeros((4, 4, 2)), size=4)
    with pytest.raises(ValueError, match="put 'rgb' first"):
        augment.grayscale(jnp.zeros((4, 4, 1)))
    with pytest.raises(ValueError, match="normalize got mean"):
        augment.normalize(None, jnp.zeros((4, 4, 1)), size=4, mean=(0.5,) * 3, std=(0.5,) * 3)


# Blur


def blur(image, sigma, **params):
    """The operation at one sigma."""
    op = partial(augment.gaussian_blur, size=0, sigma=(sigma, sigma), p=1.0, **params)
    return np.asarray(jax.jit(op)(jax.random.key(0), image))


@pytest.mark.parametrize("sigma", [0.1, 0.5, 0.8, 1.0, 1.41, 1.42, 2.0, 3.3])
@pytest.mark.parametrize("shape", [(32, 32), (40, 29)])
def test_blur_equals_pillow(shape, sigma):
    image = random_image(*shape)
    pillow = np.asarray(Image.fromarray(image).filter(ImageFilter.GaussianBlur(sigma)))
    difference = np.abs(blur(to_float(image), sigma) - pillow / 255)
    # Pillow rounds to 8 bits after each of its six passes.
    inside = difference[10:-10, 10:-10]
    assert inside.max() < 2.5 * ONE_LEVEL and difference.mean() < 0.7 * ONE_LEVEL
    # At the border it repeats the edge of each pass's result, where we repeat the image's.
    assert difference.max() < 10 * ONE_LEVEL


def test_blur_repeats_the_edge_of_the_image():
    image = to_float(random_image(20, 17))
    wide = blur(np.pad(image, ((9, 9), (9, 9), (0, 0)), mode="edge"), 2.0)
    np.testing.assert_allclose(blur(image, 2.0), wide[9:-9, 9:-9], atol=1e-6)


def box_blur(row, sigma):
    """Three box means with the variance of the Gaussian, found by bisection, of a long row."""

    def box(radius):
        full = math.floor(radius)
        weights = np.array([radius - full] + [1.0] * (2 * full + 1) + [radius - full])
        return weights / weights.sum()

    def variance(radius):
        weights = box(radius)
        taps = np.arange(len(weights)) - len(weights) // 2
        return (weights * taps**2).sum()

    low, high = 0.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if variance(middle) < sigma**2 / 3 else (low, middle)
    for _ in range(3):
        row = np.convolve(row, box(low), mode="same")
    return row


@pytest.mark.parametrize("sigma", [0.1, 0.7, 1.3, 2.0, 4.5])
def test_box_kernel_is_three_boxes_of_the_gaussians_variance(sigma):
    kernel = np.asarray(augment.box_kernel(sigma, 4.5))
    taps = np.arange(len(kernel)) - len(kernel) // 2
    impulse = (np.arange(-40, 41) == 0).astype(float)
    expected = box_blur(impulse, sigma)[40 + taps]
    np.testing.assert_allclose(kernel, expected, atol=1e-6)
    assert kernel.sum() == pytest.approx(1, abs=1e-6)
    assert (kernel * taps**2).sum() == pytest.approx(sigma**2, rel=1e-4)


def sampled_blur(image, sigma, taps):
    """Torchvision's, as loops: the density at whole pixels, edges mirrored without repeating."""
    reach = taps // 2
    weights = np.array([math.exp(-(t**2) / (2 * sigma**2)) for t in range(-reach, reach + 1)])
    kernel = np.outer(weights, weights) / weights.sum() ** 2
    padded = np.pad(image.astype(float), ((reach, reach), (reach, reach), (0, 0)), mode="reflect")
    result = np.empty(image.shape)
    for y, x in np.ndindex(*image.shape[:2]):
        window = padded[y : y + taps, x : x + taps]
        result[y, x] = (kernel[..., None] * window).sum(axis=(0, 1))
    return result


@pytest.mark.parametrize(
    ("shape", "kernel", "taps"),
    [((32, 32), 0.1, 3), ((64, 70), 0.1, 7), ((21, 24), 0.5, 11), ((8, 8), 0.1, 3)],
)
@pytest.mark.parametrize("sigma", [0.1, 1.2, 2.0])
def test_blur_with_a_kernel_is_a_gaussian_cut_off(shape, kernel, taps, sigma):
    image = to_float(random_image(*shape))
    result = blur(image, sigma, kernel=kernel)
    np.testing.assert_allclose(result, sampled_blur(image, sigma, taps), atol=2e-6)


def test_simclrs_kernel_at_224_pixels_has_23_taps():
    impulse = np.zeros((224, 224, 1), np.float32)
    impulse[112, 112] = 1
    blurred = blur(impulse, 1e3, kernel=0.1)[..., 0]
    assert (blurred > 1e-6).sum() == 23**2


@pytest.mark.parametrize("params", [{}, {"kernel": 0.3}])
def test_blur_leaves_flat_images_and_keeps_the_sum(params):
    flat = np.full((20, 20, 3), 0.3, np.float32)
    np.testing.assert_allclose(blur(flat, 2.0, **params), flat, atol=1e-6)
    middle = np.zeros((30, 30, 1), np.float32)
    middle[14:16, 14:16] = 1
    assert blur(middle, 1.5, **params).sum() == pytest.approx(4, abs=1e-4)


@pytest.mark.parametrize("params", [{}, {"kernel": 0.9}])
def test_blur_draws_sigma_uniformly_with_probability_p(params):
    impulse = np.zeros((19, 19, 1), np.float32)
    impulse[9, 9] = 1
    op = partial(augment.gaussian_blur, image=impulse, size=19, sigma=(0.7, 1.5), **params)
    out = np.asarray(jax.jit(jax.vmap(partial(op, p=0.4)))(keys(3000)))[..., 0]
    blurred = out[:, 9, 9] < 1
    assert_probability(blurred, 0.4)
    assert (out[~blurred] == impulse[..., 0]).all()
    variance = (out[blurred].sum(axis=1) * (np.arange(19) - 9) ** 2).sum(axis=1)
    assert_uniform(np.sqrt(variance), 0.7, 1.5)
