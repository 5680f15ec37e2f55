"""Steps of encoders trained in one program by `vmap`, against the same ones one after another."""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np

from benchmarks.timing import take_turns
from hypersphere_jax import data
from hypersphere_jax.config import DataConfig, ModelConfig, OptimizerConfig, PretrainConfig
from hypersphere_jax.report import print_table
from hypersphere_jax.train import sharding
from hypersphere_jax.train.loop import Job, make_run, open_job
from hypersphere_jax.train.step import make_step_of
from hypersphere_jax.train.vmapped import make_vmapped_step, scalars_of, stacked


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

    Both forms take turns in every round, so that a machine whose speed drifts slows both alike;
    ratios are medians over the rounds.

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
        forms = {
            "one after another": _one_after_another(jobs, dataset, steps),
            "vmapped": _vmapped(jobs, dataset, steps),
        }
        times = take_turns(forms, rounds)
        single, joint = times["one after another"] / steps, times["vmapped"] / steps
        rows.append(
            [
                count,
                round(1e3 * float(np.median(single)), 1),
                round(1e3 * float(np.median(joint)), 1),
                float(np.median(single / joint)),
            ]
        )
    title = f"{model} on {name}, {batch_size} pairs each, {jax.devices()[0].device_kind}"
    columns = ["encoders", "one after another (ms a step of all)", "vmapped (ms)", "times as fast"]
    print_table(columns, rows, title=title)


def _job(base: PretrainConfig, dataset: data.Dataset, batch_size: int, seed: int) -> Job:
    rule = OptimizerConfig(batch_size=batch_size, learning_rate=0.05 + 0.01 * seed)
    config = dataclasses.replace(base, name=f"{seed}", seed=seed, optimizer=rule)
    return open_job(config, lambda _: dataset)


def _one_after_another(jobs: list[Job], dataset: data.Dataset, steps: int) -> Callable:
    # Programs of their own, as a run's hyper-parameters are constants of its program.
    rounds = [_stepping(_single(job), dataset, steps) for job in jobs]

    def run_all():
        for one in rounds:
            one()

    return run_all


def _single(job: Job) -> tuple:
    run, source = make_run(job), job.dataset.pretrain
    total, axis = run.recorder.total, {"axis_name": sharding.AXIS}
    step = make_step_of(job.config, source, run.apply, run.optimizer, total, **axis)
    return step, run.state, run.sampler(0), (run.key,)


def _vmapped(jobs: list[Job], dataset: data.Dataset, steps: int) -> Callable:
    runs = [make_run(job) for job in jobs]
    first, config = runs[0], jobs[0].config
    step = make_vmapped_step(config, dataset.pretrain, first.apply, first.recorder.total)
    fixed = stacked(
        [(run.key, scalars_of(job.config)) for run, job in zip(runs, jobs, strict=True)]
    )
    state = stacked([run.state for run in runs])
    indices = np.stack([run.sampler(0) for run in runs])
    return _stepping((step, state, indices, fixed), dataset, steps)


def _stepping(program: tuple, dataset: data.Dataset, steps: int) -> Callable:
    step, state, indices, fixed = program
    devices = sharding.local_devices(1)
    mapped = sharding.pmap(step, devices, donate=(0,))
    state = sharding.replicate(state, devices)
    images = dataset.pretrain.images, dataset.pretrain.labels
    batch = sharding.replicate((*images, indices), devices)
    fixed = sharding.replicate(fixed, devices)

    def run():
        nonlocal state
        for _ in range(steps):
            state, metrics = mapped(state, *batch, *fixed)
        jax.block_until_ready(metrics)

    return run
