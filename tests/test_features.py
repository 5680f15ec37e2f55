"""Features of several layers in one pass, pooled, augmented; and their files on disk."""

import dataclasses
import errno
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from hypersphere_jax import augment, models, runs
from hypersphere_jax.config import DataConfig, ModelConfig, PretrainConfig, UserError
from hypersphere_jax.data import Arrays
from hypersphere_jax.data.arrays import digits
from hypersphere_jax.evaluation import cache, features, forward
from hypersphere_jax.evaluation.features import augmented_features, extract, split_features

ROOT = Path(__file__).parent.parent
MODEL = ModelConfig(dim=6, width=0.25, image_size=8, channels=1)
ONE, EIGHT = jax.devices()[:1], jax.devices()


@pytest.fixture(scope="module")
def made():
    return models.create(MODEL, jax.random.key(0))


@pytest.fixture
def encoder(made, tmp_path):
    """A random one, with a folder of its own."""
    apply, params, stats = made
    config = PretrainConfig(model=MODEL, data=DataConfig(recipe="digits"))
    return runs.Encoder(apply, params, stats, config, tmp_path, 0)


def some_digits(rows=slice(None)):
    """Some of the digits' test images, as a source."""
    _, test = digits()
    return Arrays(test.images[rows], test.labels[rows], test.class_names, test.origin)


def outputs(encoder, source):
    """The network's own, of all images at once."""
    evaluate = jax.vmap(augment.make_evaluate("digits", 8))
    return encoder.apply(encoder.params, encoder.stats, evaluate(source.images), False)[0]


