"""Features: what the network gives, under keys of all that shapes them, in files there whole.

Most tests have encoders that are a line of arithmetic: their features are known, and compile fast.
"""

import dataclasses
import errno
import subprocess
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from processes import ROOT, environment

from hypersphere_jax import augment, runs
from hypersphere_jax.config import DataConfig, ModelConfig, PretrainConfig, UserError
from hypersphere_jax.data import Arrays
from hypersphere_jax.data.arrays import digits
from hypersphere_jax.data.source import UnreadableImage
from hypersphere_jax.evaluation import cache, features, forward
from hypersphere_jax.evaluation.features import augmented_features, extract, split_features

MODEL = ModelConfig(dim=6, width=0.25, image_size=8, channels=1)
ONE, EIGHT = jax.devices()[:1], jax.devices()


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

    class_names, origin, image_shape, digest = ("a", "b"), "made up", None, "many-sizes"

    def __init__(self, n, unreadable=None):
        rng = np.random.default_rng(0)
        self._images = [rng.integers(0, 256, (*size, 3), np.uint8) for size in
                        rng.integers(12, 20, (n, 2))]  # fmt: skip
        self._unreadable, self.labels = unreadable, np.arange(n, dtype=np.int32) % 2

    def __len__(self):
        return len(self._images)

    def __getitem__(self, i):
        if i == self._unreadable:
            raise UnreadableImage(f"image {i}")
        return {"image": self._images[i], "label": int(self.labels[i])}


def showing(encoder, recipe, channels=3):
    """An encoder whose output is the image that it is given."""

    def apply(params, stats, x, train):
        return {"output": x.reshape(len(x), -1)}, stats

    model = dataclasses.replace(MODEL, channels=channels)
    data = DataConfig(recipe=recipe, bad_images="skip")
    config = dataclasses.replace(encoder.config, data=data, model=model)
    return encoder._replace(apply=apply, config=config)


def test_layers_in_one_pass_are_those_of_the_network(image_run, tmp_path):
    """Of a trained one, over devices that fill up their last batch."""
    encoder = runs.load_encoder(image_run)._replace(folder=tmp_path)
    source, layers = some_digits(slice(None)), ("output", "conv2")
    found = split_features(encoder, source, layers, EIGHT)
    apply = jax.jit(lambda x: encoder.apply(encoder.params, encoder.stats, x, False)[0])
    expected = apply(as_seen(source))
    assert list(found) == list(layers)
    for layer, (x, labels) in found.items():
        np.testing.assert_array_equal(labels, source.labels)
        np.testing.assert_allclose(x, expected[layer].reshape(397, -1), rtol=1e-4, atol=1e-5)
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
    with pytest.raises(UserError, match=r"--layers ouput.*did you mean 'output'.*conv1, conv2"):
        split_features(encoder, source, ["conv1", "ouput"], ONE)


def test_only_missing_layers_are_computed(encoder, monkeypatch):
    source = some_digits()
    first = extract(encoder, source, ["output"], ONE)
    assert first.computed == ["output"] and 0 <= first.data_wait <= 1
    both = extract(encoder, source, ["output", "conv2"], ONE)
    assert both.computed == ["conv2"]
    monkeypatch.setattr(features.feed, "in_order", None)  # which a pass would call
    again = extract(encoder, source, ["conv2", "output"], EIGHT)
    assert again.computed == [] and again.data_wait is None
    for layer in ("conv2", "output"):
        np.testing.assert_array_equal(again.features[layer].x, both.features[layer].x)
        np.testing.assert_array_equal(again.features[layer].labels, source.labels)
    np.testing.assert_allclose(
        both.features["output"].x, layers_of(*encoder[1:3], as_seen(source), False)[0]["output"]
    )


