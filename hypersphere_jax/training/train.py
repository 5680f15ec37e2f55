"""Training: from a config to the folder of a run, resumable at any step."""

import contextlib
import functools
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hypersphere_jax import models
from hypersphere_jax.configs import PretrainConfig, UserError
from hypersphere_jax.training import distributed, run_dir
from hypersphere_jax.training.batches import call_batches, device_batches
from hypersphere_jax.training.hparams import scalars_of, structure
from hypersphere_jax.training.recorder import Evaluate, Recorder, open_run
from hypersphere_jax.training.setup import RunSetup, initial_state, make_evaluation, set_up
from hypersphere_jax.training.step import make_step_of, make_steps
from hypersphere_jax.training.stopping import StopOnSignal
from hypersphere_jax.utils import memory

CALLS_IN_FLIGHT = 2  # more would delay a stop


@distributed.isolated()
def train(
    config: PretrainConfig,
    command: str = "",
    on_setup: Callable[[PretrainConfig, int], None] | None = None,
) -> Path:
    """Train an encoder, or resume the run in its folder.

    Args:
      config: Config of the run.
      command: Command that the user typed, for the message that says how to continue.
      on_setup: Called by the first process with the complete config and the number of images or
        sentences to train on, before the run's folder is made.

    Returns:
      The run's folder (see docs/runs.md).

    Raises:
      UserError: for an invalid config, or a folder that cannot be written.
      Diverged: for a loss, gradient or parameter that is not finite.
      Stopped: after a signal during the steps (to any process), once the state is saved.
    """
    distributed.initialize(config)
    with distributed.exit_on_error():
        setup = set_up(config)
        if on_setup is not None and distributed.is_first():
            on_setup(setup.config, len(setup.dataset.pretrain))
        return train_run(setup, command)


def train_run(setup: RunSetup, command: str) -> Path:
    """Train, or resume, the run of a setup; see `train`."""
    devices = setup.devices
    apply, state, key = initial_state(setup)
    evaluate = make_evaluation(setup, apply)
    distributed.check_equal(
        {
            **run_dir.training_config(setup.config),
            "images or labels": setup.digest,
            "devices": len(distributed.local(devices)),
            "pipeline": setup.resident,
        }
    )
    with open_run(setup, command) as run:
        state = distributed.replicate(run.restore(state), devices)
        hparams = distributed.replicate((key, scalars_of(setup.config)), devices)
        train_step = compile_train_step(setup)
        calls = setup.calls(run.start, setup.steps_per_call)
        batches = open_batches(setup, run.start)
        take_steps(Recorder([run]), train_step, state, hparams, calls, batches, evaluate)
    return run.folder


def compile_train_step(setup: RunSetup) -> Callable:
    """Return `step(state, *batch, key, hparams) -> (state, metrics)`, mapped over the devices.

    Runs that differ in scalar hyper-parameters share it, and its compiled programs.
    """
    program = structure(setup.config).replace(source=None)
    cropped = setup.dataset.pretrain.image_shape is None
    call = (setup.total_steps, cropped, setup.resident, setup.steps_per_call)
    # Custom code may change between two calls.
    make = _mapped_step.__wrapped__ if program.holds_custom else _mapped_step
    return make(program, *call, tuple(setup.devices))


@functools.lru_cache(maxsize=4)
def _mapped_step(
    config: PretrainConfig,
    total_steps: int,
    cropped: bool,
    resident: bool,
    steps_per_call: int,
    devices: tuple,
) -> Callable:
    apply, _, _ = models.abstract(config)
    options = {"cropped": cropped, "resident": resident}
    step = make_step_of(config, apply, total_steps, axis_name=distributed.AXIS, **options)
    steps = make_steps(step, steps_per_call)
    return distributed.pmap(steps, devices, donate=(0,))


def open_batches(setup: RunSetup, start: int) -> Generator:
    """Yield the arguments from the data for each remaining call of the step."""
    source = (setup.config, setup.dataset, setup.sampler)
    per_call = setup.steps_per_call
    if per_call > 1:
        return call_batches(*source, setup.calls(start, per_call), per_call, setup.devices)
    steps = range(start, setup.total_steps)
    return device_batches(*source, steps, setup.devices, setup.resident)


def take_steps(
    recorder: Recorder,
    train_step: Callable[..., tuple[Any, Any]],
    state: Any,
    hparams: tuple,
    calls: Iterable[range],
    batches: Generator,
    evaluate: Evaluate | None = None,
) -> None:
    """Take the remaining steps of a run, or of vmapped runs, and record them; errors as `train`.

    Each of the calls is `train_step(state, *batch, *hparams) -> (state, metrics)` on the devices.
    """
    setup = recorder.setup
    start = done = recorder.start
    memory.keep_freed(setup.devices[0].platform)
    stop = StopOnSignal()
    with contextlib.ExitStack() as stack, recorder.progress(), contextlib.closing(batches):
        if evaluate is not None and _is_evaluation_missing(recorder):
            recorder.evaluate(start, state, evaluate)
        for call in calls:
            if distributed.should_stop(stop.requested, done - start):
                break
            batch = _next_batch(batches, recorder, done, state)
            with jax.profiler.StepTraceAnnotation("train", step_num=call.start):
                state, metrics = train_step(state, *batch, *hparams)
            done = call.stop
            recorder.add(call, metrics)
            if call.start == start:  # compiling is over
                recorder.complete()
                stack.enter_context(stop)
            if evaluate is not None and setup.is_evaluated(done):
                recorder.save(done, state)
                recorder.evaluate(done, state, evaluate)
            recorder.complete(ahead=CALLS_IN_FLIGHT)
            if recorder.is_due(done):
                recorder.save(done, state)
        recorder.save(done, state)
        recorder.close()
        if stop.requested or done < setup.total_steps:
            raise recorder.stopped(done)


def _next_batch(batches: Generator, recorder: Recorder, done: int, state: Any) -> tuple:
    """Return the next batch; save the state if it cannot be read."""
    try:
        with recorder.meter:
            return next(batches)
    except UserError:  # an unreadable image, or a lost process
        recorder.save(done, state)
        raise


def _is_evaluation_missing(recorder: Recorder) -> bool:
    """Return whether the run resumes from a step whose evaluation was interrupted."""
    lacks_scores = np.asarray(any(run.lacks_scores for run in recorder.runs))
    # Only the first process reads the log.
    is_missing = bool(distributed.from_first_process(lacks_scores))
    return is_missing and recorder.setup.is_evaluated(recorder.start)
