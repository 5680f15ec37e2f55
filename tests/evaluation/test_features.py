"""Features: what the network gives, under keys of all that shapes them, in files there whole.

Most encoders here are a line of arithmetic: their features are known, and compile fast.
"""

import dataclasses
import errno
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from hypersphere_jax import augment, runs
from hypersphere_jax.config import DataConfig, ModelConfig, PretrainConfig, UserError
from hypersphere_jax.data import Arrays
from hypersphere_jax.data.arrays import digits
from hypersphere_jax.data.source import UnreadableImage
from hypersphere_jax.evaluation import cache, features, forward
from hypersphere_jax.evaluation.features import augmented_features, extract, pair_features
from hypersphere_jax.evaluation.features import split_features as split

MODEL = ModelConfig(dim=6, width=0.25, image_size=8, channels=1)
ONE, TWO = jax.devices()[:1], jax.devices()[:2]


def layers_of(params, stats, x, train):
    """In place of a network; in training it would give other numbers."""
    maps = x * params["w"] + stats["m"] + train
    return {"conv2": maps, "output": maps.reshape(len(x), -1)[:, 30:36], "images": x}, stats


@pytest.fixture
def encoder(tmp_path):
    params, stats = {"w": np.float32(2)}, {"m": np.float32(0.5)}
    config = PretrainConfig(model=MODEL, data=DataConfig(recipe="digits"))
    return runs.Encoder(layers_of, params, stats, config, tmp_path, 0)


def some_digits(rows=slice(20)):
    """Some of the digits' test images, as a source."""
    _, test = digits()
    return Arrays(test.images[rows], test.labels[rows], test.class_names, test.origin)


def as_seen(source):
    return jax.vmap(augment.make_evaluate("digits", 8))(source.images)


class OfManySizes:
    """A source of small colour images that differ in size, of which one cannot be read."""

    class_names, origin, image_shape = ("a", "b"), "made up", None

    def __init__(self, n, unreadable=None):
        rng = np.random.default_rng(0)
        sizes = rng.integers(12, 20, (n, 2))
        self.images = [rng.integers(0, 256, (*size, 3), np.uint8) for size in sizes]
        self.labels, self.unreadable = np.arange(n, dtype=np.int32) % 2, unreadable
        self.digest = f"all but {unreadable}"

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        if i == self.unreadable:
            raise UnreadableImage(f"image {i}")
        return {"image": self.images[i], "label": int(self.labels[i])}


def showing(encoder, recipe, channels=3):
    """An encoder whose output is the image that it is given."""

    def apply(params, stats, x, train):
        return {"output": x.reshape(len(x), -1), "conv2": x}, stats

    model = dataclasses.replace(MODEL, channels=channels)
    data = DataConfig(recipe=recipe, bad_images="skip")
    config = dataclasses.replace(encoder.config, data=data, model=model)
    return encoder._replace(apply=apply, config=config)


def test_layers_in_one_pass_are_those_of_the_network(image_run, tmp_path, monkeypatch):
    """Of a trained one, over devices that fill up their last batch."""
    encoder = runs.load_encoder(image_run)._replace(folder=tmp_path)
    source, layers = some_digits(slice(21)), ("output", "conv2")
    monkeypatch.setattr(forward, "PER_DEVICE", 8)
    found = split(encoder, source, layers, TWO)
    apply = jax.jit(lambda x: encoder.apply(encoder.params, encoder.stats, x, False)[0])
    expected = apply(as_seen(source))
    assert list(found) == list(layers)
    for layer, (x, labels) in found.items():
        np.testing.assert_array_equal(labels, source.labels)
        np.testing.assert_allclose(x, expected[layer].reshape(21, -1), rtol=1e-4, atol=1e-5)
        assert isinstance(x, np.memmap) and x.dtype == np.float32 and not x.flags.writeable


def test_pooling(encoder):
    source = some_digits()
    maps = np.asarray(2 * as_seen(source) + 0.5, np.float64)
    for pool in ("mean", "max"):
        found = extract(encoder, source, ["conv2", "output"], ONE, pool)
        assert found.pools == {"conv2": pool, "output": "none"}
        pooled = getattr(maps, pool)(axis=(1, 2))
        np.testing.assert_allclose(found.features["conv2"].x, pooled, rtol=1e-4, atol=1e-5)
    # A layer without space is the same file either way.
    assert extract(encoder, source, ["output", "conv2"], ONE).computed == ["conv2"]
    with pytest.raises(UserError, match="--pool sum: choose one of none, mean, max"):
        extract(encoder, source, ["conv2"], ONE, "sum")
    with pytest.raises(UserError, match="--layers ouput.*did you mean 'output'"):
        split(encoder, source, ["conv1", "ouput"], ONE)


