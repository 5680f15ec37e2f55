"""Data pipelines: their share of a training step, next to PyTorch's DataLoader."""

import functools
import importlib.util
import time
from collections.abc import Callable, Generator
from typing import Any

import jax
import numpy as np

from benchmarks.options import DataOptions
from benchmarks.timing import compared, show, take_turns
from hypersphere_jax.configs import DataConfig, PretrainConfig
from hypersphere_jax.configs.base import section
from hypersphere_jax.training import distributed
from hypersphere_jax.training.batches import device_batches
from hypersphere_jax.training.hparams import scalars_of
from hypersphere_jax.training.setup import RunSetup, initial_state, set_up
from hypersphere_jax.training.step import make_step_of

WARM_UP = 3  # steps that fill the queues
EXTRA = 4  # batches read ahead, so that no pipeline ends before the last step
NOTE = """
relative: time of a step relative to the first row. wait: until the next batch arrives. Images are
augmented in the step, on the device.
""".strip()


def run(options: DataOptions) -> list[dict[str, Any]]:
    """Time steps with resident images, streamed images, and PyTorch's DataLoader."""
    config = PretrainConfig(
        **vars(section(options, DataConfig)),
        model=options.model,
        image_size=options.image_size,
        batch_size=options.batch_size,
        devices=1,
    )
    setup = set_up(config)
    source = setup.dataset.pretrain
    pipelines: dict[str, Callable[[], Generator]] = {}
    if source.image_shape is not None:
        pipelines["resident"] = functools.partial(read, setup, 0, True, options.steps)
    for workers in options.workers:
        streamed = functools.partial(read, setup, workers, False, options.steps)
        pipelines[f"streamed, {workers} workers"] = streamed
        if source.image_shape is not None and importlib.util.find_spec("torch") is not None:
            loaded = functools.partial(load_with_torch, source, options.batch_size, workers)
            pipelines[f"DataLoader, {workers} workers"] = loaded
    train_step = make_train_step(setup)
    waits: dict[str, list[float]] = {name: [] for name in pipelines}
    forms = {
        name: functools.partial(loop, train_step, options.steps, pipeline, waits[name])
        for name, pipeline in pipelines.items()
    }
    times = take_turns(forms, options.rounds, measure=lambda form: form())
    rows = compared(times, next(iter(pipelines)))
    for row in rows:
        row["wait ms"] = 1e3 * float(np.median(waits[row["form"]][1:]))
        row["wait %"] = 100 * row["wait ms"] / row["ms"]
        row["pairs/s"] = 1e3 * options.batch_size / row["ms"]
    title = f"{options.data}, {options.model}, {options.batch_size} pairs"
    show(f"{title} of {options.image_size} pixels", rows, NOTE)
    return rows


def make_train_step(setup: RunSetup) -> Callable[[tuple], Any]:
    """Return a function that takes a step on a batch, always from the first state, and waits."""
    apply, state, key = initial_state(setup)
    cropped = setup.dataset.pretrain.image_shape is None
    step = make_step_of(setup.config, apply, 1000, axis_name=distributed.AXIS, cropped=cropped)
    mapped = distributed.pmap(step, setup.devices)
    state = distributed.replicate(state, setup.devices)
    fixed = distributed.replicate((key, scalars_of(setup.config)), setup.devices)
    return lambda batch: jax.block_until_ready(mapped(state, *batch, *fixed))


def read(setup: RunSetup, workers: int, resident: bool, steps: int) -> Generator[tuple]:
    """Return the batches of a run."""
    config = setup.config.replace(workers=workers)
    numbers = range(WARM_UP + steps + EXTRA)
    return device_batches(config, setup.dataset, setup.sampler, numbers, setup.devices, resident)


def load_with_torch(source: Any, batch_size: int, workers: int) -> Generator[tuple]:
    """Yield the same batches, read by PyTorch's DataLoader."""
    from torch.utils.data import DataLoader

    loader = DataLoader(
        source,
        batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        multiprocessing_context="spawn" if workers else None,
        collate_fn=stack_images,
    )
    rest = (np.zeros(batch_size, np.int32), np.arange(batch_size, dtype=np.int32))
    devices = distributed.local_devices(1)
    while True:
        for images in loader:
            yield distributed.replicate((images, *rest), devices)


def stack_images(samples: list[dict]) -> np.ndarray:
    """Return the images of a batch as one array."""
    return np.stack([sample["image"] for sample in samples])


def loop(
    train_step: Callable, steps: int, pipeline: Callable[[], Generator], waits: list[float]
) -> float:
    """Return the mean seconds of a step after the warm-up, and append its mean wait to `waits`."""
    batches = pipeline()
    for _ in range(WARM_UP):
        train_step(next(batches))
    waited = 0.0
    started = time.perf_counter()
    for _ in range(steps):
        before = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - before
        train_step(batch)
    seconds = time.perf_counter() - started
    batches.close()
    waits.append(waited / steps)
    return seconds / steps
