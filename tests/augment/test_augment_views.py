"""Views of batches: what each view depends on; recipes of the papers."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from augment_cases import assert_independent, keys, random_image
from jax.sharding import Mesh, PartitionSpec

from hypersphere_jax import augment
from hypersphere_jax.augment import RECIPES, Recipe, find, make_augment, make_evaluate

IMAGES = np.stack([random_image(10, 10, seed=seed) for seed in range(8)])
IMAGES[1] = 0  # without any color
IMAGES[2] = 255
POSITIONS = np.arange(8) + 3
KEY = jax.random.key(7)
FLIP = ("random_horizontal_flip", {})
INTENSITY = ("random_intensity", {"scale": (0.5, 1.0)})
NORMALIZE = ("normalize", {"mean": (0.5, 0.4, 0.3), "std": (0.2,) * 3})
QUICK = Recipe((FLIP, INTENSITY, NORMALIZE), evaluate=(("resize", {}), ("center_crop", {})))


def make_views(recipe=QUICK, size=10, **options):
    return jax.jit(partial(augment.two_views, make_augment(recipe, size, **options)))


def assert_same(found, expected, tolerance=2e-5):
    compare = partial(np.testing.assert_allclose, atol=tolerance)
    jax.tree.map(compare, list(found), list(expected))


@pytest.mark.parametrize(
    "name", [pytest.param("balanced_cutout", marks=pytest.mark.slow), "digits"]
)
def test_views_depend_on_key_position_and_view(name):
    """From bytes to the input of the network, with values in the recipe's range."""
    channels = 1 if name == "digits" else 3
    images = IMAGES[..., :channels]
    views = make_views(name, 8)
    view1, view2 = views(KEY, images, POSITIONS)
    assert view1.shape == (8, 8, 8, channels) and view1.dtype == jnp.float32
    statistics = dict(RECIPES[name].train)["normalize"]
    values = np.array([view1, view2]) * statistics["std"] + statistics["mean"]
    assert values.min() > -1e-5 and values.max() < 1 + 1e-5
    order = np.array([3, 0, 7, 4, 1, 6, 2, 5])
    assert_same(views(KEY, images[order], POSITIONS[order]), (view1[order], view2[order]))
    same_image = np.stack([images[0]] * 8)
    one, other = views(KEY, same_image, POSITIONS)
    other_key, _ = views(jax.random.key(8), same_image, POSITIONS)
    np.testing.assert_allclose(one[0], view1[0], atol=2e-5)
    for a, b in itertools.combinations([*one, *other, *other_key], 2):
        assert np.abs(a - b).max() > 0.01


def test_devices_and_single_views_change_nothing():
    transform = make_augment(QUICK, 10)
    expected = make_views()(KEY, IMAGES, POSITIONS)
    single = [augment.one_view(transform, KEY, IMAGES, POSITIONS, number) for number in (0, 1)]
    assert_same(single, expected)
    split = PartitionSpec("data")
    mapped = jax.shard_map(
        partial(augment.two_views, transform),
        mesh=Mesh(np.array(jax.devices()), ("data",)),
        in_specs=(PartitionSpec(), split, split),
        out_specs=split,
    )
    assert_same(jax.jit(mapped)(KEY, IMAGES, POSITIONS), expected)


def test_large_batches_have_the_views_of_small_ones():
    """CPUs compute them in blocks that fit the cache."""
    images = np.tile(IMAGES, (300, 1, 1, 1))
    positions = np.arange(len(images))
    found = make_views()(KEY, images, positions)
    for part in (slice(0, 8), slice(-8, None)):
        expected = make_views()(KEY, images[part], positions[part])
        assert_same([view[part] for view in found], expected)


def test_views_of_two_crops_take_one_each():
    crops = IMAGES[:6].reshape(3, 2, 10, 10, 3)
    positions = np.array([5, 2, 9])
    views = make_views(cropped=True)
    expected = [views(KEY, crops[:, number], positions)[number] for number in (0, 1)]
    assert_same(views(KEY, crops, positions), expected)