def test_only_missing_layers_are_computed(encoder, monkeypatch):
    source = some_digits()
    first = extract(encoder, source, ["output"], ONE)
    both = extract(encoder, source, ["output", "conv2"], ONE)
    assert (first.computed, both.computed) == (["output"], ["conv2"])
    monkeypatch.setattr(features.feed, "in_order", None)  # which a pass would call
    again = extract(encoder, source, ["conv2", "output"], TWO)
    assert again.computed == [] and again.data_wait is None
    expected, _ = layers_of(*encoder[1:3], as_seen(source), False)
    for layer in ("conv2", "output"):
        np.testing.assert_array_equal(again.features[layer].x, both.features[layer].x)
        np.testing.assert_array_equal(again.features[layer].labels, source.labels)
        np.testing.assert_allclose(again.features[layer].x, expected[layer].reshape(20, -1))


def test_all_that_shapes_features_makes_other_files(encoder):
    source = some_digits()

    def computes(source=source, pool="none", **changes):
        return bool(extract(encoder._replace(**changes), source, ["conv2"], ONE, pool).computed)

    def config(**parts):
        return {"config": dataclasses.replace(encoder.config, **parts)}

    assert computes() and not computes()
    changes = (
        {"params": {"w": np.float32(2.01)}},
        {"stats": {"m": np.float32(0.51)}},
        {"source": some_digits(slice(19))},
        {"source": some_digits(slice(19, None, -1))},
        {"pool": "max"},
        config(data=DataConfig(recipe="none")),
        config(model=dataclasses.replace(MODEL, dtype="bfloat16")),
    )
    for change in changes:
        assert computes(**change) and not computes(**change), change
    # How it was trained does not matter.
    assert not computes(**config(seed=1, model=dataclasses.replace(MODEL, batch_norm="local")))


def test_damaged_files_are_made_anew(encoder, caplog):
    source = some_digits()
    first = split(encoder, source, ["output"], ONE)["output"]
    x, labels = np.array(first.x), np.array(first.labels)
    (file,) = (encoder.folder / "features").iterdir()
    whole = file.read_bytes()
    assert np.array_equal(np.load(file), x)  # NumPy reads the features of it
    flipped, label = bytearray(whole), bytearray(whole)
    flipped[300] ^= 1
    label[-200] ^= 1  # before the checksum, which is the last of the file
    for damaged in (flipped, label, whole[:-3]):
        caplog.clear()
        file.unlink()  # not over what is mapped
        file.write_bytes(damaged)
        again = extract(encoder, source, ["output"], ONE)
        assert again.computed == ["output"] and "is damaged" in caplog.text
        np.testing.assert_array_equal(again.features["output"].x, x)
        np.testing.assert_array_equal(again.features["output"].labels, labels)
        assert extract(encoder, source, ["output"], ONE).computed == []


