"""Colour and intensity against Pillow, colorsys and the formulas; the laws of what is drawn."""

import colorsys
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from augment_cases import (
    LEVEL,
    assert_independent,
    assert_probability,
    assert_uniform,
    draws,
    random_image,
    to_float,
)
from PIL import Image, ImageEnhance

from hypersphere_jax import augment
from hypersphere_jax.augment import colour

LUMA = np.array([0.299, 0.587, 0.114])
ADJUSTMENTS = (
    (augment.adjust_brightness, ImageEnhance.Brightness),
    (augment.adjust_contrast, ImageEnhance.Contrast),
    (augment.adjust_saturation, ImageEnhance.Color),
)


def test_adjustments_and_gray_are_pillows():
    image = random_image(24, 24)
    factors = np.array([0.0, 0.6, 1.0, 1.4], np.float32)

    @jax.jit
    def all_of(image):
        adjusted = [jax.vmap(partial(adjust, image))(factors) for adjust, _ in ADJUSTMENTS]
        return adjusted, augment.grayscale(image)

    adjusted, gray = all_of(to_float(image))
    for (_, enhance), results in zip(ADJUSTMENTS, np.asarray(adjusted), strict=True):
        for factor, result in zip(factors, results, strict=True):
            expected = np.asarray(enhance(Image.fromarray(image)).enhance(float(factor))) / 255
            # Pillow rounds its gray to 8 bits, then truncates the blend.
            name = f"{enhance.__name__} {factor}"
            np.testing.assert_allclose(result, expected, atol=1.5 * LEVEL, err_msg=name)
            assert result.min() >= 0 and result.max() <= 1, name
    expected = np.asarray(Image.fromarray(image).convert("L"))[..., None] / 255
    np.testing.assert_allclose(gray, expected, atol=LEVEL)


def turned(image, shift):
    """By colorsys, pixel by pixel."""

    def turn(pixel):
        hue, saturation, value = colorsys.rgb_to_hsv(*map(float, pixel))
        return colorsys.hsv_to_rgb((hue + shift) % 1.0, saturation, value)

    return np.apply_along_axis(turn, -1, image)


def test_hue_is_colorsys():
    corners = np.array(list(itertools.product([0, 255], repeat=3)), np.uint8)
    grays = np.arange(8, dtype=np.uint8)[:, None] * np.full(3, 30, np.uint8)
    image = to_float(np.concatenate([random_image(9, 8), [corners, grays]]))
    shifts = np.array([-0.5, -0.4, -1 / 6, 0.01, 0.25, 1 / 3, 0.4, 1.0])
    results = jax.jit(jax.vmap(partial(augment.adjust_hue, image)))(np.float32(shifts))
    for shift, result in zip(shifts, results, strict=True):
        np.testing.assert_allclose(result, turned(image, shift), atol=3e-6, err_msg=str(shift))
        np.testing.assert_array_equal(result[-1], image[-1])  # grays have no hue


# Jitter. How an image of two pixels shows the strength of one adjustment:

FULL = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.4}
NOTHING = dict.fromkeys(FULL, 0.0)
DARK_AND_LIGHT = [[[0.4] * 3, [0.6] * 3]]
REDDISH = [[[0.6, 0.4, 0.4], [0.6, 0.4, 0.4]]]


def hues(out):
    found = np.array([colorsys.rgb_to_hsv(*map(float, pixel))[0] for pixel in out[:, 0, 0]])
    return (found + 0.5) % 1.0 - 0.5


def contrasts(out):
    return np.diff(out[:, 0, :, 0])[:, 0] / 0.2


@pytest.fixture(scope="module")
def jitter():
    """`jitter(image, p, **strengths)`: the image [1, 2, 3] with 2000 keys."""

    @jax.jit
    def of_keys(keys, image, strengths, p):
        def of_key(key):
            return augment.color_jitter(key, image, size=0, p=p, **strengths)

        return jax.vmap(of_key)(keys)

    def jitter(image, p=1.0, **strengths):
        keys = jax.random.split(jax.random.key(0), 2000)
        return np.asarray(of_keys(keys, np.float32(image), NOTHING | strengths, p))

    return jitter


