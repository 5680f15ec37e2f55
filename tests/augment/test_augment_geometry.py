"""Geometry against Pillow, and torchvision's crop written out as a loop. None shares code."""

import itertools
import math
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from augment_cases import (
    LEVEL,
    assert_independent,
    assert_probability,
    assert_same_law,
    assert_uniform,
    by_planes,
    described,
    draws,
    keys,
    random_image,
    to_float,
    torchvisions_boxes,
)
from PIL import Image
from scipy import stats

from hypersphere_jax import augment
from hypersphere_jax.augment import shapes


def test_crop_resize_is_pillows():
    image = to_float(random_image(41, 30))
    boxes = [(0, 0, 41, 30), (3, 5, 20, 17), (30, 20, 11, 10), (7, 0, 1, 2), (12, 4, 16, 16)]
    resized = jax.jit(jax.vmap(lambda box: augment.crop_resize(image, box, 16, 12)))(
        tuple(jnp.array(boxes).T)
    )
    for (top, left, height, width), result in zip(boxes, resized, strict=True):
        corners = (left, top, left + width, top + height)
        expected = by_planes(image, lambda c, b=corners: c.crop(b).resize((12, 16), Image.BILINEAR))
        np.testing.assert_allclose(result, expected, atol=2e-6, err_msg=str(corners))


