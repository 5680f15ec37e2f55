"""The training loop: from a config to a run's folder, resumable at any step."""

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from hypersphere_jax import data, memory, models, signals
from hypersphere_jax.configs import PretrainConfig, UserError
from hypersphere_jax.configs.base import holds_custom
from hypersphere_jax.data.batches import call_batches, device_batches, image_cache, is_resident
from hypersphere_jax.data.sampling import make_sampler
from hypersphere_jax.moco import queue_init
from hypersphere_jax.training import processes, run_folder, sharding
from hypersphere_jax.training.optimizers import make_optimizer, make_schedule
from hypersphere_jax.training.processes import StopSignals
from hypersphere_jax.training.profiling import Profiler
from hypersphere_jax.training.recorder import Evaluate, Recorder
from hypersphere_jax.training.resolve import check_batch_norm, check_custom, labelled, resolve
from hypersphere_jax.training.step import (
    Momentum,
    TrainState,
    init_state,
    make_step_of,
    make_steps,
    scalars_of,
    structure,
)

IN_FLIGHT = 2  # calls that are not yet completed when a further one begins
AT_ONCE = 10  # steps of a call on accelerators, where a small network waits for the host otherwise


class Job(NamedTuple):
    """A config with its open fields filled in, and its data opened."""

    config: PretrainConfig
    dataset: data.Dataset
    digest: str
    devices: list[jax.Device]
    resident: bool  # whether all images stay on the devices


class Run(NamedTuple):
    """What a job trains with: all but the data."""

    apply: Callable
    sampler: Callable
    key: jax.Array
    state: TrainState
    recorder: Recorder


@sharding.isolated()
def train(
    config: PretrainConfig,
    command: str = "",
    opened: Callable[[PretrainConfig, int], None] = lambda config, samples: None,
) -> Path:
    """Trains an encoder, or continues the run that is in its folder.

    Args:
      config: all of the run.
      command: what the user typed, for the line that says how to continue.
      opened: is called with the whole config and the number of images or sentences to train on,
        once these are there, by the first process.

    Returns:
      The run's folder (see docs/runs.md).

    Raises:
      UserError: for an invalid config, a folder that cannot be written.
      Diverged: for a loss, gradient or parameter that is not finite.
      Stopped: after SIGTERM or SIGINT (to any process), once the state is saved.
    """
    processes.initialize(config)
    with processes.exit_on_error(), sharding.kept_compiled(config.cache_dir):
        job = open_job(config)
        if processes.is_first():
            opened(job.config, len(job.dataset.pretrain))
        return train_job(job, command)


def train_job(job: Job, command: str) -> Path:
    """Trains, or continues, the run of a job; see `train`."""
    config, dataset, digest, devices, resident = job
    memory.keep_freed(devices[0].platform)
    apply, sampler, key, state, recorder = make_run(job)
    evaluate = make_evaluate(job, apply)
    processes.check_equal(
        {
            "config": run_folder.training_config(config),
            "data": digest,
            "devices": len(sharding.local(devices)),
            "resident": resident,
        }
    )
    with recorder.opened(devices, digest, command):
        state = sharding.replicate(recorder.restored(state), devices)
        cropped, at_once = dataset.pretrain.image_shape is None, steps_at_once(job)
        program = structure(config).replace(source=None)  # other images share it
        map_step = _mapped_step.__wrapped__ if holds_custom(program) else _mapped_step
        how = recorder.total, cropped, resident, at_once, tuple(devices)
        step = map_step(program, *how)
        fixed = sharding.replicate((key, scalars_of(config)), devices)
        if at_once == 1:
            steps = range(recorder.start, recorder.total)
            batches = device_batches(config, dataset, sampler, steps, devices, resident)
        else:
            calls = calls_of(recorder, at_once)
            batches = call_batches(config, dataset, sampler, calls, at_once, devices)
        taken, calls = lambda s, batch: step(s, *batch, *fixed), calls_of(recorder, at_once)
        fit(recorder, taken, state, calls, batches, evaluate, command)
    return recorder.folder


def steps_at_once(job: Job) -> int:
    """Steps in one program, at most."""
    if not job.resident:  # each step has a batch of its own, and its time outweighs the host's
        return 1
    on_cpu = job.devices[0].platform == "cpu"
    return job.config.steps_per_call or (1 if on_cpu else AT_ONCE)


def calls_of(recorder: Recorder, at_once: int = 1) -> Iterator[range]:
    """The steps that are left, those together that are taken in one call."""
    runtime, every = recorder.config, _evaluation_every(recorder)
    ends = {every, runtime.log_every_steps}
    ends |= {runtime.checkpoint_every_steps or every, runtime.keep_every_steps or every}
    start = recorder.start
    while start < recorder.total:
        stop = min(start + at_once, recorder.total, *(start + n - start % n for n in ends))
        yield range(start, stop)
        start = stop


def _evaluation_every(recorder: Recorder) -> int:
    """Steps between two evaluations, if there are some."""
    return (recorder.config.eval_every_epochs or 1) * recorder.steps_per_epoch


@functools.lru_cache(maxsize=4)  # runs that differ in scalar hyper-parameters compile once
def _mapped_step(
    config: PretrainConfig,
    total: int,
    cropped: bool,
    resident: bool,
    at_once: int,
    devices: tuple,
) -> Callable:
    apply, _, _ = models.abstract(config)
    options = {"cropped": cropped, "resident": resident}
    step = make_step_of(config, apply, total, axis_name=sharding.AXIS, **options)
    step = make_steps(step, at_once)
    return sharding.pmap(step, devices, donate=(0,), network=True)


