"""Runs while they train: what each keeps in its folder, and how far it is.

The training loop steps a `Group`: a single run, or several whose states are stacked.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from hypersphere_jax import data, models
from hypersphere_jax.config import Diverged, PretrainConfig, UserError
from hypersphere_jax.data.sampling import make_sampler
from hypersphere_jax.moco import queue_init
from hypersphere_jax.train import checkpoint, processes, run_folder, sharding
from hypersphere_jax.train.assembly import from_run
from hypersphere_jax.train.optimizers import make_optimizer, make_schedule
from hypersphere_jax.train.progress import Meter, Progress
from hypersphere_jax.train.step import Momentum, TrainState, init_state


class NotFinite(Exception):
    """A number that is not finite."""


class Run:
    """One run while it trains; several hosts have it, and the first one writes its folder.

    Args:
      config: with all sizes filled in.
      dataset: to train on.
    """

    def __init__(self, config: PretrainConfig, dataset: data.Dataset):
        self.config, self.folder = config, run_folder.folder_of(config)
        self._vocabulary = getattr(dataset.pretrain, "vocabulary", None)
        self.sampler = make_sampler(dataset.pretrain, config.optimizer.batch_size, config.seed)
        self.total = config.optimizer.epochs * self.sampler.steps_per_epoch
        self.schedule = make_schedule(config.optimizer, self.total)
        self.optimizer = make_optimizer(config.optimizer, self.schedule)
        run_key = jax.random.key(config.seed)
        self.key = jax.random.fold_in(run_key, 1)
        self.apply, self.state = self._initial(run_key)
        self.values: dict[str, float] = {}  # metrics of the newest step that was looked at
        self.diverged: Diverged | None = None
        self._checkpoints: Any = _Elsewhere()
        self._writer: Any = _Elsewhere()

    def _initial(self, run_key: jax.Array) -> tuple[Callable, TrainState]:
        config, folder = self.config, self.folder / "checkpoints"
        apply, params, stats = models.create(config.model, jax.random.fold_in(run_key, 0))
        if processes.is_first() and config.init_from is not None and not checkpoint.steps(folder):
            params, stats = from_run(config, params, stats, self._vocabulary)
        state = init_state(params, stats, self.optimizer)
        size = config.moco.queue_size
        if size:
            queue = queue_init(jax.random.fold_in(run_key, 2), size, config.model.dim)
            state = state._replace(momentum=Momentum(params, stats, queue))
        return apply, state

    @contextlib.contextmanager
    def opened(self, devices: Sequence[jax.Device], digest: str, command: str) -> Iterator[None]:
        """Holds the folder; `state` and `start` are then those of its newest checkpoint, if any.

        What is written at the end is complete after `close` only.

        Raises:
          UserError: when the folder holds another run, or another process trains in it.
        """
        with contextlib.ExitStack() as held:
            if processes.is_first():
                held.enter_context(run_folder.lock(self.folder))
            held.callback(self._abandon)
            if processes.is_first():
                self._open(devices, digest, command)
            self.state = sharding.from_first_host(self.state)
            self.start = self.saved = int(self.state.step)
            if processes.is_first():
                self._writer = run_folder.MetricsWriter(self.folder, self.start)
            yield

    def _open(self, devices: Sequence[jax.Device], digest: str, command: str) -> None:
        run_folder.open_folder(self.config, devices, digest, command)
        if self._vocabulary is not None:
            run_folder.write_vocabulary(self.folder, self._vocabulary)
        runtime = self.config.runtime
        self._checkpoints = checkpoint.Checkpoints(
            self.folder / "checkpoints", runtime.keep_last, runtime.keep_every_steps
        )
        restored = self._checkpoints.restore_newest(_tree(self.state))
        if restored is None:
            self._checkpoints.save(0, jax.tree.map(np.array, _tree(self.state)))
        else:
            self.state = TrainState(**restored[1])

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Ends the run, and it alone, when what is inside meets a number that is not finite."""
        try:
            yield
        except NotFinite as error:
            self.close()
            self.diverged = Diverged(
                f"the run diverged: {error}; the checkpoint of step {self.saved} is kept in "
                f"{self.folder}",
                "choose another --name with a lower --learning-rate or smaller loss weights",
            )
            self.diverged.__cause__ = error

    def check(self, step: int, metrics: dict[str, np.ndarray]) -> None:
        """Takes in the metrics of a step.

        Raises:
          NotFinite: when the loss or its gradient was not finite.
        """
        self.values = {name: float(value) for name, value in metrics.items()}
        loss, gradient = self.values["loss"], self.values["grad_norm"]
        if not (math.isfinite(loss) and math.isfinite(gradient)):
            raise NotFinite(f"loss {loss:g} and gradient norm {gradient:g} at step {step}")

    def log(self, step: int, further: dict[str, float]) -> dict[str, float]:
        """Writes the newest metrics with further ones, as a line of the run's, and returns it."""
        values = dict(self.values)
        record = {"step": step, "epoch": round(step / self.sampler.steps_per_epoch, 4)}
        record |= {"loss": values.pop("loss")} | values
        record |= {"lr": float(self.schedule(step - 1))} | further
        self._writer.write(record)
        return record

    def save(self, step: int, tree: checkpoint.Tree) -> None:
        """Saves a state, as NumPy arrays, after a check that it is finite."""
        self._checkpoints.save(step, finite(tree, step))
        self.saved = step

    def take_state(self) -> TrainState:
        """The state to start from, which is not held here any longer."""
        state, self.state = self.state, None
        return state

    def close(self) -> None:
        """Waits until all is written; raises UserError when it could not be."""
        self._checkpoints.close()
        self._close_writer()

    def _close_writer(self) -> None:
        writer, self._writer = self._writer, _Elsewhere()
        writer.close()

    def _abandon(self) -> None:
        """Closes what is open still, after an error: that one is the one to report."""
        try:
            with contextlib.suppress(UserError):
                self._checkpoints.close()
        finally:
            self._close_writer()


