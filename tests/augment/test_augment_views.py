"""Views of batches: what each depends on, how operations are chained; the papers' recipes."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from augment_cases import random_image, to_float
from jax.sharding import Mesh, PartitionSpec

from hypersphere_jax import augment
from hypersphere_jax.augment import OPERATIONS, RECIPES, Recipe, find, make_augment, make_evaluate

IMAGES = np.stack([random_image(10, 10, seed=seed) for seed in range(8)])
IMAGES[1], IMAGES[2] = 0, 255  # black and white, without any color
POSITIONS = np.arange(8) + 3
KEY = jax.random.key(7)
NORMALIZE = ("normalize", {"mean": (0.5, 0.4, 0.3), "std": (0.2,) * 3})
RANDOM = (("random_horizontal_flip", {}), ("random_intensity", {"scale": (0.5, 1.0)}))
QUICK = Recipe((*RANDOM, NORMALIZE), evaluate=(("resize", {}), ("center_crop", {})))


def views(recipe=QUICK, size=10, **options):
    return jax.jit(partial(augment.two_views, make_augment(recipe, size, **options)))


def assert_same(ones, others, tolerance=2e-5):
    for one, other in zip(ones, others, strict=True):
        np.testing.assert_allclose(one, other, atol=tolerance)


@pytest.mark.parametrize(
    "name", [pytest.param("balanced_cutout", marks=pytest.mark.slow), "digits"]
)
def test_views_depend_on_key_position_and_view_alone(name):
    """A recipe of each kind, from bytes to what enters the network."""
    batch, make = IMAGES[..., :1] if name == "digits" else IMAGES, views(name, 8)
    both = view1, view2 = make(KEY, batch, POSITIONS)
    assert view1.shape == view2.shape == (8, 8, 8, batch.shape[-1]) and view1.dtype == jnp.float32
    statistics = dict(RECIPES[name].train)["normalize"]
    values = np.array(both) * statistics["std"] + statistics["mean"]
    assert values.min() > -1e-5 and values.max() < 1 + 1e-5  # false for NaN as well
    order = np.array([3, 0, 7, 4, 1, 6, 2, 5])
    assert_same(make(KEY, batch[order], POSITIONS[order]), (view1[order], view2[order]))
    same_image = np.stack([batch[0]] * 8)
    elsewhere, other_view = make(KEY, same_image, POSITIONS)
    other_key, _ = make(jax.random.key(8), same_image, POSITIONS)
    np.testing.assert_allclose(elsewhere[0], view1[0], atol=2e-5)
    for one, other in itertools.combinations([*elsewhere, *other_view, *other_key], 2):
        assert np.abs(one - other).max() > 0.01


def test_views_are_the_same_one_by_one_in_blocks_and_over_devices(monkeypatch):
    transform, whole = make_augment(QUICK, 10), views()(KEY, IMAGES, POSITIONS)
    both = lambda *sample: [augment.one_view(transform, *sample, k) for k in (0, 1)]  # noqa: E731
    assert_same(jax.jit(both)(KEY, IMAGES, POSITIONS), whole, 1e-5)
    mesh, split = Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data")
    specs = {"mesh": mesh, "in_specs": (PartitionSpec(), split, split), "out_specs": split}
    spread = jax.shard_map(partial(augment.two_views, transform), **specs)
    assert_same(jax.jit(spread)(KEY, IMAGES, POSITIONS), whole)
    # Three images would fit, so that a power of two is two.
    monkeypatch.setattr("hypersphere_jax.augment.views.CACHE_BYTES", 3 * 4 * IMAGES[0].size)
    blocks, five = views(), (IMAGES[:5], POSITIONS[:5])
    assert_same(blocks(KEY, *five), [view[:5] for view in whole])
    with pytest.raises(ValueError, match="need one position each"):
        augment.two_views(transform, KEY, IMAGES, POSITIONS[:7])
    with pytest.raises(ValueError, match="expected uint8"):
        transform(KEY, IMAGES[0] / 255)


def test_two_views_take_a_crop_each_and_none_gives_the_image_itself():
    crops, positions = IMAGES[:6].reshape(3, 2, 10, 10, 3), np.array([5, 2, 9])
    make = views(cropped=True)
    expected = [make(KEY, crops[:, view], positions)[view] for view in (0, 1)]
    assert_same(make(KEY, crops, positions), expected, 1e-5)
    assert_same(views("none")(KEY, IMAGES, POSITIONS), [to_float(IMAGES)] * 2, 1e-6)


def test_operations_draw_by_their_names(monkeypatch):
    """All different numbers, whatever else is in a recipe."""
    streams = {name: set() for name in OPERATIONS}

    def listen(key, image, *, size, name):
        streams[name].add(tuple(np.asarray(jax.random.key_data(key))))
        return image

    for name in streams:
        monkeypatch.setitem(OPERATIONS, name, partial(listen, name=name))
    steps = tuple((name, {}) for name in OPERATIONS)
    for some in (steps, steps[::-1], steps[3:7]):
        make_augment(Recipe(some, ()), 10)(KEY, IMAGES[0])
    assert all(len(found) == 1 for found in streams.values())
    assert len(set.union(*streams.values())) == len(OPERATIONS) == 14


def test_dtype_rounds_the_result_alone():
    for make, *sample in ((make_augment, KEY, IMAGES[0]), (make_evaluate, IMAGES[0])):
        full, half = make(QUICK, 10)(*sample), make(QUICK, 10, dtype=jnp.bfloat16)(*sample)
        assert half.dtype == jnp.bfloat16
        np.testing.assert_allclose(half.astype("f"), full, rtol=1.01 * 2**-8, atol=1e-6)


def test_extra_channels_pass_as_they_are(rng):
    bits = np.tile(255 * rng.integers(0, 2, (8, 1, 1, 5), np.uint8), (1, 10, 10, 1))
    results = []
    for k, batch in ((5, np.concatenate([IMAGES, bits], axis=-1)), (0, IMAGES)):
        evaluated = jax.jit(jax.vmap(make_evaluate(QUICK, 10, extra_channels=k)))(batch)
        results.append((*views(extra_channels=k)(KEY, batch, POSITIONS), evaluated))
    for result, expected in zip(*results, strict=True):
        np.testing.assert_allclose(result[..., :3], expected, atol=2e-5)
        np.testing.assert_array_equal(result[..., 3:], bits / 255)


IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
STL10 = {"mean": (0.4409, 0.4279, 0.3868), "std": (0.2683, 0.2610, 0.2687)}
CIFAR10 = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2470, 0.2435, 0.2616)}
DIGITS = {"mean": (0.3053,), "std": (0.3760,)}
STEPS = {
    "crop.08": ("random_resized_crop", {"scale": (0.08, 1.0), "ratio": (3 / 4, 4 / 3)}),
    "tf-crop": ("inception_crop", {"scale": (0.08, 1.0), "ratio": (3 / 4, 4 / 3)}),
    "crop.2": ("random_resized_crop", {"scale": (0.2, 1.0), "ratio": (3 / 4, 4 / 3)}),
    "flip": ("random_horizontal_flip", {"p": 0.5}),
    "gray": ("random_grayscale", {"p": 0.2}),
    "blur": ("gaussian_blur", {"sigma": (0.1, 2.0), "p": 0.5}),
    "blur-of-a-tenth": ("gaussian_blur", {"sigma": (0.1, 2.0), "p": 0.5, "kernel": 0.1}),
    "cutout": ("cutout", {"side": 0.5, "value": IMAGENET["mean"]}),
    "rotation": ("random_rotation", {}),
    "affine": ("random_affine", {"degrees": 15.0, "scale": (0.85, 1.15), "shift": 0.125}),
    "intensity": ("random_intensity", {"scale": (0.7, 1.3)}),
    "middle": ("resize", {"factor": 1.0}),
    "square": ("center_crop", {}),
}
JITTERS = {"jitter-hue.4": (0.4, 0.4, 1.0), "jitter": (0.4, 0.1, 0.8), "strong": (0.8, 0.2, 0.8)}
for name, (b, hue, p) in JITTERS.items():
    law = {"brightness": b, "contrast": b, "saturation": b, "hue": hue, "p": p}
    STEPS[name] = ("color_jitter", law)
MOCO_V2 = "crop.2 jitter gray blur flip"
STRONG = "flip strong gray blur-of-a-tenth"
PAPERS = {  # the training view in order, the normalization, the evaluation's share of the image
    "stl10": ("crop.08 flip jitter-hue.4 gray", STL10, 70 / 64),
    "cifar10": ("crop.08 flip jitter-hue.4 gray", CIFAR10, 1.0),
    "nyu_depth": ("crop.08 flip jitter-hue.4 gray", IMAGENET, 1.0),
    "moco": ("crop.2 gray jitter-hue.4 flip", IMAGENET, 256 / 224),
    "moco_v2": (MOCO_V2, IMAGENET, 256 / 224),
    "simclr_imagenet": (f"tf-crop {STRONG}", None, 256 / 224),
    "simclr_cifar": ("tf-crop flip jitter gray", None, 1.0),
    "simclr_imagenet_torchvision": (f"crop.08 {STRONG}", None, 256 / 224),
    "simclr_cifar_torchvision": ("crop.08 flip jitter gray", None, 1.0),
    "balanced_imagenet": (MOCO_V2, IMAGENET, 256 / 224),
    "balanced_cifar": ("crop.08 flip jitter gray", IMAGENET, 1.0),
    "balanced_no_blur": ("crop.2 jitter gray flip", IMAGENET, 256 / 224),
    "balanced_no_color": ("crop.2 blur flip", IMAGENET, 256 / 224),
    "balanced_cutout": (f"{MOCO_V2} cutout", IMAGENET, 256 / 224),
    "balanced_rotation": (f"{MOCO_V2} rotation", IMAGENET, 256 / 224),
    "digits": ("affine intensity", DIGITS, 1.0),
    "none": ("middle square", None, 1.0),
}


def test_recipes_are_those_of_the_papers():
    assert RECIPES.keys() == PAPERS.keys()
    for name, (steps, statistics, factor) in PAPERS.items():
        first = () if name in ("digits", "none") else (("rgb", {}),)
        last = (("normalize", statistics),) if statistics else ()
        fit = (("resize", {"factor": factor}), ("center_crop", {}))
        train, evaluate = RECIPES[name]
        assert train == (*first, *(STEPS[step] for step in steps.split()), *last), name
        assert evaluate == (*first, *fit, *last), name


def test_crop_and_flip_alone():
    kept, ends = (
        [STEPS[s] for s in ("crop.08", "tf-crop", "crop.2", "flip", "affine")],
        ("rgb", "normalize"),
    )
    for name in ("moco_v2", "simclr_cifar", "balanced_cutout", "digits"):
        whole, part = RECIPES[name], find(f"{name}:crop_flip")
        assert part.train == tuple(s for s in whole.train if s in kept or s[0] in ends), name
        assert part.evaluate == whole.evaluate, name
    assert find("none:crop_flip") == find("none")
    with pytest.raises(ValueError, match=r"'slt10', known: stl10, .*'stl10'"):
        find("slt10:crop_flip")
