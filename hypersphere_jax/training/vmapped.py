"""Many encoders trained in one program: `vmap` over their states and scalar hyper-parameters.

The loop is the loop of a single run (train.py), with another step, stacked states, and several runs
in the recorder.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hypersphere_jax import models
from hypersphere_jax.configs import Diverged, PretrainConfig, UserError
from hypersphere_jax.training import distributed, run_dir
from hypersphere_jax.training.batches import vmapped_batches
from hypersphere_jax.training.hparams import scalars_of, structure
from hypersphere_jax.training.objectives import initial_logit_scale
from hypersphere_jax.training.optimizers import make_optimizer, make_schedule
from hypersphere_jax.training.recorder import Recorder, RunRecord, open_run
from hypersphere_jax.training.setup import (
    RunSetup,
    initial_state,
    make_evaluation,
    saved_steps,
    set_up,
)
from hypersphere_jax.training.step import (
    init_state,
    make_step_of,
    make_steps,
)
from hypersphere_jax.training.train import take_steps, train_run
from hypersphere_jax.utils import memory, xla

# Share of a device's memory that the step of all encoders may take.
MEMORY_SHARE = 0.8


@distributed.isolated()
def train_vmapped(
    configs: Sequence[PretrainConfig], command: str = "", at_most: int | None = None
) -> list[Path | Diverged]:
    """Train encoders, or resume their runs, many of them in one program.

    Runs that differ only in scalar hyper-parameters (see `structure`) and are at the same step
    train in one program, with the results of `train` up to rounding. The other runs train one after
    another with `train`, as do runs with a queue and runs whose images are streamed.

    Args:
      configs: Configs of the runs, each with another folder.
      command: Command that the user typed, for the message that says how to continue.
      at_most: Encoders per program; defaults to as many as the devices' memory can hold.

    Returns:
      For each config the folder of its run, or why it diverged: the others continue without it.

    Raises:
      UserError: as `train`; for several processes, or several steps per call.
      Stopped: after a signal, once the states of all runs are saved. The same call continues.
    """
    _check_configs(configs, at_most)
    load = functools.cache(run_dir.open_data)
    setups = [set_up(config, load) for config in configs]
    outcomes: dict[int, Path | Diverged] = {}
    for group in _groups(setups):
        first = setups[group[0]]
        compiled = functools.cache(functools.partial(_compiled, first))
        limit = MEMORY_SHARE * distributed.device_memory(first.devices)
        with xla.kept_compiled(first.config.cache_dir):
            parts = np.array_split(group, _program_count(len(group), at_most, limit, compiled))
            for part in parts:
                trained = _train([setups[i] for i in part], command, compiled)
                outcomes |= dict(zip(part, trained, strict=True))
    return [outcomes[i] for i in range(len(configs))]


def _check_configs(configs: Sequence[PretrainConfig], at_most: int | None) -> None:
    if at_most is not None and at_most < 1:
        raise UserError(f"at_most {at_most}: must be at least 1")
    if jax.process_count() > 1 or any(config.multi_process for config in configs):
        raise UserError("encoders train in one program on one machine: start one on each")
    if any((config.steps_per_call or 1) > 1 for config in configs):
        raise UserError("steps_per_call=: encoders in one program take one step at a time")
    folders = [Path(config.runs_dir, config.name).resolve() for config in configs]
    for folder in folders:
        if folders.count(folder) > 1:
            raise UserError(f"two encoders would be trained in {folder}")


def _groups(setups: Sequence[RunSetup]) -> list[list[int]]:
    """Return the indices of the runs, grouped by the program that can train them."""
    groups: dict[Any, list[int]] = {}
    for i, setup in enumerate(setups):
        step = max(saved_steps(setup.config), default=0)
        is_done = step >= setup.total_steps
        alone = is_done or not setup.resident or setup.config.queue_size > 0
        key = i if alone else (structure(setup.config), step)
        groups.setdefault(key, []).append(i)
    return list(groups.values())


def _train(setups: Sequence[RunSetup], command: str, compiled: Callable) -> list[Path | Diverged]:
    """Train runs of one structure in one program."""
    if len(setups) == 1:
        try:
            return [train_run(setups[0], command)]
        except Diverged as error:
            return [error]
    with contextlib.ExitStack() as stack:
        setup = setups[0]
        applies, states, keys = zip(*map(initial_state, setups), strict=True)
        evaluate = make_evaluation(setup, applies[0])
        runs = [stack.enter_context(open_run(each, command)) for each in setups]
        restored: dict[RunRecord, tuple] = {}
        for run, state, key in zip(runs, states, keys, strict=True):
            restored[run] = (run.restore(state), key, scalars_of(run.setup.config))
        del states  # the steps need the memory
        # A damaged checkpoint may have put one of the runs back.
        for start in sorted({run.start for run in runs}):
            together = [run for run in runs if run.start == start]
            stacked = jax.tree.map(_stack, *[restored.pop(run) for run in together])
            state, *hparams = distributed.replicate(stacked, setup.devices)
            del stacked
            recorder = Recorder(together, vmapped=True)
            samplers = [run.setup.sampler for run in together]
            steps = range(start, setup.total_steps)
            batches = vmapped_batches(setup.config, setup.dataset, samplers, steps, setup.devices)
            step = compiled(len(together))
            with contextlib.suppress(Diverged):
                take_steps(recorder, step, state, hparams, setup.calls(start), batches, evaluate)
    return [run.diverged or run.folder for run in runs]


def _stack(*leaves: Any) -> Any:
    is_key = jax.dtypes.issubdtype(leaves[0].dtype, jax.dtypes.prng_key)
    return jax.numpy.stack(leaves) if is_key else np.stack(leaves)


def _compiled(setup: RunSetup, n: int) -> Any:
    """Compile the step of n encoders: all arguments but images and labels have a leading axis."""
    config = setup.config
    source = setup.dataset.pretrain
    devices = setup.devices
    total = setup.total_steps
    apply, params, stats = models.abstract(config)
    optimizer = make_optimizer(config, make_schedule(config, total))
    initialize = functools.partial(
        init_state, optimizer=optimizer, logit_scale=initial_logit_scale(config)
    )
    state = jax.eval_shape(initialize, params, stats)
    key = jax.eval_shape(jax.random.key, 0)
    indices = jax.ShapeDtypeStruct((config.batch_size // len(devices),), np.int32)
    images = jax.ShapeDtypeStruct((len(source), *source.image_shape), np.uint8)
    labels = jax.ShapeDtypeStruct((len(source),), np.int32)
    shapes = distributed.stacked_shapes
    single = make_step_of(config, apply, total, axis_name=distributed.AXIS)
    steps = make_steps(jax.vmap(single, in_axes=(0, None, None, 0, 0, 0)))
    step = distributed.pmap(steps, devices, donate=(0,))
    lowered = step.lower(
        shapes(state, devices, n),
        *shapes((images, labels), devices),
        *shapes((indices, key, scalars_of(config)), devices, n),
    )
    return lowered.compile()


def _program_count(n: int, at_most: int | None, limit: float, compiled: Callable) -> int:
    """Return into how many programs to split n encoders, so that each fits into the memory."""
    if n == 1 or at_most is not None:
        return math.ceil(n / (at_most or 1))
    size = n
    while size > 1 and (needed := _bytes_needed(compiled, size)) > limit:
        # Memory except for the images grows with the number of encoders: no larger share can fit.
        size = min(size - 1, max(1, int(size * max(limit / needed, 0.5))))
    return math.ceil(n / size)


def _bytes_needed(compiled: Callable, n: int) -> float:
    """Return the memory that the step of n encoders needs on each device."""
    try:
        needed = compiled(n).memory_analysis()
    except jax.errors.JaxRuntimeError as error:  # some compilers refuse what does not fit
        if not memory.is_used_up(error):
            raise
        return math.inf
    arguments = needed.argument_size_in_bytes - needed.alias_size_in_bytes
    return arguments + needed.output_size_in_bytes + needed.temp_size_in_bytes