def test_all_that_shapes_features_makes_other_files(encoder):
    source, changed = some_digits(), []

    def computes(encoder, source=source, **options):
        return bool(extract(encoder, source, ["conv2"], ONE, **options).computed)

    def with_config(**parts):
        return encoder._replace(config=dataclasses.replace(encoder.config, **parts))

    assert computes(encoder) and not computes(encoder)
    for tree in ("params", "stats"):
        moved = jax.tree.map(lambda w: w + np.float32(0.01), getattr(encoder, tree))
        changed.append(computes(encoder._replace(**{tree: moved})))
    changed.append(computes(encoder, some_digits(slice(19))))
    changed.append(computes(encoder, some_digits(slice(19, None, -1))))
    changed.append(computes(encoder, pool="max"))
    changed.append(computes(with_config(data=DataConfig(recipe="none"))))
    changed.append(computes(with_config(model=dataclasses.replace(MODEL, dtype="bfloat16"))))
    assert changed == [True] * 7 and len(list((encoder.folder / "features").iterdir())) == 8
    # How it was trained does not matter, nor where it lies.
    assert not computes(with_config(seed=1, model=dataclasses.replace(MODEL, batch_norm="local")))


def test_damaged_files_are_made_anew(encoder, caplog):
    source = some_digits()
    first = split_features(encoder, source, ["output"], ONE)["output"]
    x, labels = np.array(first.x), np.array(first.labels)
    (file,) = (encoder.folder / "features").iterdir()
    whole = file.read_bytes()
    assert np.array_equal(np.load(file), x)  # NumPy reads the features of it
    flipped, label = bytearray(whole), bytearray(whole)
    flipped[300] ^= 1
    label[-200] ^= 1  # before the checksum, which is the last of the file
    for name, damage in {
        "cut": whole[:250],
        "flipped": bytes(flipped),
        "label": bytes(label),
        "short": whole[:-3],
        "empty": b"",
        "header": whole.replace(b"(20, 6)", b"(-2, 6)"),
        "older": b"PK\x03\x04" + whole,
    }.items():
        caplog.clear()
        file.unlink()  # not over what is mapped
        file.write_bytes(damage)
        again = extract(encoder, source, ["output"], ONE)
        assert again.computed == ["output"] and "is damaged" in caplog.text, name
        np.testing.assert_array_equal(again.features["output"].x, x)
        np.testing.assert_array_equal(again.features["output"].labels, labels)
        assert extract(encoder, source, ["output"], ONE).computed == [], name


def rows_of(n, value):
    return np.full((n, 3), value, np.float32), np.full(n, value, np.int32)


def test_nobody_sees_half_a_file(tmp_path):
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
    assert np.array_equal(cache.read(file).x, rows_of(5, 1)[0])
    assert np.array_equal(cache.read(file).labels, rows_of(5, 1)[1])
    assert np.array_equal(mapped.x, rows_of(4, 2)[0])  # what was mapped stays as it was
    with pytest.raises(KeyboardInterrupt), cache.writer(tmp_path / "y.npy", 3) as writer:
        writer.add(*rows_of(2, 1))
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_interrupted_extraction_leaves_nothing_and_is_made_anew(encoder, monkeypatch):
    """Two batches: the first is written when the second fails."""
    source = some_digits(slice(None))
    in_order = features.feed.in_order

    def stopped(*arguments):
        batches = in_order(*arguments)
        yield next(batches)
        yield next(batches)
        raise KeyboardInterrupt

    monkeypatch.setattr(forward, "PER_DEVICE", 100)
    with monkeypatch.context() as patch:
        patch.setattr(features.feed, "in_order", stopped)
        with pytest.raises(KeyboardInterrupt):
            extract(encoder, source, ["output"], ONE)
    assert not list((encoder.folder / "features").iterdir())
    found = extract(encoder, source, ["output"], ONE)
    assert found.computed == ["output"] and len(found.features["output"].x) == 397