class OfManySizes:
    """A source of small colour images that differ in size."""

    class_names, origin, image_shape = ("a", "b"), "made up", None

    def __init__(self, n):
        rng = np.random.default_rng(0)
        sizes = rng.integers(12, 20, (n, 2))
        self._images = [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
        self.labels = np.arange(n, dtype=np.int32) % 2
        self.digest = f"of-many-sizes-{n}"

    def __len__(self):
        return len(self._images)

    def __getitem__(self, i):
        return {"image": self._images[i], "label": int(self.labels[i])}


def showing_images(encoder, recipe, channels=3):
    """An encoder whose output is the image that it is given."""

    def apply(params, stats, x, train):
        return {"output": x.reshape(len(x), -1)}, stats

    model = dataclasses.replace(MODEL, channels=channels)
    config = dataclasses.replace(encoder.config, data=DataConfig(recipe=recipe), model=model)
    return encoder._replace(apply=apply, config=config)


@pytest.mark.parametrize("devices", [ONE, EIGHT], ids=len)
@pytest.mark.parametrize("n", [3, 397])
@pytest.mark.slow
def test_layers_in_one_pass_are_those_of_the_network(encoder, n, devices):
    source, layers = some_digits(slice(n)), ("output", "conv2", "backbone")
    found, expected = split_features(encoder, source, layers, devices), outputs(encoder, source)
    assert list(found) == list(layers)
    for layer, (x, labels) in found.items():
        np.testing.assert_array_equal(labels, source.labels)
        np.testing.assert_allclose(x, expected[layer].reshape(n, -1), rtol=1e-4, atol=1e-5)
        assert isinstance(x, np.memmap) and x.dtype == np.float32 and not x.flags.writeable
        single = split_features(
            encoder._replace(folder=encoder.folder / "single"), source, [layer], devices
        )
        np.testing.assert_allclose(single[layer].x, x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_pooling(encoder, pool):
    source = some_digits(slice(20))
    found = extract(encoder, source, ["conv2", "output"], ONE, pool)
    expected = outputs(encoder, source)
    assert expected["conv2"].ndim == 4 and found.pools == {"conv2": pool, "output": "none"}
    pooled = getattr(np.asarray(expected["conv2"], np.float64), pool)(axis=(1, 2))
    np.testing.assert_allclose(found.features["conv2"].x, pooled, rtol=1e-4, atol=1e-5)
    # A layer without space is the same file either way.
    assert extract(encoder, source, ["output", "conv2"], ONE).computed == ["conv2"]
    with pytest.raises(UserError, match="--pool sum: choose one of none, mean, max"):
        extract(encoder, source, ["conv2"], ONE, "sum")


def test_only_missing_layers_are_computed(encoder, monkeypatch):
    source = some_digits(slice(20))
    first = extract(encoder, source, ["output"], ONE)
    assert first.computed == ["output"] and 0 <= first.data_wait <= 1
    both = extract(encoder, source, ["output", "backbone"], ONE)
    assert both.computed == ["backbone"]
    monkeypatch.setattr(features.feed, "in_order", None)  # which a pass would call
    again = extract(encoder, source, ["backbone", "output"], EIGHT)
    assert again.computed == [] and again.data_wait is None
    np.testing.assert_array_equal(again.features["output"].x, first.features["output"].x)
    np.testing.assert_array_equal(again.features["backbone"].x, both.features["backbone"].x)
    np.testing.assert_array_equal(again.features["output"].labels, source.labels)


def test_all_that_shapes_features_makes_other_files(encoder):
    source, changed = some_digits(slice(20)), []

    def computes(encoder, source=source, **options):
        return bool(extract(encoder, source, ["conv2"], ONE, **options).computed)

    def with_config(**parts):
        return encoder._replace(config=dataclasses.replace(encoder.config, **parts))

    assert computes(encoder) and not computes(encoder)
    for tree in ("params", "stats"):
        moved = jax.tree.map(lambda w: w + 0.01, getattr(encoder, tree))
        changed.append(computes(encoder._replace(**{tree: moved})))
    changed.append(computes(encoder, some_digits(slice(19))))
    changed.append(computes(encoder, some_digits(slice(19, None, -1))))
    changed.append(computes(encoder, pool="max"))
    changed.append(computes(with_config(data=DataConfig(recipe="none"))))
    changed.append(computes(with_config(model=dataclasses.replace(MODEL, dtype="bfloat16"))))
    assert changed == [True] * 7 and len(list((encoder.folder / "features").iterdir())) == 8
    # How it was trained does not matter, nor where it lies.
    assert not computes(with_config(seed=1, model=dataclasses.replace(MODEL, batch_norm="local")))


@pytest.mark.parametrize("damage", ["cut", "flipped", "short", "empty", "header", "older"])
def test_damaged_files_are_made_anew(encoder, damage, caplog):
    source = some_digits(slice(20))
    first = split_features(encoder, source, ["output"], ONE)["output"]
    x, labels = np.array(first.x), np.array(first.labels)
    (file,) = (encoder.folder / "features").iterdir()
    whole = file.read_bytes()
    assert np.array_equal(np.load(file), x)  # NumPy reads the features of it
    flipped = bytearray(whole)
    flipped[300] ^= 1
    header = whole.replace(b"(20, 6)", b"(-2, 6)")
    contents = {"cut": whole[:250], "flipped": bytes(flipped), "short": whole[:-3], "empty": b""}
    contents |= {"header": header, "older": b"PK\x03\x04" + whole}
    file.unlink()  # not over what is mapped
    file.write_bytes(contents[damage])
    again = extract(encoder, source, ["output"], ONE)
    assert again.computed == ["output"] and "is damaged" in caplog.text
    np.testing.assert_array_equal(again.features["output"].x, x)
    np.testing.assert_array_equal(again.features["output"].labels, labels)
    assert extract(encoder, source, ["output"], ONE).computed == []


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


WRITE = """
import sys
from pathlib import Path
import numpy as np
from hypersphere_jax.evaluation import cache
value, file = int(sys.argv[1]), Path(sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
for _ in range(60):
    with cache.writer(file, 50) as writer:
        for _ in range(20):
            writer.add(np.full((100, 50), value, np.float32), np.full(100, value, np.int32))
        found = writer.finish()
    assert (found.x == value).all() and len(found.x) == 2000
"""


def test_processes_that_write_at_once(tmp_path):
    file = tmp_path / "x.npy"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WRITE, str(value), str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        for value in (1, 2)
    ]
    assert [process.stdout.readline() for process in started] == [b"ready\n"] * 2
    for process in started:
        process.stdin.close()
    seen = set()
    while any(process.poll() is None for process in started):
        found = cache.read(file)
        if found is None:
            assert not file.exists() or not seen
            continue
        values = np.unique(found.x)
        assert len(values) == 1 and (found.labels == values[0]).all() and len(found.x) == 2000
        seen.add(float(values[0]))
    for process in started:
        process.stdout.close()
        assert process.returncode == 0
    assert seen and list(tmp_path.iterdir()) == [file]


def failing(number):
    def whole_file(path):
        raise OSError(number, "as the system says", str(path))

    return whole_file


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOTDIR])
def test_a_folder_that_cannot_be_written(encoder, monkeypatch, caplog, number):
    source = some_digits(slice(20))
    monkeypatch.setattr(runs, "whole_file", failing(number))
    found = split_features(encoder, source, ["output"], ONE)["output"]
    expected = outputs(encoder, source)["output"]
    np.testing.assert_allclose(found.x, expected, rtol=1e-4, atol=1e-5)
    assert isinstance(found.x, np.memmap) and not list(encoder.folder.iterdir())
    assert "not kept for the next time" in caplog.text


