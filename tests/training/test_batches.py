"""Batches on the devices: the images of the sampler, resident or streamed."""

import itertools
from types import SimpleNamespace

import jax
import numpy as np
import own_parts
import pytest
import tiny_runs
from PIL import Image
from run_states import timeless

import hypersphere_jax as hj
from hypersphere_jax import augment
from hypersphere_jax import configs as C
from hypersphere_jax.data import subsets
from hypersphere_jax.data.pipeline import TwoCrops
from hypersphere_jax.data.sampling import Sampler
from hypersphere_jax.training import batches, checkpoints, distributed
from hypersphere_jax.training import train as training
from hypersphere_jax.training.setup import set_up

BAD = 25  # class1/05.png


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder of 20 images of each of 3 classes in several sizes; one of them is cut short."""
    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for split, label, number in itertools.product(("train", "test"), range(3), range(20)):
        file = root / split / f"class{label}" / f"{number:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        size = (12 + number % 7, 12 + number % 5, 3)
        Image.fromarray(rng.integers(0, 256, size, dtype=np.uint8)).save(file)
        if (label, number) == (1, 5):
            file.write_bytes(file.read_bytes()[:300])
    return root


def config(folder, images, **changes):
    """Return the config of 12 steps, where the unreadable image is in the sixth batch."""
    seed = next(seed for seed in range(99) if BAD in Sampler(60, 10, seed)(5))
    options = {"seed": seed, "data": str(images), "bad_images": "skip", "image_size": 8}
    options |= {"batch_size": 10, "log_every_steps": 1, "checkpoint_every_steps": 100}
    return tiny_runs.short(folder, "images", **(options | changes))


def gather(images, labels, indices):
    """Return the rows that the devices take, in the order of the global batch."""
    rows = [np.asarray(part) for part in indices]
    return [
        np.concatenate([np.asarray(part)[i] for part, i in zip(array, rows, strict=True)])
        for array in (images, labels)
    ]


def assert_rows(batch, source, rows):
    images, labels = gather(*batch)
    np.testing.assert_array_equal(images, source.images[rows])
    np.testing.assert_array_equal(labels, source.labels[rows])


@tiny_runs.needs_devices(4)
@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("pipeline", ["resident", "streaming"])
def test_batches_are_those_of_the_sampler(pipeline, devices, tmp_path):
    """Batches cover all training images, across the end of an epoch."""
    options = {"devices": devices, "pipeline": pipeline, "seed": 3}
    run = set_up(tiny_runs.short(tmp_path, **options))
    labelled = subsets.Subset(run.dataset.train, np.arange(300), "labelled images")
    dataset = run.dataset._replace(train=labelled)
    source = dataset.pretrain
    assert run.resident == (pipeline == "resident")
    steps = range(5, 8)
    given = (run.config, dataset, run.sampler, steps, run.devices, run.resident)
    for step, batch in zip(steps, batches.device_batches(*given), strict=True):
        assert_rows(batch, source, run.sampler(step))


@tiny_runs.needs_devices(2)
def test_batches_of_several_steps_and_of_vmapped_runs(tmp_path):
    run = set_up(tiny_runs.short(tmp_path))
    source = run.dataset.pretrain
    calls = [range(3, 6), range(6, 8)]
    given = (run.config, run.dataset, run.sampler, calls, 3, run.devices)
    for call, (*arrays, indices, count) in zip(calls, batches.call_batches(*given), strict=True):
        assert np.asarray(count).tolist() == [len(call)] * 2
        for number, step in enumerate(call):
            assert_rows((*arrays, indices[:, number]), source, run.sampler(step))
    samplers = [Sampler(1400, 220, seed) for seed in (1, 2, 3)]
    given = (run.config, run.dataset, samplers, range(5, 8), run.devices)
    vmapped = batches.vmapped_batches(*given)
    for step, (*arrays, indices) in zip(range(5, 8), vmapped, strict=True):
        for number, sampler in enumerate(samplers):
            assert_rows((*arrays, indices[:, number]), source, sampler(step))


@tiny_runs.needs_devices(2)
@pytest.mark.parametrize("microbatch_size", [None, 2])
def test_host_crops_images_of_several_sizes(microbatch_size, images, tmp_path):
    run = set_up(config(tmp_path, images, microbatch_size=microbatch_size))
    source = run.dataset.pretrain
    crops = TwoCrops(augment.host_crops(run.config.recipe, 8)[0], run.config.seed)
    steps = range(4, 8)
    given = (run.config, run.dataset, run.sampler, steps, run.devices, False)
    for step, batch in zip(steps, batches.device_batches(*given), strict=True):
        cropped, labels = gather(*batch)
        indices = run.sampler(step)
        positions = range(10)
        if microbatch_size:  # the first device takes the first of each two rows
            positions = (*range(0, 10, 2), *range(1, 10, 2))
        for row, position in enumerate(positions):
            index = indices[position]
            if index != BAD:  # another image takes its place
                crop = crops(np.asarray(source[index]["image"]), step, position)
                np.testing.assert_array_equal(cropped[row], crop)
                assert labels[row] == source.labels[index]


@pytest.mark.slow
def test_step_does_not_crop_again_what_the_host_cropped(tmp_path, rng):
    """The first loss of a recipe that only crops is computed from the host's crops."""
    images = [rng.integers(0, 256, (12 + i, 20, 3), np.uint8) for i in range(10)]
    crop = ("random_resized_crop", {"scale": (0.2, 0.5)})
    recipe = hj.Recipe(train=(crop,), evaluate=(("center_crop", {}),))
    options = own_parts.config(tmp_path, image_size=8, batch_size=10, epochs=1)
    parts = {"network": own_parts.NETWORK, "augment": recipe, "loss": own_parts.spread}
    run = hj.train(options, data=images, **parts)
    host_crops = TwoCrops(augment.host_crops(recipe, 8)[0], options.seed)
    order = Sampler(10, 10, options.seed)(0)
    views = [host_crops(images[i], 0, position) for position, i in enumerate(order)]
    views = np.float32(views) / 255
    params = run.load(0).params
    x, y = (hj.l2_normalize(own_parts.apply(params, views[:, i])) for i in (0, 1))
    np.testing.assert_allclose(run.metrics[0]["loss"], own_parts.spread(x, y), rtol=1e-5)


@pytest.mark.slow
def test_unreadable_image_ends_the_run_with_its_steps_saved(images, tmp_path):
    with pytest.raises(C.UserError, match=r"class1/05\.png.*bad_images=skip"):
        training.train(config(tmp_path, images, bad_images="error"))
    # Two batches are on the devices before their step.
    assert checkpoints.steps(tmp_path / "images" / "checkpoints") == [0, 3]
    assert len(timeless(training.train(config(tmp_path, images)))) == 12


def test_each_process_takes_its_rows(monkeypatch):
    devices = [SimpleNamespace(process_index=process) for process in (0, 0, 1, 1, 2, 2)]
    for process in range(3):
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        assert distributed.local(devices) == devices[2 * process : 2 * process + 2]
        rows = distributed.local_rows(12, devices).tolist()
        assert rows == list(range(4 * process, 4 * process + 4))
        # Two microbatches of six rows, one row on each device.
        rows = distributed.local_rows(12, devices, microbatches=2).tolist()
        assert rows == [2 * process, 2 * process + 6, 2 * process + 1, 2 * process + 7]
