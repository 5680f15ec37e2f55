"""What the steps are fed with: the sampler's images, wherever they are and however they get there.

And runs on images that differ in size, are cut short, or have been moved.
"""

import dataclasses
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import tiny_runs
from PIL import Image
from run_states import timeless

from hypersphere_jax import augment, checkpoint, data, feed, runs, sharding, training
from hypersphere_jax.config import (
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    RuntimeConfig,
    UserError,
)
from hypersphere_jax.data.pipeline import TwoCrops
from hypersphere_jax.data.sampling import Sampler, make_sampler
from hypersphere_jax.data.source import Arrays

BAD = 25  # class1/05.png


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """20 images of each of 3 classes in 7 sizes; one of them cut short."""
    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for label in range(3):
            folder = root / split / f"class{label}"
            folder.mkdir(parents=True)
            for number in range(20):
                height, width = 12 + number % 7, 12 + number % 5
                pixels = rng.integers(0, 120, (height, width, 3), dtype=np.uint8)
                pixels[..., label] += 130
                Image.fromarray(pixels).save(folder / f"{number:02}.png")
        cut = root / split / "class1" / "05.png"
        cut.write_bytes(cut.read_bytes()[:300])
    return root


def varied(folder, images, **changes):
    """12 steps on these images; no checkpoint but the first and the last."""
    # With this seed the bad one stands in the last batch of the first epoch.
    seed = next(seed for seed in range(99) if BAD in Sampler(60, 10, seed)(5))
    base = tiny_runs.short(
        folder,
        "varied",
        seed=seed,
        data=DataConfig(name=str(images), bad_images="skip"),
        model=ModelConfig(dim=3, width=0.1, image_size=8),
        optimizer=OptimizerConfig(epochs=2, batch_size=10),
        runtime=RuntimeConfig(devices=2, log_every_steps=1, checkpoint_every_steps=100),
    )
    return dataclasses.replace(base, **changes)


@pytest.fixture(scope="module")
def varied_run(images, tmp_path_factory):
    return training.train(varied(tmp_path_factory.mktemp("runs"), images))


def gathered(batch):
    """Images and labels of a global batch, as the step of each device takes them."""
    images, labels, indices = map(np.asarray, batch)
    devices = range(len(indices))
    return [np.concatenate([part[d][indices[d]] for d in devices]) for part in (images, labels)]


def test_resident_and_streamed_images_are_the_samplers(tmp_path):
    for pipeline in ("resident", "streaming"):
        for count in (1, 2, 4):
            runtime = RuntimeConfig(devices=count, pipeline=pipeline)
            task = training._task(tiny_runs.short(tmp_path, seed=3, runtime=runtime))
            assert task.resident == (pipeline == "resident")
            source = task.dataset.pretrain
            order, steps = make_sampler(source, 220, 3), range(5, 9)  # over the border of an epoch
            batches = list(feed.feed(task.config, task.dataset, order, steps, task.devices))
            assert len(batches) == len(steps)
            for step, batch in zip(steps, batches, strict=True):
                found, labels = gathered(batch)
                rows = order(step)
                np.testing.assert_array_equal(found, source.images[rows], err_msg=pipeline)
                np.testing.assert_array_equal(labels, source.labels[rows])


def test_encoders_that_train_together_have_their_own_batches(tmp_path):
    task = training._task(tiny_runs.short(tmp_path))
    source = task.dataset.pretrain
    orders = [Sampler(1400, 220, seed) for seed in (1, 2, 3)]
    fed = feed.feed_together(task.config, task.dataset, orders, range(4, 8), task.devices)
    for step, (images, labels, indices) in zip(range(4, 8), fed, strict=True):
        assert indices.shape == (2, 3, 110)
        for one, order in enumerate(orders):
            found, classes = gathered((images, labels, indices[:, one]))
            np.testing.assert_array_equal(found, source.images[order(step)])
            np.testing.assert_array_equal(classes, source.labels[order(step)])


def test_the_host_crops_images_of_many_sizes(images, tmp_path):
    task = training._task(varied(tmp_path, images))
    source, seed = task.dataset.pretrain, task.config.seed
    order, steps = make_sampler(source, 10, seed), range(4, 9)
    crops = TwoCrops(augment.host_crops(task.config.data.recipe, 8)[0], seed)
    fed = feed.feed(task.config, task.dataset, order, steps, task.devices)
    for step, batch in zip(steps, fed, strict=True):
        found, labels = gathered(batch)
        for position, number in enumerate(order(step)):
            if number != BAD:  # another one takes its place
                expected = crops(np.asarray(source[number]["image"]), step, position)
                np.testing.assert_array_equal(found[position], expected)
                assert labels[position] == source.labels[number]


def test_images_in_order(images, tmp_path):
    task = training._task(varied(tmp_path, images))
    crop = lambda image, step, position: image[:8, :8]  # noqa: E731
    test = task.dataset.test
    small = Arrays(np.arange(50, dtype=np.uint8).reshape(50, 1, 1, 1), np.arange(50), (), "small")
    streamed = dataclasses.replace(task.config.runtime, pipeline="streaming")
    for source, config, prepare, bad in (
        (test, task.config, crop, [BAD]),
        (small, task.config, None, []),
        (small, dataclasses.replace(task.config, runtime=streamed), None, []),
    ):
        batches = list(feed.in_order(config, source, 16, task.devices, prepare))
        n = len(source)
        assert [len(batch.indices) for batch in batches] == [16, 16, 16, n - 48]
        found, labels, numbers = map(np.concatenate, zip(*batches, strict=True))
        assert numbers.tolist() == [-1 if i in bad else i for i in range(n)]
        for i in set(range(n)) - set(bad):
            whole = np.asarray(source[i]["image"])
            np.testing.assert_array_equal(found[i], crop(whole, 0, 0) if prepare else whole)
            assert labels[i] == source.labels[i]


