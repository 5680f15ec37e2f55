"""Crops on the host have the law and the pixels of those on the device."""

import pickle

import jax
import numpy as np
import pytest
from augment_cases import (
    LEVEL,
    assert_same_law,
    described,
    keys,
    random_image,
    to_float,
    torchvisions_boxes,
)

from hypersphere_jax import augment
from hypersphere_jax.augment import RECIPES, Recipe, host_crops, make_augment, make_evaluate

FLIP = ("random_horizontal_flip", {})
MIDDLE = (("resize", {}), ("center_crop", {}))


def drawn_boxes(n, *law):
    rng = np.random.default_rng(0)
    return np.array([augment.draw_box(rng, *law) for _ in range(n)]).T


def test_boxes_have_the_law_of_torchvisions_loop():
    law = (90, 120, (0.08, 1.0), (0.6, 1.2))
    boxes = drawn_boxes(4000, *law)
    top, left, height, width = boxes
    assert min(top.min(), left.min()) == 0 and min(height.min(), width.min()) > 0
    assert (top + height).max() == 90 and (left + width).max() == 120
    assert_same_law(described(boxes), torchvisions_boxes(4000, *law))
    for shape, box in (((10, 100), (0, 43, 10, 13)), ((100, 10), (43, 0, 13, 10))):
        no_fit = drawn_boxes(20, *shape, (0.9, 1.0), (3 / 4, 4 / 3))
        np.testing.assert_array_equal(no_fit.T, [box] * 20)


@pytest.mark.parametrize(("size", "channels"), [(12, 3), (64, 3), (12, 1), (12, 2), (12, 4)])
def test_train_crop_is_the_drawn_box_resized_as_on_the_device(size, channels):
    image = random_image(40, 56, channels)
    crop, _ = host_crops("stl10", size)
    resized = jax.jit(lambda box: augment.crop_resize(to_float(image), box, size, size))
    for seed in range(4):
        box = augment.draw_box(np.random.default_rng(seed), 40, 56, crop.scale, crop.ratio)
        ours = crop(np.random.default_rng(seed), image)
        assert ours.dtype == np.uint8 and ours.shape == (size, size, channels)
        # Pillow rounds to 8 bits after each of its two passes.
        np.testing.assert_allclose(to_float(ours), resized(box), atol=1.01 * LEVEL)


def test_every_recipe_crops_with_its_own_ranges_after_pickling_too():
    image = random_image(30, 20)
    for name, recipe in RECIPES.items():
        steps = dict(recipe.train)
        made = host_crops(name, 8)
        train, evaluate = pickle.loads(pickle.dumps(made))
        assert (train, evaluate) == made, name
        assert evaluate.factor == dict(recipe.evaluate)["resize"]["factor"], name
        once = train(np.random.default_rng(0), image)
        if "random_resized_crop" in steps:
            params = steps["random_resized_crop"]
            assert (train.scale, train.ratio) == (params["scale"], params["ratio"]), name
        else:  # its random operations start from the middle
            np.testing.assert_array_equal(once, evaluate(image), err_msg=name)
        assert once.shape == evaluate(image).shape == (8, 8, 3), name
    plain, _ = host_crops(Recipe((("random_resized_crop", {}),), MIDDLE), 8)
    assert (plain.scale, plain.ratio) == ((0.08, 1.0), (3 / 4, 4 / 3))
    square = random_image(16, 16)
    np.testing.assert_array_equal(host_crops("none", 16)[1](square), square)  # not resampled


def test_recipes_whose_crop_cannot_move_are_refused():
    for recipe, message in (
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
    ):
        with pytest.raises(ValueError, match=message):
            host_crops(recipe, 8)


def test_cropped_leaves_out_the_crop_alone():
    """What is left is the recipe without its crop: same operations, same numbers."""
    images = np.stack([random_image(16, 16)] * 6)
    rest = (FLIP, ("random_grayscale", {"p": 0.5}))
    whole = Recipe((("rgb", {}), ("random_resized_crop", {}), *rest), (*MIDDLE, *rest))
    for make, without in ((make_augment, (("rgb", {}), *rest)), (make_evaluate, rest)):
        arguments = (keys(6), images) if make is make_augment else (images,)
        expected, found = (
            jax.jit(jax.vmap(form))(*arguments)
            for form in (make(Recipe(without, without), 16), make(whole, 16, cropped=True))
        )
        np.testing.assert_allclose(found, expected, atol=1e-6)
        with pytest.raises(ValueError, match=r"cropped to 16 pixels, got \[8, 9, 3\]"):
            jax.vmap(make(whole, 16, cropped=True))(*arguments[:-1], images[:, :8, :9])
