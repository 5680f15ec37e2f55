"""Oracles: Pillow, colorsys, and torchvision's crop written out as a loop. None shares code."""

import colorsys
import itertools
import math
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec
from PIL import Image, ImageEnhance
from scipy import stats
from sklearn.datasets import load_digits

from hypersphere_jax import augment
from hypersphere_jax.augment import Recipe, make_augment, make_evaluate, two_views

ONE_LEVEL = 1 / 255
LUMA = np.array([0.299, 0.587, 0.114])


def random_image(height, width, channels=3, seed=0):
    """A uint8 image with structure (few, large patches of colour) and noise."""
    rng = np.random.default_rng(seed)
    patches = rng.integers(0, 256, (3, 3, channels))
    image = patches[np.arange(height) * 3 // height][:, np.arange(width) * 3 // width]
    noise = rng.integers(-40, 40, (height, width, channels))
    return np.clip(image + noise, 0, 255).astype(np.uint8)


def to_float(image):
    return image.astype(np.float32) / 255


def planes(image, transform):
    """Apply a function of a float Pillow image to each channel of [h, w, c]."""
    channels = np.moveaxis(image, -1, 0)
    return np.stack([np.asarray(transform(Image.fromarray(c))) for c in channels], axis=-1)


def keys(n, seed=0):
    return jax.random.split(jax.random.key(seed), n)


# Compiled, because one by one the small operations take longer.
affine = jax.jit(augment.affine, static_argnums=1)
adjust_hue = jax.jit(augment.adjust_hue)


def assert_uniform(sample, low, high):
    assert stats.kstest(sample, stats.uniform(low, high - low).cdf).pvalue > 0.01


def assert_independent(*samples):
    """No correlation beyond four standard errors."""
    correlations = np.corrcoef(samples) - np.eye(len(samples))
    assert np.abs(correlations).max() < 4 / math.sqrt(len(samples[0]))


@pytest.fixture(scope="module")
def digits():
    bunch = load_digits()
    return np.round(bunch.images * 255 / 16).astype(np.uint8)[..., None], bunch.target


# Geometry


def test_crop_resize_equals_pillow():
    image = to_float(random_image(41, 30))
    boxes = [(0, 0, 41, 30), (3, 5, 20, 17), (30, 20, 11, 10), (7, 0, 1, 2), (12, 4, 16, 16)]
    resized = jax.jit(jax.vmap(lambda box: augment.crop_resize(image, box, 16, 12)))(
        tuple(jnp.array(boxes).T)
    )
    for (top, left, height, width), result in zip(boxes, resized, strict=True):
        corners = (left, top, left + width, top + height)
        expected = planes(image, lambda c, b=corners: c.crop(b).resize((12, 16), Image.BILINEAR))
        np.testing.assert_allclose(result, expected, atol=2e-6)


def test_evaluation_equals_pillow_resize_and_center_crop():
    recipe = augment.RECIPES["stl10"]
    mean, std = (np.array(recipe.evaluate[-1][1][name]) for name in ("mean", "std"))
    evaluate = jax.jit(make_evaluate("stl10", 64))
    for height, width in ((96, 96), (66, 90)):
        image = random_image(height, width)
        shorter = min(height, width)
        target = (70 * width // shorter, 70 * height // shorter)
        resized = Image.fromarray(image).resize(target, Image.BILINEAR)
        left, top = round((target[0] - 64) / 2), round((target[1] - 64) / 2)
        expected = np.asarray(resized.crop((left, top, left + 64, top + 64))) / 255
        result = np.asarray(evaluate(image)) * std + mean
        # Pillow rounds to 8 bits after each of its two passes.
        np.testing.assert_allclose(result, expected, atol=1.01 * ONE_LEVEL)


@pytest.mark.parametrize(("side", "expected"), [(8, 8), (5, 8), (9, 12), (40, 12)])
def test_resize_shrinks_only_larger_images_and_fills_smaller_ones(side, expected):
    image = jax.ShapeDtypeStruct((side, 2 * side, 3), jnp.float32)
    result = jax.eval_shape(partial(augment.resize, None, size=8, factor=1.5), image)
    assert result.shape == (expected, 2 * expected, 3)


def test_center_crop_of_a_small_image_is_refused():
    with pytest.raises(ValueError, match=r"center_crop to 8 pixels .* \(7, 9, 3\)"):
        augment.center_crop(None, jnp.zeros((7, 9, 3)), size=8)


def torchvision_box(rng, height, width, scale, ratio):
    for _ in range(10):
        area = height * width * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return rng.integers(0, height - h + 1), rng.integers(0, width - w + 1), h, w
    return None


def draw_boxes(n, *args):
    boxes = jax.jit(jax.vmap(lambda key: jnp.stack(augment.crop_box(key, *args))))(keys(n))
    return np.array(boxes).T


def test_crop_area_and_ratio_follow_their_law_where_every_box_fits():
    top, left, height, width = draw_boxes(4000, 2000, 2000, (0.1, 0.5), (0.6, 1.2))
    area, log_ratio = height * width / 2000**2, np.log(width / height)
    down, right = top / (2001 - height), left / (2001 - width)
    assert_uniform(area, 0.1, 0.5)
    assert_uniform(log_ratio, math.log(0.6), math.log(1.2))
    assert_uniform(down, 0, 1)
    assert_uniform(right, 0, 1)
    assert_independent(area, log_ratio, down, right)


def test_crop_box_has_the_law_of_torchvisions_loop():
    shape, scale, ratio = (90, 120), (0.08, 1.0), (0.6, 1.2)
    rng = np.random.default_rng(1)
    expected = np.array([torchvision_box(rng, *shape, scale, ratio) for _ in range(4000)]).T
    boxes = draw_boxes(4000, *shape, scale, ratio)
    top, left, height, width = boxes
    assert min(top.min(), left.min()) == 0 and min(height.min(), width.min()) > 0
    assert (top + height).max() == 90 and (left + width).max() == 120
    for ours, theirs in zip(boxes, expected, strict=True):
        assert stats.ks_2samp(ours, theirs).pvalue > 0.01
    areas = height * width, expected[2] * expected[3]
    assert stats.ks_2samp(*areas).pvalue > 0.01


@pytest.mark.parametrize(
    ("shape", "box"), [((10, 100), (0, 43, 10, 13)), ((100, 10), (43, 0, 13, 10))]
)
def test_crop_falls_back_to_the_centre_when_no_box_fits(shape, box):
    boxes = draw_boxes(20, *shape, (0.9, 1.0), (3 / 4, 4 / 3))
    np.testing.assert_array_equal(boxes.T, [box] * 20)


def test_random_resized_crop_resizes_the_drawn_box():
    image = to_float(random_image(24, 20))
    ranges = {"scale": (0.2, 0.6), "ratio": (0.5, 2.0)}

    @jax.jit
    def draw(key):
        crop = augment.random_resized_crop(key, image, size=8, **ranges)
        return augment.crop_box(key, 24, 20, **ranges), crop

    box, crop = draw(jax.random.key(3))
    top, left, height, width = map(int, box)
    corners = (left, top, left + width, top + height)
    expected = planes(image, lambda c: c.crop(corners).resize((8, 8), Image.BILINEAR))
    np.testing.assert_allclose(crop, expected, atol=2e-6)


def test_flip_mirrors_with_probability_p():
    image = to_float(random_image(4, 6))
    flip = partial(augment.random_horizontal_flip, size=4)
    key = jax.random.key(0)
    np.testing.assert_array_equal(flip(key, image, p=1.0), image[:, ::-1])
    np.testing.assert_array_equal(flip(key, flip(key, image, p=1.0), p=1.0), image)
    np.testing.assert_array_equal(flip(key, image, p=0.0), image)
    flipped = jax.vmap(lambda key: flip(key, image, p=0.3)[0, 0, 0] != image[0, 0, 0])(keys(4000))
    assert abs(np.mean(flipped) - 0.3) < 4 * math.sqrt(0.3 * 0.7 / 4000)


def pillow_affine(image, size, degrees, scale, shift):
    """The forward map in homogeneous pixel coordinates, inverted numerically for Pillow."""
    height, width, _ = image.shape
    angle = math.radians(degrees)
    to_unit = np.array([[1 / width, 0, -0.5], [0, 1 / height, -0.5], [0, 0, 1]])
    turn = np.array(
        [[math.cos(angle), -math.sin(angle), 0], [math.sin(angle), math.cos(angle), 0], [0, 0, 1]]
    )
    move = np.array([[scale, 0, shift[1]], [0, scale, shift[0]], [0, 0, 1]])
    to_pixels = np.array([[size, 0, size / 2], [0, size, size / 2], [0, 0, 1]])
    # Pillow's edge is hard; with two black pixels around the image it fades, as ours does.
    inverse = np.linalg.inv(to_pixels @ move @ turn @ to_unit) + np.array(
        [[0, 0, 2]] * 2 + [[0] * 3]
    )
    image = np.pad(image, ((2, 2), (2, 2), (0, 0)))
    coefficients = inverse[:2].ravel()
    return planes(
        image, lambda c: c.transform((size, size), Image.AFFINE, coefficients, Image.BILINEAR)
    )


@pytest.mark.parametrize(
    ("shape", "size", "degrees", "scale", "shift"),
    [
        ((8, 8), 8, 13.0, 1.1, (0.09, -0.06)),
        ((8, 8), 20, -7.0, 0.87, (-0.11, 0.03)),
        ((9, 14), 12, 40.0, 0.7, (0.2, 0.1)),
    ],
)
def test_affine_equals_pillow(shape, size, degrees, scale, shift):
    image = to_float(random_image(*shape, channels=2))
    result = affine(image, size, degrees, scale, shift)
    expected = pillow_affine(image, size, degrees, scale, shift)
    assert (expected == 0).any()  # the fill is exercised
    np.testing.assert_allclose(result, expected, atol=1e-5)


def test_affine_closed_forms():
    image = to_float(random_image(8, 8, channels=1))
    still = (0.0, 0.0)
    np.testing.assert_allclose(affine(image, 8, 0.0, 1.0, still), image, atol=1e-6)
    clockwise = affine(image, 8, 90.0, 1.0, still)
    np.testing.assert_allclose(clockwise, np.rot90(image, k=-1), atol=1e-5)
    moved = affine(image, 8, 0.0, 1.0, (0.125, -0.25))
    np.testing.assert_allclose(moved[1:, :6], image[:7, 2:], atol=1e-6)
    assert not moved[0].any() and not moved[:, 6:].any()
    enlarged = affine(image, 32, 0.0, 1.0, still)
    as_evaluated = augment.resize(None, image, size=32)
    inside = slice(2, -2)  # the edge fades, where resizing repeats it
    np.testing.assert_allclose(enlarged[inside, inside], as_evaluated[inside, inside], atol=1e-5)


def test_random_affine_draws_angle_scale_and_shift_uniformly():
    # On ramps bilinear interpolation is exact: the output tells where each pixel came from.
    ramp = (np.arange(16, dtype=np.float32) + 0.5) / 16 - 0.5
    image = jnp.stack(jnp.meshgrid(ramp, ramp, indexing="ij"), axis=-1)
    draw = partial(augment.random_affine, size=16, degrees=20.0, scale=(0.8, 1.3), shift=0.1)
    results = np.asarray(jax.jit(jax.vmap(lambda key: draw(key, image)))(keys(3000)))
    origin = results[:, 7, 7]
    down, right = (results[:, 8, 7] - origin) * 16, (results[:, 7, 8] - origin) * 16
    inverse = np.stack([down, right], axis=-1)  # from = inverse @ (to - shift), (y, x)
    scale = 1 / np.sqrt(np.linalg.det(inverse))
    angle = np.degrees(np.arctan2(inverse[:, 1, 0], inverse[:, 0, 0]))
    shift = ramp[7] - np.linalg.solve(inverse, origin[..., None])[..., 0]
    assert_uniform(scale, 0.8, 1.3)
    assert_uniform(angle, -20, 20)
    assert_uniform(shift[:, 0], -0.1, 0.1)
    assert_uniform(shift[:, 1], -0.1, 0.1)
    assert_independent(scale, angle, *shift.T)


# Colour and intensity


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
    monkeypatch.setattr(augment, "_units", lambda key, *shape: key)  # the key is the numbers
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
    assert abs(changed.mean() - 0.8) < 4 * math.sqrt(0.8 * 0.2 / 2000)


def test_random_grayscale_equals_pillow_with_probability_p():
    image = random_image(16, 16)
    gray = partial(augment.random_grayscale, size=16)
    expected = np.asarray(Image.fromarray(image).convert("L").convert("RGB")) / 255
    result = gray(jax.random.key(0), to_float(image), p=1.0)
    np.testing.assert_allclose(result, expected, atol=ONE_LEVEL)
    pixel = jnp.array([[[1.0, 0.0, 0.0]]])
    grays = jax.vmap(lambda key: gray(key, pixel, p=0.2)[0, 0, 2] > 0)(keys(4000))
    assert abs(np.mean(grays) - 0.2) < 4 * math.sqrt(0.2 * 0.8 / 4000)


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


# Recipes


@pytest.fixture(scope="module")
def images():
    """Eight small images: two without any colour, black and white among them."""
    batch = np.stack([random_image(12, 10, seed=seed) for seed in range(8)])
    batch[1], batch[2] = 0, 255
    return batch


@cache
def compiled(recipe, size):
    return jax.jit(partial(two_views, make_augment(recipe, size)))


def batch_for(recipe, images):
    return images[..., :1] if recipe == "digits" else images


POSITIONS = np.arange(8) + 3


@pytest.mark.parametrize(("recipe", "wrap"), [("stl10", jax.jit), ("digits", lambda op: op)])
def test_views_equal_a_loop_with_and_without_jit(recipe, wrap, images):
    batch, key = batch_for(recipe, images), jax.random.key(7)
    batched = compiled(recipe, 8)(key, batch, POSITIONS)
    op = wrap(make_augment(recipe, 8))
    for index, view in ((0, 1), (3, 0), (5, 0)):
        sample_key = jax.random.fold_in(key, POSITIONS[index])
        alone = op(jax.random.fold_in(sample_key, view), batch[index])
        np.testing.assert_allclose(batched[view][index], alone, atol=2e-5)


@pytest.mark.parametrize("recipe", ["stl10", "digits"])
def test_views_depend_on_key_position_and_view_alone(recipe, images):
    batch, key = batch_for(recipe, images), jax.random.key(7)
    view1, _ = compiled(recipe, 8)(key, batch, POSITIONS)
    again, _ = compiled(recipe, 8)(key, batch, POSITIONS)
    np.testing.assert_array_equal(again, view1)

    order = np.array([3, 0, 7, 4, 1, 6, 2, 5])
    shuffled, _ = compiled(recipe, 8)(key, batch[order], POSITIONS[order])
    np.testing.assert_allclose(shuffled, view1[order], atol=1e-6)

    same_image = np.stack([batch[0]] * 8)
    elsewhere, other_view = compiled(recipe, 8)(key, same_image, POSITIONS)
    other_key, _ = compiled(recipe, 8)(jax.random.key(8), same_image, POSITIONS)
    np.testing.assert_allclose(elsewhere[0], view1[0], atol=1e-6)
    different = [*elsewhere, *other_view, *other_key]
    for one, other in itertools.combinations(different, 2):
        assert np.abs(one - other).max() > 0.01


def test_views_are_the_same_for_any_number_of_devices(images):
    key = jax.random.key(7)
    whole = compiled("stl10", 8)(key, images, POSITIONS)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    split = PartitionSpec("data")
    spread = jax.shard_map(
        partial(two_views, make_augment("stl10", 8)),
        mesh=mesh,
        in_specs=(PartitionSpec(), split, split),
        out_specs=split,
    )
    for ours, theirs in zip(jax.jit(spread)(key, images, POSITIONS), whole, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_inserting_an_operation_leaves_the_others_randomness(monkeypatch, images):
    flip = ("random_horizontal_flip", {})
    first = ("random_intensity", {"scale": (1.0, 1.0)})
    for name, train in {"short": (flip,), "long": (first, flip)}.items():
        monkeypatch.setitem(augment.RECIPES, name, Recipe(train, ()))
    key, batch = jax.random.key(0), images[:, :10]
    short = two_views(make_augment("short", 10), key, batch, POSITIONS)
    long = two_views(make_augment("long", 10), key, batch, POSITIONS)
    np.testing.assert_array_equal(short[0], long[0])
    np.testing.assert_array_equal(short[1], long[1])


def test_operations_of_a_recipe_draw_different_numbers(monkeypatch):
    steps = (("random_grayscale", {"p": 0.5}), ("random_horizontal_flip", {}))
    monkeypatch.setitem(augment.RECIPES, "coins", Recipe(steps, ()))
    image = np.array([[[255, 0, 0], [0, 0, 0]]] * 2, np.uint8)
    out = np.asarray(jax.vmap(lambda key: make_augment("coins", 2)(key, image))(keys(2000)))
    flipped, gray = out[:, 0, 0].max(axis=-1) == 0, out[:, 0, :, 1].max(axis=-1) > 0
    assert_independent(flipped, gray)


def test_an_operation_may_stand_once(monkeypatch):
    flips = (("random_horizontal_flip", {}),) * 2
    monkeypatch.setitem(augment.RECIPES, "twice", Recipe(flips, ()))
    with pytest.raises(ValueError, match="may stand once"):
        make_augment("twice", 8)


@pytest.mark.parametrize("size", [8, 32, 64])
@pytest.mark.parametrize("recipe", augment.RECIPES)
def test_every_recipe_gives_finite_images_of_its_size(recipe, size, images):
    batch = batch_for(recipe, images)
    last, params = augment.RECIPES[recipe].train[-1]
    mean, std = (params["mean"], params["std"]) if last == "normalize" else (0.0, 1.0)
    view1, view2 = compiled(recipe, size)(jax.random.key(1), batch, POSITIONS)
    evaluated = jax.jit(jax.vmap(make_evaluate(recipe, size)))(batch)
    for result in (view1, view2, evaluated):
        assert result.shape == (8, size, size, batch.shape[-1])
        assert result.dtype == jnp.float32
        values = np.asarray(result) * np.array(std) + np.array(mean)
        assert values.min() > -1e-5 and values.max() < 1 + 1e-5  # false for NaN as well


def test_stl10_takes_gray_images():
    gray = random_image(12, 12, channels=1)
    evaluate = jax.jit(make_evaluate("stl10", 12))
    in_colour = evaluate(np.repeat(gray, 3, axis=-1))
    np.testing.assert_allclose(evaluate(gray), in_colour, atol=1e-6)


def test_none_gives_the_image_itself(images):
    square = images[:, :8, :8]
    for view in compiled("none", 8)(jax.random.key(0), square, POSITIONS):
        np.testing.assert_allclose(view, to_float(square), atol=1e-7)


def test_digits_are_evaluated_with_mean_0_and_variance_1(digits):
    evaluated = np.asarray(jax.vmap(make_evaluate("digits", 8))(digits[0]))
    assert abs(evaluated.mean()) < 1e-3 and abs(evaluated.std() - 1) < 1e-3


def test_digits_recipe_keeps_the_class(digits):
    """The nearest view of all other digits is, mostly, one of the same class."""
    images, labels = digits
    n, queries, copies = len(images), np.arange(600), 8
    views = [compiled("digits", 8)(jax.random.key(i), images, np.arange(n)) for i in range(copies)]
    query, *bank = np.asarray(views).reshape(2 * copies, n, -1)
    query, bank = query[queries], np.concatenate(bank)
    distances = (bank**2).sum(axis=-1) - 2 * query @ bank.T
    distances = distances.reshape(len(queries), -1, n).min(axis=1)
    distances[queries, queries] = np.inf
    correct = labels[distances.argmin(axis=-1)] == labels[queries]
    # 0.94; with flips, rotations up to 45 degrees or shifts up to 2 pixels it is at most 0.92.
    assert correct.mean() > 0.93


@pytest.mark.parametrize(
    "image", [np.zeros((8, 8, 1), np.float32), np.zeros((8, 8), np.uint8), np.zeros((8, 8, 1), int)]
)
def test_images_that_are_not_uint8_of_rank_3_are_refused(image):
    expected = rf"expected uint8 \[h, w, c\], got {image.dtype}"
    with pytest.raises(ValueError, match=expected):
        make_augment("digits", 8)(jax.random.key(0), image)
    with pytest.raises(ValueError, match=expected):
        make_evaluate("digits", 8)(image)


def test_unknown_recipes_are_refused_with_the_nearest_name():
    known = ", ".join(augment.RECIPES)
    for make in (make_augment, make_evaluate):
        with pytest.raises(ValueError, match=f"'slt10', known: {known}; did you mean 'stl10'"):
            make("slt10", 8)


def test_each_image_needs_its_position(images):
    with pytest.raises(ValueError, match=r"\(8, 12, 10, 3\) need one position each, got \(7,\)"):
        two_views(make_augment("stl10", 8), jax.random.key(0), images, np.arange(7))
