"""Features of encoders: layers, random views, and their cache."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest

from hypersphere_jax import augment
from hypersphere_jax.configs import ModelConfig, PretrainConfig
from hypersphere_jax.data import Arrays
from hypersphere_jax.data.arrays import digits
from hypersphere_jax.data.pipeline import TwoCrops
from hypersphere_jax.data.source import UnreadableImage
from hypersphere_jax.evaluation import features
from hypersphere_jax.evaluation.feature_files import (
    Features,
    collect_features,
    read_cached,
    write_cached,
)
from hypersphere_jax.evaluation.features import augmented_features, pair_features
from hypersphere_jax.evaluation.features import split_features as split
from hypersphere_jax.training import run_dir

MODEL = ModelConfig(dim=6, width=0.25, image_size=8, in_channels=1)
as_seen = jax.vmap(augment.make_evaluate("digits", 8))
ONE, TWO = jax.devices()[:1], jax.devices()[:2]


def layers_of(params, stats, x, train):
    """In place of a network, as it compiles fast; in training it would give other numbers."""
    maps = x * params["w"] + stats["m"] + train
    return {"conv2": maps, "output": maps.reshape(len(x), -1)[:, 30:36]}, stats


@pytest.fixture
def encoder(tmp_path):
    params, stats = {"w": np.float32(2)}, {"m": np.float32(0.5)}
    config = PretrainConfig(recipe="digits", **vars(MODEL))
    return run_dir.RunEncoder(layers_of, params, stats, config, tmp_path, 0)


def some_digits(rows=slice(20)):
    _, test = digits()
    return Arrays(test.images[rows], test.labels[rows], test.class_names, test.origin)


class OfManySizes(list):
    """Twenty small colour images that differ in size; one that is None cannot be read."""

    class_names, origin, image_shape, digest = ("a", "b"), "made up", None, "many sizes"
    labels = np.arange(20, dtype=np.int32) % 2

    def __getitem__(self, i):
        if super().__getitem__(i) is None:
            raise UnreadableImage(f"image {i}")
        return {"image": super().__getitem__(i), "label": int(self.labels[i])}


@pytest.fixture
def many_sizes(rng):
    sizes = zip(range(12, 32), range(40, 20, -1), strict=True)
    return OfManySizes(rng.integers(0, 256, (*size, 3), np.uint8) for size in sizes)


def showing(encoder, recipe):
    """An encoder whose output is the image that it is given."""
    apply = lambda p, s, x, train: ({"output": x.reshape(len(x), -1), "conv2": x}, s)  # noqa: E731
    config = encoder.config.replace(in_channels=3, recipe=recipe, bad_images="skip")
    return encoder._replace(apply=apply, config=config)


def test_pooling(encoder):
    source = some_digits()
    maps = np.asarray(2 * as_seen(source.images) + 0.5, np.float64)
    for pool in ("mean", "max"):
        found = split(encoder, source, ["conv2", "output"], ONE, pool)
        assert found.pools == {"conv2": pool, "output": "none"}
        pooled = getattr(maps, pool)(axis=(1, 2))
        np.testing.assert_allclose(found.features["conv2"].x, pooled, rtol=1e-4, atol=1e-5)
    # The pooling of a layer without space does not matter.
    assert split(encoder, source, ["output", "conv2"], ONE).computed == ["conv2"]


def test_only_missing_layers_are_computed(encoder, monkeypatch):
    source = some_digits(slice(21))
    monkeypatch.setattr(features, "PER_DEVICE", 8)
    first = split(encoder, source, ["output"], TWO)
    both = split(encoder, source, ["output", "conv2"], TWO)
    assert (first.computed, both.computed) == (["output"], ["conv2"])
    monkeypatch.setattr(features, "eval_batches", None)  # which a pass would call
    again = split(encoder, source, ["conv2", "output"], ONE)
    assert again.computed == []
    expected, _ = layers_of(*encoder[1:3], as_seen(source.images), False)
    for found in (both, again):
        for layer, (x, labels) in found.features.items():
            np.testing.assert_array_equal(labels, source.labels)
            np.testing.assert_allclose(x, expected[layer].reshape(21, -1), rtol=1e-6)
            assert isinstance(x, np.memmap) and x.dtype == np.float32 and not x.flags.writeable


def test_cache_depends_on_everything_that_shapes_features(encoder, monkeypatch):
    def computes(source, pool="none", **changes):
        return bool(split(encoder._replace(**changes), source, ["conv2"], ONE, pool).computed)

    def config(**parts):
        return {"config": dataclasses.replace(encoder.config, **parts)}

    source = some_digits()
    for change in (
        *({}, {"params": {"w": np.float32(2.01)}}, {"stats": {"m": np.float32(0.51)}}),
        *({"source": some_digits(slice(19, None, -1))}, {"pool": "max"}),
        config(recipe="none"),
        config(dtype="bfloat16"),
    ):
        asked = {"source": source} | change
        assert computes(**asked) and not computes(**asked), change
    assert not computes(source, **config(seed=1))  # how it was trained does not matter
    for library in (features, jax):
        monkeypatch.setattr(library, "__version__", "another")
        assert computes(source)


def test_truncated_cache_is_computed_again(encoder, caplog):
    source = some_digits()
    expected = np.array(split(encoder, source, ["output"], ONE).features["output"].x)
    (file,) = (encoder.folder / "features").iterdir()
    assert np.array_equal(np.load(file), expected)  # NumPy reads the features of it
    whole = np.fromfile(file, np.uint8)
    for size in (len(whole) - 3, 300, 20):
        file.unlink()  # not over what is mapped
        whole[:size].tofile(file)
        again = split(encoder, source, ["output"], ONE)
        assert again.computed == ["output"] and "cannot be used" in caplog.text
        np.testing.assert_array_equal(again.features["output"].x, expected)


def test_cache_of_another_layer_is_computed_again(encoder, caplog):
    made = [split(encoder, some_digits(), [layer], ONE) for layer in ("output", "conv2")]
    x = np.array(made[0].features["output"].x)
    one, other = sorted((encoder.folder / "features").iterdir())
    other.unlink()
    shutil.copy(one, other)
    again = split(encoder, some_digits(), ["output"], ONE)
    assert again.computed == ["output"] and caplog.text.count("cannot be used") == 1
    np.testing.assert_array_equal(again.features["output"].x, x)
    assert not split(encoder, some_digits(), ["output"], ONE).computed


def test_batches_are_collected_in_order(tmp_path):
    def batch(n, value):
        return ({"x": np.full((n, 3), value, np.float32)},), np.full(n, value, np.int32)

    found = collect_features([batch(2, 1), batch(3, 4)])["x"]
    file = tmp_path / "x.npy"
    write_cached(file, found)
    for x, labels in (found, read_cached(file)):
        np.testing.assert_array_equal(labels, [1, 1, 4, 4, 4])
        np.testing.assert_array_equal(x, np.repeat(np.float32(labels)[:, None], 3, axis=1))


def test_a_cache_that_cannot_be_written_is_not_an_error(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    write_cached(tmp_path / "file" / "x.npy", Features(np.zeros((1, 2)), np.zeros(1)))
    assert "not cached" in caplog.text


@pytest.mark.slow
def test_unreadable_images_have_no_features(encoder, many_sizes):
    encoder = showing(encoder, "stl10")
    every = split(encoder, many_sizes, ["output"], ONE).features["output"]
    many_sizes[0], many_sizes.digest = None, "one less"
    found = split(encoder, many_sizes, ["output"], ONE).features["output"]
    for side, its in zip(found, every, strict=True):
        np.testing.assert_allclose(side, its[1:], rtol=1e-4, atol=1e-4)


def test_random_views_have_crops_and_flips_but_no_colours(encoder, rng):
    """Of images with one colour each, only that colour can come back; halves may change sides."""
    colours = rng.integers(0, 256, (20, 3), dtype=np.uint8)
    images = np.tile(colours[:, None, None], (2, 8, 8, 1))
    images[20:, :, :4] = 0  # the left half is black
    source, encoder = Arrays(images, np.zeros(40, int), ("a",), "a"), showing(encoder, "stl10")
    views = augmented_features(encoder, source, "output", ONE, seed=0)
    zero, one, again = (views(epoch).x.reshape(images.shape) for epoch in (0, 1, 0))
    mean, std = np.array([(0.4409, 0.4279, 0.3868), (0.2683, 0.2610, 0.2687)])
    expected = np.broadcast_to(((colours / 255 - mean) / std)[:, None, None], zero[:20].shape)
    np.testing.assert_allclose([zero[:20], one[:20]], [expected] * 2, atol=1e-4)
    sides = zero[20:, :, 0] - zero[20:, :, -1]
    assert (sides < -0.1).any(axis=(1, 2)).sum() > 3 and (sides > 0.1).any(axis=(1, 2)).sum() > 3
    assert (np.abs(zero - one).max(axis=(1, 2, 3)) > 0.1).sum() > 10
    np.testing.assert_array_equal(zero, again)
    found = augmented_features(encoder, source, "conv2", ONE, 0, "max")(0).x
    np.testing.assert_allclose(found, zero.max(axis=(1, 2)), atol=1e-5)


SLOW = pytest.param("many sizes", marks=pytest.mark.slow)


@pytest.mark.parametrize("kind", ["one size", SLOW])
def test_random_views_do_not_depend_on_devices(encoder, many_sizes, kind, monkeypatch):
    """Cropped on the devices or, where images differ in size, on the host."""
    source = many_sizes
    if kind == "one size":
        source = Arrays(np.stack([image[:12, :12] for image in source]), source.labels, (), "one")
    # The number of devices changes the batches.
    monkeypatch.setattr(features, "PER_DEVICE", 7)

    def differ(one, other):
        return (np.abs(one - other).max(axis=1) > 0.01).sum() > 15

    shown, cropped = showing(encoder, "stl10"), showing(encoder, "stl10:crop_flip")
    given = ((ONE, 3), (TWO, 3), (ONE, 4))
    one, two, other = (augmented_features(shown, source, "output", d, seed) for d, seed in given)
    x = one(epoch=2).x
    np.testing.assert_allclose(x, two(epoch=2).x, rtol=1e-4, atol=1e-4)
    assert differ(x, one(epoch=3).x) and differ(x, other(epoch=2).x)
    one, two, other = (pair_features(cropped, source, d, seed) for d, seed in given)
    np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-4)
    assert differ(*one) and differ(one[0], other[0]) and differ(one[1], other[1])
    if kind == "one size":
        return
    # What the host cropped is flipped at most.
    crop, _ = augment.host_crops("stl10:crop_flip", 8)
    pairs = np.stack([TwoCrops(crop, 3)(image, 0, i) for i, image in enumerate(source)], axis=1)
    drawn = [crop(np.random.default_rng([3, 2, i]), image) for i, image in enumerate(source)]
    for found, crops in zip((x, *one), (np.stack(drawn), *pairs), strict=True):
        given = np.asarray(jax.vmap(augment.make_evaluate("stl10", 8, cropped=True))(crops))
        off = [np.abs(found - way.reshape(20, -1)) for way in (given, given[:, :, ::-1])]
        assert np.max(off, axis=2).min(axis=0).max() < 1e-3
