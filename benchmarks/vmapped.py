"""Steps of encoders trained in one program by `vmap`, against the same ones one after another."""

import numpy as np

from benchmarks.timing import device_kind, median, ratio, stepping, take_turns
from hypersphere_jax import data
from hypersphere_jax.configs import PretrainConfig
from hypersphere_jax.tables import print_table
from hypersphere_jax.training import sharding
from hypersphere_jax.training.loop import Job, Run, make_run, open_job
from hypersphere_jax.training.step import make_step_of, scalars_of
from hypersphere_jax.training.vmapped import make_vmapped_step, stacked

SINGLE, VMAPPED = "one after another", "vmapped"


def vmapped(
    encoders: tuple[int, ...],
    name: str,
    model: str,
    dim: int,
    width: float,
    batch_size: int,
    steps: int,
    rounds: int,
) -> None:
    """Time steps of encoders in one program, on one device, beside one encoder's, so many times."""
    base = PretrainConfig(data=name, model=model, dim=dim, width=width)
    job = job_of(base, data.load(base), batch_size)
    rows = []
    for count in encoders:
        record = measured(job, count, steps, rounds)
        rows.append([count, round(record["single_ms"], 1), round(record["ms"], 1), record["ratio"]])
    columns = ["encoders", "one after another (ms a step of all)", "vmapped (ms)", "times as fast"]
    title = f"{model} on {name}, {batch_size} pairs each, {device_kind()}"
    print_table(columns, rows, title=title)


def job_of(base: PretrainConfig, dataset: data.Dataset, batch_size: int) -> Job:
    """The run of one of the encoders."""
    config = base.replace(batch_size=batch_size, learning_rate=0.05, devices=1)
    return open_job(config, lambda _, cache_dir: dataset)


def measured(job: Job, count: int, steps: int, rounds: int) -> dict[str, float]:
    """Milliseconds of a step of so many encoders, one after another and in one program."""
    run, images = make_run(job), (job.dataset.pretrain.images, job.dataset.pretrain.labels)
    single = stepping(*_single(job, run, images), steps)
    together = stepping(*_vmapped(job, run, images, count), steps)
    times = take_turns({SINGLE: single, VMAPPED: together}, rounds)
    return {
        "encoders": count,
        "ms": 1e3 * median(times[VMAPPED]) / steps,
        "single_ms": 1e3 * count * median(times[SINGLE]) / steps,
        "ratio": count * ratio(times, SINGLE, VMAPPED),
    }


def _single(job: Job, run: Run, images: tuple) -> tuple:
    """Step, state and fixed arguments of one encoder."""
    step = make_step_of(job.config, run.apply, run.recorder.total, axis_name=sharding.AXIS)
    return step, run.state, (*images, run.sampler(0), run.key, scalars_of(job.config))


def _vmapped(job: Job, run: Run, images: tuple, count: int) -> tuple:
    """The same of so many; equal ones, as their values do not matter to speed."""
    step = make_vmapped_step(job.config, run.apply, run.recorder.total)
    fixed = stacked([(run.key, scalars_of(job.config))] * count)
    indices = np.stack([run.sampler(0)] * count)
    return step, stacked([run.state] * count), (*images, indices, *fixed)
