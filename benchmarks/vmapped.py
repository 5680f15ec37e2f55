"""Steps of encoders trained in one program by `vmap`, against the same ones one after another."""

import dataclasses

import numpy as np

from benchmarks.timing import device_kind, median, ratio, stepping, take_turns
from hypersphere_jax import data
from hypersphere_jax.config import DataConfig, ModelConfig, OptimizerConfig, PretrainConfig
from hypersphere_jax.tables import print_table
from hypersphere_jax.training import sharding
from hypersphere_jax.training.loop import Job, make_run, open_job
from hypersphere_jax.training.step import make_step_of, scalars_of
from hypersphere_jax.training.vmapped import make_vmapped_step, stacked

SINGLE, VMAPPED = "one after another", "vmapped"


def vmapped(
    encoders: tuple[int, ...] = (4,),
    name: str = "digits",
    model: str = "small_cnn",
    dim: int = 32,
    width: float = 1.0,
    batch_size: int = 256,
    steps: int = 5,
    rounds: int = 5,
) -> None:
    """Time steps of encoders that differ in seed and learning rate, on one device.

    Both forms take turns in every round; ratios are medians over the rounds.

    Args:
        encoders: How many of them, in turn.
        name: The data.
        model: The network.
        dim: Dimensions of its output.
        width: Factor on all its channel counts.
        batch_size: Positive pairs in a step of each encoder.
        steps: Steps of each encoder in a round.
        rounds: Rounds that count, after one that compiles.
    """
    rows = []
    for count in encoders:
        base = PretrainConfig(
            data=DataConfig(name=name), model=ModelConfig(name=model, dim=dim, width=width)
        )
        dataset = data.load(base.data)
        jobs = [_job(base, dataset, batch_size, seed) for seed in range(count)]
        images = dataset.pretrain.images, dataset.pretrain.labels
        # Programs of their own, as a run's hyper-parameters are constants of its program.
        single = [stepping(*_single(job, images), steps) for job in jobs]
        forms = {
            SINGLE: lambda runs=single: [run() for run in runs],
            VMAPPED: stepping(*_vmapped(jobs, images), steps),
        }
        times = take_turns(forms, rounds)
        ms = [round(1e3 * median(times[form]) / steps, 1) for form in forms]
        rows.append([count, *ms, ratio(times, SINGLE, VMAPPED)])
    columns = ["encoders", "one after another (ms a step of all)", "vmapped (ms)", "times as fast"]
    title = f"{model} on {name}, {batch_size} pairs each, {device_kind()}"
    print_table(columns, rows, title=title)


def _job(base: PretrainConfig, dataset: data.Dataset, batch_size: int, seed: int) -> Job:
    rule = OptimizerConfig(batch_size=batch_size, learning_rate=0.05 + 0.01 * seed)
    config = dataclasses.replace(base, name=f"{seed}", seed=seed, optimizer=rule)
    return open_job(config, lambda _: dataset)


def _single(job: Job, images: tuple) -> tuple:
    """Step, state and fixed arguments of one run."""
    run = make_run(job)
    step = make_step_of(job.config, run.apply, run.recorder.total, axis_name=sharding.AXIS)
    return step, run.state, (*images, run.sampler(0), run.key, scalars_of(job.config))


def _vmapped(jobs: list[Job], images: tuple) -> tuple:
    """The same of all runs."""
    runs = [make_run(job) for job in jobs]
    first, job = runs[0], jobs[0]
    step = make_vmapped_step(job.config, first.apply, first.recorder.total)
    fixed = [(run.key, scalars_of(job.config)) for run, job in zip(runs, jobs, strict=True)]
    indices = np.stack([run.sampler(0) for run in runs])
    return step, stacked([run.state for run in runs]), (*images, indices, *stacked(fixed))