def test_a_full_disk(encoder, monkeypatch):
    source = some_digits(slice(20))
    with monkeypatch.context() as patch:
        patch.setattr(runs, "whole_file", failing(errno.ENOSPC))
        with pytest.raises(UserError, match=r"no room .* 20 images \(output\) .*make room"):
            split_features(encoder, source, ["output"], ONE)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache.Writer, "finish", full)
    with pytest.raises(UserError, match="no room"):
        split_features(encoder, source, ["output"], ONE)
    assert not list((encoder.folder / "features").iterdir())


def test_data_wait_is_the_time_without_images(encoder, monkeypatch):
    original = features.feed.in_order

    def slowly(*args):
        for batch in original(*args):
            time.sleep(0.5)
            yield batch

    monkeypatch.setattr(features.feed, "in_order", slowly)
    found = extract(encoder, some_digits(), ["output"], ONE)  # two batches
    assert 1 <= found.data_wait * found.seconds < found.seconds


def test_views_of_an_epoch_have_crops_and_flips_but_no_colours(encoder, rng):
    """Of images with one colour each, only that colour can come back."""
    showing = showing_images(encoder, "stl10")
    colours = rng.integers(0, 256, (20, 3), dtype=np.uint8)
    flat = np.broadcast_to(colours[:, None, None], (20, 8, 8, 3))
    half = flat.copy()
    half[:, :, :4] = 0  # the left half is black
    mean, std = np.array([(0.4409, 0.4279, 0.3868), (0.2683, 0.2610, 0.2687)])
    source = Arrays(flat, np.zeros(20, int), ("a",), "flat")
    views = augmented_features(showing, source, "output", ONE, seed=0)
    for epoch in (0, 1):
        expected = np.broadcast_to(((colours / 255 - mean) / std)[:, None], (20, 64, 3))
        found = views(epoch).x.reshape(20, 64, 3)
        np.testing.assert_allclose(found, expected, atol=1e-4)
    source = Arrays(half, np.zeros(20, int), ("a",), "half")
    views = augmented_features(showing, source, "output", ONE, seed=0)
    zero, one = (views(epoch).x.reshape(20, 8, 8, 3) for epoch in (0, 1))
    darker_left = (zero[:, :, 0] < zero[:, :, -1] - 0.1).any(axis=(1, 2))
    darker_right = (zero[:, :, 0] > zero[:, :, -1] + 0.1).any(axis=(1, 2))
    assert darker_left.sum() > 3 and darker_right.sum() > 3
    assert (np.abs(zero - one).max(axis=(1, 2, 3)) > 0.1).sum() > 10
    assert np.array_equal(views(0).x.reshape(zero.shape), zero)


@pytest.mark.parametrize("kind", ["one size", "many sizes"])
def test_random_views_do_not_depend_on_devices(encoder, kind, monkeypatch):
    encoder, source = showing_images(encoder, "stl10"), OfManySizes(40)
    if kind == "one size":
        images = np.stack([source[i]["image"][:12, :12] for i in range(40)])
        source = Arrays(images, source.labels, source.class_names, source.origin)
    # Batches of other images with other numbers of devices.
    monkeypatch.setattr(forward, "batch_size", lambda _, devices: 16 if len(devices) > 1 else 9)
    one, eight = (
        augmented_features(encoder, source, "output", devices, seed=3)(epoch=2)
        for devices in (ONE, EIGHT)
    )
    np.testing.assert_allclose(one.x, eight.x, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(one.labels, source.labels)
    other = augmented_features(encoder, source, "output", ONE, seed=4)(epoch=2)
    assert not np.allclose(one.x, other.x, atol=0.01)
    pairs = [features.pair_features(encoder, source, devices, seed=3) for devices in (ONE, EIGHT)]
    np.testing.assert_allclose(pairs[0], pairs[1], rtol=1e-4, atol=1e-4)
    assert np.linalg.norm(pairs[0][0] - pairs[0][1], axis=1).min() > 1e-3
    other = features.pair_features(encoder, source, ONE, seed=4)
    assert not np.allclose(pairs[0][0], other[0], atol=1e-3)


def test_mistakes(encoder):
    source = some_digits(slice(3))
    with pytest.raises(UserError, match=r"--layers ouput.*did you mean 'output'.*conv1, conv2"):
        split_features(encoder, source, ["conv1", "ouput"], ONE)
    still = showing_images(encoder, "none", channels=1)
    with pytest.raises(UserError, match=r"--augment: the recipe 'none' .* no random crop or flip"):
        augmented_features(still, source, "output", ONE, seed=0)
