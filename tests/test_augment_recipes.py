"""Whole recipes: what they do to batches, how they are chained, and what they say."""

import itertools
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from augment_cases import assert_independent, keys, random_image, to_float
from jax.sharding import Mesh, PartitionSpec
from sklearn.datasets import load_digits

from hypersphere_jax.augment import (
    OPERATIONS,
    RECIPES,
    Recipe,
    make_augment,
    make_evaluate,
    two_views,
)


@pytest.fixture(scope="module")
def digits():
    bunch = load_digits()
    return np.round(bunch.images * 255 / 16).astype(np.uint8)[..., None], bunch.target


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


@pytest.mark.parametrize(
    ("recipe", "wrap"),
    [("stl10", jax.jit), pytest.param("digits", lambda op: op, marks=pytest.mark.slow)],
)
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
        monkeypatch.setitem(RECIPES, name, Recipe(train, ()))
    key, batch = jax.random.key(0), images[:, :10]
    short = two_views(make_augment("short", 10), key, batch, POSITIONS)
    long = two_views(make_augment("long", 10), key, batch, POSITIONS)
    np.testing.assert_array_equal(short[0], long[0])
    np.testing.assert_array_equal(short[1], long[1])


def test_operations_of_a_recipe_draw_different_numbers(monkeypatch):
    steps = (("random_grayscale", {"p": 0.5}), ("random_horizontal_flip", {}))
    monkeypatch.setitem(RECIPES, "coins", Recipe(steps, ()))
    image = np.array([[[255, 0, 0], [0, 0, 0]]] * 2, np.uint8)
    out = np.asarray(jax.vmap(lambda key: make_augment("coins", 2)(key, image))(keys(2000)))
    flipped, gray = out[:, 0, 0].max(axis=-1) == 0, out[:, 0, :, 1].max(axis=-1) > 0
    assert_independent(flipped, gray)


def test_an_operation_may_stand_once(monkeypatch):
    flips = (("random_horizontal_flip", {}),) * 2
    monkeypatch.setitem(RECIPES, "twice", Recipe(flips, ()))
    with pytest.raises(ValueError, match="may stand once"):
        make_augment("twice", 8)


# Compiling takes most of the time: these have every operation, the others have the same in another
# order, and sizes are for the quick ones.
CHECKED = [
    *(("digits", 8), ("digits", 32), ("digits", 64), ("none", 8), ("none", 64), ("stl10", 32)),
    *(("simclr_imagenet", 8), ("balanced_cutout", 8), ("balanced_rotation", 8)),
]


@pytest.mark.parametrize(("recipe", "size"), CHECKED)
def test_views_are_finite_images_of_their_size(recipe, size, images):
    batch = batch_for(recipe, images)
    params = dict(RECIPES[recipe].train).get("normalize", {"mean": (0.0,), "std": (1.0,)})
    mean, std = np.array(params["mean"]), np.array(params["std"])
    augmented = jax.jit(jax.vmap(make_augment(recipe, size)))(keys(8), batch)
    evaluated = jax.jit(jax.vmap(make_evaluate(recipe, size)))(batch)
    for result in (augmented, evaluated):
        assert result.shape == (8, size, size, batch.shape[-1])
        assert result.dtype == jnp.float32
        values = np.asarray(result) * std + mean
        assert values.min() > -1e-5 and values.max() < 1 + 1e-5  # false for NaN as well


def names(steps):
    return [name for name, _ in steps]


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in ("digits", "none")])
def test_recipes_are_written_as_operations_take_them(name):
    """Every step with its parameters runs alone on what comes before it, and sizes are kept."""
    recipe = RECIPES[name]
    for steps in recipe:
        image = jax.ShapeDtypeStruct((40, 50, 1), jnp.float32)
        for operation, params in steps:
            step = partial(OPERATIONS[operation], size=16, **params)
            image = jax.eval_shape(step, jax.random.key(0), image)
        assert image.shape == (16, 16, 3)
    assert dict(recipe.evaluate).get("normalize") == dict(recipe.train).get("normalize")


