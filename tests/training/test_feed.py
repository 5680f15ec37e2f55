"""Batches on the devices: the sampler's images, however they get there; and the devices."""

import dataclasses
import itertools
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import tiny_runs
from PIL import Image
from run_states import timeless

from hypersphere_jax import augment
from hypersphere_jax import configs as C
from hypersphere_jax.data import subsets
from hypersphere_jax.data.pipeline import TwoCrops
from hypersphere_jax.data.sampling import Sampler
from hypersphere_jax.data.source import Arrays
from hypersphere_jax.training import batches, checkpoints, distributed, run_dir
from hypersphere_jax.training import step as train_step
from hypersphere_jax.training import train as training
from hypersphere_jax.training.setup import set_up

BAD = 25  # class1/05.png


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """20 images of each of 3 classes in 7 sizes; one of them cut short."""
    root, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for split, label, number in itertools.product(("train", "test"), range(3), range(20)):
        file = root / split / f"class{label}" / f"{number:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        size = (12 + number % 7, 12 + number % 5, 3)
        Image.fromarray(rng.integers(0, 256, size, dtype=np.uint8)).save(file)
        if (label, number) == (1, 5):
            file.write_bytes(file.read_bytes()[:300])
    return root


def varied(folder, images, bad_images="skip"):
    """12 steps on these images; no checkpoint but the first and the last."""
    return tiny_runs.short(
        folder,
        "varied",
        # With this seed the bad one is in the last batch of the first epoch.
        seed=next(seed for seed in range(99) if BAD in Sampler(60, 10, seed)(5)),
        data=str(images),
        bad_images=bad_images,
        dim=3,
        width=0.1,
        image_size=8,
        epochs=2,
        batch_size=10,
        devices=2,
        log_every_steps=1,
        checkpoint_every_steps=100,
    )


@pytest.fixture(scope="module")
def varied_run(images, tmp_path_factory):
    return training.train(varied(tmp_path_factory.mktemp("runs"), images))


def gathered(images, labels, indices):
    """Of a global batch, as the step of each device takes them."""
    parts = (zip(np.asarray(part), indices, strict=True) for part in (images, labels))
    return [np.concatenate([mine[rows] for mine, rows in part]) for part in parts]


def assert_of_sampler(batch, source, rows):
    for found, given in zip(gathered(*batch), (source.images, source.labels), strict=True):
        np.testing.assert_array_equal(found, given[rows])


@pytest.mark.slow
def test_resident_and_streamed_images_are_the_samplers(tmp_path):
    steps = range(5, 9)  # over the border of an epoch
    for pipeline, count in itertools.product(("resident", "streaming"), (1, 2, 4)):
        runtime = C.RuntimeConfig(devices=count, pipeline=pipeline)
        job = set_up(tiny_runs.short(tmp_path, seed=3, runtime=runtime))
        some = subsets.Subset(job.dataset.train, np.arange(300), "with labels, say")
        dataset = job.dataset._replace(train=some)  # the batches are of `pretrain`
        job = dataclasses.replace(job, dataset=dataset)
        assert job.resident == (pipeline == "resident")
        order = Sampler(len(job.dataset.pretrain), 220, 3)
        fed = batches.device_batches(
            job.config, job.dataset, order, steps, job.devices, job.resident
        )
        for step, batch in zip(steps, fed, strict=True):
            assert_of_sampler(batch, job.dataset.pretrain, order(step))
    # Vmapped runs have their own batches.
    orders = [Sampler(1400, 220, seed) for seed in (1, 2, 3)]
    fed = batches.vmapped_batches(job.config, job.dataset, orders, steps, job.devices)
    for step, (*parts, indices) in zip(steps, fed, strict=True):
        for one, order in enumerate(orders):
            assert_of_sampler((*parts, indices[:, one]), job.dataset.pretrain, order(step))


@pytest.mark.slow
def test_the_host_crops_images_of_many_sizes(images, tmp_path):
    job = set_up(varied(tmp_path, images))
    source, seed = job.dataset.pretrain, job.config.seed
    order, steps = Sampler(len(source), 10, seed), range(4, 9)
    crops = TwoCrops(augment.host_crops(job.config.recipe, 8)[0], seed)
    fed = batches.device_batches(job.config, job.dataset, order, steps, job.devices, False)
    for step, batch in zip(steps, fed, strict=True):
        found, labels = gathered(*batch)
        for position, number in enumerate(order(step)):
            if number != BAD:  # another one takes its place
                crop = crops(np.asarray(source[number]["image"]), step, position)
                assert np.array_equal(found[position], crop)
                assert labels[position] == source.labels[number]