def test_jitter_draws_each_strength_uniformly(jitter):
    for image, name, strength, measure, low, high in (
        (DARK_AND_LIGHT, "brightness", 0.5, lambda out: out[:, 0, 0, 0] / 0.4, 0.5, 1.5),
        (DARK_AND_LIGHT, "contrast", 0.5, contrasts, 0.5, 1.5),
        (DARK_AND_LIGHT, "contrast", 1.5, contrasts, 0.0, 2.5),  # never negative
        (REDDISH, "saturation", 0.5, lambda out: -np.diff(out[:, 0, 0])[:, 0] / 0.2, 0.5, 1.5),
        (REDDISH, "hue", 0.5, hues, -0.5, 0.5),
    ):
        assert_uniform(measure(jitter(image, **{name: strength})), low, high, (name, strength))
    # Brightness scales the value of a single colour and hue turns it, in whatever order.
    out = jitter(REDDISH, brightness=0.4, hue=0.4)
    assert_independent(out[:, 0, 0].max(axis=-1), hues(out))


def test_jitter_without_strength_or_chance_changes_nothing(jitter):
    image = np.array([[[0.9, 0.2, 0.4], [0.3, 0.95, 0.1]]], np.float32)
    still = np.broadcast_to(image, (2000, 1, 2, 3))
    np.testing.assert_allclose(jitter(image), still, atol=1e-6)
    np.testing.assert_array_equal(jitter(image, p=0.0, **FULL), still)
    changed = (jitter(image, p=0.8, **FULL) != still).any(axis=(1, 2, 3))
    assert_probability(changed, 0.8)


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
        lambda image: turned(image, 0.4),
    )
    for order, result in zip(orders, out, strict=False):
        expected = image
        for number in order:
            expected = adjustments[number](expected)
        np.testing.assert_allclose(result, expected, atol=1e-5, err_msg=str(order))
    for group in (out[:24], out[24:]):
        for one, other in itertools.combinations(np.asarray(group), 2):
            assert np.abs(one - other).max() > 1e-4


def test_random_grayscale_is_the_luma_of_all_channels_with_probability_p():
    pixel = np.array([[[1.0, 0.5, 0.0]]], np.float32)
    out = draws(augment.random_grayscale, pixel, size=1, p=0.2)[:, 0, 0]
    gray = (out != pixel[0, 0]).any(axis=1)
    assert_probability(gray, 0.2)
    np.testing.assert_allclose(out[gray], pixel[0, 0] @ LUMA * np.ones((gray.sum(), 3)), atol=1e-6)


def test_random_intensity_multiplies_by_one_uniform_factor_and_clips():
    image = np.array([0.0, 0.25, 0.5, 1.0], np.float32).reshape(2, 2, 1)
    out = draws(augment.random_intensity, image, size=2, scale=(0.7, 1.3))
    black, quarter, half, white = out.reshape(-1, 4).T
    assert_uniform(quarter / 0.25, 0.7, 1.3)
    np.testing.assert_allclose(half, 2 * quarter, rtol=1e-6)
    np.testing.assert_allclose(white, np.minimum(1, 4 * quarter), rtol=1e-6)
    assert not black.any()


def test_normalize_and_rgb(rng):
    image = rng.random((2, 3, 3)).astype("f")
    mean, std = (0.1, 0.2, 0.4), (0.5, 0.25, 2.0)
    found = augment.normalize(None, image, size=2, mean=mean, std=std)
    np.testing.assert_allclose(found, (image - mean) / std, atol=1e-6)
    np.testing.assert_array_equal(augment.rgb(None, image, size=2), image)
    gray = augment.rgb(None, image[..., :1], size=2)
    np.testing.assert_array_equal(gray, np.repeat(image[..., :1], 3, axis=-1))
    with pytest.raises(ValueError, match=r"rgb needs 1 or 3 channels, .*\(2, 3, 2\)"):
        augment.rgb(None, image[..., :2], size=2)
    with pytest.raises(ValueError, match="put 'rgb' first"):
        augment.grayscale(image[..., :1])
    with pytest.raises(ValueError, match="normalize got mean"):
        augment.normalize(None, image[..., :1], size=2, mean=mean, std=std)
