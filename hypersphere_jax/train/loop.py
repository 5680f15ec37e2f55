"""The one training loop: from configs to runs' folders, exactly resumable at any moment."""

import contextlib
import functools
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from hypersphere_jax import data, models
from hypersphere_jax.config import Diverged, PretrainConfig, Stopped, UserError, require
from hypersphere_jax.data.batches import feed, feed_together, is_resident
from hypersphere_jax.data.sampling import make_sampler
from hypersphere_jax.evaluate.online import make_evaluation
from hypersphere_jax.train import checkpoint, processes, run_folder, sharding
from hypersphere_jax.train.assembly import (
    check_groups,
    labelled,
    numbers_of,
    resolve,
    step_of,
    step_together,
    structure,
)
from hypersphere_jax.train.optimizers import make_optimizer, make_schedule
from hypersphere_jax.train.progress import track
from hypersphere_jax.train.session import Group, Run
from hypersphere_jax.train.signals import StopSignals
from hypersphere_jax.train.step import init_state

# Of a device's memory, what the step of encoders that train together may take.
MEMORY_SHARE = 0.8


class Task(NamedTuple):
    """What a config asks for, its data opened and its open fields filled in."""

    config: PretrainConfig
    dataset: data.Dataset
    digest: str
    devices: list[jax.Device]
    resident: bool


def train(config: PretrainConfig, command: str = "") -> Path:
    """Trains an encoder, or continues the run that is in its folder.

    Args:
      config: all of the run.
      command: what the user typed, for the line that says how to continue.

    Returns:
      The run's folder (see docs/runs.md).

    Raises:
      UserError: for a mistake in the config, a folder that cannot be written.
      Diverged: for a loss, gradient or parameter that is not finite.
      Stopped: after SIGTERM or SIGINT (on any host), once the state is saved.
    """
    processes.join(config.runtime)
    with processes.ending_together(), StopSignals() as stop:
        (outcome,) = _train([_task(config)], command or "the same command", stop)
        if isinstance(outcome, Diverged):
            raise outcome
        return outcome


def train_together(
    configs: Sequence[PretrainConfig], command: str = "", at_most: int | None = None
) -> list[Path | Diverged]:
    """Trains encoders, or continues their runs, many of them in one program.

    Those that differ in numbers alone (see `structure`) and stand at the same step are trained
    together, with the results of `train` up to rounding. What is left over is trained as by
    `train`, one after another; so are runs with a queue, and such whose images are streamed.

    Args:
      configs: all of the runs, each with a folder of its own.
      command: what the user typed, for the line that says how to continue.
      at_most: encoders at a time. None: as many as the devices' memory holds.

    Returns:
      For each config the folder of its run, or why it diverged: the others go on without it.

    Raises:
      UserError: as `train`, before the first run is begun where it can be known by then; for
        several hosts.
      Stopped: after SIGTERM or SIGINT, once the states of all that train are saved. The same call
        goes on.
    """
    require(at_most is None or at_most >= 1, f"at_most {at_most}: must be at least 1")
    command = command or "the same command"
    several = any(config.runtime.has_hosts for config in configs) or jax.process_count() > 1
    require(not several, "encoders train together on one host: start one process for each host")
    folders = [run_folder.folder_of(config).resolve() for config in configs]
    for folder in folders:
        require(folders.count(folder) == 1, f"two encoders would be trained in {folder}")
    outcomes: list[Path | Diverged | None] = [None] * len(configs)
    with StopSignals() as stop:
        load = functools.cache(data.load)
        tasks = [_task(config, load) for config in configs]
        for numbers in _alike(tasks):
            compiled = _compiler(tasks[numbers[0]])
            parts = _parts(tasks[numbers[0]], len(numbers), at_most, compiled)
            for part in np.array_split(numbers, parts):
                if stop.asked:
                    raise Stopped(f"stopped between two groups of encoders; to go on: {command}")
                found = _train([tasks[i] for i in part], command, stop, compiled)
                for i, outcome in zip(part, found, strict=True):
                    outcomes[i] = outcome
    return outcomes


