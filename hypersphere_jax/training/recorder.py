"""Recording one run, or vmapped runs: metrics, evaluations, checkpoints, and progress."""

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from hypersphere_jax.configs import Diverged, Stopped, UserError
from hypersphere_jax.training import checkpoints, distributed, run_dir
from hypersphere_jax.training.checkpoints import Checkpointer, Tree
from hypersphere_jax.training.metrics import Meter, MetricLogger, Record, describe
from hypersphere_jax.training.setup import RunSetup
from hypersphere_jax.training.step import TrainState
from hypersphere_jax.utils.terminal import Progress

T = TypeVar("T")
Evaluate = Callable[..., dict[str, float]]  # see `callbacks.evaluation_callback`


class RunRecord:
    """The log and the checkpoints of one run, written from arrays on the host.

    Every process has one; only the first process writes.
    """

    def __init__(self, setup: RunSetup, command: str = "", forced: Sequence[str] = ()):
        self.setup = setup
        self.command = command
        self.start = 0  # step from which the run resumes
        self.folder = setup.folder
        self.checkpointer = Checkpointer(self.folder / "checkpoints", setup.config)
        self.diverged: Diverged | None = None
        self._logger: Any = None  # a MetricLogger, once the run is restored
        self._metrics: dict[str, float] = {}  # metrics of the newest step that was read
        self._forced = list(forced)  # differences to the run's earlier options

    def restore(self, initial: TrainState) -> TrainState:
        """Return the state of the newest checkpoint, or the initial state, and open the log."""
        setup = self.setup
        state = TrainState(**self.checkpointer.restore(tree_of(initial)))
        state = distributed.from_first_process(state)
        self.start = self.checkpointer.saved = int(state.step)
        if self.start > setup.total_steps:
            raise UserError(
                f"{self.folder} is at step {self.start}, and epochs={setup.config.epochs} has "
                f"{setup.total_steps} steps: give more epochs"
            )
        if distributed.is_first():
            details: dict[str, Any] = {"from_step": self.start}
            if self._forced:
                details["forced"] = self._forced
            run_dir.add_session(
                setup.config, setup.devices, setup.digest, self.command, setup.dataset, details
            )
        self._logger = MetricLogger(self.folder, setup.config, self.start)
        if not checkpoints.steps(self.checkpointer.folder):
            # A copy, since the first step reuses the memory of the state.
            self.checkpointer.save(0, jax.tree.map(np.array, tree_of(state)))
        return state

    @property
    def last(self) -> Record:
        """Newest record of the log."""
        return self._logger.last

    @property
    def lacks_scores(self) -> bool:
        """Whether the run resumes from a logged step without the scores of an evaluation."""
        return self.last.get("step") == self.start and not _is_evaluated(self.last)

    def check(self, step: int, metrics: dict[str, np.ndarray]) -> None:
        """Keep the metrics of a step to log; raise Diverged unless they are finite."""
        self._metrics = {name: float(value) for name, value in metrics.items()}
        loss = self._metrics["loss"]
        gradient = self._metrics["grad_norm"]
        if not (math.isfinite(loss) and math.isfinite(gradient)):
            raise self._diverged(f"loss {loss:g} and gradient norm {gradient:g} at step {step}")

    def log(self, step: int, rates: dict[str, float]) -> None:
        """Log the newest metrics with the rates of the loop."""
        metrics = dict(self._metrics)
        learning_rate = metrics.pop("lr")
        epoch = round(step / self.setup.sampler.steps_per_epoch, 4)
        record = {"step": step, "epoch": epoch, "loss": metrics.pop("loss"), **metrics}
        record |= {"lr": learning_rate, **rates}
        self._logger.log(record)

    def evaluate(self, step: int, encoder: Tree, evaluate: Evaluate) -> None:
        """Add an encoder's scores to the last record."""
        self._check_finite(step, encoder)
        self.checkpointer.wait()
        try:
            scores = evaluate(encoder["params"], encoder["stats"], self.setup.config)
        except FloatingPointError as error:
            raise self._diverged(f"{error} at step {step}") from error
        self._logger.log(scores)

    def save(self, step: int, tree: Tree) -> None:
        """Save a state; raise Diverged unless it is finite."""
        self._check_finite(step, tree)
        self.checkpointer.save(step, tree)

    def close(self, failed: bool = False) -> None:
        """Wait until the files are written; after a failure its error is the one to report."""
        try:
            self.checkpointer.close()
        except UserError:
            if not failed:
                raise
        finally:
            if self._logger is not None:
                self._logger.close(failed)

    def _check_finite(self, step: int, tree: Tree) -> None:
        for x in jax.tree.leaves(tree):
            if jax.numpy.issubdtype(x.dtype, np.inexact) and not np.isfinite(x).all():
                raise self._diverged(f"a state that is not finite at step {step}")

    def _diverged(self, reason: str) -> Diverged:
        return Diverged(
            f"the run diverged: {reason}; the checkpoint of step {self.checkpointer.saved} is kept "
            f"in {self.folder}",
            "choose another name= with a lower learning_rate= or smaller loss weights",
        )


@contextlib.contextmanager
def open_run(setup: RunSetup, command: str = "") -> Iterator[RunRecord]:
    """Lock the folder of a run while its files are open."""
    config = setup.config
    forced: list[str] = []
    with contextlib.ExitStack() as stack:
        if distributed.is_first():
            if config.resume == "overwrite":
                run_dir.remove(setup.folder)
            stack.enter_context(run_dir.lock(setup.folder))
            forced = run_dir.check_resume(config, len(setup.devices), setup.digest)
        record = RunRecord(setup, command, forced)
        stack.callback(record.close, failed=True)  # without effect after `close`
        yield record