def test_nobody_sees_half_a_file(tmp_path):
    def rows_of(n, value):
        return np.full((n, 3), value, np.float32), np.full(n, value, np.int32)

    file = tmp_path / "folder" / "x.npy"
    with cache.writer(file, 3) as one:
        one.add(*rows_of(2, 1))
        with cache.writer(file, 3) as two:  # another process, say
            two.add(*rows_of(4, 2))
            one.add(*rows_of(3, 1))
            assert not file.exists() and cache.read(file) is None
            mapped = two.finish()
        assert np.array_equal(cache.read(file).x, rows_of(4, 2)[0])
        one.finish()
    for found, expected in zip(cache.read(file), rows_of(5, 1), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert np.array_equal(mapped.x, rows_of(4, 2)[0])  # what was mapped stays as it was
    with pytest.raises(KeyboardInterrupt), cache.writer(tmp_path / "y.npy", 3) as writer:
        writer.add(*rows_of(2, 1))
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_folder_that_cannot_be_written_and_a_full_disk(encoder, monkeypatch, caplog):
    source, layers = some_digits(), ["output"]
    expected = split(encoder, source, layers, ONE)["output"]
    elsewhere = encoder._replace(folder=encoder.folder / "elsewhere")

    def fails_with(number):
        def fails(*_):
            raise OSError(number, "as the system says")

        return fails

    with monkeypatch.context() as patch:
        patch.setattr(runs, "whole_file", fails_with(errno.EACCES))
        found = split(elsewhere, source, layers, ONE)["output"]
        np.testing.assert_array_equal(found.x, expected.x)
        assert isinstance(found.x, np.memmap) and not elsewhere.folder.exists()
        assert "not kept for the next time" in caplog.text
    for owner, name in ((runs, "whole_file"), (cache.Writer, "finish")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fails_with(errno.ENOSPC))
            with pytest.raises(UserError, match="no room"):
                split(elsewhere, source, layers, ONE)
    assert not list((elsewhere.folder / "features").iterdir())


def test_data_wait_is_the_share_of_the_time_without_images(encoder, monkeypatch):
    """By a clock that goes on while there are none, and by a second in each of two passes."""
    now, in_order, on_host = [0.0], features.feed.in_order, forward.on_host

    def slowly(*arguments):
        for batch in in_order(*arguments):
            now[0] += 1.5
            yield batch

    def computed(*arguments):
        now[0] += 1.0
        return on_host(*arguments)

    clock = SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr(features, "time", clock)
    monkeypatch.setattr(forward, "time", clock)
    monkeypatch.setattr(features.feed, "in_order", slowly)
    monkeypatch.setattr(forward, "on_host", computed)
    monkeypatch.setattr(forward, "PER_DEVICE", 10)
    found = extract(encoder, some_digits(), ["output"], ONE)
    assert found.seconds == 5 and found.data_wait == pytest.approx(3 / 5)


def test_images_that_cannot_be_read_have_no_features(encoder):
    encoder = showing(encoder, "stl10")
    every = split(encoder, OfManySizes(20), ["output"], ONE)["output"]
    found = split(encoder, OfManySizes(20, unreadable=0), ["output"], ONE)["output"]
    for side, its in zip(found, every, strict=True):
        np.testing.assert_array_equal(side, its[1:])


def test_views_of_an_epoch_have_crops_and_flips_but_no_colours(encoder, rng):
    """Of images with one colour each, only that colour can come back; halves may change sides."""
    colours = rng.integers(0, 256, (20, 3), dtype=np.uint8)
    flat = np.broadcast_to(colours[:, None, None], (20, 8, 8, 3))
    half = flat.copy()
    half[:, :, :4] = 0  # the left half is black
    source = Arrays(np.concatenate([flat, half]), np.zeros(40, int), ("a",), "made up")
    views = augmented_features(showing(encoder, "stl10"), source, "output", ONE, seed=0)
    zero, one = (views(epoch).x.reshape(40, 8, 8, 3) for epoch in (0, 1))
    mean, std = np.array([(0.4409, 0.4279, 0.3868), (0.2683, 0.2610, 0.2687)])
    expected = np.broadcast_to(((colours / 255 - mean) / std)[:, None, None], flat.shape)
    for found in (zero, one):
        np.testing.assert_allclose(found[:20], expected, atol=1e-4)
    sides = zero[20:, :, 0] - zero[20:, :, -1]
    assert (sides < -0.1).any(axis=(1, 2)).sum() > 3 and (sides > 0.1).any(axis=(1, 2)).sum() > 3
    assert (np.abs(zero - one).max(axis=(1, 2, 3)) > 0.1).sum() > 10
    assert np.array_equal(views(0).x.reshape(zero.shape), zero)
    found = augmented_features(showing(encoder, "stl10"), source, "conv2", ONE, 0, "max")(0).x
    np.testing.assert_allclose(found, zero.max(axis=(1, 2)), atol=1e-5)
    with pytest.raises(UserError, match="--augment: .*'none' .* no random crop or flip"):
        augmented_features(showing(encoder, "none", 1), source, "output", ONE, seed=0)


@pytest.mark.parametrize("kind", ["one size", "many sizes"])
def test_random_views_do_not_depend_on_devices(encoder, kind, monkeypatch):
    """Cropped on the devices or, where images differ in size, on the host."""
    source = OfManySizes(20)
    if kind == "one size":
        images = np.stack([image[:12, :12] for image in source.images])
        source = Arrays(images, source.labels, source.class_names, source.origin)
    # Batches of other images with other numbers of devices.
    monkeypatch.setattr(forward, "batch_size", lambda _, devices: 8 if len(devices) > 1 else 7)

    def differ(one, other):
        return (np.abs(one - other).max(axis=1) > 0.01).sum() > 15

    shown, cropped = showing(encoder, "stl10"), showing(encoder, "stl10:crop_flip")
    given = ((ONE, 3), (TWO, 3), (ONE, 4))
    one, two, other = (augmented_features(shown, source, "output", d, seed) for d, seed in given)
    x, labels = one(epoch=2)
    np.testing.assert_allclose(x, two(epoch=2).x, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(labels, source.labels)
    assert differ(x, one(epoch=3).x) and differ(x, other(epoch=2).x)
    one, two, other = (pair_features(cropped, source, d, seed) for d, seed in given)
    np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-4)
    assert differ(*one) and differ(one[0], other[0]) and differ(one[1], other[1])