class Group:
    """Runs that are stepped as one, of one start: a single one, or several with stacked states.

    Args:
      members: the runs, each opened.
    """

    def __init__(self, members: Sequence[Run]):
        self.members, self._stacked = list(members), len(members) > 1
        self.start, self.total = members[0].start, members[0].total
        self.unchecked: list[tuple[int, Any]] = []  # metrics by step, on the devices
        config = members[0].config
        unit = "sentences" if config.model.reads_text else "images"
        self.meter = Meter(config.optimizer.batch_size, unit)
        self._progress: Any = _Elsewhere()

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Shows how far the runs are; what the user sees are the figures of the first."""
        name = self.members[0].config.name
        if self._stacked:
            name += f" and {len(self.members) - 1} more"
        if processes.is_first():
            self._progress = Progress(name, self.start, self.total)
        try:
            yield
        finally:
            self._progress.close()

    def going(self) -> list[tuple[Run, Callable]]:
        """The runs that did not diverge, each with what takes its part of stacked arrays."""
        return [
            (run, _part(i) if self._stacked else _whole)
            for i, run in enumerate(self.members)
            if run.diverged is None
        ]

    def stack(self, trees: Sequence[Any]) -> Any:
        """What the step takes of the runs' own trees, on the host."""
        if not self._stacked:
            return trees[0]
        return jax.tree.map(_stacked, *trees)

    def stepped(self, step: int, metrics: Any) -> None:
        """Remembers the metrics of a step, to be read later: reading waits for the devices."""
        self.meter.step_done()
        self.unchecked.append((step, metrics))

    def check(self) -> None:
        """Reads the metrics since the last call; a run in which one is not finite ends."""
        for step, metrics in self.unchecked:
            read = sharding.unreplicate(metrics)
            for run, part in self.going():
                with run.watched():
                    run.check(step, part(read))
        self.unchecked.clear()

    def log(self, step: int, state: TrainState, evaluate: Callable | None) -> None:
        """Writes a line of metrics for each run, with an evaluation of its encoder if asked for.

        Args:
          step: steps done.
          state: on the devices.
          evaluate: see `make_evaluation`; None: no evaluation.
        """
        self.check()
        if not self.going():
            return
        figures, records = self.meter.read(), []
        encoders = None
        if evaluate is not None:
            encoders = _on_host(state._replace(opt_state=None, momentum=None))
        for run, part in self.going():
            with run.watched():
                found = {}
                if evaluate is not None:
                    found = _evaluated(run, evaluate, finite(part(encoders), step), step)
                records.append(run.log(step, figures | found))
        if evaluate is not None:
            self.meter.read()  # so that its time is not the next steps'
        for record in records[:1]:
            self._progress.update(record)

    def save(self, step: int, state: TrainState) -> None:
        """Saves the state of each run, unless that was done already."""
        self.check()
        if all(run.saved == step for run, _ in self.going()):
            return
        trees = _on_host(state)
        for run, part in self.going():
            with run.watched():
                run.save(step, part(trees))

    def close(self) -> None:
        """Waits until all is written; raises UserError when it could not be."""
        for run, _ in self.going():
            run.close()

    def folders(self) -> str:
        """Where the runs are that did not diverge, for a message."""
        return ", ".join(str(run.folder) for run, _ in self.going())


def finite(tree: checkpoint.Tree, step: int) -> checkpoint.Tree:
    """The same tree.

    Raises:
      NotFinite: when a number in it is not finite.
    """
    for leaf in jax.tree.leaves(tree):
        if np.issubdtype(leaf.dtype, np.inexact) and not np.isfinite(leaf).all():
            raise NotFinite(f"parameters or optimizer state that are not finite at step {step}")
    return tree


def _evaluated(run: Run, evaluate: Callable, encoder: checkpoint.Tree, step: int) -> dict:
    try:
        return evaluate(encoder["params"], encoder["stats"], run.config.objective)
    except FloatingPointError as error:
        raise NotFinite(f"{error} at step {step}") from error


def _tree(state: TrainState) -> checkpoint.Tree:
    """What a checkpoint holds of a state."""
    return {name: part for name, part in state._asdict().items() if part is not None}


def _on_host(state: TrainState) -> checkpoint.Tree:
    return _tree(sharding.unreplicate(state))


def _part(i: int) -> Callable:
    return lambda tree: jax.tree.map(lambda x: x[i, ...], tree)


def _whole(tree: Any) -> Any:
    return tree


def _stacked(*leaves: Any) -> Any:
    keys = jax.dtypes.issubdtype(leaves[0].dtype, jax.dtypes.prng_key)
    return jax.numpy.stack(leaves) if keys else np.stack(leaves)


class _Elsewhere:
    """What only the first host writes, on the others: every method does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None