def test_images_in_order(images, tmp_path, monkeypatch):
    job = set_up(varied(tmp_path, images))
    crop = lambda image, step, position: image[:8, :8]  # noqa: E731
    small = Arrays(np.arange(50, dtype=np.uint8).reshape(50, 1, 1, 1), np.arange(50), (), "small")
    for source, prepare, bad in ((job.dataset.test, crop, [BAD]), (small, None, [])):
        found = list(batches.eval_batches(job.config, source, 16, job.devices, prepare))
        n = len(source)
        assert [len(batch.indices) for batch in found] == [16] * 3 + [n - 48]
        found, labels, numbers = map(np.concatenate, zip(*found, strict=True))
        assert numbers.tolist() == [-1 if i in bad else i for i in range(n)]
        for i in set(range(n)) - set(bad):
            whole = np.asarray(source[i]["image"])
            np.testing.assert_array_equal(found[i], crop(whole, 0, 0) if prepare else whole)
            assert labels[i] == source.labels[i]

    # Resident images that cannot be read are no black ones.
    def found_bad(source, bad, *_):
        bad.reasons[7] = "cut short"
        return SimpleNamespace(images=source.images, labels=source.labels)

    monkeypatch.setattr(batches, "in_memory", found_bad)
    found = batches.eval_batches(job.config, small, 16, job.devices)
    numbers = [number for batch in found for number in batch.indices]
    assert numbers == [-1 if i == 7 else i for i in range(50)]


@pytest.mark.slow
def test_what_ends_reading_loses_no_step(varied_run, images, tmp_path):
    """A run ends before the first bad image with its steps saved, and goes on when told to skip."""
    with pytest.raises(C.UserError, match=r"class1/05\.png.*bad_images=skip"):
        training.train(varied(tmp_path, images, "error"))
    # Two batches are on the devices before the step that takes them, and the bad one in the sixth.
    assert checkpoints.steps(tmp_path / "varied" / "checkpoints") == [0, 3]
    training.train(varied(tmp_path, images))
    assert timeless(tmp_path / "varied") == timeless(varied_run)
    assert len(timeless(varied_run)) == 12


def test_what_the_step_is_told(images, tmp_path, monkeypatch):
    """Whether images come cropped, and with further channels, or stay; and how long the run is."""
    given = {}
    monkeypatch.setattr(train_step, "make_augment", lambda *_, **options: given.update(options))
    monkeypatch.setattr(train_step, "make_moco_step", lambda *_, **options: given.update(options))
    monkeypatch.setattr(training, "take_steps", lambda *_: None)
    monkeypatch.setattr(training, "make_steps", lambda *_: None)
    monkeypatch.setattr(distributed, "pmap", lambda *_, **options: None)

    def made(config, apply, total, *, axis_name, cropped, resident):
        scalars = train_step.scalars_of(config)
        train_step._step_of(config, apply, None, total, axis_name, cropped, resident, scalars)

    monkeypatch.setattr(training, "make_step_of", made)
    moco = {"queue_size": 13, "ema_decay": 0.9, "ema_schedule": "cosine", "batch_norm": "sync"}
    streamed = varied(tmp_path, images).replace(bits=2)
    resident = tiny_runs.short(tmp_path)
    for config, told in ((streamed, (True, 2, False)), (resident, (False, 0, True))):
        training.train(config.replace(**moco))
        assert tuple(map(given.get, ("cropped", "extra_channels", "resident"))) == told
        np.testing.assert_allclose([given["decay"](step) for step in (6, 12)], [0.95, 1.0])


@pytest.mark.slow
def test_moved_data(varied_run, images, tmp_path):
    moved = str(shutil.copytree(images, tmp_path / "elsewhere"))
    assert run_dir.load_data(varied_run, moved).digest() == run_dir.load_data(varied_run).digest()
    # The run itself goes on there, and remembers.
    shutil.copytree(varied_run, tmp_path / "varied")
    assert run_dir.read_config(training.train(varied(tmp_path, moved))).data == moved


def test_each_process_reads_its_rows(monkeypatch):
    devices = distributed.global_devices(4)
    assert devices == distributed.local(devices) == jax.local_devices()[:4]
    devices = [SimpleNamespace(process_index=process) for process in (0, 0, 1, 1, 2, 2)]
    for process in range(3):
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        assert distributed.local(devices) == devices[2 * process : 2 * process + 2]
        assert distributed.local_rows(12, devices) == slice(4 * process, 4 * process + 4)