JITTER = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1, "p": 0.8}
SOURCES = {
    # name: smallest crop, jitter, order of the random operations after the crop
    "stl10": (0.08, JITTER | {"hue": 0.4, "p": 1.0}, "flip jitter gray"),
    "cifar10": (0.08, JITTER | {"hue": 0.4, "p": 1.0}, "flip jitter gray"),
    "nyu_depth": (0.08, JITTER | {"hue": 0.4, "p": 1.0}, "flip jitter gray"),
    "moco": (0.2, JITTER | {"hue": 0.4, "p": 1.0}, "gray jitter flip"),
    "moco_v2": (0.2, JITTER, "jitter gray blur flip"),
    "simclr_imagenet": (
        0.08,
        {"brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2, "p": 0.8},
        "flip jitter gray blur",
    ),
    "simclr_cifar": (0.08, JITTER, "flip jitter gray"),
    "balanced_imagenet": (0.2, JITTER, "jitter gray blur flip"),
    "balanced_cifar": (0.08, JITTER, "flip jitter gray"),
    "balanced_no_blur": (0.2, JITTER, "jitter gray flip"),
    "balanced_no_color": (0.2, None, "blur flip"),
    "balanced_cutout": (0.2, JITTER, "jitter gray blur flip cutout"),
    "balanced_rotation": (0.2, JITTER, "jitter gray blur flip rotation"),
}
SHORT = {
    "random_horizontal_flip": "flip",
    "color_jitter": "jitter",
    "random_grayscale": "gray",
    "gaussian_blur": "blur",
    "random_rotation": "rotation",
    "cutout": "cutout",
}


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in ("digits", "none")])
def test_recipes_are_those_of_the_papers(name):
    smallest, jitter, order = SOURCES[name]
    train = dict(RECIPES[name].train)
    assert names(RECIPES[name].train)[:2] == ["rgb", "random_resized_crop"]
    assert " ".join(SHORT[step] for step in train if step in SHORT) == order
    assert train["random_resized_crop"] == {"scale": (smallest, 1.0), "ratio": (3 / 4, 4 / 3)}
    assert train.get("color_jitter") == jitter
    assert train.get("random_grayscale", {"p": 0.2}) == {"p": 0.2}
    assert train.get("random_horizontal_flip", {"p": 0.5}) == {"p": 0.5}
    tenth = {"kernel": 0.1} if name == "simclr_imagenet" else {}
    blur = {"sigma": (0.1, 2.0), "p": 0.5} | tenth
    assert train.get("gaussian_blur", blur) == blur
    assert ("normalize" in train) == (not name.startswith("simclr"))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("make", [make_augment, make_evaluate])
def test_dtype_rounds_the_result_alone(make, dtype, images):
    arguments = (jax.random.key(0), images[0]) if make is make_augment else (images[0],)
    full = jax.jit(make(QUICK, 8))(*arguments)
    rounded = jax.jit(make(QUICK, 8, dtype=dtype))(*arguments)
    assert rounded.dtype == dtype
    np.testing.assert_allclose(
        rounded.astype(jnp.float32), full, rtol=float(jnp.finfo(dtype).eps), atol=1e-6
    )


QUICK = Recipe(
    train=(
        ("random_resized_crop", {}),
        ("random_horizontal_flip", {}),
        ("normalize", {"mean": (0.5,) * 3, "std": (0.2,) * 3}),
    ),
    evaluate=(("resize", {}), ("center_crop", {})),
)


def test_extra_channels_pass_as_they_are(images):
    bits = np.zeros((8, 12, 10, 5), np.uint8)
    bits[:] = 255 * np.random.default_rng(0).integers(0, 2, (8, 1, 1, 5))
    batch = np.concatenate([images, bits], axis=-1)
    key = jax.random.key(7)
    ours, plain = (
        jax.jit(partial(two_views, make_augment(QUICK, 8, extra_channels=k)))(key, x, POSITIONS)
        for k, x in ((5, batch), (0, images))
    )
    evaluated, plainly = (
        jax.vmap(make_evaluate(QUICK, 8, extra_channels=k))(x) for k, x in ((5, batch), (0, images))
    )
    for result, expected in zip((*ours, evaluated), (*plain, plainly), strict=True):
        np.testing.assert_allclose(result[..., :3], expected, atol=2e-5)
        np.testing.assert_array_equal(result[..., 3:], bits[:, :8, :8] / 255)


@pytest.mark.parametrize("n", [5, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 8))])
def test_blocks_of_a_batch_change_no_number(n, monkeypatch, images):
    batch, positions, key = images[:n], POSITIONS[:n], jax.random.key(0)
    transform = make_augment(QUICK, 8)
    whole = jax.jit(partial(two_views, transform))(key, batch, positions)
    two = 3 * 4 * batch[0].size  # three would fit, so that a power of two is two
    monkeypatch.setattr("hypersphere_jax.augment.views.CACHE_BYTES", two)
    blocks = jax.jit(partial(two_views, transform))
    assert "while" in blocks.lower(key, batch, positions).as_text() or n == 2
    for ours, theirs in zip(blocks(key, batch, positions), whole, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    crops = jnp.stack([batch, batch], axis=1)
    for ours, theirs in zip(blocks(key, crops, positions), whole, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_a_recipe_of_ones_own_needs_no_name(monkeypatch, images):
    monkeypatch.setitem(RECIPES, "quick", QUICK)
    named, own = (make_augment(recipe, 8)(keys(1)[0], images[0]) for recipe in ("quick", QUICK))
    np.testing.assert_array_equal(own, named)
    named, own = (make_evaluate(recipe, 8)(images[0]) for recipe in ("quick", QUICK))
    np.testing.assert_array_equal(own, named)
    with pytest.raises(ValueError, match=r"no operation blurr, known: rgb, .*gaussian_blur"):
        make_augment(Recipe((("blurr", {}),), ()), 8)


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
    known = ", ".join(RECIPES)
    for make in (make_augment, make_evaluate):
        with pytest.raises(ValueError, match=f"'slt10', known: {known}; did you mean 'stl10'"):
            make("slt10", 8)


def test_each_image_needs_its_position(images):
    with pytest.raises(ValueError, match=r"\(8, 12, 10, 3\) need one position each, got \(7,\)"):
        two_views(make_augment("stl10", 8), jax.random.key(0), images, np.arange(7))
