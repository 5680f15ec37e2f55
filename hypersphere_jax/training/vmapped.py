"""Many encoders trained in one program: `vmap` over their states and scalar hyper-parameters.

The loop is that of one run. Here its step is mapped over stacked states, and its recorder writes
the folder of each run.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hypersphere_jax import data, memory, models
from hypersphere_jax.configs import Diverged, PretrainConfig, require
from hypersphere_jax.data.batches import vmapped_batches
from hypersphere_jax.data.sampling import make_sampler
from hypersphere_jax.training import run_folder, sharding
from hypersphere_jax.training.loop import (
    Job,
    calls_of,
    fit,
    make_evaluate,
    make_run,
    open_job,
    train_job,
)
from hypersphere_jax.training.optimizers import make_optimizer, make_schedule
from hypersphere_jax.training.recorder import (
    Evaluate,
    Recorder,
    encoder_of,
    on_host,
    read_metrics,
    tree_of,
)
from hypersphere_jax.training.step import (
    TrainState,
    init_state,
    make_step_of,
    make_steps,
    scalars_of,
    structure,
)

# Of a device's memory, what the step of all encoders may take.
MEMORY_SHARE = 0.8


@sharding.isolated()
def train_vmapped(
    configs: Sequence[PretrainConfig], command: str = "", at_most: int | None = None
) -> list[Path | Diverged]:
    """Trains encoders, or continues their runs, many of them in one program.

    Those that differ in scalar hyper-parameters alone (see `structure`), and of which as many steps
    are done, are trained in one, with the results of `train` up to rounding. The others are trained
    by `train`, one after another; so are runs with a queue, and such whose images are streamed.

    Args:
      configs: all of the runs, each with a folder of its own.
      command: what the user typed, for the line that says how to continue.
      at_most: encoders at a time. None: as many as the devices' memory holds.

    Returns:
      For each config the folder of its run, or why it diverged: the others go on without it.

    Raises:
      UserError: as `train`, before the first run is begun where it can be known by then; for
        several processes, or several steps per call.
      Stopped: after SIGTERM or SIGINT, once the states of all that train are saved. The same call
        goes on.
    """
    require(at_most is None or at_most >= 1, f"at_most {at_most}: must be at least 1")
    multi = any(config.multi_process for config in configs) or jax.process_count() > 1
    require(not multi, "encoders train in one program on one machine: start one on each")
    several = any((config.steps_per_call or 1) > 1 for config in configs)
    require(not several, "steps_per_call=: encoders in one program take one step at a time")
    folders = [run_folder.folder_of(config).resolve() for config in configs]
    for folder in folders:
        require(folders.count(folder) == 1, f"two encoders would be trained in {folder}")
    outcomes: dict[int, Path | Diverged] = {}
    load = functools.cache(data.load)
    jobs = [open_job(config, load) for config in configs]
    for group in _groups(jobs):
        first = jobs[group[0]]
        compiled = functools.cache(functools.partial(_compiled, first))
        limit = MEMORY_SHARE * sharding.memory(first.devices)
        with sharding.kept_compiled(first.config.cache_dir):
            for part in np.array_split(group, _parts(len(group), at_most, limit, compiled)):
                trained = _train([jobs[i] for i in part], command, compiled)
                outcomes |= dict(zip(part, trained, strict=True))
    return [outcomes[i] for i in range(len(configs))]


def make_vmapped_step(config: PretrainConfig, apply: Callable, total: int) -> Callable:
    """`make_step_of`'s step for encoders of one structure, whose images are resident.

    All its arguments but `images` and `labels` have a leading axis of the encoders.
    """
    step = make_step_of(config, apply, total, axis_name=sharding.AXIS)
    return make_steps(jax.vmap(step, in_axes=(0, None, None, 0, 0, 0)))


class VmappedRecorder:
    """As `Recorder`, of several runs with stacked states: one that diverges ends, others go on.

    Args:
      runs: the recorders of the runs, opened, of which as many steps are done.
    """

    def __init__(self, runs: Sequence[Recorder]):
        first = runs[0]
        self.config, self.start, self.total = first.config, first.start, first.total
        self.steps_per_epoch, self.meter = first.steps_per_epoch, first.meter
        first.title += f" and {len(runs) - 1} more"
        self._runs, self.diverged = list(runs), dict[int, Diverged]()
        self._kept: list[tuple[range, Any]] = []

    @property
    def where(self) -> str:
        return ", ".join(run.where for _, run in self._going())

    def progress_bar(self) -> contextlib.AbstractContextManager:
        return self._runs[0].progress_bar()

    def completed(self, step: int) -> None:
        self._runs[0].completed(step)

    def save_first(self) -> None:
        for _, run in reversed(self._going()):  # the first one's meter counts, from then on
            run.save_first()

    def add_metrics(self, call: range, metrics: Any) -> None:
        self.meter.steps_begun(len(call))
        self._kept.append((call, metrics))

    def fetch_metrics(self, step: int) -> None:
        for number, values in read_metrics(self._kept, step):
            self._each(lambda i, run: run.check(number, _part(values, i)))  # noqa: B023

    def is_due(self, step: int) -> bool:
        return any(run.is_due(step) for _, run in self._going())

    def log(self, step: int) -> None:
        self.fetch_metrics(step)
        figures = self.meter.read()
        self._show(lambda _, run: run.write(step, figures))

    def lacks_scores(self) -> bool:
        return any(run.lacks_scores() for _, run in self._going())

    def evaluate(self, step: int, state: TrainState, evaluate: Evaluate) -> None:
        encoders, finite = on_host(encoder_of(state), runs=True)
        self._show(lambda i, run: run.add_scores(step, _part(encoders, i), finite[i], evaluate))
        if step > self.start:
            self.meter.reset()  # exclude the evaluation from images/s

    def save(self, step: int, state: TrainState) -> None:
        self.fetch_metrics(step)
        self.save_first()
        if any(run.saved != step for _, run in self._going()):
            trees, finite = on_host(tree_of(state), runs=True)
            self._each(lambda i, run: run.save_tree(step, _part(trees, i), finite[i]))

    def wait(self) -> None:
        self._each(lambda _, run: run.wait())

    def close(self) -> None:
        self._each(lambda _, run: run.close())

    def _going(self) -> list[tuple[int, Recorder]]:
        return [(i, run) for i, run in enumerate(self._runs) if i not in self.diverged]

    def _show(self, record_of: Callable[[int, Recorder], dict[str, float]]) -> None:
        """Shows the record of the first run that continues."""
        records: list[dict[str, float]] = []
        self._each(lambda i, run: records.append(record_of(i, run)))
        self._runs[0].update_progress(records[0])

    def _each(self, do: Callable[[int, Recorder], None]) -> None:
        """Does it for each run that goes on; raises Diverged when there is none any more."""
        for i, run in self._going():
            try:
                do(i, run)
            except Diverged as error:
                self.diverged[i] = error
                run.close()
        if not self._going():
            raise list(self.diverged.values())[-1]


def _train(jobs: Sequence[Job], command: str, compiled: Callable) -> list[Path | Diverged]:
    """Trains jobs of one structure in one program, to their ends."""
    if len(jobs) == 1:
        try:
            return [train_job(jobs[0], command)]
        except Diverged as error:
            return [error]
    job, runs = jobs[0], [make_run(job) for job in jobs]
    memory.keep_freed(job.devices[0].platform)
    evaluate = make_evaluate(job, runs[0].apply)
    diverged: dict[Path, Diverged] = {}
    with contextlib.ExitStack() as stack:
        for recorder in [run.recorder for run in runs]:
            stack.enter_context(recorder.opened(job.devices, job.digest, command))
        states = [run.recorder.restored(run.state) for run in runs]
        runs = [run._replace(state=None) for run in runs]  # memory that the steps need
        # A damaged checkpoint may have put one of them back.
        for start in sorted({run.recorder.start for run in runs}):
            places = [i for i, run in enumerate(runs) if run.recorder.start == start]
            part = [runs[i] for i in places]
            recorder = VmappedRecorder([run.recorder for run in part])
            state = sharding.replicate(stacked([states[i] for i in places]), job.devices)
            for i in places:
                states[i] = None
            with contextlib.suppress(Diverged):
                _fit(job, part, recorder, state, evaluate, command, compiled)
            diverged |= {part[i].recorder.folder: error for i, error in recorder.diverged.items()}
    return [diverged.get(run.recorder.folder, run.recorder.folder) for run in runs]


def _fit(job, runs, recorder, state, evaluate, command, compiled) -> None:
    """The loop of runs of which as many steps are done."""
    devices = job.devices
    step = compiled(len(runs))
    fixed = stacked([(run.key, scalars_of(run.recorder.config)) for run in runs])
    fixed = sharding.replicate(fixed, devices)
    steps, samplers = range(recorder.start, recorder.total), [run.sampler for run in runs]
    batches = vmapped_batches(job.config, job.dataset, samplers, steps, devices)
    taken = lambda s, batch: step(s, *batch, *fixed)  # noqa: E731
    fit(recorder, taken, state, calls_of(recorder), batches, evaluate, command)


def _groups(jobs: Sequence[Job]) -> list[list[int]]:
    """The places of the jobs, those together that can train in one program."""
    groups: dict[Any, list[int]] = {}
    for i, (config, dataset, _, _, resident) in enumerate(jobs):
        sampler = make_sampler(dataset.pretrain, config.batch_size, config.seed)
        saved = run_folder.saved_steps(config) or [0]
        done = saved[-1] >= config.epochs * sampler.steps_per_epoch
        alone = done or not resident or config.queue_size > 0
        groups.setdefault(i if alone else (structure(config), saved[-1]), []).append(i)
    return list(groups.values())


def _parts(n: int, at_most: int | None, limit: float, compiled: Callable) -> int:
    """Into how many programs n encoders go, so that the step of each fits into the memory."""
    if n == 1 or at_most is not None:
        return math.ceil(n / (at_most or 1))
    size = n
    while size > 1 and (needed := _bytes_needed(compiled, size)) > limit:
        # All but the images grows with their number, so that no more than this share will fit.
        size = min(size - 1, max(1, int(size * max(limit / needed, 0.5))))
    return math.ceil(n / size)


def _bytes_needed(compiled: Callable, n: int) -> float:
    """By the step of n encoders on each device, with all that it is given."""
    try:
        needed = compiled(n).memory_analysis()
    except jax.errors.JaxRuntimeError as error:  # some compilers refuse what does not fit
        if not memory.is_used_up(error):
            raise
        return math.inf
    arguments = needed.argument_size_in_bytes - needed.alias_size_in_bytes
    return arguments + needed.output_size_in_bytes + needed.temp_size_in_bytes


def _compiled(job: Job, n: int) -> Any:
    """The step of n encoders, compiled."""
    config, source, devices = job.config, job.dataset.pretrain, job.devices
    size = config.batch_size
    total = config.epochs * (len(source) // size)
    apply, params, stats = models.abstract(config)
    optimizer = make_optimizer(config, make_schedule(config, total))
    state = jax.eval_shape(functools.partial(init_state, optimizer=optimizer), params, stats)
    key = jax.eval_shape(jax.random.key, 0)
    indices = jax.ShapeDtypeStruct((size // len(devices),), np.int32)
    images = jax.ShapeDtypeStruct((len(source), *source.image_shape), np.uint8)
    labels = jax.ShapeDtypeStruct((len(source),), np.int32)

    def on_devices(tree, *axes):
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((len(devices), *axes, *x.shape), x.dtype), tree
        )

    step = make_vmapped_step(config, apply, total)
    return sharding.pmap(step, devices, donate=(0,), network=True).compile(
        on_devices(state, n),
        *on_devices((images, labels)),
        *on_devices((indices, key, scalars_of(config)), n),
    )


def _part(tree: Any, i: int) -> Any:
    return jax.tree.map(lambda x: x[i, ...], tree)


def stacked(trees: Sequence[Any]) -> Any:
    """Trees of one structure as one, whose arrays have a leading axis."""

    def stack(*leaves):
        keys = jax.dtypes.issubdtype(leaves[0].dtype, jax.dtypes.prng_key)
        return jax.numpy.stack(leaves) if keys else np.stack(leaves)

    return jax.tree.map(stack, *trees)