WRITE = """
import sys
from pathlib import Path
import numpy as np
from hypersphere_jax.evaluation import cache
value, file, stop = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
while not stop.exists():
    with cache.writer(file, 50) as writer:
        for _ in range(20):
            writer.add(np.full((100, 50), value, np.float32), np.full(100, value, np.int32))
        found = writer.finish()
    assert (found.x == value).all() and len(found.x) == 2000
"""


@pytest.mark.slow
def test_processes_that_write_at_once(tmp_path):
    """Until both were seen, and a hundred files read: each of one process, and whole."""
    file, stop, seen, count = tmp_path / "x.npy", tmp_path / "stop", set(), 0
    command = [sys.executable, "-c", WRITE]
    writers = [
        subprocess.Popen([*command, value, file, stop], cwd=ROOT, env=environment())
        for value in "12"
    ]
    try:
        while len(seen) < 2 or count < 100:
            assert all(process.poll() is None for process in writers)
            found = cache.read(file)
            assert found is not None or not seen  # once there, it stays there
            if found is not None:
                (value,) = np.unique(found.x)
                assert (found.labels == value).all() and len(found.x) == 2000
                seen, count = seen | {float(value)}, count + 1
    finally:
        stop.touch()
        codes = [process.wait() for process in writers]
    assert codes == [0, 0] and sorted(tmp_path.iterdir()) == [stop, file]


def test_a_folder_that_cannot_be_written_and_a_full_disk(encoder, monkeypatch, caplog):
    source = some_digits()
    whole_file, expected = runs.whole_file, split_features(encoder, source, ["output"], ONE)
    elsewhere = encoder._replace(folder=encoder.folder / "elsewhere")

    def failing(number):
        def fails(path):
            raise OSError(number, "as the system says", str(path))

        return fails

    for number in (errno.EACCES, errno.EROFS, errno.ENOTDIR):
        caplog.clear()
        monkeypatch.setattr(runs, "whole_file", failing(number))
        found = split_features(elsewhere, source, ["output"], ONE)["output"]
        np.testing.assert_array_equal(found.x, expected["output"].x)
        assert isinstance(found.x, np.memmap) and not elsewhere.folder.exists()
        assert "not kept for the next time" in caplog.text
    monkeypatch.setattr(runs, "whole_file", failing(errno.ENOSPC))
    with pytest.raises(UserError, match=r"no room .* 20 images \(output\) .*make room"):
        split_features(elsewhere, source, ["output"], ONE)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(runs, "whole_file", whole_file)
    monkeypatch.setattr(cache.Writer, "finish", full)
    with pytest.raises(UserError, match="no room"):
        split_features(elsewhere, source, ["output"], ONE)
    assert not list((elsewhere.folder / "features").iterdir())


def test_data_wait_is_the_share_of_the_time_without_images(encoder, monkeypatch):
    """By a clock that goes on while there are none, and by a second in each pass."""
    now, in_order, on_host = [0.0], features.feed.in_order, forward.on_host

    def slowly(*arguments):
        for batch in in_order(*arguments):
            now[0] += 1.5
            yield batch

    def computed(*arguments):
        now[0] += 1.0
        return on_host(*arguments)

    clock = SimpleNamespace(perf_counter=lambda: now[0])
    for module, name, value in ((features, "time", clock), (forward, "time", clock),
                                (features.feed, "in_order", slowly),
                                (forward, "on_host", computed)):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    found = extract(encoder, some_digits(slice(None)), ["output"], ONE)  # two batches
    assert found.seconds == 5 and found.data_wait == pytest.approx(3 / 5)


def test_images_that_cannot_be_read_have_no_features(encoder):
    encoder, source = showing(encoder, "stl10"), OfManySizes(20, unreadable=0)
    every = split_features(encoder, OfManySizes(20), ["output"], ONE)["output"]
    source.digest = "one-fewer"
    found = split_features(encoder, source, ["output"], ONE)["output"]
    np.testing.assert_array_equal(found.x, every.x[1:])
    np.testing.assert_array_equal(found.labels, source.labels[1:])