@pytest.mark.parametrize(("height", "width"), [(96, 96), (66, 90), (90, 65), (20, 31)])
def test_evaluation_is_pillows_resize_and_center_crop(height, width):
    """STL-10's: the middle 64 pixels of 70; half a pixel is rounded to the even one."""
    recipe = augment.RECIPES["stl10"]
    image, (mean, std) = random_image(height, width), map(np.array, recipe.evaluate[-1][1].values())
    shorter = min(height, width)
    side = 70 if shorter > 64 else 64
    target = (side * width // shorter, side * height // shorter)
    resized = Image.fromarray(image).resize(target, Image.BILINEAR)
    left, top = round((target[0] - 64) / 2), round((target[1] - 64) / 2)
    expected = np.asarray(resized.crop((left, top, left + 64, top + 64)))
    np.testing.assert_array_equal(augment.host_crops("stl10", 64)[1](image), expected)
    result = np.asarray(jax.jit(augment.make_evaluate("stl10", 64))(image)) * std + mean
    # Pillow rounds to 8 bits after each of its two passes.
    np.testing.assert_allclose(result, expected / 255, atol=1.01 * LEVEL)


def test_resize_shrinks_larger_images_alone_and_fills_smaller_ones():
    for side, expected in ((8, 8), (5, 8), (9, 12), (40, 12)):
        image = jnp.zeros((side, 2 * side, 3))
        assert shapes.resized_shape(side, 2 * side, 8, 1.5) == (expected, 2 * expected), side
        result = jax.eval_shape(lambda x: augment.resize(None, x, size=8, factor=1.5), image)
        assert result.shape == (expected, 2 * expected, 3), side
    assert shapes.resized_shape(300, 200, 64, 70 / 64) == (105, 70)
    with pytest.raises(ValueError, match=r"center_crop to 8 pixels .* 7x9"):
        augment.center_crop(None, jnp.zeros((7, 9, 3)), size=8)


def drawn_boxes(n, *law):
    return np.array(jax.jit(jax.vmap(lambda key: augment.crop_box(key, *law)))(keys(n)))


def test_crop_boxes_follow_their_law():
    boxes = drawn_boxes(4000, 2000, 2000, (0.1, 0.5), (0.6, 1.2))  # where every box fits
    top, left, height, width = boxes
    area, log_ratio = height * width / 2000**2, np.log(width / height)
    down, right = top / (2001 - height), left / (2001 - width)
    assert_uniform(area, 0.1, 0.5)
    assert_uniform(log_ratio, math.log(0.6), math.log(1.2))
    assert_uniform(down, 0, 1)
    assert_uniform(right, 0, 1)
    assert_independent(area, log_ratio, down, right)

    law = (90, 120, (0.08, 1.0), (0.6, 1.2))  # where some do not
    boxes = drawn_boxes(4000, *law)
    top, left, height, width = boxes
    assert min(top.min(), left.min()) == 0 and min(height.min(), width.min()) > 0
    assert (top + height).max() == 90 and (left + width).max() == 120
    assert_same_law(described(boxes), torchvisions_boxes(4000, *law))


def test_crop_falls_back_to_the_centre_when_no_box_fits():
    for shape, box in (((10, 100), (0, 43, 10, 13)), ((100, 10), (43, 0, 13, 10))):
        boxes = drawn_boxes(20, *shape, (0.9, 1.0), (3 / 4, 4 / 3))
        np.testing.assert_array_equal(boxes.T, [box] * 20)


def test_random_resized_crop_resizes_the_drawn_box():
    image = to_float(random_image(24, 20))
    ranges = {"scale": (0.2, 0.6), "ratio": (0.5, 2.0)}
    crops = draws(augment.random_resized_crop, image, n=3, size=8, **ranges)
    for box, crop in zip(drawn_boxes(3, 24, 20, *ranges.values()).T, crops, strict=True):
        top, left, height, width = map(int, box)
        corners = (left, top, left + width, top + height)
        expected = by_planes(image, lambda c, b=corners: c.crop(b).resize((8, 8), Image.BILINEAR))
        np.testing.assert_allclose(crop, expected, atol=2e-6)
    assert (augment.geometry.SCALE, augment.geometry.RATIO) == ((0.08, 1.0), (3 / 4, 4 / 3))


def test_flip_mirrors_with_probability_p():
    image = to_float(random_image(4, 6))
    out = draws(augment.random_horizontal_flip, image, size=4, p=0.3)
    flipped = (out != image).any(axis=(1, 2, 3))
    assert_probability(flipped, 0.3)
    assert (out[flipped] == image[:, ::-1]).all()


def test_rotation_turns_by_quarters_each_as_likely():
    image = random_image(6, 6)
    turned = draws(augment.random_rotation, image, n=4000, size=6)
    seen = 0
    for degrees in (0, 90, 180, 270):
        expected = by_planes(image, lambda c, d=degrees: c.rotate(d))
        happened = (turned == expected).all(axis=(1, 2, 3))
        assert_probability(happened, 0.25)
        seen += happened.sum()
    assert seen == 4000
    with pytest.raises(ValueError, match=r"square image .* \(4, 6, 3\)"):
        augment.random_rotation(jax.random.key(0), jnp.zeros((4, 6, 3)), size=4)


@pytest.mark.parametrize(
    ("size", "part", "side", "p"), [(11, 0.25, 3, 1), (8, 0.5, 4, 0.3), (8, 2, 16, 1)]
)
def test_cutout_fills_a_square_around_every_pixel_alike(size, part, side, p):
    height, width, n = 9, 8, 6000
    white, value = np.ones((height, width, 3), np.float32), (0.1, 0.2, 0.3)
    out = draws(augment.cutout, white, n, size=size, side=part, value=value, p=p)
    holes = {}
    for y, x in itertools.product(range(height), range(width)):
        square = Image.new("L", (width, height), "white")
        left, top = x - side // 2, y - side // 2
        square.paste(0, (left, top, left + side, top + side))
        holes.setdefault(np.asarray(square).tobytes(), []).append((y, x))
    drawn = np.where((out == 1).all(axis=-1), 255, 0).astype(np.uint8)
    acted = (drawn == 0).any(axis=(1, 2))
    assert_probability(acted, p)
    counts = Counter(hole.tobytes() for hole in drawn[acted])
    assert set(counts) == set(holes)
    if len(holes) > 1:
        expected = [acted.sum() * len(centres) / (height * width) for centres in holes.values()]
        assert stats.chisquare([counts[hole] for hole in holes], expected).pvalue > 0.01
    np.testing.assert_allclose(out[drawn == 0], np.broadcast_to(value, ((drawn == 0).sum(), 3)))


def pillows_affine(image, size, degrees, scale, shift):
    """The forward map in homogeneous pixel coordinates, inverted numerically for Pillow."""
    height, width, _ = image.shape
    sin, cos = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    to_unit = np.array([[1 / width, 0, -0.5], [0, 1 / height, -0.5], [0, 0, 1]])
    turn = np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]])
    move = np.array([[scale, 0, shift[1]], [0, scale, shift[0]], [0, 0, 1]])
    to_pixels = np.array([[size, 0, size / 2], [0, size, size / 2], [0, 0, 1]])
    inverse = np.linalg.inv(to_pixels @ move @ turn @ to_unit)
    # Pillow's edge is hard; with two black pixels around the image it fades, as ours does.
    coefficients = (inverse + np.array([[0, 0, 2]] * 2 + [[0] * 3]))[:2].ravel()
    image = np.pad(image, ((2, 2), (2, 2), (0, 0)))
    return by_planes(
        image, lambda c: c.transform((size, size), Image.AFFINE, coefficients, Image.BILINEAR)
    )


@pytest.mark.parametrize(("shape", "size"), [((8, 8), 20), ((9, 14), 12)])
def test_affine_is_pillows(shape, size):
    image = to_float(random_image(*shape, channels=2))
    affine = jax.jit(augment.affine, static_argnums=1)
    for turn in ((13.0, 1.1, (0.09, -0.06)), (-7.0, 0.87, (-0.11, 0.03)), (40, 0.7, (0.2, 0.1))):
        result, expected = affine(image, size, *turn), pillows_affine(image, size, *turn)
        assert (expected == 0).any()  # the fill is exercised
        np.testing.assert_allclose(result, expected, atol=1e-5, err_msg=str(turn))


def test_random_affine_draws_angle_scale_and_shift_uniformly():
    # On ramps bilinear interpolation is exact: the output tells where each pixel came from.
    ramp = (np.arange(16, dtype=np.float32) + 0.5) / 16 - 0.5
    image = np.stack(np.meshgrid(ramp, ramp, indexing="ij"), axis=-1)
    law = {"degrees": 20.0, "scale": (0.8, 1.3), "shift": 0.1}
    results = draws(augment.random_affine, image, size=16, **law)
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
