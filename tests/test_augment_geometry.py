"""Geometry against Pillow, and torchvision's crop written out as a loop. None shares code."""

import itertools
import math
from collections import Counter
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
    planes,
    random_image,
    to_float,
    torchvision_box,
)
from PIL import Image
from scipy import stats

from hypersphere_jax import augment
from hypersphere_jax.augment import make_evaluate

# Compiled, because one by one the small operations take longer.
affine = jax.jit(augment.affine, static_argnums=1)


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
    with pytest.raises(ValueError, match=r"center_crop to 8 pixels .* 7x9"):
        augment.center_crop(None, jnp.zeros((7, 9, 3)), size=8)


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
    assert_probability(flipped, 0.3)


@pytest.mark.parametrize("channels", [1, 3])
def test_rotation_turns_by_quarters_each_as_likely(channels):
    image = random_image(6, 6, channels)
    rotate = jax.jit(jax.vmap(lambda key: augment.random_rotation(key, image, size=6)))
    turned = np.asarray(rotate(keys(4000)))
    seen = 0
    for degrees in (0, 90, 180, 270):
        expected = planes(image, lambda c, d=degrees: c.rotate(d))
        happened = (turned == expected).all(axis=(1, 2, 3))
        assert_probability(happened, 0.25)
        seen += happened.sum()
    assert seen == 4000


def test_rotation_of_an_image_that_is_not_square_is_refused():
    with pytest.raises(ValueError, match=r"square image .* \(4, 6, 3\)"):
        augment.random_rotation(jax.random.key(0), jnp.zeros((4, 6, 3)), size=4)


@pytest.mark.parametrize(("size", "side"), [(9, 3), (8, 4), (8, 16)])
def test_cutout_fills_a_square_around_every_pixel_alike(size, side):
    height, width = 9, 8
    white = jnp.ones((height, width, 3))
    draw = partial(augment.cutout, size=size, side=side / size, value=(0.1, 0.2, 0.3))
    out = np.asarray(jax.jit(jax.vmap(lambda key: draw(key, white)))(keys(6000)))

    holes = {}
    for y, x in itertools.product(range(height), range(width)):
        square = Image.new("RGB", (width, height), "white")
        left, top = x - side // 2, y - side // 2
        square.paste((0, 0, 0), (left, top, left + side, top + side))
        holes.setdefault(np.asarray(square)[..., 0].tobytes(), []).append((y, x))
    drawn = np.where((out == 1).all(axis=-1), 255, 0).astype(np.uint8)
    counts = Counter(hole.tobytes() for hole in drawn)
    assert set(counts) == set(holes)
    expected = [6000 * len(centres) / (height * width) for centres in holes.values()]
    if len(holes) > 1:
        assert stats.chisquare([counts[hole] for hole in holes], expected).pvalue > 0.01
    inside = out[drawn == 0]
    np.testing.assert_allclose(inside, np.broadcast_to([0.1, 0.2, 0.3], inside.shape), rtol=1e-6)


def test_cutout_acts_with_probability_p():
    white = jnp.ones((8, 8, 1))
    draw = jax.vmap(lambda key: augment.cutout(key, white, size=8, p=0.3).min() == 0)
    assert_probability(np.asarray(draw(keys(4000))), 0.3)


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
