"""What data cost a training step: resident images, and streamed ones."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from benchmarks.timing import device_kind, median, take_turns
from hypersphere_jax import data, models
from hypersphere_jax.configs import (
    DataConfig,
    PretrainConfig,
)
from hypersphere_jax.data.sampling import Sampler
from hypersphere_jax.reporting.tables import print_table
from hypersphere_jax.training import distributed, resolve
from hypersphere_jax.training.batches import device_batches
from hypersphere_jax.training.optimizers import make_optimizer
from hypersphere_jax.training.step import init_state, make_step_of, scalars_of

WARM_UP = 3  # steps that compile, and fill what is read ahead


def pipelines(
    config: DataConfig,
    image_size: int | None,
    batch_size: int,
    steps: int,
    workers: tuple[int, ...],
) -> None:
    """The share of a SmallAlexNet step (one device) that is data, with each pipeline."""
    whole = PretrainConfig(
        **vars(config),
        model="small_alexnet",
        dim=128,
        image_size=image_size,
        batch_size=batch_size,
    )
    dataset = data.load(config)
    whole = resolve.resolve(whole, dataset)
    sampler = Sampler(len(dataset.pretrain), batch_size, 0)
    devices = distributed.local_devices(1)
    runtimes = {f"streaming, {w} workers": {"pipeline": "streaming", "workers": w} for w in workers}
    if dataset.pretrain.image_shape is not None:
        runtimes = {"resident": {"pipeline": "resident"}} | runtimes
    run = _step(whole, dataset, devices)
    rows = []
    for name, runtime in runtimes.items():
        fed = whole.replace(**runtime)
        resident, taken = name == "resident", range(WARM_UP + steps)
        batches = device_batches(fed, dataset, sampler, taken, devices, resident)
        seconds, waits = _loop(run, batches)
        gather = _gather(fed, dataset, sampler, devices) if resident else 0.0
        share = 100 * (waits + gather) / seconds
        rows.append([name, 1e3 * seconds, 1e3 * waits, 1e3 * gather, share, batch_size / seconds])
    columns = ["images", "step ms", "wait ms", "gather ms", "data %", "pairs/s"]
    title = f"SmallAlexNet, {batch_size} pairs of {image_size} pixels, {config.data}"
    print_table(columns, rows, title=f"{title}, {device_kind()}")


def _step(config: PretrainConfig, dataset: data.Dataset, devices: list) -> Callable:
    """A step on a batch, from the first state each time."""
    apply, params, stats = models.create(config, jax.random.key(0))
    optimizer = make_optimizer(config, lambda step: 0.03)
    cropped = dataset.pretrain.image_shape is None
    step = make_step_of(config, apply, 1000, axis_name=distributed.AXIS, cropped=cropped)
    mapped = distributed.pmap(step, devices)
    state = distributed.replicate(init_state(params, stats, optimizer), devices)
    fixed = distributed.replicate((jax.random.key(0), scalars_of(config)), devices)
    return lambda batch: jax.block_until_ready(mapped(state, *batch, *fixed))


def _loop(run: Callable, batches: Iterator) -> tuple[float, float]:
    """Mean seconds of a step, and of these the seconds of waiting for its batch."""
    seconds, waits = [], []
    while True:
        began = time.perf_counter()
        batch: Any = next(batches, None)
        waits.append(time.perf_counter() - began)
        if batch is None:
            break
        run(batch)
        seconds.append(time.perf_counter() - began)
    return float(np.mean(seconds[WARM_UP:])), float(np.mean(waits[WARM_UP:-1]))


def _gather(
    config: PretrainConfig, dataset: data.Dataset, sampler: Sampler, devices: list
) -> float:
    """Median seconds of gathering a batch of resident images."""
    images, labels, indices = next(
        device_batches(config, dataset, sampler, range(1), devices, resident=True)
    )
    gather = jax.jit(lambda images, labels, indices: (images[0][indices[0]], labels[0][indices[0]]))
    form = lambda: jax.block_until_ready(gather(images, labels, indices))  # noqa: E731
    return median(take_turns({"gather": form}, 20)["gather"])