def _task(config: PretrainConfig, load: Callable = data.load) -> Task:
    devices = sharding.everywhere(config.runtime.devices)
    sharding.share(config.optimizer.batch_size, devices)
    dataset = load(config.data)
    config = resolve(config, dataset)
    check_groups(config, len(devices))
    digest = dataset.digest()
    if config.objective.supervised_weight:
        dataset = labelled(dataset)
    resident = is_resident(dataset.pretrain, config.runtime.pipeline, devices)
    return Task(config, dataset, digest, devices, resident)


def _alike(tasks: Sequence[Task]) -> list[list[int]]:
    """The places of the tasks, those together that can train together."""
    groups: dict[Any, list[int]] = {}
    for i, (config, dataset, _, _, resident) in enumerate(tasks):
        sampler = make_sampler(dataset.pretrain, config.optimizer.batch_size, config.seed)
        saved = checkpoint.steps(run_folder.folder_of(config) / "checkpoints") or [0]
        done = saved[-1] >= config.optimizer.epochs * sampler.steps_per_epoch
        alone = done or not resident or config.moco.queue_size > 0
        groups.setdefault(i if alone else (structure(config), saved[-1]), []).append(i)
    return list(groups.values())


def _parts(task: Task, n: int, at_most: int | None, compiled: Callable) -> int:
    """Into how many groups n encoders are cut, each trained at a time."""
    if n == 1 or at_most is not None:
        return math.ceil(n / (at_most or 1))
    limit = MEMORY_SHARE * sharding.memory(task.devices)
    size = n
    while size > 1 and (needed := _needed(compiled, size)) > limit:
        # All but the images grows with their number, so that no more than this share will fit.
        size = min(size - 1, max(1, int(size * max(limit / needed, 0.5))))
    return math.ceil(n / size)


def _needed(compiled: Callable, n: int) -> float:
    """Bytes that the step of n encoders needs on each device, with all that it is given."""
    try:
        found = compiled(n).memory_analysis()
    except jax.errors.JaxRuntimeError as error:  # some compilers refuse what does not fit
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return math.inf
    return (
        found.argument_size_in_bytes
        + found.output_size_in_bytes
        - found.alias_size_in_bytes
        + found.temp_size_in_bytes
    )