class Recorder:
    """Records the steps of one run, or of vmapped runs with stacked states, at the same step.

    Metrics stay on the devices until they are logged or saved, since reading them waits for their
    step. A vmapped run that diverges ends, and the others continue.
    """

    def __init__(self, runs: Sequence[RunRecord], vmapped: bool = False):
        setup = runs[0].setup
        self.setup = setup
        self.start = runs[0].start
        self.runs = list(runs)
        unit = "sentences" if setup.config.reads_text else "images"
        self.meter = Meter(setup.config.batch_size, unit)
        self._vmapped = vmapped
        self._progress: Progress | None = None
        self._in_flight: deque[tuple[range, Any]] = deque()
        self._unread: list[tuple[range, Any]] = []

    @contextlib.contextmanager
    def progress(self) -> Iterator[None]:
        """Show the progress of the first run on stderr."""
        if not distributed.is_first():
            yield
            return
        name = self.setup.config.name
        total = self.setup.total_steps
        if len(self.runs) > 1:
            name += f" and {len(self.runs) - 1} more"
        progress = Progress(f"{name}: step", total, self.start)
        self._progress = progress
        with contextlib.closing(progress):
            if self.start == total:
                progress.print(f"{name}: finished at step {total} (to continue, raise epochs)")
            else:
                if self.start:
                    progress.print(f"{name}: resuming at step {self.start} of {total}")
                progress.print(f"{name}: compiling (takes up to minutes the first time)")
            yield

    def add(self, call: range, metrics: Any) -> None:
        """Take the metrics of the steps of a call, which may not be completed."""
        self.meter.add_steps(len(call))
        self._in_flight.append((call, metrics))

    def complete(self, ahead: int = 0) -> None:
        """Wait until at most this many calls are in flight, and log the completed steps."""
        while len(self._in_flight) > ahead:
            call, metrics = self._in_flight.popleft()
            jax.block_until_ready(metrics)
            self._unread.append((call, metrics))
            if self._progress is not None:
                self._progress.update(call.stop, important=call.start == self.start)
            if self.setup.is_logged(call.stop):
                self._log(call.stop)

    def evaluate(self, step: int, state: TrainState, evaluate: Evaluate) -> None:
        """Evaluate the encoder, and add its scores to the record of this step, the last one."""
        tree = distributed.unreplicate({"params": state.params, "stats": state.stats})
        self._each(lambda run, part: run.evaluate(step, part, evaluate), tree)
        self._show()
        self.meter.reset()  # exclude the evaluation from images/s

    def is_due(self, step: int) -> bool:
        """Return whether to save a checkpoint after this step."""
        return any(self._each(lambda run, _: run.checkpointer.is_due(step)))

    def save(self, step: int, state: TrainState) -> None:
        """Complete the steps, and save their state unless it is saved already."""
        self.complete()
        self._read()
        if not all(self._each(lambda run, _: run.checkpointer.saved == step)):
            tree = distributed.unreplicate(tree_of(state))
            self._each(lambda run, part: run.save(step, part), tree)

    def stopped(self, step: int) -> Stopped:
        """Return the exception that says where the states are saved and how to continue."""
        folders = self._each(lambda run, _: str(run.folder))
        saved = f"saved at step {step} of {self.setup.total_steps} in {', '.join(folders)}"
        command = self.runs[0].command or "the same command"
        return Stopped(f"stopped: {saved}; to resume: {command}")

    def close(self) -> None:
        """Wait until the files of all runs are written."""
        self._each(lambda run, _: run.close())

    def _each(self, act: Callable[[RunRecord, Any], T], tree: Any = None) -> list[T]:
        """Return `act(run, its part of the tree)` of the runs that have not diverged.

        A run that diverges now is closed. If none is left, its Diverged is raised.
        """
        results = []
        for i, run in enumerate(self.runs):
            if run.diverged is not None:
                continue
            part = jax.tree.map(lambda x, i=i: x[i, ...], tree) if self._vmapped else tree
            try:
                results.append(act(run, part))
            except Diverged as error:
                run.diverged = error
                run.close(failed=True)
        errors = [run.diverged for run in self.runs if run.diverged is not None]
        if len(errors) == len(self.runs):
            raise errors[-1]
        return results

    def _read(self) -> None:
        """Read the metrics of the completed steps."""
        calls = [call for call, _ in self._unread]
        values = distributed.unreplicate([metrics for _, metrics in self._unread])
        self._unread = []
        for call, metrics in zip(calls, values, strict=True):
            for number, step in enumerate(call):
                of_step = {name: value[number] for name, value in metrics.items()}
                self._check(step + 1, of_step)

    def _check(self, step: int, metrics: dict[str, np.ndarray]) -> None:
        self._each(lambda run, part: run.check(step, part), metrics)

    def _log(self, step: int) -> None:
        self._read()
        rates = self.meter.read()
        self._each(lambda run, _: run.log(step, rates))
        self._show()

    def _show(self) -> None:
        """Show the newest record of the first run."""
        if self._progress is not None:
            record = self._each(lambda run, _: run.last)[0]
            is_last = record["step"] == self.setup.total_steps
            important = is_last or _is_evaluated(record)
            self._progress.update(int(record["step"]), describe(record), important)


def _is_evaluated(record: Record) -> bool:
    return any(name.startswith("eval/") for name in record)


def tree_of(state: TrainState) -> Tree:
    """Return a state as the tree that a checkpoint contains."""
    return {name: part for name, part in state._asdict().items() if part is not None}