def test_each_operation_has_its_own_random_numbers():
    """They do not depend on the other operations of a recipe."""
    image = np.uint8([100, 200] * 2).reshape(2, 2, 1)
    several = jax.vmap(make_augment(Recipe((FLIP, INTENSITY), ()), 2), (0, None))
    alone = jax.vmap(make_augment(Recipe((INTENSITY,), ()), 2), (0, None))
    both = several(keys(2000), image)[:, 0, :, 0]
    factors = alone(keys(2000), image)[:, 0, 0, 0]
    np.testing.assert_allclose(both.min(axis=1), factors, rtol=1e-6)
    assert_independent(factors, both[:, 0] > both[:, 1])


def test_extra_channels_stay_the_same(rng):
    bits = np.tile(255 * rng.integers(0, 2, (8, 1, 1, 5), np.uint8), (1, 10, 10, 1))
    wide = np.concatenate([IMAGES, bits], axis=-1)
    evaluated = jax.vmap(make_evaluate(QUICK, 10, extra_channels=5))(wide)
    found = [*make_views(extra_channels=5)(KEY, wide, POSITIONS), evaluated]
    expected = [*make_views()(KEY, IMAGES, POSITIONS), jax.vmap(make_evaluate(QUICK, 10))(IMAGES)]
    assert_same([images[..., :3] for images in found], expected)
    for images in found:
        np.testing.assert_array_equal(images[..., 3:], bits / 255)


IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
STL10 = {"mean": (0.4409, 0.4279, 0.3868), "std": (0.2683, 0.2610, 0.2687)}
CIFAR10 = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2470, 0.2435, 0.2616)}
RATIO = (3 / 4, 4 / 3)


def jitter(strength, hue, p):
    strengths = dict.fromkeys(("brightness", "contrast", "saturation"), strength)
    return ("color_jitter", strengths | {"hue": hue, "p": p})


STEPS = {
    "crop.08": ("random_resized_crop", {"scale": (0.08, 1.0), "ratio": RATIO}),
    "crop.2": ("random_resized_crop", {"scale": (0.2, 1.0), "ratio": RATIO}),
    "tf-crop": ("inception_crop", {"scale": (0.08, 1.0), "ratio": RATIO}),
    "flip": ("random_horizontal_flip", {"p": 0.5}),
    "gray": ("random_grayscale", {"p": 0.2}),
    "blur": ("gaussian_blur", {"sigma": (0.1, 2.0), "p": 0.5}),
    "blur.1": ("gaussian_blur", {"sigma": (0.1, 2.0), "p": 0.5, "kernel": 0.1}),
    "wild": jitter(0.4, 0.4, 1.0),
    "jitter": jitter(0.4, 0.1, 0.8),
    "strong": jitter(0.8, 0.2, 0.8),
}


@pytest.mark.parametrize(
    ("name", "steps", "statistics", "factor"),
    [
        ("stl10", "crop.08 flip wild gray", STL10, 70 / 64),
        ("cifar10", "crop.08 flip wild gray", CIFAR10, 1.0),
        ("moco", "crop.2 gray wild flip", IMAGENET, 256 / 224),
        ("moco_v2", "crop.2 jitter gray blur flip", IMAGENET, 256 / 224),
        ("simclr_imagenet", "tf-crop flip strong gray blur.1", None, 256 / 224),
        ("simclr_cifar", "tf-crop flip jitter gray", None, 1.0),
        ("balanced_imagenet", "crop.2 jitter gray blur flip", IMAGENET, 256 / 224),
        ("balanced_cifar", "crop.08 flip jitter gray", IMAGENET, 1.0),
    ],
)
def test_recipes_are_those_of_the_papers(name, steps, statistics, factor):
    last = (("normalize", statistics),) if statistics else ()
    train, evaluate = RECIPES[name]
    assert train == (("rgb", {}), *(STEPS[step] for step in steps.split()), *last)
    assert evaluate == (("rgb", {}), ("resize", {"factor": factor}), ("center_crop", {}), *last)


@pytest.mark.parametrize("name", ["moco_v2", "simclr_cifar", "balanced_cutout", "digits"])
def test_crop_flip_keeps_crop_and_flip(name):
    kept = {"random_resized_crop", "inception_crop", "random_horizontal_flip", "random_affine"}
    kept |= {"rgb", "normalize"}
    part = find(f"{name}:crop_flip")
    assert part.train == tuple(step for step in RECIPES[name].train if step[0] in kept)
    assert part.evaluate == RECIPES[name].evaluate
    with pytest.raises(ValueError, match="slt10"):
        find("slt10:crop_flip")
