"""Recording one run, or vmapped runs: metrics, evaluations, checkpoints, and progress."""

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from hypersphere_jax.configs import Diverged, Stopped, UserError, require
from hypersphere_jax.training import checkpoints, distributed, run_dir
from hypersphere_jax.training.checkpoints import Checkpointer, Tree
from hypersphere_jax.training.metrics import Meter, MetricLogger, Record, describe
from hypersphere_jax.training.setup import RunSetup
from hypersphere_jax.training.step import TrainState
from hypersphere_jax.utils.terminal import Progress

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
        require(
            self.start <= setup.total_steps,
            f"{self.folder} is at step {self.start}, and epochs={setup.config.epochs} "
            f"has {setup.total_steps} steps: give more epochs",
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
    def lacks_scores(self) -> bool:
        """Whether the run resumes from a logged step without the scores of an evaluation."""
        last = self._logger.last
        has_scores = any(name.startswith("eval/") for name in last)
        return last.get("step") == self.start and not has_scores

    def check(self, step: int, metrics: dict[str, np.ndarray]) -> None:
        """Keep the metrics of a step to log; raise Diverged unless they are finite."""
        self._metrics = {name: float(value) for name, value in metrics.items()}
        loss = self._metrics["loss"]
        gradient = self._metrics["grad_norm"]
        if not (math.isfinite(loss) and math.isfinite(gradient)):
            raise self._diverged(f"loss {loss:g} and gradient norm {gradient:g} at step {step}")

    def log(self, step: int, rates: dict[str, float]) -> Record:
        """Log the newest metrics with the rates of the loop."""
        metrics = dict(self._metrics)
        learning_rate = metrics.pop("lr")
        epoch = round(step / self.setup.sampler.steps_per_epoch, 4)
        record = {"step": step, "epoch": epoch, "loss": metrics.pop("loss"), **metrics}
        record |= {"lr": learning_rate, **rates}
        return self._logger.log(record)

    def evaluate(self, step: int, encoder: Tree, is_finite: bool, evaluate: Evaluate) -> Record:
        """Add an encoder's scores to the last record, and return it."""
        self._check_finite(step, is_finite)
        try:
            scores = evaluate(encoder["params"], encoder["stats"], self.setup.config)
        except FloatingPointError as error:
            raise self._diverged(f"{error} at step {step}") from error
        return self._logger.log(scores)

    def save(self, step: int, tree: Tree, is_finite: bool) -> None:
        """Save a state; raise Diverged unless it is finite."""
        self._check_finite(step, is_finite)
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

    def _check_finite(self, step: int, is_finite: bool) -> None:
        if not is_finite:
            reason = f"parameters or optimizer state that are not finite at step {step}"
            raise self._diverged(reason)

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
            folder = run_dir.folder_of(config)
            if config.resume == "overwrite":
                run_dir.remove(folder)
            stack.enter_context(run_dir.lock(folder))
            forced = run_dir.check_resume(config, len(setup.devices), setup.digest)
        record = RunRecord(setup, command, forced)
        stack.callback(record.close, failed=True)  # without effect after `close`
        yield record


class Recorder:
    """Records the steps of one run, or of vmapped runs with stacked states.

    Metrics stay on the devices until they are logged or saved, since reading them waits for their
    step. A vmapped run that diverges ends, and the others continue.

    Args:
      runs: Restored runs at the same step.
      vmapped: Whether states and metrics have an axis of the runs.
    """

    def __init__(self, runs: Sequence[RunRecord], vmapped: bool = False):
        setup = runs[0].setup
        self.setup = setup
        self.start = runs[0].start
        self.runs = list(runs)
        self.meter = Meter(setup.config.batch_size, setup.unit)
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
        with contextlib.closing(progress):
            if self.start == total:
                progress.print(f"{name}: finished at step {total} (to continue, raise epochs)")
            else:
                if self.start:
                    progress.print(f"{name}: resuming at step {self.start} of {total}")
                progress.print(f"{name}: compiling (takes up to minutes the first time)")
            self._progress = progress
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
                self._read()
                rates = self.meter.read()
                self._show([run.log(call.stop, rates) for _, run in self._active()])

    def evaluate(self, step: int, state: TrainState, evaluate: Evaluate) -> None:
        """Evaluate the encoder, and add its scores to the record of this step, the last one."""
        trees, finite = self._on_host({"params": state.params, "stats": state.stats})
        for _, run in self._active():
            run.checkpointer.wait()
        records = []
        for i, run in self._active():
            with _ending_if_diverged(run):
                records.append(run.evaluate(step, self._part(trees, i), finite[i], evaluate))
        self._show(records)
        if step > self.start:
            self.meter.reset()  # exclude the evaluation from images/s

    def is_due(self, step: int) -> bool:
        """Return whether to save a checkpoint after this step."""
        return any(run.checkpointer.is_due(step) for _, run in self._active())

    def save(self, step: int, state: TrainState) -> None:
        """Complete the steps, and save their state unless it is saved already."""
        self.complete()
        self._read()
        if all(run.checkpointer.saved == step for _, run in self._active()):
            return
        trees, finite = self._on_host(tree_of(state))
        for i, run in self._active():
            with _ending_if_diverged(run):
                run.save(step, self._part(trees, i), finite[i])

    def stopped(self, step: int) -> Stopped:
        """Return the exception that says where the states are saved and how to continue."""
        folders = [str(run.folder) for _, run in self._active()]
        saved = f"saved at step {step} of {self.setup.total_steps} in {', '.join(folders)}"
        command = self.runs[0].command or "the same command"
        return Stopped(f"stopped: {saved}; to resume: {command}")

    def close(self) -> None:
        """Wait until the files of all runs are written."""
        for _, run in self._active():
            run.close()

    def _active(self) -> Iterator[tuple[int, RunRecord]]:
        """Yield the runs that have not diverged; finally raise Diverged if none is left."""
        for i, run in enumerate(self.runs):
            if run.diverged is None:
                yield i, run
        errors = [run.diverged for run in self.runs if run.diverged is not None]
        if len(errors) == len(self.runs):
            raise errors[-1]

    def _read(self) -> None:
        """Read the metrics of the completed steps."""
        calls = [call for call, _ in self._unread]
        values = distributed.unreplicate([metrics for _, metrics in self._unread])
        self._unread = []
        for call, metrics in zip(calls, values, strict=True):
            for number, step in enumerate(call):
                of_step = {name: value[number] for name, value in metrics.items()}
                for i, run in self._active():
                    with _ending_if_diverged(run):
                        run.check(step + 1, self._part(of_step, i))

    def _show(self, records: Sequence[Record]) -> None:
        if self._progress is not None:
            record = records[0]
            is_evaluated = any(name.startswith("eval/") for name in record)
            is_last = record["step"] == self.setup.total_steps
            self._progress.update(int(record["step"]), describe(record), is_evaluated or is_last)

    def _on_host(self, tree: Tree) -> tuple[Tree, np.ndarray]:
        """Return a tree from the devices, and for each run whether it is finite."""
        finite = distributed.finite(tree, int(self._vmapped))
        tree, finite = distributed.unreplicate((tree, finite))  # in one transfer
        return tree, np.atleast_1d(finite)

    def _part(self, tree: Any, i: int) -> Any:
        """Return the part of a run in a tree of all runs."""
        if not self._vmapped:
            return tree
        return jax.tree.map(lambda x: x[i, ...], tree)


@contextlib.contextmanager
def _ending_if_diverged(run: RunRecord) -> Iterator[None]:
    try:
        yield
    except Diverged as error:
        run.diverged = error
        run.close(failed=True)


def tree_of(state: TrainState) -> Tree:
    """Return a state as the tree that a checkpoint contains."""
    return {name: part for name, part in state._asdict().items() if part is not None}
