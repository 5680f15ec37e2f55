"""Features of encoders: layers, random views, and their cache."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hypersphere_jax import augment
from hypersphere_jax.configs import ModelConfig, PretrainConfig
from hypersphere_jax.data import Arrays
from hypersphere_jax.data.arrays import digits
from hypersphere_jax.evaluation.features import augmented_features, pair_features, split_features
from hypersphere_jax.training.run_dir import RunEncoder

MODEL = ModelConfig(dim=6, width=0.25, image_size=8, in_channels=1)
ONE, TWO = jax.devices()[:1], jax.devices()[:2]
N = 300  # two batches on one device, one batch on two devices


def apply_affine(params, stats, x, train):
    """Stand in for a network; training would give other numbers."""
    maps = x * params["w"] + stats["m"] + train
    return {"conv2": maps, "output": maps.reshape(len(x), -1)[:, 30:36]}, stats


def apply_identity(params, stats, x, train):
    return {"conv2": x, "output": x.reshape(len(x), -1)}, stats


@pytest.fixture
def encoder(tmp_path):
    config = PretrainConfig(recipe="digits", **vars(MODEL))
    params, stats = {"w": np.float32(2)}, {"m": np.float32(0.5)}
    return RunEncoder(apply_affine, params, stats, config, tmp_path, 0)


def showing(encoder, recipe):
    """Return an encoder whose output is its image."""
    config = encoder.config.replace(in_channels=3, recipe=recipe)
    return encoder._replace(apply=apply_identity, config=config)


def some_digits(rows=slice(N)):
    _, test = digits()
    return Arrays(test.images[rows], test.labels[rows], test.class_names, test.origin)


def maps_of(source):
    views = jax.vmap(augment.make_evaluate("digits", 8))(source.images)
    return np.asarray(2 * views + 0.5)


def test_layers_match_the_network_and_are_cached(encoder):
    source = some_digits()
    first = split_features(encoder, source, ["output"], TWO)
    both = split_features(encoder, source, ["output", "conv2"], TWO)
    assert (first.computed, both.computed) == (["output"], ["conv2"])
    cached = split_features(encoder._replace(apply=None), source, ["conv2", "output"], ONE)
    assert cached.computed == []
    maps = maps_of(source).reshape(N, -1)
    for found in (both, cached):
        for layer, expected in (("conv2", maps), ("output", maps[:, 30:36])):
            x, labels = found.features[layer]
            np.testing.assert_allclose(x, expected, rtol=1e-6)
            np.testing.assert_array_equal(labels, source.labels)
            assert isinstance(x, np.memmap) and not x.flags.writeable


@pytest.mark.parametrize(("pool", "expected"), [("none", [-9, 1, 3]), ("mean", [2]), ("max", [3])])
def test_patches_are_pooled_without_the_class_token(pool, expected, encoder):
    def apply(params, stats, x, train):
        tokens = jnp.array([[[-9.0], [1.0], [3.0]]])  # the class token first
        return {"block1": jnp.broadcast_to(tokens, (len(x), 3, 1))}, stats

    config = encoder.config.replace(model="vit_tiny", patch_size=4)
    vit = encoder._replace(apply=apply, config=config)
    found = split_features(vit, some_digits(slice(3)), ["block1"], ONE, pool)
    np.testing.assert_array_equal(found.features["block1"].x, [expected] * 3)


def test_layers_with_space_are_pooled(encoder):
    source = some_digits()
    found = split_features(encoder, source, ["conv2", "output"], ONE, "mean")
    assert found.pools == {"conv2": "mean", "output": "none"}
    expected = maps_of(source).mean(axis=(1, 2))
    np.testing.assert_allclose(found.features["conv2"].x, expected, rtol=1e-4, atol=1e-5)


def test_cache_depends_on_everything_that_shapes_features(encoder, monkeypatch):
    source = some_digits(slice(20))

    def computes(source=source, pool="none", **changes):
        changed = encoder._replace(**changes)
        return bool(split_features(changed, source, ["conv2"], ONE, pool).computed)

    for change in (
        {},
        {"params": {"w": np.float32(2.01)}},
        {"stats": {"m": np.float32(0.51)}},
        {"source": some_digits(slice(19, None, -1))},
        {"pool": "max"},
        {"config": encoder.config.replace(recipe="none")},
        {"config": encoder.config.replace(dtype="bfloat16")},
    ):
        assert computes(**change) and not computes(**change), change
    assert not computes(config=encoder.config.replace(seed=1))
    monkeypatch.setattr(jax, "__version__", "another")
    assert computes()


def test_damaged_cache_is_computed_again(encoder):
    source = some_digits()
    expected = {
        layer: np.array(split_features(encoder, source, [layer], ONE).features[layer].x)
        for layer in ("output", "conv2")
    }
    conv, output = sorted((encoder.folder / "features").iterdir())
    whole = output.read_bytes()
    for damaged in (whole[:-3], whole[:20], conv.read_bytes()):  # the last one is of another layer
        output.unlink()
        output.write_bytes(damaged)
        again = split_features(encoder, source, ["output"], ONE)
        assert again.computed == ["output"]
        np.testing.assert_array_equal(again.features["output"].x, expected["output"])
        assert not split_features(encoder, source, ["output"], ONE).computed


def test_random_views_have_crops_and_flips_but_no_colours(encoder, rng):
    """A view of an image of one colour has that colour; halves may change sides."""
    colours = rng.integers(0, 256, (20, 3), dtype=np.uint8)
    images = np.tile(colours[:, None, None], (2, 8, 8, 1))
    images[20:, :, :4] = 0  # the left half is black
    source = Arrays(images, np.zeros(40, int), ("a",), "a")
    views = augmented_features(showing(encoder, "stl10"), source, "output", ONE, seed=0)
    view, other = (views(epoch).x.reshape(images.shape) for epoch in (0, 1))
    mean, std = np.array([(0.4409, 0.4279, 0.3868), (0.2683, 0.2610, 0.2687)])
    expected = np.broadcast_to(((colours / 255 - mean) / std)[:, None, None], view[:20].shape)
    np.testing.assert_allclose([view[:20], other[:20]], [expected] * 2, atol=1e-4)
    sides = view[20:, :, 0] - view[20:, :, -1]
    assert (sides < -0.1).any(axis=(1, 2)).sum() > 3 and (sides > 0.1).any(axis=(1, 2)).sum() > 3


def test_random_views_depend_on_epoch_and_seed_but_not_on_devices(encoder, rng):
    images = rng.integers(0, 256, (N, 12, 12, 3), np.uint8)
    source = Arrays(images, np.zeros(N, np.int32), ("a",), "noise")

    def differ(x, y):
        return (np.abs(x - y).max(axis=1) > 0.01).mean() > 0.7

    def view(devices, seed, epoch):
        shown = showing(encoder, "stl10")
        return augmented_features(shown, source, "output", devices, seed)(epoch).x

    def pairs(devices, seed):
        return pair_features(showing(encoder, "stl10:crop_flip"), source, devices, seed)

    x = view(ONE, 3, 2)
    np.testing.assert_allclose(x, view(TWO, 3, 2), rtol=1e-4, atol=1e-4)
    assert differ(x, view(ONE, 3, 1)) and differ(x, view(ONE, 4, 2))
    one, two = pairs(ONE, 3)
    np.testing.assert_allclose((one, two), pairs(TWO, 3), rtol=1e-4, atol=1e-4)
    assert differ(one, two) and differ(one, pairs(ONE, 4)[0])
