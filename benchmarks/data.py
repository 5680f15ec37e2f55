"""Data pipelines: their share of a training step, next to PyTorch's DataLoader."""

import functools
import time
from collections.abc import Callable, Generator
from typing import Any

import jax
import numpy as np

from benchmarks.timing import HAS_TORCH, Stepper, compared, show, take_turns
from hypersphere_jax.configs import PretrainConfig, require
from hypersphere_jax.training import distributed
from hypersphere_jax.training.batches import device_batches
from hypersphere_jax.training.setup import RunSetup, set_up

WARM_UP = 3  # steps that fill the queues
EXTRA = 4  # batches read ahead, so that no pipeline ends before the last step
NOTE = """
relative: time of a step relative to the first row. wait: until the next batch arrives. Images are
augmented in the step, on the device.
""".strip()


def run(
    data: str = "digits",
    data_dir: str | None = None,
    model: str = "small_alexnet",
    image_size: int = 32,
    batch_size: int = 64,
    workers: tuple[int, ...] = (0, 2),
    steps: int = 10,
    rounds: int = 2,
) -> list[dict[str, Any]]:
    """Data pipelines: their share of a training step, compared with PyTorch's DataLoader.

    Args:
      data: Data set, as in `pretrain`.
      data_dir: Folder of a data set given by name.
      model: Network.
      image_size: Side of the images that enter the network, in pixels.
      batch_size: Positive pairs in a batch.
      workers: Numbers of reading processes; 0 reads in threads.
      steps: Steps to measure in each round.
      rounds: Rounds to measure, after one that compiles.
    """
    require(steps >= 1, f"steps={steps}: must be at least 1")
    setup = set_up(
        PretrainConfig(
            data=data,
            data_dir=data_dir,
            model=model,
            image_size=image_size,
            batch_size=batch_size,
            devices=1,
        )
    )
    pipelines = make_pipelines(setup, workers, WARM_UP + steps + EXTRA)
    stepper = Stepper(setup)
    waits: dict[str, list[float]] = {name: [] for name in pipelines}
    forms = {
        name: functools.partial(loop, stepper, steps, pipeline, waits[name])
        for name, pipeline in pipelines.items()
    }
    rows = compared(take_turns(forms, rounds, measure=lambda form: form()), next(iter(forms)))
    for row in rows:
        row["wait ms"] = 1e3 * np.median(waits[row["form"]][1:])
        row["wait %"] = 100 * row["wait ms"] / row["ms"]
        row["pairs/s"] = 1e3 * batch_size / row["ms"]
    show(f"{data}, {model}, {batch_size} pairs of {image_size} pixels", rows, NOTE)
    return rows


def make_pipelines(
    setup: RunSetup, workers: tuple[int, ...], steps: int
) -> dict[str, Callable[[], Generator]]:
    """Return functions that open a pipeline; only images of one size are resident or stacked."""
    has_one_size = setup.dataset.pretrain.image_shape is not None
    pipelines = {}
    if has_one_size:
        pipelines["resident"] = functools.partial(read, setup, 0, True, steps)
    for count in workers:
        streamed = functools.partial(read, setup, count, False, steps)
        pipelines[f"streamed, {count} workers"] = streamed
        if has_one_size and HAS_TORCH:
            loaded = functools.partial(load_with_torch, setup, count)
            pipelines[f"DataLoader, {count} workers"] = loaded
    return pipelines


def read(setup: RunSetup, workers: int, resident: bool, steps: int) -> Generator[tuple]:
    """Return the batches of a run."""
    config = setup.config.replace(workers=workers)
    data = (setup.dataset, setup.sampler)
    return device_batches(config, *data, range(steps), setup.devices, resident)


def load_with_torch(setup: RunSetup, workers: int) -> Generator[tuple]:
    """Yield batches of the same size, read by PyTorch's DataLoader."""
    from torch.utils.data import DataLoader

    batch_size = setup.config.batch_size
    loader = DataLoader(
        setup.dataset.pretrain,
        batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        multiprocessing_context="spawn" if workers else None,
        collate_fn=stack_images,
    )
    rest = (np.zeros(batch_size, np.int32), np.arange(batch_size, dtype=np.int32))
    while True:
        for images in loader:
            yield distributed.replicate((images, *rest), setup.devices)


def stack_images(samples: list[dict]) -> np.ndarray:
    """Return the images of a batch as one array."""
    return np.stack([sample["image"] for sample in samples])


def loop(
    stepper: Stepper, steps: int, pipeline: Callable[[], Generator], waits: list[float]
) -> float:
    """Return the mean seconds of a step after the warm-up, and append its mean wait to `waits`."""
    batches = pipeline()
    for _ in range(WARM_UP):
        jax.block_until_ready(stepper(*next(batches)))
    waited = 0.0
    started = time.perf_counter()
    for _ in range(steps):
        before = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - before
        jax.block_until_ready(stepper(*batch))
    seconds = time.perf_counter() - started
    batches.close()
    waits.append(waited / steps)
    return seconds / steps
