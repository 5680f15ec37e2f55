"""Steps of encoders that train together in one program, against the same ones one after another."""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np

from benchmarks.timing import take_turns
from hypersphere_jax import data
from hypersphere_jax.config import DataConfig, ModelConfig, OptimizerConfig, PretrainConfig
from hypersphere_jax.report import print_table
from hypersphere_jax.train import assembly, sharding
from hypersphere_jax.train.session import Run


def together(
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
        runs = [_run(base, dataset, batch_size, seed) for seed in range(count)]
        forms = {
            "one after another": _one_after_another(runs, dataset, steps),
            "together": _together(runs, dataset, steps),
        }
        times = take_turns(forms, rounds)
        single, joint = times["one after another"] / steps, times["together"] / steps
        rows.append(
            [
                count,
                round(1e3 * float(np.median(single)), 1),
                round(1e3 * float(np.median(joint)), 1),
                float(np.median(single / joint)),
            ]
        )
    title = f"{model} on {name}, {batch_size} pairs each, {jax.devices()[0].device_kind}"
    columns = ["encoders", "one after another (ms a step of all)", "together (ms)", "times as fast"]
    print_table(columns, rows, title=title)


def _run(base: PretrainConfig, dataset: data.Dataset, batch_size: int, seed: int) -> Run:
    rule = OptimizerConfig(batch_size=batch_size, learning_rate=0.05 + 0.01 * seed)
    config = dataclasses.replace(base, name=f"{seed}", seed=seed, optimizer=rule)
    return Run(assembly.resolve(config, dataset), dataset)


def _one_after_another(runs: list[Run], dataset: data.Dataset, steps: int) -> Callable:
    # Programs of their own, though here one could serve them all: a run's numbers are constants.
    rounds = [_stepping(_alone(run, dataset), steps) for run in runs]

    def run_all():
        for one in rounds:
            one()

    return run_all


def _alone(run: Run, dataset: data.Dataset) -> tuple:
    step = assembly.step_of(run.config, run.apply, run.optimizer, dataset, run.total, True)
    return step, run.state, run.sampler(0), (run.key,), dataset


def _together(runs: list[Run], dataset: data.Dataset, steps: int) -> Callable:
    first = runs[0]
    step = assembly.step_together(first.config, first.apply, dataset, first.total)
    state = jax.tree.map(lambda *x: np.stack(x), *[run.state for run in runs])
    numbers = jax.tree.map(
        lambda *x: np.stack(x), *[assembly.numbers_of(run.config) for run in runs]
    )
    keys = jax.numpy.stack([run.key for run in runs])
    indices = np.stack([run.sampler(0) for run in runs])
    return _stepping((step, state, indices, (keys, numbers), dataset), steps)


def _stepping(program: tuple, steps: int) -> Callable:
    step, state, indices, fixed, dataset = program
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
