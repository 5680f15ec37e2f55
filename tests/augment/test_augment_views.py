"""Views of batches: what each depends on, how operations are chained, what is refused."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from augment_cases import keys, random_image, to_float
from jax.sharding import Mesh, PartitionSpec

from hypersphere_jax.augment import (
    OPERATIONS,
    RECIPES,
    Recipe,
    make_augment,
    make_evaluate,
    one_view,
    two_views,
)

POSITIONS = np.arange(8) + 3
FLIP = ("random_horizontal_flip", {})
QUICK = Recipe(
    train=(
        FLIP,
        ("random_intensity", {"scale": (0.5, 1.0)}),
        ("normalize", {"mean": (0.5, 0.4, 0.3), "std": (0.2,) * 3}),
    ),
    evaluate=(("resize", {}), ("center_crop", {})),
)


@pytest.fixture(scope="module")
def images():
    """Eight small images: two without any colour, black and white among them."""
    batch = np.stack([random_image(10, 10, seed=seed) for seed in range(8)])
    batch[1], batch[2] = 0, 255
    return batch


def views(recipe, size=10, **options):
    return jax.jit(partial(two_views, make_augment(recipe, size, **options)))


def assert_same(ones, others, tolerance=2e-5):
    for one, other in zip(ones, others, strict=True):
        np.testing.assert_allclose(one, other, atol=tolerance)


@pytest.mark.parametrize("name", ["balanced_cutout", "digits"])
def test_views_depend_on_key_position_and_view_alone(name, images):
    """A recipe of each kind, from bytes to what enters the network."""
    batch, key = images[..., :1] if name == "digits" else images, jax.random.key(7)
    make = views(name, 8)
    view1, view2 = make(key, batch, POSITIONS)
    statistics = dict(RECIPES[name].train)["normalize"]
    for view in (view1, view2):
        assert view.shape == (8, 8, 8, batch.shape[-1]) and view.dtype == jnp.float32
        values = np.asarray(view) * statistics["std"] + statistics["mean"]
        assert values.min() > -1e-5 and values.max() < 1 + 1e-5  # false for NaN as well
    order = np.array([3, 0, 7, 4, 1, 6, 2, 5])
    assert_same(make(key, batch[order], POSITIONS[order]), (view1[order], view2[order]))
    same_image = np.stack([batch[0]] * 8)
    elsewhere, other_view = make(key, same_image, POSITIONS)
    other_key, _ = make(jax.random.key(8), same_image, POSITIONS)
    np.testing.assert_allclose(elsewhere[0], view1[0], atol=2e-5)
    for one, other in itertools.combinations([*elsewhere, *other_view, *other_key], 2):
        assert np.abs(one - other).max() > 0.01


def test_views_are_the_same_one_by_one_in_blocks_and_over_devices(monkeypatch, images):
    key, transform = jax.random.key(7), make_augment(QUICK, 10)
    whole = views(QUICK)(key, images, POSITIONS)
    both = jax.jit(lambda *sample: [one_view(transform, *sample, number) for number in (0, 1)])
    assert_same(both(key, images, POSITIONS), whole, 1e-6)
    for number, view in enumerate(whole):
        sample_key = jax.random.fold_in(jax.random.fold_in(key, POSITIONS[5]), number)
        np.testing.assert_allclose(transform(sample_key, images[5]), view[5], atol=2e-5)
    split = PartitionSpec("data")
    spread = jax.shard_map(
        partial(two_views, transform),
        mesh=Mesh(np.array(jax.devices()), ("data",)),
        in_specs=(PartitionSpec(), split, split),
        out_specs=split,
    )
    assert_same(jax.jit(spread)(key, images, POSITIONS), whole)
    three = 3 * 4 * images[0].size  # would fit, so that a power of two is two
    monkeypatch.setattr("hypersphere_jax.augment.views.CACHE_BYTES", three)
    blocks, five = views(QUICK), (images[:5], POSITIONS[:5])
    assert "while" in blocks.lower(key, *five).as_text()
    assert_same(blocks(key, *five), [view[:5] for view in whole])


def test_two_views_take_a_crop_each(images):
    crops, key = images[:6].reshape(3, 2, 10, 10, 3), jax.random.key(3)
    positions = np.array([5, 2, 9])
    make = views(QUICK, cropped=True)
    of_crops = make(key, crops, positions)
    assert_same(of_crops, [make(key, crops[:, v], positions)[v] for v in (0, 1)], 1e-6)
    with pytest.raises(ValueError, match=r"\[n, 2, size, size, c\], got \(3, 1, 10, 10, 3\)"):
        make(key, crops[:, :1], positions)


def test_operations_draw_by_their_names(monkeypatch, images):
    """All different numbers, whatever else stands in a recipe."""
    streams = {}

    def listen(name):
        def operation(key, image, *, size):
            streams.setdefault(name, set()).add(tuple(np.asarray(jax.random.key_data(key))))
            return image

        monkeypatch.setitem(OPERATIONS, name, operation)

    for name in OPERATIONS:
        listen(name)
    names = [(name, {}) for name in OPERATIONS]
    for steps in (names, names[::-1], names[3:7]):
        make_augment(Recipe(tuple(steps), ()), 10)(keys(1)[0], images[0])
    assert all(len(found) == 1 for found in streams.values())
    assert len(set.union(*streams.values())) == len(OPERATIONS) == 13


def test_dtype_rounds_the_result_alone(images):
    dtypes = (jnp.float32, jnp.float16, jnp.bfloat16)
    for make, arguments in ((make_augment, (keys(1)[0], images[0])), (make_evaluate, (images[0],))):
        forms = [make(QUICK, 10, dtype=dtype) for dtype in dtypes]
        full, *others = jax.jit(lambda *a: [form(*a) for form in forms])(*arguments)  # noqa: B023
        for dtype, rounded in zip(dtypes[1:], others, strict=True):
            assert rounded.dtype == dtype
            eps = float(jnp.finfo(dtype).eps)
            np.testing.assert_allclose(rounded.astype("f"), full, rtol=eps, atol=1e-6)


def test_extra_channels_pass_as_they_are(images):
    bits = np.zeros((8, 10, 10, 5), np.uint8)
    bits[:] = 255 * np.random.default_rng(0).integers(0, 2, (8, 1, 1, 5))
    results = []
    for k, batch in ((5, np.concatenate([images, bits], axis=-1)), (0, images)):
        evaluated = jax.jit(jax.vmap(make_evaluate(QUICK, 10, extra_channels=k)))(batch)
        results.append((*views(QUICK, extra_channels=k)(keys(1)[0], batch, POSITIONS), evaluated))
    for result, expected in zip(*results, strict=True):
        np.testing.assert_allclose(result[..., :3], expected, atol=2e-5)
        np.testing.assert_array_equal(result[..., 3:], bits / 255)


def test_none_gives_the_image_itself(images):
    for view in views("none")(keys(1)[0], images, POSITIONS):
        np.testing.assert_allclose(view, to_float(images), atol=1e-7)


def test_mistakes(images):
    for make in (make_augment, make_evaluate):
        for steps, message in (
            ((FLIP, FLIP), "may stand once"),
            ((("blurr", {}),), r"no operation blurr, known: rgb, .*gaussian_blur"),
        ):
            with pytest.raises(ValueError, match=message):
                make(Recipe(steps, steps), 8)
        arguments = (keys(1)[0],) if make is make_augment else ()
        for wrong in (images[0] / 255, images[0, ..., 0], images[0].astype(int)):
            message = rf"expected uint8 \[h, w, c\], got {wrong.dtype}"
            with pytest.raises(ValueError, match=message):
                make("digits", 8)(*arguments, wrong)
    with pytest.raises(ValueError, match=r"\(8, 10, 10, 3\) need one position each, got \(7,\)"):
        two_views(make_augment(QUICK, 10), keys(1)[0], images, np.arange(7))