def test_views_of_an_epoch_have_crops_and_flips_but_no_colours(encoder, rng):
    """Of images with one colour each, only that colour can come back; halves may change sides."""
    colours = rng.integers(0, 256, (20, 3), dtype=np.uint8)
    flat = np.broadcast_to(colours[:, None, None], (20, 8, 8, 3))
    half = flat.copy()
    half[:, :, :4] = 0  # the left half is black
    both = np.concatenate([flat, half])
    source = Arrays(both, np.zeros(40, int), ("a",), "made up")
    views = augmented_features(showing(encoder, "stl10"), source, "output", ONE, seed=0)
    zero, one = (views(epoch).x.reshape(40, 8, 8, 3) for epoch in (0, 1))
    mean, std = np.array([(0.4409, 0.4279, 0.3868), (0.2683, 0.2610, 0.2687)])
    for found in (zero, one):
        expected = np.broadcast_to(((colours / 255 - mean) / std)[:, None, None], flat.shape)
        np.testing.assert_allclose(found[:20], expected, atol=1e-4)
    sides = zero[20:, :, 0] - zero[20:, :, -1]
    assert (sides < -0.1).any(axis=(1, 2)).sum() > 3 and (sides > 0.1).any(axis=(1, 2)).sum() > 3
    assert (np.abs(zero - one).max(axis=(1, 2, 3)) > 0.1).sum() > 10
    assert np.array_equal(views(0).x.reshape(zero.shape), zero)
    pooled = showing(encoder, "stl10")._replace(
        apply=lambda params, stats, x, train: ({"conv2": x}, stats)
    )
    found = augmented_features(pooled, source, "conv2", ONE, seed=0, pool="max")(0).x
    np.testing.assert_allclose(found, zero.max(axis=(1, 2)), atol=1e-5)
    with pytest.raises(UserError, match=r"--augment: the recipe 'none' .* no random crop or flip"):
        augmented_features(showing(encoder, "none", 1), source, "output", ONE, seed=0)


@pytest.mark.parametrize("kind", ["one size", "many sizes"])
def test_random_views_do_not_depend_on_devices(encoder, kind, monkeypatch):
    """Cropped on the devices or, where images differ in size, on the host."""
    encoder, source = showing(encoder, "stl10"), OfManySizes(40)
    if kind == "one size":
        images = np.stack([source[i]["image"][:12, :12] for i in range(40)])
        source = Arrays(images, source.labels, source.class_names, source.origin)
    # Batches of other images with other numbers of devices.
    monkeypatch.setattr(forward, "batch_size", lambda _, devices: 16 if len(devices) > 1 else 9)
    one, two = (
        augmented_features(encoder, source, "output", devices, seed=3)
        for devices in (ONE, EIGHT[:2])
    )
    epoch2, epoch3 = one(epoch=2), one(epoch=3)
    np.testing.assert_allclose(epoch2.x, two(epoch=2).x, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(epoch2.labels, source.labels)
    assert (np.abs(epoch2.x - epoch3.x).max(axis=1) > 0.01).sum() > 30
    other = augmented_features(encoder, source, "output", ONE, seed=4)(epoch=2)
    assert (np.abs(epoch2.x - other.x).max(axis=1) > 0.01).sum() > 30
    encoder = showing(encoder, "stl10:crop_flip")
    pairs = [features.pair_features(encoder, source, d, seed=3) for d in (ONE, EIGHT[:2])]
    np.testing.assert_allclose(pairs[0], pairs[1], rtol=1e-4, atol=1e-4)
    assert np.linalg.norm(pairs[0][0] - pairs[0][1], axis=1).min() > 1e-3
    other = features.pair_features(encoder, source, ONE, seed=4)
    for side, its in zip(pairs[0], other, strict=True):
        assert (np.abs(side - its).max(axis=1) > 1e-3).sum() > 30
