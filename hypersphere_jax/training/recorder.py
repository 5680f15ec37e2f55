"""What a run keeps while it trains: checkpoints, a log of metrics, its progress on screen."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from hypersphere_jax import data
from hypersphere_jax.configs import Diverged, PretrainConfig, UserError
from hypersphere_jax.training import checkpoint, processes, run_folder, sharding
from hypersphere_jax.training.metrics_log import MetricsWriter
from hypersphere_jax.training.progress import Meter, Progress
from hypersphere_jax.training.step import TrainState

Evaluate = Callable[..., dict[str, float]]  # see `online.make_evaluation`


class Recorder:
    """Writes the folder of a run. Every process has one; only that of the first process writes.

    Metrics stay on the devices until they are needed, since reading them waits for the step.

    Args:
      config: with all sizes filled in.
      steps_per_epoch: of the run.
      vocabulary: words of a run of text, by number.
      dataset: of the run, for its record.
    """

    def __init__(
        self,
        config: PretrainConfig,
        steps_per_epoch: int,
        vocabulary: Sequence[str] | None = None,
        dataset: data.Dataset | None = None,
    ):
        self.config, self.folder = config, run_folder.folder_of(config)
        self.steps_per_epoch = steps_per_epoch
        self.total = config.epochs * steps_per_epoch
        unit = "sentences" if config.reads_text else "images"
        self.meter = Meter(config.batch_size, unit)
        self.title, self.where = config.name, str(self.folder)  # for messages
        self._vocabulary, self._dataset = vocabulary, dataset
        self._first: checkpoint.Tree | None = None  # the state at step 0, until it is saved
        self._kept: list[tuple[range, Any]] = []
        self._metrics: dict[str, float] = {}  # of the newest step that was read
        self._checkpoints: checkpoint.Checkpoints | None = None
        self._log: MetricsWriter | None = None
        self._saved_at = time.monotonic()
        self._progress: Progress | None = None

    @contextlib.contextmanager
    def opened(self, devices: Sequence[jax.Device], digest: str, command: str) -> Iterator[None]:
        """Holds the run's folder. What is written is complete after `close` only.

        Raises:
          UserError: when the folder holds another run, or another process trains in it.
        """
        if not processes.is_first():
            yield
            return
        if self.config.resume == "overwrite":
            run_folder.remove(self.folder)
        with contextlib.ExitStack() as stack:
            stack.enter_context(run_folder.lock(self.folder))
            stack.callback(self._abandon)
            steps, dataset = self.steps_per_epoch, self._dataset
            run_folder.open_folder(
                self.config, devices, digest, command, steps_per_epoch=steps, dataset=dataset
            )
            if self._vocabulary is not None:
                run_folder.write_vocabulary(self.folder, self._vocabulary)
            runtime = self.config
            self._checkpoints = checkpoint.Checkpoints(
                self.folder / "checkpoints", runtime.keep_last, runtime.keep_every_steps
            )
            yield

    def restored(self, state: TrainState) -> TrainState:
        """The state of the newest checkpoint, from which the run goes on; else this one.

        This one is saved after the first step, by `save_first`.
        """
        if self._checkpoints is not None:
            newest = self._checkpoints.restore_newest(tree_of(state))
            if newest is None:
                self._first = jax.tree.map(np.array, tree_of(state))
            else:
                state = TrainState(**newest[1])
        state = sharding.from_first_process(state)
        self.start = self.saved = int(state.step)
        if self._checkpoints is not None:
            run_folder.record_start(self.folder, self.start)
            self._log = MetricsWriter(self.folder, self.start, self.config)
        return state

    @contextlib.contextmanager
    def progress_bar(self) -> Iterator[None]:
        """Shows on stderr how far the run is."""
        if not processes.is_first():
            yield
            return
        self._progress = Progress(self.title, self.start, self.total)
        try:
            yield
        finally:
            self._progress.close()

    def add_metrics(self, call: range, metrics: Any) -> None:
        """Keeps the metrics of the steps of a call, on the devices, until they are read."""
        self.meter.steps_begun(len(call))
        self._kept.append((call, metrics))

    def fetch_metrics(self, step: int) -> None:
        """Reads the metrics of the steps up to this one.

        Raises:
          Diverged: when a loss or a gradient is not finite.
        """
        for number, metrics in read_metrics(self._kept, step):
            self.check(number, metrics)

    def log(self, step: int) -> None:
        """Writes a line of metrics."""
        self.fetch_metrics(step)
        self.update_progress(self.write(step, self.meter.read()))

    def lacks_scores(self) -> bool:
        """Whether the line of the step that the run resumes from has no scores."""
        last = {} if self._log is None else self._log.last
        has_scores = any(name.startswith("eval/") for name in last)
        return last.get("step") == self.start and not has_scores

    def evaluate(self, step: int, state: TrainState, evaluate: Evaluate) -> None:
        """Scores the encoder, and adds the scores to the line of this step, the last one."""
        self.update_progress(self.add_scores(step, *on_host(encoder_of(state)), evaluate))
        if step > self.start:
            self.meter.reset()  # exclude the evaluation from images/s

    def save(self, step: int, state: TrainState) -> None:
        """Saves the state, unless that of this step is."""
        self.fetch_metrics(step)
        self.save_first()
        if self.saved != step:
            self.save_tree(step, *on_host(tree_of(state)))

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is to be saved after this step."""
        runtime = self.config
        multiples = (runtime.checkpoint_every_steps, runtime.keep_every_steps)
        passed = time.monotonic() - self._saved_at
        late = passed > 60 * runtime.checkpoint_every_minutes and self._checkpoints is not None
        return late or any(every and step % every == 0 for every in multiples)

    def wait(self) -> None:
        """Waits until the state is saved; UserError if it could not be."""
        if self._checkpoints is not None:
            self._checkpoints.wait()

    def close(self) -> None:
        """Waits until all is written.

        Raises:
          UserError: when it could not be.
        """
        if self._checkpoints is not None:
            self._checkpoints.close()
        self._close_log()

    # What is done for one run, of arrays on the host.

    def check(self, step: int, metrics: dict[str, np.ndarray]) -> None:
        """Takes in the metrics of a step; raises Diverged as `fetch_metrics` does."""
        self._metrics = {name: float(value) for name, value in metrics.items()}
        loss, gradient = self._metrics["loss"], self._metrics["grad_norm"]
        if not (math.isfinite(loss) and math.isfinite(gradient)):
            raise self._diverged(f"loss {loss:g} and gradient norm {gradient:g} at step {step}")

    def add_scores(
        self, step: int, encoder: checkpoint.Tree, finite: np.ndarray, evaluate: Evaluate
    ) -> dict:
        """Adds an encoder's scores to the last line, and returns it.

        Raises:
          Diverged: for weights or features that are not finite.
        """
        self._check_finite(step, finite)
        try:
            scores = evaluate(encoder["params"], encoder["stats"], self.config)
        except FloatingPointError as error:
            raise self._diverged(f"{error} at step {step}") from error
        return scores if self._log is None else self._log.extend(scores)

    def write(self, step: int, figures: dict[str, float]) -> dict[str, float]:
        """Writes the newest metrics with further figures, as a line of the log, and returns it."""
        metrics = dict(self._metrics)
        record = {"step": step, "epoch": round(step / self.steps_per_epoch, 4)}
        rate = metrics.pop("lr")
        record |= {"loss": metrics.pop("loss")} | metrics | {"lr": rate} | figures
        if self._log is not None:
            self._log.write(record)
        return record

    def completed(self, step: int) -> None:
        """Shows that a step is completed, of which the first compiles."""
        if self._progress is not None:
            self._progress.completed(step)

    def save_first(self) -> None:
        """Saves the state that a new run began with, for which its first step did not wait."""
        first, self._first = self._first, None
        if first is None or self._checkpoints is None:
            return
        self._checkpoints.save(0, first)
        self.meter.reset()  # its time is not the next steps'
        if self._progress is not None:
            self._progress.reset()

    def update_progress(self, record: dict[str, float]) -> None:
        if self._progress is not None:
            self._progress.update(record)

    def save_tree(self, step: int, tree: checkpoint.Tree, finite: np.ndarray) -> None:
        """Saves a state; raises Diverged when it is not finite."""
        self._check_finite(step, finite)
        if self._checkpoints is not None:
            self._checkpoints.save(step, tree)
        self.saved, self._saved_at = step, time.monotonic()

    def _check_finite(self, step: int, finite: np.ndarray) -> None:
        if not finite:
            raise self._diverged(
                f"parameters or optimizer state that are not finite at step {step}"
            )

    def _diverged(self, reason: str) -> Diverged:
        return Diverged(
            f"the run diverged: {reason}; the checkpoint of step {self.saved} is kept in "
            f"{self.folder}",
            "choose another name= with a lower learning_rate= or smaller loss weights",
        )

    def _close_log(self, failed: bool = False) -> None:
        log, self._log = self._log, None
        if log is not None:
            log.close(failed)

    def _abandon(self) -> None:
        """Closes what is open still, after an error: that one is the one to report."""
        try:
            with contextlib.suppress(UserError):
                if self._checkpoints is not None:
                    self._checkpoints.close()
        finally:
            self._close_log(failed=True)


def read_metrics(
    kept: list[tuple[range, Any]], step: int
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Takes out what is kept of the steps up to this one: number and metrics of each step."""
    ready = [(call, metrics) for call, metrics in kept if call.stop <= step]
    del kept[: len(ready)]
    values = sharding.unreplicate([metrics for _, metrics in ready])
    for (call, _), metrics in zip(ready, values, strict=True):
        for i, done in enumerate(call):
            yield done + 1, {name: value[i] for name, value in metrics.items()}


def tree_of(state: TrainState) -> checkpoint.Tree:
    """What a checkpoint holds of a state."""
    return {name: part for name, part in state._asdict().items() if part is not None}


def encoder_of(state: TrainState) -> checkpoint.Tree:
    """What an evaluation needs of a state."""
    return {"params": state.params, "stats": state.stats}


def on_host(tree: Any, runs: bool = False) -> tuple[Any, np.ndarray]:
    """A tree on the devices, and whether it is finite, which they find out, in one transfer.

    With `runs` its arrays have an axis of these, and each is asked for.
    """
    return sharding.unreplicate((tree, sharding.finite(tree, int(runs))))
