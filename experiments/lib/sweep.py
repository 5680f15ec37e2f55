"""Sweeps: train and evaluate the runs of an item, several at a time, and skip finished ones.

A finished run has a JSON file of rows in its folder, `RUN/sweep/KEY.json`, with predictions next to
it. KEY is a hash of the config and the evaluation, so a changed config is trained again. A failed
run has a `KEY.failed.json` with the reason.
"""

import dataclasses
import fnmatch
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from experiments.lib.evaluation import Evaluation, evaluate
from experiments.lib.labels import labels_of
from experiments.lib.processes import run_processes
from experiments.lib.records import Rows, read_predictions, write_predictions
from hypersphere_jax import data
from hypersphere_jax.configs import DataConfig, Diverged, PretrainConfig
from hypersphere_jax.training import run_dir
from hypersphere_jax.training.train import train
from hypersphere_jax.training.vmapped import train_vmapped
from hypersphere_jax.utils import memory, xla
from hypersphere_jax.utils.files import read_kept, write_json

TEXT = ("books", "sentiment")


@dataclass(frozen=True)
class Run:
    """A run of an item: its config, the columns that identify it, and its evaluation.

    `config.init_from` is the name of another run, `config.runs_dir` and `config.data_dir` are left
    to the sweep.
    """

    config: PretrainConfig
    labels: Mapping[str, Any] = field(default_factory=dict)
    evaluation: Evaluation = field(default_factory=Evaluation)

    def replace(self, labels: Mapping[str, Any] | None = None, **changes: Any) -> "Run":
        """Return the run with other config fields and additional labels."""
        config = self.config.replace(**changes)
        return dataclasses.replace(self, config=config, labels={**self.labels, **(labels or {})})

    def evaluated(self, **changes: Any) -> "Run":
        """Return the run with another evaluation."""
        evaluation = dataclasses.replace(self.evaluation, **changes)
        return dataclasses.replace(self, evaluation=evaluation)

    @property
    def folder(self) -> Path:
        return Path(self.config.runs_dir) / self.config.name

    @property
    def rows_file(self) -> Path:
        return self.folder / "sweep" / f"{self.key}.json"

    @property
    def failure_file(self) -> Path:
        return self.rows_file.with_suffix(".failed.json")

    @property
    def key(self) -> str:
        """Hash of what determines the rows; folders do not."""
        config = run_dir.training_config(self.config)
        if self.config.init_from is not None:
            config["init_from"] = Path(self.config.init_from).name
        evaluation = dataclasses.asdict(dataclasses.replace(self.evaluation, tasks_dir=None))
        content = json.dumps([config, evaluation], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class SweepOptions:
    """Folders and options of a sweep."""

    runs_dir: Path
    data_dir: str | None = None
    """Folder with a subfolder per data set. Defaults to TensorFlow Datasets."""
    only: tuple[str, ...] = ()
    """Patterns of run names; empty selects all runs."""
    jobs: int = 1
    vmapped: bool | None = None
    """Train runs that differ in scalars in one program. Defaults to True on accelerators."""
    retry: bool = False
    """Train failed runs again."""
    seed_offset: int = 0
    """Added to all seeds; names of runs get a suffix."""
    command: str = ""


Plan = Callable[[Rows], list[Run]]


def no_runs(scale: str, rows: Sequence = ()) -> list[Run]:
    """Return no runs, for items that train nothing."""
    return []


def run_all(plan: Plan, options: SweepOptions) -> tuple[Rows, list[Run]]:
    """Train and evaluate all runs of a plan, and return their rows and the unfinished runs.

    Args:
      plan: (finished rows) -> runs. It is called again after each sweep, as later runs may depend
        on the rows of earlier ones, until it returns no new runs.
      options: folders and options of the sweep.
    """
    rows: Rows = []
    names: set[str] = set()
    while True:
        runs = [placed(run, options) for run in plan(rows)]
        new_names = {run.config.name for run in runs} - names
        if not new_names:
            return rows, []
        names |= new_names
        sweep(runs, options)
        rows = known_rows(runs)
        missing = [run for run in runs if read_rows(run) is None]
        if missing:
            return rows, missing


def placed(run: Run, options: SweepOptions) -> Run:
    """Return the run with its folders, and with the seed offset."""
    runs_dir = str(options.runs_dir)
    suffix = f"_plus{options.seed_offset}" if options.seed_offset else ""
    changes: dict[str, Any] = {
        "runs_dir": runs_dir,
        "data_dir": data_folder(run.config.data, options.data_dir),
        "name": run.config.name + suffix,
        "seed": run.config.seed + options.seed_offset,
    }
    if run.config.init_from is not None:
        changes["init_from"] = f"{runs_dir}/{run.config.init_from}{suffix}"
    labels = {"run": run.config.name, **labels_of(run.config), **run.labels}
    config = run.config.replace(**changes)
    evaluation = run.evaluation
    if evaluation.tasks:
        tasks_dir = data_folder("sentiment", options.data_dir)
        evaluation = dataclasses.replace(evaluation, tasks_dir=tasks_dir)
    return Run(config, labels, evaluation)


def data_folder(name: str, data_dir: str | None) -> str | None:
    """Return `data_dir/NAME` if it contains the data set, else data_dir."""
    if data_dir is None or name in data.EMBEDDED:
        return None
    folder = Path(data_dir) / name
    has_images = any((folder / f"train{ending}").exists() for ending in ("", ".zip"))
    has_text = name in TEXT and folder.is_dir()
    return str(folder) if has_images or has_text else data_dir


def sweep(runs: Sequence[Run], options: SweepOptions) -> None:
    """Train and evaluate the unfinished runs that `options.only` selects.

    A run that diverges or runs out of memory is recorded as failed, and the sweep continues.

    Raises:
      UserError: for missing data or an invalid config.
      Stopped: on a signal, after the states of the current runs are saved.
    """
    check_data([run for run in runs if is_selected(run, options.only) and is_open(run, options)])
    if options.retry:
        for run in runs:
            run.failure_file.unlink(missing_ok=True)
    sources = {run.config.init_from for run in runs}
    waves = [
        [run for run in runs if str(run.folder) in sources],
        [run for run in runs if str(run.folder) not in sources],
    ]
    use_vmap = options.vmapped
    if use_vmap is None:
        use_vmap = options.jobs == 1 and jax.default_backend() != "cpu"
    for wave in waves:
        to_do = [run for run in wave if is_selected(run, options.only) and read_rows(run) is None]
        if use_vmap:
            _train_vmapped(to_do, options.command)
            to_do = [run for run in to_do if read_rows(run) is None]
        began = time.monotonic()
        for number, run in enumerate(_carry_out_all(to_do, options), 1):
            seconds_left = (time.monotonic() - began) / number * (len(to_do) - number)
            status = f"{number} of {len(to_do)}: {run.config.name}: {_summary(run)}"
            print(f"{status}; about {seconds_left / 60:.0f} min left", file=sys.stderr)


def is_open(run: Run, options: SweepOptions) -> bool:
    """Return whether a run is unfinished, or failed and is tried again."""
    return read_rows(run) is None or (options.retry and not run.rows_file.exists())


def check_data(runs: Sequence[Run]) -> None:
    """Open the images of runs, so that missing images end a sweep before its first run."""
    configs = [run.config for run in runs if not run.config.reads_text]
    for name, folder in dict.fromkeys((config.data, config.data_dir) for config in configs):
        if name not in data.EMBEDDED:
            data.load_raw_splits(DataConfig(data=name, data_dir=folder))


def is_selected(run: Run, patterns: Sequence[str]) -> bool:
    """Return whether a run's name matches one of the patterns."""
    name = run.config.name
    return not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def known_rows(runs: Sequence[Run]) -> Rows:
    """Return the rows of all finished and failed runs, in the order of the plan."""
    return [row for run in runs for row in read_rows(run) or []]


def read_rows(run: Run) -> Rows | None:
    """Return the rows of a finished or failed run, or None for an unfinished run."""
    labels = dict(run.labels)
    if result := read_kept(run.rows_file, ("rows",)):
        labels |= {"status": "done", "folder": str(run.folder)}
        rows = [labels | row for row in result["rows"]]
        return read_predictions(run.rows_file.with_suffix(".npz"), rows)
    if failure := read_kept(run.failure_file, ("reason",)):
        return [labels | {"status": "failed", "reason": failure["reason"]}]
    return None


def carry_out(run: Run, command: str = "") -> None:
    """Train and evaluate a run, and write its rows or the reason of its failure."""
    xla.keep_compiled(run.config.cache_dir)
    source = run.config.init_from
    if source is not None and _has_failed(Path(source)):
        _fail(run, f"{source}, the run it starts from, failed")
        return
    began = time.monotonic()
    trained = None
    try:
        folder = train(run.config, command)
        trained = time.monotonic()
        rows = evaluate(folder, run.evaluation)
    except Diverged as error:
        _fail(run, error.reason.partition("; the checkpoint")[0])
        return
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not memory.is_used_up(error):
            raise
        _fail(run, memory.described(error)[:200], is_trained=trained is not None)
        return
    seconds = {
        "seconds_training": round(trained - began, 1),
        "seconds_measuring": round(time.monotonic() - trained, 1),
    }
    write_predictions(run.rows_file.with_suffix(".npz"), rows)
    plain = [{name: row[name] for name in row if name != "predictions"} for row in rows]
    write_json(run.rows_file, {"rows": [row | seconds for row in plain]})


def _has_failed(folder: Path) -> bool:
    """Return whether the training of a run failed by its newest result, or the run is missing."""
    if not (folder / "checkpoints").is_dir():
        return True
    results = sorted((folder / "sweep").glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
    if not results or not results[-1].name.endswith(".failed.json"):
        return False
    failure = read_kept(results[-1], ("reason",))
    return failure is not None and not failure.get("trained", False)


def _fail(run: Run, reason: str, is_trained: bool = False) -> None:
    write_json(run.failure_file, {"reason": reason, "trained": is_trained})


def _train_vmapped(runs: Sequence[Run], command: str) -> None:
    """Train runs in one program where possible, without evaluating them."""
    if len(runs) < 2:
        return
    configs = [run.config for run in runs]
    xla.keep_compiled(configs[0].cache_dir)
    outcomes = train_vmapped(configs, command)
    for run, outcome in zip(runs, outcomes, strict=True):
        if isinstance(outcome, Diverged):
            _fail(run, outcome.reason)


def _carry_out_all(runs: Sequence[Run], options: SweepOptions) -> Iterator[Run]:
    """Carry out runs, `options.jobs` at a time, and yield each when it ends."""
    if options.jobs == 1:
        for run in runs:
            carry_out(run, options.command)
            yield run
        return
    tasks = [(carry_out, run, options.command) for run in runs]
    for index, _ in run_processes(tasks, options.jobs):
        yield runs[index]


def _summary(run: Run) -> str:
    row = (read_rows(run) or [{"status": "unfinished"}])[-1]
    if row["status"] != "done":
        return f"{row['status']}: {row.get('reason', '')}"
    metrics = [name for name in ("align", "uniform", "final_loss") if name in row]
    parts = [f"{name} {row[name]:.3f}" for name in metrics]
    parts += [f"{name} {row[name]:.1f}" for name in row["predictions"]]
    return ", ".join(parts)