def test_resident_images_that_cannot_be_read_are_no_black_ones(monkeypatch, tmp_path):
    task = training._task(tiny_runs.short(tmp_path))
    source = task.dataset.test

    def found_bad(source, bad, *_):
        bad.found[7] = "cut short"
        return SimpleNamespace(images=source.images, labels=source.labels)

    monkeypatch.setattr(feed, "in_memory", found_bad)
    batches = list(feed.in_order(task.config, source, 100, task.devices))
    numbers = np.concatenate([batch.indices for batch in batches])
    assert numbers.tolist() == [-1 if i == 7 else i for i in range(len(source))]


def test_sentences_in_order_keep_all_their_words(rng):
    config = tiny_runs.short("runs", model=ModelConfig("sentence_gru"))
    lengths = rng.integers(1, 60, 21)
    words = np.where(np.arange(64) < lengths[:, None], rng.integers(1, 9, (21, 64)), 0)
    source = [{"image": row, "label": i % 3} for i, row in enumerate(words)]
    batches = list(feed.in_order(config, source, 8, jax.devices()[:1]))
    assert [len(batch.images) for batch in batches] == [8, 8, 5]
    for start, batch in zip((0, 8, 16), batches, strict=True):
        part, width = words[start : start + 8], batch.images.shape[1]
        np.testing.assert_array_equal(batch.images, part[:, :width])
        assert width % 16 == 0 and not part[:, width:].any()
        assert width < lengths[start : start + 8].max() + 16
        assert batch.indices.tolist() == list(range(start, start + len(part)))
        assert batch.labels.tolist() == [i % 3 for i in batch.indices]


def test_what_fits_is_resident(monkeypatch):
    source = Arrays(np.zeros((100, 8, 8, 3), np.uint8), np.zeros(100, int), ("a",), "zeros")
    devices = jax.devices()[:1]
    for memory, expected in ((4 * source.images.size, True), (4 * source.images.size - 4, False)):
        monkeypatch.setattr(sharding, "memory", lambda devices, memory=memory: memory)
        assert feed.is_resident(source, "auto", devices) is expected
    assert not feed.is_resident(source, "streaming", devices)
    assert feed.is_resident(source, "resident", devices)
    monkeypatch.undo()
    assert 2**28 < sharding.memory(devices) < 2**50
    assert sharding.memory(jax.devices()) == sharding.memory(devices) // 8  # they share it


def test_what_ends_reading_loses_no_step(varied_run, images, tmp_path):
    """A run ends before the first bad image with its steps saved, and goes on when told to skip."""
    strict = varied(tmp_path, images, data=DataConfig(name=str(images)))
    with pytest.raises(UserError, match=r"class1/05\.png.*--bad-images skip"):
        training.train(strict)
    # Two batches are on the devices before the step that takes them, and the bad one in the sixth.
    assert checkpoint.steps(tmp_path / "varied" / "checkpoints") == [0, 3]
    training.train(varied(tmp_path, images))
    assert timeless(tmp_path / "varied") == timeless(varied_run)
    assert len(timeless(varied_run)) == 12


def test_sizes_that_differ_ask_for_options(images, tmp_path):
    resident = RuntimeConfig(devices=2, pipeline="resident")
    for changes, message in (
        ({"model": ModelConfig(dim=3, width=0.1)}, r"differ in size.*--image-size"),
        ({"runtime": resident}, r"--pipeline resident.*differ in size"),
    ):
        with pytest.raises(UserError, match=message):
            training.train(varied(tmp_path, images, **changes))
    assert not list(tmp_path.iterdir())


def test_moved_data(varied_run, images, tmp_path):
    moved = str(shutil.copytree(images, tmp_path / "elsewhere"))
    assert runs.load_data(varied_run, moved).digest() == runs.load_data(varied_run).digest()
    with pytest.raises(UserError, match=r"not exist.*--data-dir|no file.*--data-dir"):
        runs.load_data(varied_run, str(tmp_path / "nowhere"))
    # The run itself goes on there, and remembers.
    folder = shutil.copytree(varied_run, tmp_path / "varied")
    training.train(varied(tmp_path, moved))
    assert runs.read_config(folder).data.name == moved
    assert data.load(runs.read_config(folder).data).digest() == runs.load_data(varied_run).digest()


@pytest.mark.slow
def test_workers_and_devices_change_nothing(varied_run, images, tmp_path, caplog):
    losses = [record["loss"] for record in timeless(varied_run)]
    runtime = varied(tmp_path, images).runtime
    for place, changes, tolerance in (("w", {"workers": 2}, 0), ("one", {"devices": 1}, 1e-4)):
        other = varied(tmp_path / place, images, runtime=dataclasses.replace(runtime, **changes))
        found = [record["loss"] for record in timeless(training.train(other))]
        np.testing.assert_allclose(found, losses, rtol=tolerance)
    assert "class1/05.png" in caplog.text