def fit(
    recorder: Recorder,
    step: Callable[[Any, Any], tuple[Any, Any]],
    state: Any,
    calls: Iterable[range],
    batches: Generator,
    evaluate: Evaluate | None,
    command: str = "",
) -> None:
    """Takes the steps of a run that are left, and records them.

    Args:
      recorder: of the run, opened; `start` steps are done.
      step: (state, batch) -> (state, metrics), on the devices.
      state: on the devices.
      calls: the steps that are left, see `calls_of`.
      batches: of each call.
      evaluate: of the encoder, every so many epochs; None: not at all.
      command: that continues the run.

    Raises:
      UserError: when an image cannot be read, once the state is saved.
      Diverged: for a loss, gradient or parameter that is not finite.
      Stopped: as `train`.
    """
    total, every = recorder.total, _evaluation_every(recorder)
    runtime = recorder.config
    log_every = runtime.log_every_steps
    with (
        StopSignals(command, f"all steps are done and saved in {recorder.where}") as stop,
        recorder.progress_bar(),
        contextlib.closing(batches),
        Profiler(runtime.profile, run_folder.folder_of(recorder.config) / "profile") as profiler,
    ):
        in_flight: deque[tuple[int, Any]] = deque()

        def is_evaluated(step: int) -> bool:
            return evaluate is not None and (step % every == 0 or step == total)

        def saved_at(step: int) -> str:
            return f"saved at step {step} of {total} in {recorder.where}"

        def score(step: int) -> None:
            with stop.at_once(saved_at(step)):
                recorder.evaluate(step, state, evaluate)

        def complete(ahead: int) -> None:
            """Waits until no more calls than these are ahead; logs the steps that are completed."""
            while len(in_flight) > ahead:
                number, waited = in_flight.popleft()
                jax.block_until_ready(waited)
                signals.set_answer(processes.AFTER_STEP)
                recorder.completed(number)
                recorder.save_first()
                if number % log_every == 0 or number == total or is_evaluated(number):
                    recorder.log(number)

        def save(step: int) -> None:
            complete(0)
            recorder.save(step, state)

        # The first process alone reads the log.
        was_interrupted = sharding.from_first_process(np.asarray(recorder.lacks_scores()))
        if was_interrupted and is_evaluated(recorder.start):
            score(recorder.start)
        signals.set_answer(processes.COMPILING)
        for call in calls:
            done, number, last = call.start, call.stop, call.stop == total
            if processes.should_stop(stop.asked, done - recorder.start):
                save(done)
                recorder.close()
                raise stop.stopped(saved_at(done))
            try:
                with recorder.meter:
                    batch = next(batches)
            except UserError:  # an image that cannot be read, or a process that is lost
                save(done)
                raise
            with profiler.call(call, state):
                state, metrics = step(state, batch)
            recorder.add_metrics(call, metrics)
            in_flight.append((number, metrics))
            if is_evaluated(number):
                save(number)
                recorder.wait()
                score(number)
            # Else a stop would wait for all steps up to the next line of the log.
            complete(0 if done == recorder.start else IN_FLIGHT)
            if last or recorder.is_due(number):
                save(number)
        recorder.close()


def open_job(config: PretrainConfig, load: Callable = data.load) -> Job:
    """Opens the data of a config, and fills its open fields in.

    Raises:
      UserError: for a config that does not fit the data or the devices.
    """
    run_folder.require_known(config)
    devices = sharding.global_devices(config.devices)
    sharding.check_batch_size(config.batch_size, devices)
    dataset = load(config, cache_dir=image_cache(config))
    config = resolve(config, dataset)
    check_batch_norm(config, len(devices))
    if holds_custom(config.replace(source=None)):
        check_custom(config, dataset.pretrain, devices)
    digest = dataset.digest()
    if config.supervised_weight:
        dataset = labelled(dataset)
    resident = is_resident(dataset.pretrain, config.pipeline, devices)
    return Job(config, dataset, digest, devices, resident)


def make_run(job: Job) -> Run:
    """Network and the state at step 0: random, or that of the run to start from."""
    config, source = job.config, job.dataset.pretrain
    vocabulary = getattr(source, "vocabulary", None)
    sampler = make_sampler(source, config.batch_size, config.seed)
    total = config.epochs * sampler.steps_per_epoch
    optimizer = make_optimizer(config, make_schedule(config, total))
    recorder = Recorder(config, sampler.steps_per_epoch, vocabulary, job.dataset)
    network_key, step_key, queue_key = _keys(np.uint32(config.seed))
    apply, params, stats = models.create(config, network_key)
    fresh = not run_folder.saved_steps(config)
    if config.init_from is not None and fresh and processes.is_first():
        params, stats = run_folder.initial_encoder(config, params, vocabulary)
    state = init_state(params, stats, optimizer)
    if config.queue_size:
        queue = queue_init(queue_key, config.queue_size, config.dim)
        state = state._replace(momentum=Momentum(params, stats, queue))
    return Run(apply, sampler, step_key, state, recorder)


@jax.jit  # one program where each call by itself would be one
def _keys(seed: jax.Array) -> list[jax.Array]:
    """Independent keys of a run."""
    return [jax.random.fold_in(jax.random.key(seed), number) for number in range(3)]


def make_evaluate(job: Job, apply: Callable) -> Evaluate | None:
    """What scores the encoder while it trains, if the config asks for it."""
    if job.config.eval_every_epochs is None:
        return None
    from hypersphere_jax.evaluate.online import make_evaluation  # which others need not import

    # Each process evaluates the same by itself, as the others would only wait for the first.
    return make_evaluation(job.config, job.dataset, apply, sharding.local(job.devices))