def _compiler(task: Task) -> Callable[[int], Any]:
    """(number of encoders) -> their compiled step; each is compiled once."""

    @functools.cache
    def compiled(n: int) -> Any:
        config, dataset, _, devices, _ = task
        size, source = config.optimizer.batch_size, dataset.pretrain
        total = config.optimizer.epochs * (len(source) // size)
        apply, params, stats = models.abstract(config.model)
        optimizer = make_optimizer(config.optimizer, make_schedule(config.optimizer, total))
        initial = functools.partial(init_state, optimizer=optimizer)
        state = jax.eval_shape(initial, params, stats)
        key = jax.eval_shape(jax.random.key, 0)
        indices = jax.ShapeDtypeStruct((size // len(devices),), np.int32)
        shared = (
            jax.ShapeDtypeStruct((len(source), *source.image_shape), np.uint8),
            jax.ShapeDtypeStruct((len(source),), np.int32),
        )

        def of(*axes):
            return lambda x: jax.ShapeDtypeStruct((len(devices), *axes, *x.shape), x.dtype)

        step = sharding.pmap(step_together(config, apply, dataset, total), devices, donate=(0,))
        state, indices, key, numbers = jax.tree.map(
            of(n), (state, indices, key, numbers_of(config))
        )
        return step.lower(state, *jax.tree.map(of(), shared), indices, key, numbers).compile()

    return compiled


def _train(
    tasks: Sequence[Task], command: str, stop: StopSignals, compiled: Callable | None = None
) -> list[Path | Diverged]:
    """Trains one task, or several that are alike in one program, to their ends."""
    config, dataset, digest, devices, resident = tasks[0]
    with contextlib.ExitStack() as held:
        members = [Run(task.config, dataset) for task in tasks]
        apply, evaluate = members[0].apply, None
        if config.evaluate.eval_every_epochs is not None:
            # Each host evaluates the same by itself, as the others would only wait for the first.
            evaluate = make_evaluation(config, dataset, apply, sharding.here(devices))
        processes.agree(
            {
                "config": run_folder.shaping(config),
                "data": digest,
                "devices": len(sharding.here(devices)),
                "resident": resident,
            }
        )
        for run in members:
            held.enter_context(run.opened(devices, digest, command))
        # A damaged checkpoint may have put one of them back.
        for start in sorted({run.start for run in members}):
            alike = [run for run in members if run.start == start]
            _steps(Group(alike), tasks[0], evaluate, command, stop, compiled)
    return [run.diverged or run.folder for run in members]


def _steps(
    group: Group,
    task: Task,
    evaluate: Callable | None,
    command: str,
    stop: StopSignals,
    compiled: Callable | None,
) -> None:
    """The loop: the steps of a group from where it stands to the end."""
    total, runtime = group.total, task.config.runtime
    every = (task.config.evaluate.eval_every_epochs or 1) * group.members[0].sampler.steps_per_epoch
    with contextlib.ExitStack() as held:
        held.enter_context(group.shown())
        step_fn, state, fixed = _program(group, task, compiled)
        batches = held.enter_context(contextlib.closing(_batches(group, task, stop, command)))
        for step in range(group.start + 1, total + 1):
            if processes.stops(stop.asked, step - 1):
                group.save(step - 1, state)
                if not group.going():
                    return
                group.close()
                raise Stopped(
                    f"stopped and saved at step {step - 1} of {total} in {group.folders()}; "
                    f"to go on: {command}"
                )
            try:
                with group.meter:
                    batch = next(batches)
            except UserError:  # an image that cannot be read, or a process that is lost
                group.save(step - 1, state)
                if not group.going():
                    return
                raise
            state, metrics = step_fn(state, *batch, *fixed)
            group.stepped(step, metrics)
            evaluates = evaluate is not None and (step % every == 0 or step == total)
            if step % runtime.log_every_steps == 0 or step == total or evaluates:
                group.log(step, state, evaluate if evaluates else None)
            if step % runtime.checkpoint_every_steps == 0 or step == total:
                group.save(step, state)
            if not group.going():
                return
        group.close()
        if stop.asked:
            raise Stopped(
                f"stopped after the last step, all is saved in {group.folders()}; again: {command}"
            )


def _program(group: Group, task: Task, compiled: Callable | None) -> tuple[Callable, Any, tuple]:
    """The step, the state on the devices, and what each step is given besides its batch."""
    members, devices = group.members, task.devices
    fixed = (group.stack([run.key for run in members]),)
    if len(members) == 1:
        (run,) = members
        step = step_of(run.config, run.apply, run.optimizer, task.dataset, run.total, task.resident)
        step_fn = sharding.pmap(step, devices, donate=(0,))
    else:
        step_fn = compiled(len(members))
        fixed += (group.stack([numbers_of(run.config) for run in members]),)
    state = group.stack([run.take_state() for run in members])
    return step_fn, sharding.replicate(state, devices), sharding.replicate(fixed, devices)


def _batches(group: Group, task: Task, stop: StopSignals, command: str) -> Generator:
    run, samplers = group.members[0], [run.sampler for run in group.members]
    track = functools.partial(_decoding, stop, command)
    end = (range(group.start, group.total), task.devices, track)
    if len(samplers) == 1:
        return feed(run.config, task.dataset, run.sampler, *end)
    return feed_together(run.config, task.dataset, samplers, *end)


def _decoding(stop: StopSignals, command: str, items: Sequence[int]) -> Iterator[int]:
    for item in track(items, "decoding"):
        if stop.asked:
            raise Stopped(
                f"stopped while decoding the images, before a step was taken; to go on: {command}"
            )
        yield item
