"""Crops on the host have the law and the pixels of those on the device."""

import pickle
from functools import partial

import jax
import numpy as np
import pytest
from augment_cases import ONE_LEVEL, keys, random_image, to_float, torchvision_box
from PIL import Image
from scipy import stats

from hypersphere_jax import augment
from hypersphere_jax.augment import (
    RECIPES,
    Recipe,
    host_crops,
    make_augment,
    make_evaluate,
    two_views,
)

FLIP = ("random_horizontal_flip", {})
MIDDLE = (("resize", {}), ("center_crop", {}))


def draw_boxes(n, *args):
    rng = np.random.default_rng(0)
    return np.array([augment.draw_box(rng, *args) for _ in range(n)]).T


def test_boxes_have_the_law_of_the_devices_and_of_torchvisions_loop():
    args = (90, 120, (0.08, 1.0), (0.6, 1.2))
    draw = jax.jit(jax.vmap(lambda key: augment.crop_box(key, *args)))
    device = np.array(draw(keys(4000)))
    rng = np.random.default_rng(1)
    loop = np.array([torchvision_box(rng, *args) for _ in range(4000)]).T
    boxes = draw_boxes(4000, *args)
    top, left, height, width = boxes
    assert min(top.min(), left.min()) == 0 and min(height.min(), width.min()) > 0
    assert (top + height).max() == 90 and (left + width).max() == 120
    for other in (device, loop):
        for ours, theirs in zip(boxes, other, strict=True):
            assert stats.ks_2samp(ours, theirs).pvalue > 0.01
        areas = height * width, other[2] * other[3]
        assert stats.ks_2samp(*areas).pvalue > 0.01
        corners = top * left, other[0] * other[1]
        assert stats.ks_2samp(*corners).pvalue > 0.01


@pytest.mark.parametrize("shape", [(10, 100), (100, 10)])
def test_boxes_fall_back_to_the_devices_box(shape):
    args = (*shape, (0.9, 1.0), (3 / 4, 4 / 3))
    device = np.array(augment.crop_box(jax.random.key(0), *args))
    np.testing.assert_array_equal(draw_boxes(20, *args).T, [device] * 20)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [12, 64])
def test_train_crop_is_the_drawn_box_resized_as_on_the_device(size, channels):
    image = random_image(40, 56, channels)
    crop, _ = host_crops("stl10", size)
    for seed in range(4):
        box = augment.draw_box(np.random.default_rng(seed), 40, 56, crop.scale, crop.ratio)
        ours = crop(np.random.default_rng(seed), image)
        assert ours.dtype == np.uint8 and ours.shape == (size, size, channels)
        device = augment.crop_resize(to_float(image), box, size, size)
        # Pillow rounds to 8 bits after each of its two passes.
        np.testing.assert_allclose(to_float(ours), device, atol=1.01 * ONE_LEVEL)


@pytest.mark.parametrize(
    "name", ["stl10", *(pytest.param(name, marks=pytest.mark.slow) for name in ("moco", "digits"))]
)
@pytest.mark.parametrize("shape", [(96, 96), (66, 90), (300, 200), (20, 31)])
def test_evaluate_crop_equals_the_devices(name, shape):
    image = random_image(*shape)
    _, crop = host_crops(name, 64)
    steps = tuple(step for step in RECIPES[name].evaluate if step[0] in ("resize", "center_crop"))
    device = make_evaluate(Recipe((), steps), 64)(image)
    np.testing.assert_allclose(to_float(crop(image)), device, atol=1.01 * ONE_LEVEL)


def test_recipes_crop_with_their_own_ranges():
    for name, recipe in RECIPES.items():
        if "random_resized_crop" in dict(recipe.train):
            crop, _ = host_crops(name, 8)
            params = dict(recipe.train)["random_resized_crop"]
            assert (crop.scale, crop.ratio) == (params["scale"], params["ratio"])
    plain = Recipe((("random_resized_crop", {}),), MIDDLE)
    assert host_crops(plain, 8)[0].ratio == (3 / 4, 4 / 3)


@pytest.mark.parametrize("name", ["digits", "none"])
def test_recipes_without_a_random_crop_take_the_middle(name):
    train, evaluate = host_crops(name, 8)
    image = random_image(30, 20, 1)
    for seed in range(3):
        np.testing.assert_array_equal(train(np.random.default_rng(seed), image), evaluate(image))


def test_crops_can_be_pickled():
    image = random_image(30, 20)
    for name in RECIPES:
        train, evaluate = pickle.loads(pickle.dumps(host_crops(name, 8)))
        once = train(np.random.default_rng(0), image)
        again = host_crops(name, 8)[0](np.random.default_rng(0), image)
        np.testing.assert_array_equal(once, again)
        assert evaluate(image).shape == (8, 8, 3)


