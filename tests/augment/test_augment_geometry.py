"""Crops, flips, rotations and affine maps, on the device and on the host, against Pillow."""

import math
from functools import partial

import jax
import numpy as np
import pytest
from augment_cases import (
    LEVEL,
    assert_independent,
    assert_probability,
    assert_uniform,
    by_planes,
    draws,
    keys,
    random_image,
    to_float,
)
from PIL import Image

from hypersphere_jax.augment import RECIPES, Recipe, make_augment, make_evaluate, operations
from hypersphere_jax.augment.host import host_crops

RATIO = (3 / 4, 4 / 3)


@pytest.mark.parametrize("box", [(0, 0, 41, 30), (3, 5, 20, 17), (7, 0, 1, 2), (12, 4, 16, 16)])
def test_crop_resize_matches_pillow(box):
    image = to_float(random_image(41, 30))
    top, left, height, width = box
    found = jax.jit(lambda box: operations.crop_resize(image, box, 16, 12))(box)

    def crop(channel):
        inside = channel.crop((left, top, left + width, top + height))
        return inside.resize((12, 16), Image.Resampling.BILINEAR)

    np.testing.assert_allclose(found, by_planes(image, crop), atol=2e-5)


@pytest.mark.parametrize(("height", "width"), [(66, 90), (90, 65), (64, 80), (20, 31)])
def test_evaluation_matches_pillows_resize_and_center_crop(height, width):
    """STL-10's: the middle 64 pixels of 70; half a pixel is rounded to the even one."""
    image = random_image(height, width)
    shorter = min(height, width)
    side = 70 if shorter > 64 else 64
    target = [side * width // shorter, side * height // shorter]
    left, top = (round((length - 64) / 2) for length in target)
    resized = Image.fromarray(image).resize(target, Image.Resampling.BILINEAR)
    expected = np.asarray(resized.crop((left, top, left + 64, top + 64)))
    np.testing.assert_array_equal(host_crops("stl10", 64)[1](image), expected)
    statistics = dict(RECIPES["stl10"].evaluate)["normalize"]
    found = np.asarray(jax.jit(make_evaluate("stl10", 64))(image))
    # Pillow rounds to 8 bits after each of its two passes.
    found = found * statistics["std"] + statistics["mean"]
    np.testing.assert_allclose(found, expected / 255, atol=1.01 * LEVEL)


def draw_boxes(where, n, *law):
    """Boxes (top, left, height, width), `[4, n]`."""
    if where == "host":
        rng = np.random.default_rng(0)
        draws = [operations.crop_box(rng.random(22), *law, np) for _ in range(n)]
        return np.array(draws).T
    numbers = jax.random.uniform(jax.random.key(0), (n, 22))
    return np.array(jax.jit(jax.vmap(lambda unit: operations.crop_box(unit, *law)))(numbers))


@pytest.mark.parametrize("where", ["device", "host"])
def test_random_crops_have_uniform_areas_and_log_ratios(where):
    top, left, height, width = draw_boxes(where, 4000, 2000, 2000, (0.1, 0.5), (0.6, 1.2))
    area = height * width / 2000**2
    log_ratio = np.log(width / height)
    assert_uniform(area, 0.1, 0.5)
    assert_uniform(log_ratio, math.log(0.6), math.log(1.2))
    assert_independent(area, log_ratio, top / (2001 - height), left / (2001 - width))
    # Some boxes do not fit.
    boxes = draw_boxes(where, 4000, 90, 120, (0.08, 1.0), (0.6, 1.2))
    assert boxes[:2].min() == 0
    assert (boxes[:2] + boxes[2:]).max(axis=1).tolist() == [90, 120]
    # None fits, so that the crop is central.
    found = draw_boxes(where, 5, 10, 100, (0.9, 1.0), RATIO)
    np.testing.assert_array_equal(found.T, [(0, 43, 10, 13)] * 5)


def tensorflows_box(numbers, height, width, least, most, ratio):
    """TensorFlow's `GenerateRandomCrop`, attempt by attempt, with given random numbers."""
    top, left = numbers[200:].tolist()
    for unit, number in numbers[:200].reshape(2, 100).T.tolist():
        aspect = ratio[0] + unit * (ratio[1] - ratio[0])
        h = round(math.sqrt(least / aspect))
        most_h = round(math.sqrt(most / aspect))
        if round(most_h * aspect) > width:
            most_h = int((width + 0.5 - 1e-7) / aspect)
            most_h -= round(most_h * aspect) > width
        most_h = min(most_h, height)
        h = min(h, most_h)
        h += int(number * (most_h - h + 1))
        h += h * round(h * aspect) < least
        h -= h * round(h * aspect) > most
        w = round(h * aspect)
        inside = 0 < h <= height and 0 < w <= width and least <= h * w <= most
        if inside and h * w >= 0.1 * height * width:
            return int(top * (height - h)), int(left * (width - w)), h, w
    return 0, 0, height, width


@pytest.mark.parametrize(("height", "width"), [(32, 32), (60, 100), (90, 9)])
def test_inception_boxes_match_tensorflow(height, width, rng):
    numbers = rng.random((1000, 202), np.float32)
    law = (height, width, (0.08, 1.0), RATIO)
    total = height * width
    expected = [tensorflows_box(row, height, width, 0.08 * total, total, RATIO) for row in numbers]
    on_device = jax.jit(jax.vmap(lambda row: operations.distorted_box(row, *law)))(numbers)
    on_host = [operations.distorted_box(row, *law, np) for row in numbers]
    for boxes in (np.transpose(on_device), on_host):  # float32 rounds a few otherwise
        assert (np.array(boxes) == expected).all(axis=1).mean() > 0.99
    if height == width:  # 20,000 boxes of TensorFlow 2.21 with SimCLR's arguments
        areas = np.prod(on_host, axis=1, where=[False, False, True, True]) / total
        np.testing.assert_allclose(areas.mean(), 0.4318, atol=0.03)
        np.testing.assert_allclose((areas < 0.25).mean(), 0.2975, atol=0.05)


def resized_bicubically(image, box, size):
    top, left, height, width = box
    inside = to_float(image)[top : top + height, left : left + width]
    shape = (size, size, image.shape[-1])
    return np.clip(jax.image.resize(inside, shape, "cubic", antialias=False), 0, 1)


def test_inception_crops_are_resized_bicubically():
    """On the host they are rounded to 8 bits."""
    image = random_image(30, 40)
    law = (30, 40, 0.08 * 1200, 1200, RATIO)
    on_device = draws(operations.inception_crop, to_float(image), n=3, size=24)
    host_crop, _ = host_crops("simclr_cifar", 24)
    for seed, (key, found) in enumerate(zip(keys(3), on_device, strict=True)):
        box = tensorflows_box(np.asarray(operations.units(key, 202)), *law)
        np.testing.assert_allclose(found, resized_bicubically(image, box, 24), atol=5e-5)
        box = tensorflows_box(np.random.default_rng(seed).random(202, np.float32), *law)
        found = host_crop(np.random.default_rng(seed), image) / 255
        np.testing.assert_allclose(found, resized_bicubically(image, box, 24), atol=0.51 * LEVEL)


def test_flip_acts_with_probability_p():
    image = to_float(random_image(4, 6))
    found = draws(operations.random_horizontal_flip, image, size=4, p=0.3)
    flipped = (found != image).any(axis=(1, 2, 3))
    assert_probability(flipped, 0.3)
    assert (found[flipped] == image[:, ::-1]).all()


def test_rotation_is_a_uniform_number_of_quarter_turns():
    image = random_image(6, 6)
    found = draws(operations.random_rotation, image, n=4000, size=6)
    for degrees in (0, 90, 180, 270):
        expected = by_planes(image, lambda channel, angle=degrees: channel.rotate(angle))
        assert_probability((found == expected).all(axis=(1, 2, 3)), 0.25)


@pytest.mark.parametrize(("size", "part", "side", "p"), [(11, 0.25, 3, 1), (8, 0.5, 4, 0.3)])
def test_cutout_fills_a_square_with_uniform_center(size, part, side, p):
    value = (0.1, 0.2, 0.3)
    white = np.ones((9, 8, 3), np.float32)
    found = draws(operations.cutout, white, 6000, size=size, side=part, value=value, p=p)
    holes = (found != 1).any(axis=-1)
    assert_probability(holes.any(axis=(1, 2)), p)
    np.testing.assert_allclose(found[holes], np.broadcast_to(value, (holes.sum(), 3)))
    # A pixel is covered by as many centers as pixels are around it.
    offsets = np.arange(side) - side // 2
    rows = [np.isin(row - offsets, range(9)).sum() for row in range(9)]
    columns = [np.isin(column - offsets, range(8)).sum() for column in range(8)]
    np.testing.assert_allclose(holes.mean(0), p * np.outer(rows, columns) / 72, atol=0.03)


def test_random_affine_draws_angle_scale_and_shift_uniformly():
    """Bilinear interpolation of ramps is exact: the output contains the origin of each pixel."""
    ramp = (np.arange(16, dtype=np.float32) + 0.5) / 16 - 0.5
    image = np.stack(np.meshgrid(ramp, ramp, indexing="ij"), axis=-1)
    law = {"degrees": 20.0, "scale": (0.8, 1.3), "shift": 0.1}
    found = draws(operations.random_affine, image, size=16, **law)
    origin = found[:, 7, 7]
    steps = [(found[:, 8, 7] - origin) * 16, (found[:, 7, 8] - origin) * 16]
    inverse = np.stack(steps, axis=-1)  # from = inverse @ (to - shift), (y, x)
    scale = 1 / np.sqrt(np.linalg.det(inverse))
    angle = np.degrees(np.arctan2(inverse[:, 1, 0], inverse[:, 0, 0]))
    shift = ramp[7] - np.linalg.solve(inverse, origin[..., None])[..., 0]
    assert_uniform(scale, 0.8, 1.3)
    assert_uniform(angle, -20, 20)
    assert_uniform(shift.ravel(), -0.1, 0.1)
    assert_independent(scale, angle, *shift.T)


@pytest.mark.parametrize(("size", "channels"), [(64, 3), (12, 4)])
def test_host_crop_resizes_its_box_like_the_device(size, channels):
    image = random_image(40, 56, channels)
    crop, _ = host_crops("stl10", size)
    resize = jax.jit(partial(operations.crop_resize, out_height=size, out_width=size))
    for seed in range(3):
        numbers = np.random.default_rng(seed).random(22, np.float32)
        box = operations.crop_box(numbers, 40, 56, (0.08, 1), RATIO, np)
        found = crop(np.random.default_rng(seed), image)
        assert found.dtype == np.uint8 and found.shape == (size, size, channels)
        # Pillow rounds to 8 bits after each of its two passes.
        np.testing.assert_allclose(found / 255, resize(to_float(image), box), atol=1.01 * LEVEL)


@pytest.mark.parametrize("make", [make_augment, make_evaluate])
def test_cropped_images_get_the_rest_of_the_recipe(make):
    """The other operations draw the same numbers."""
    images = np.stack([random_image(16, 16)] * 6)
    rest = (("random_horizontal_flip", {}), ("random_grayscale", {"p": 0.5}))
    evaluation = (("resize", {}), ("center_crop", {}), *rest)
    whole = Recipe((("rgb", {}), ("random_resized_crop", {}), *rest), evaluation)
    arguments = (keys(6), images) if make is make_augment else (images,)
    cropped = jax.jit(jax.vmap(make(whole, 16, cropped=True)))
    expected = jax.jit(jax.vmap(make(Recipe(rest, rest), 16)))(*arguments)
    np.testing.assert_allclose(cropped(*arguments), expected, atol=1e-6)
    with pytest.raises(ValueError, match="8, 9, 3"):
        cropped(*arguments[:-1], images[:, :8, :9])
