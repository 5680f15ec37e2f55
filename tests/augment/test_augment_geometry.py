"""Geometry, also on the host, against Pillow, and torchvision's crop written out as a loop."""

import itertools
import math
import pickle
from collections import Counter
from functools import partial

import augment_cases as laws
import jax
import numpy as np
import pytest
from augment_cases import LEVEL, by_planes, draws, keys, random_image, to_float
from PIL import Image
from scipy import stats

from hypersphere_jax.augment import RECIPES, Recipe, make_augment, make_evaluate, operations
from hypersphere_jax.augment.host import draw_box, host_crops, inception_crop, random_crop


def test_crop_resize_matches_pillow():
    image = to_float(random_image(41, 30))
    boxes = [(0, 0, 41, 30), (3, 5, 20, 17), (30, 20, 11, 10), (7, 0, 1, 2), (12, 4, 16, 16)]
    resized = jax.jit(lambda box: operations.crop_resize(image, box, 16, 12))
    for top, left, height, width in boxes:
        corners = (left, top, left + width, top + height)
        expected = by_planes(image, lambda c, b=corners: c.crop(b).resize((12, 16), Image.BILINEAR))
        np.testing.assert_allclose(resized((top, left, height, width)), expected, atol=2e-5)


def test_evaluation_matches_pillows_resize_and_center_crop():
    """STL-10's: the middle 64 pixels of 70; half a pixel is rounded to the even one."""
    mean, std = map(np.array, RECIPES["stl10"].evaluate[-1][1].values())
    for height, width in ((66, 90), (90, 65), (64, 80), (20, 31)):
        image, shorter = random_image(height, width), min(height, width)
        target = [(70 if shorter > 64 else 64) * side // shorter for side in (width, height)]
        resized = Image.fromarray(image).resize(target, Image.BILINEAR)
        left, top = round((target[0] - 64) / 2), round((target[1] - 64) / 2)
        expected = np.asarray(resized.crop((left, top, left + 64, top + 64)))
        np.testing.assert_array_equal(host_crops("stl10", 64)[1](image), expected)
        result = np.asarray(jax.jit(make_evaluate("stl10", 64))(image)) * std + mean
        # Pillow rounds to 8 bits after each of its two passes.
        np.testing.assert_allclose(result, expected / 255, atol=1.01 * LEVEL)


def torchvisions_boxes(n, height, width, scale, ratio):
    """Boxes (top, left, height, width) of torchvision's loop: [4, n]."""
    rng, boxes = np.random.default_rng(1), []
    while len(boxes) < n:
        area = height * width * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            boxes.append((rng.integers(0, height - h + 1), rng.integers(0, width - w + 1), h, w))
    return np.array(boxes).T


@pytest.mark.slow
@pytest.mark.parametrize("where", ["device", "host"])
def test_crop_boxes_follow_their_law(where, rng):
    def drawn(n, *law):
        if where == "host":
            return np.array([draw_box(rng, *law) for _ in range(n)]).T
        return np.array(jax.jit(jax.vmap(lambda key: operations.crop_box(key, *law)))(keys(n)))

    top, left, height, width = drawn(4000, 2000, 2000, (0.1, 0.5), (0.6, 1.2))  # every box fits
    area, log_ratio = height * width / 2000**2, np.log(width / height)
    laws.assert_uniform(area, 0.1, 0.5)
    laws.assert_uniform(log_ratio, math.log(0.6), math.log(1.2))
    laws.assert_independent(area, log_ratio, top / (2001 - height), left / (2001 - width))
    law = (90, 120, (0.08, 1.0), (0.6, 1.2))  # some do not fit
    boxes = drawn(4000, *law)
    ends = boxes[:2] + boxes[2:]
    assert (boxes[:2].min(), *ends.max(axis=1)) == (0, 90, 120) and boxes[2:].min() > 0
    for ours, theirs in zip(boxes, torchvisions_boxes(4000, *law), strict=True):
        assert stats.ks_2samp(ours, theirs).pvalue > 0.01
    for shape, box in (((10, 100), (0, 43, 10, 13)), ((100, 10), (43, 0, 13, 10))):  # none does
        none_fits = drawn(20, *shape, (0.9, 1.0), (3 / 4, 4 / 3))
        np.testing.assert_array_equal(none_fits.T, [box] * 20)


def tensorflows_box(numbers, height, width, least, most, ratio):
    """TensorFlow's `GenerateRandomCrop`, attempt by attempt, with given random numbers."""
    top, left = numbers[200:].tolist()
    for aspect, number in numbers[:200].reshape(2, 100).T.tolist():
        aspect = ratio[0] + aspect * (ratio[1] - ratio[0])
        h, most_h = (round(math.sqrt(area / aspect)) for area in (least, most))
        if round(most_h * aspect) > width:
            most_h = int((width + 0.5 - 1e-7) / aspect)
            most_h -= round(most_h * aspect) > width
        h = min(h, most_h := min(most_h, height))
        h += int(number * (most_h - h + 1))
        if h * round(h * aspect) < least:
            h += 1
        if h * round(h * aspect) > most:
            h -= 1
        w = round(h * aspect)
        inside = 0 < h <= height and 0 < w <= width and least <= h * w <= most
        if inside and h * w >= 0.1 * height * width:
            return int(top * (height - h)), int(left * (width - w)), h, w
    return 0, 0, height, width


def test_inception_boxes_match_tensorflow(rng):
    """Number by number, on the device and on the host; and how large they are."""
    law = (0.08, 1.0), (3 / 4, 4 / 3)
    on_device = jax.jit(jax.vmap(lambda n: operations.distorted_box(n, 32, 32, *law)))
    for n, height, width in ((2000, 32, 32), (100, 60, 100), (100, 90, 9)):
        numbers, total = rng.random((n, 202), np.float32), height * width
        on_host = [operations.distorted_box(m, height, width, *law, np) for m in numbers]
        found = np.array(on_device(numbers)).T if n == 2000 else np.array(on_host)
        expected = [tensorflows_box(m, height, width, 0.08 * total, total, law[1]) for m in numbers]
        for boxes in (found, on_host):  # float32 rounds a few otherwise
            assert (np.array(boxes) == expected).all(axis=1).mean() > 0.99
        if n == 2000:  # reference: 20,000 boxes of TensorFlow 2.21 with SimCLR's arguments
            areas = np.prod(found[:, 2:], axis=1) / total
            np.testing.assert_allclose(areas.mean(), 0.4318, atol=0.02)
            np.testing.assert_allclose((areas < 0.25).mean(), 0.2975, atol=0.03)
    none_fits = operations.distorted_box(numbers[0], 9, 90, (0.9, 1.0), law[1], np)
    assert none_fits == (0, 0, 9, 90)


def test_inception_crops_are_resized_bicubically(monkeypatch):
    """Keys' cubic over the pixels of the box, not widened; rounded to 8 bits on the host."""
    monkeypatch.setattr(operations, "units", lambda key, *shape: key)  # the key is the numbers
    image, size, overshoots = random_image(30, 40), 24, []
    on_device = jax.jit(partial(operations.inception_crop, image=to_float(image), size=size))
    crop, _ = host_crops("simclr_cifar", size)
    for seed in range(4):
        drawn = np.random.default_rng(seed).random(202, np.float32)
        top, left, *sides = tensorflows_box(drawn, 30, 40, 96, 1200, (3 / 4, 4 / 3))
        expected = image[top : top + sides[0], left : left + sides[1]] / 255
        for axis, side in enumerate(sides):
            x = np.abs((np.arange(size)[:, None] + 0.5) * side / size - 0.5 - np.arange(side))
            near, far = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
            weights = np.where(x < 1, near, np.where(x < 2, far, 0))
            weights /= weights.sum(axis=1, keepdims=True)
            expected = np.moveaxis(np.tensordot(weights, expected, (1, axis)), 0, axis)
        overshoots.append(expected.max() > 1)
        ours = on_device(drawn)
        np.testing.assert_allclose(ours, np.clip(expected, 0, 1), atol=5e-5)
        on_host = crop(np.random.default_rng(seed), image)
        np.testing.assert_allclose(on_host / 255, ours, atol=0.51 * LEVEL)
    assert any(overshoots)


def test_flip_mirrors_with_probability_p():
    image = to_float(random_image(4, 6))
    out = draws(operations.random_horizontal_flip, image, size=4, p=0.3)
    flipped = (out != image).any(axis=(1, 2, 3))
    laws.assert_probability(flipped, 0.3)
    assert (out[flipped] == image[:, ::-1]).all()


def test_rotation_is_by_uniform_quarter_turns():
    image = random_image(6, 6)
    turned = draws(operations.random_rotation, image, n=4000, size=6)
    for degrees in (0, 90, 180, 270):  # four chances of 1/4: nothing else happens
        expected = by_planes(image, lambda c, d=degrees: c.rotate(d))
        laws.assert_probability((turned == expected).all(axis=(1, 2, 3)), 0.25)


@pytest.mark.parametrize(("size", "part", "side", "p"), [(11, 0.25, 3, 1), (8, 0.5, 4, 0.3)])
def test_cutout_fills_a_square_with_uniform_center(size, part, side, p):
    height, width, value = 9, 8, (0.1, 0.2, 0.3)
    white = np.ones((height, width, 3), np.float32)
    out = draws(operations.cutout, white, 6000, size=size, side=part, value=value, p=p)
    rows, columns = np.ogrid[:height, :width]
    holes = Counter()
    for y, x in itertools.product(range(height), range(width)):
        top, left = y - side // 2, x - side // 2
        inside = (top <= rows) & (rows < top + side) & (left <= columns) & (columns < left + side)
        holes[inside.tobytes()] += 1
    drawn = (out != 1).any(axis=-1)
    acted = drawn.any(axis=(1, 2))
    laws.assert_probability(acted, p)
    counts = Counter(hole.tobytes() for hole in drawn[acted])
    assert set(counts) == set(holes)
    expected = np.array([*holes.values()]) * acted.sum() / (height * width)
    assert stats.chisquare([counts[hole] for hole in holes], expected).pvalue > 0.01
    np.testing.assert_allclose(out[drawn], np.broadcast_to(value, (drawn.sum(), 3)))


def pillows_affine(image, size, degrees, scale, shift):
    """The forward map in homogeneous pixel coordinates, inverted numerically for Pillow."""
    (height, width, _), turn = image.shape, math.radians(degrees)
    sin, cos = scale * math.sin(turn), scale * math.cos(turn)
    to_unit = np.array([[1 / width, 0, -0.5], [0, 1 / height, -0.5], [0, 0, 1]])
    move = np.array([[cos, -sin, shift[1]], [sin, cos, shift[0]], [0, 0, 1]])
    to_pixels = np.array([[size, 0, size / 2], [0, size, size / 2], [0, 0, 1]])
    inverse = np.linalg.inv(to_pixels @ move @ to_unit)
    # Pillow's edge is hard; with two black pixels around the image it fades, as ours does.
    law = np.add(inverse[:2], [0, 0, 2]).ravel()
    image = np.pad(image, ((2, 2), (2, 2), (0, 0)))
    by_law = lambda c: c.transform((size, size), Image.AFFINE, law, Image.BILINEAR)  # noqa: E731
    return by_planes(image, by_law)


def test_affine_matches_pillow():
    affine = jax.jit(operations.affine, static_argnums=1)
    turns = (13.0, 1.1, (0.09, -0.06)), (-7.0, 0.87, (-0.11, 0.03)), (40, 0.7, (0.2, 0.1))
    for (shape, size), turn in itertools.product((((8, 8), 20), ((9, 14), 12)), turns):
        image = to_float(random_image(*shape, channels=2))
        result, expected = affine(image, size, *turn), pillows_affine(image, size, *turn)
        assert (expected == 0).any()  # the fill is exercised
        np.testing.assert_allclose(result, expected, atol=1e-5, err_msg=str(turn))


def test_random_affine_draws_angle_scale_and_shift_uniformly():
    # Bilinear interpolation of ramps is exact: the output contains the origin of each pixel.
    ramp = (np.arange(16, dtype=np.float32) + 0.5) / 16 - 0.5
    image = np.stack(np.meshgrid(ramp, ramp, indexing="ij"), axis=-1)
    law = {"degrees": 20.0, "scale": (0.8, 1.3), "shift": 0.1}
    results = draws(operations.random_affine, image, size=16, **law)
    origin = results[:, 7, 7]
    down, right = (results[:, 8, 7] - origin) * 16, (results[:, 7, 8] - origin) * 16
    inverse = np.stack([down, right], axis=-1)  # from = inverse @ (to - shift), (y, x)
    scale = 1 / np.sqrt(np.linalg.det(inverse))
    angle = np.degrees(np.arctan2(inverse[:, 1, 0], inverse[:, 0, 0]))
    shift = ramp[7] - np.linalg.solve(inverse, origin[..., None])[..., 0]
    laws.assert_uniform(scale, 0.8, 1.3)
    laws.assert_uniform(angle, -20, 20)
    laws.assert_uniform(shift.ravel(), -0.1, 0.1)
    laws.assert_independent(scale, angle, *shift.T)


def test_host_crop_resizes_its_box_like_the_device():
    for size, channels in ((64, 3), (12, 1), (12, 4)):
        image = random_image(40, 56, channels)
        crop, _ = host_crops("stl10", size)
        resized = jax.jit(partial(operations.crop_resize, out_height=size, out_width=size))
        for seed in range(4):
            box = draw_box(np.random.default_rng(seed), 40, 56, (0.08, 1), (3 / 4, 4 / 3))
            ours = crop(np.random.default_rng(seed), image)
            assert ours.dtype == np.uint8 and ours.shape == (size, size, channels)
            # Pillow rounds to 8 bits after each of its two passes.
            np.testing.assert_allclose(ours / 255, resized(to_float(image), box), atol=1.01 * LEVEL)


def test_every_recipe_crops_with_its_own_ranges_after_pickling_too():
    image = random_image(30, 20)
    for name, recipe in RECIPES.items():
        train, evaluate = pickle.loads(pickle.dumps(host_crops(name, 8)))
        resize = dict(recipe.evaluate)["resize"]
        assert evaluate.keywords == {"size": 8} | resize, name
        crops = {"random_resized_crop": random_crop, "inception_crop": inception_crop}
        if crop := next((crop for crop in crops if crop in dict(recipe.train)), None):
            assert train.func is crops[crop], name
            assert train.keywords == {"size": 8} | dict(recipe.train)[crop], name
        else:  # its random operations start from the middle
            np.testing.assert_array_equal(train(None, image), evaluate(image), err_msg=name)
    square = random_image(16, 16)
    np.testing.assert_array_equal(host_crops("none", 16)[1](square), square)  # not resampled


def test_cropped_leaves_out_the_crop_alone():
    """The other operations draw the same numbers."""
    images = np.stack([random_image(16, 16)] * 6)
    rest = (("random_horizontal_flip", {}), ("random_grayscale", {"p": 0.5}))
    crop, middle = ("random_resized_crop", {}), (("resize", {}), ("center_crop", {}))
    whole = Recipe((("rgb", {}), crop, *rest), (*middle, *rest))
    for make, *arguments in ((make_augment, keys(6), images), (make_evaluate, images)):
        forms = make(Recipe(rest, rest), 16), make(whole, 16, cropped=True)
        expected, found = (jax.jit(jax.vmap(form))(*arguments) for form in forms)
        np.testing.assert_allclose(found, expected, atol=1e-6)
        with pytest.raises(ValueError, match=r"cropped to 16 pixels, got \[8, 9, 3\]"):
            jax.vmap(forms[1])(*arguments[:-1], images[:, :8, :9])