def test_an_image_of_the_right_size_is_not_resampled():
    image = random_image(16, 16)
    np.testing.assert_array_equal(host_crops("none", 16)[1](image), image)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (
            Recipe((FLIP, ("random_resized_crop", {})), MIDDLE),
            "random_horizontal_flip comes before",
        ),
        (
            Recipe((), (FLIP, *MIDDLE)),
            "center_crop cannot move to the host: random_horizontal_flip",
        ),
        (Recipe((FLIP,), (("resize", {}),)), "needs a center_crop"),
        ("stl11", "unknown recipe 'stl11'"),
    ],
)
def test_recipes_whose_crop_cannot_move_are_refused(recipe, message):
    with pytest.raises(ValueError, match=message):
        host_crops(recipe, 8)


def test_cropped_leaves_out_the_crop_alone():
    """A crop of the whole image changes nothing, so both forms give the same numbers."""
    image = random_image(16, 16)
    rest = RECIPES["balanced_no_color"].train[2:]
    whole = Recipe((("random_resized_crop", {"scale": (1.0, 1.0), "ratio": (1, 1)}), *rest), MIDDLE)
    on_device, on_host = (
        jax.jit(jax.vmap(make_augment(whole, 16, cropped=cropped), (0, None)))(keys(6), image)
        for cropped in (False, True)
    )
    np.testing.assert_allclose(on_host, on_device, atol=2e-5)
    evaluate = make_evaluate("moco_v2", 16)(image)
    np.testing.assert_allclose(make_evaluate("moco_v2", 16, cropped=True)(image), evaluate)


@pytest.mark.parametrize("make", [make_augment, make_evaluate])
def test_cropped_images_of_another_size_are_refused(make):
    arguments = (jax.random.key(0),) if make is make_augment else ()
    with pytest.raises(ValueError, match=r"cropped to 8 pixels, got \[8, 9, 3\]"):
        make("moco", 8, cropped=True)(*arguments, random_image(8, 9))


def test_two_views_take_a_crop_each():
    crops = np.stack([random_image(8, 8, seed=seed) for seed in range(6)]).reshape(3, 2, 8, 8, 3)
    recipe = Recipe((("random_resized_crop", {}), FLIP, ("random_rotation", {})), MIDDLE)
    transform, key = make_augment(recipe, 8, cropped=True), jax.random.key(3)
    positions = np.array([5, 2, 9])
    views = jax.jit(partial(two_views, transform))
    of_crops = views(key, crops, positions)
    for view in (0, 1):
        expected = views(key, crops[:, view], positions)[view]
        np.testing.assert_allclose(of_crops[view], expected, atol=1e-6)
    with pytest.raises(ValueError, match=r"\[n, 2, size, size, c\], got \(3, 1, 8, 8, 3\)"):
        two_views(transform, key, crops[:, :1], positions)


@pytest.mark.slow
def test_views_of_host_crops_have_the_law_of_the_devices_views():
    """Means over space, and edges, of views of one image made either way."""
    image, n = random_image(40, 56), 1500
    crop, _ = host_crops("simclr_cifar", 12)
    rng = np.random.default_rng(0)
    crops = np.stack([crop(rng, image) for _ in range(n)])
    on_host = jax.jit(jax.vmap(make_augment("simclr_cifar", 12, cropped=True)))(keys(n), crops)
    on_device = jax.jit(jax.vmap(make_augment("simclr_cifar", 12), (0, None)))(keys(n, 1), image)

    def describe(views):
        views = np.asarray(views)
        edges = np.abs(np.diff(views, axis=2)).mean(axis=(1, 2, 3))
        return [*views.mean(axis=(1, 2)).T, views.std(axis=(1, 2, 3)), edges]

    for ours, theirs in zip(describe(on_host), describe(on_device), strict=True):
        assert stats.ks_2samp(ours, theirs).pvalue > 0.01


def test_pillows_own_box_is_not_what_is_drawn():
    """Why the box is cut out first: with `box`, Pillow lets in what lies around."""
    image = np.zeros((8, 8, 3), np.uint8)
    image[:, 4:] = 255
    inside = Image.fromarray(image).resize((16, 16), Image.BILINEAR, box=(0, 0, 4, 8))
    assert np.asarray(inside).max() > 0
    only = Recipe((("random_resized_crop", {"scale": (0.5, 0.5), "ratio": (0.5, 0.5)}),), MIDDLE)
    crop, _ = host_crops(only, 16)
    assert {crop(np.random.default_rng(seed), image).max() for seed in range(20)} == {0, 255}
