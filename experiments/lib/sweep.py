"""Sweeps: train and evaluate the runs of an item, several at a time, and skip finished ones.

A finished run has a JSON file of rows in its folder, `RUN/sweep/KEY.json`, with predictions next to
it. KEY is a hash of the config and the evaluation, so a changed config is trained again. A failed
run has a `KEY.failed.json` with the reason.
"""

import dataclasses
import fnmatch
import functools
import hashlib
import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from experiments.lib.evaluation import Evaluation, evaluate
from experiments.lib.labels import labels_of
from experiments.lib.processes import map_processes
from experiments.lib.records import PREDICTIONS, Rows, read_predictions, write_predictions
from experiments.options import SweepOptions
from hypersphere_jax import data
from hypersphere_jax.configs import DataConfig, Diverged, PretrainConfig, require
from hypersphere_jax.training import run_dir
from hypersphere_jax.training.train import train
from hypersphere_jax.training.vmapped import train_vmapped
from hypersphere_jax.utils import memory, xla
from hypersphere_jax.utils.files import read_kept, write_json

TEXT = ("books", "sentiment")
DEFAULTS = SweepOptions()


@dataclass(frozen=True)
class Run:
    """A run of an item: its config, the columns that identify it, and its evaluation.

    `config.init_from` is the name of another run. The sweep sets the folders of the config.
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


Plan = Callable[[Rows], list[Run]]


def run_all(
    plan: Plan, runs_dir: Path, options: SweepOptions = DEFAULTS, command: str = ""
) -> Rows:
    """Train and evaluate all runs of a plan, and return their rows.

    The plan (finished rows) -> runs is called again after each sweep, as later runs may depend on
    the rows of earlier ones, until it returns no new runs. `command` is recorded in the folder of
    each run.

    Raises:
      UserError: if `options.only` leaves runs to do.
    """
    rows: Rows = []
    names: set[str] = set()
    while True:
        runs = [placed(run, runs_dir, options) for run in plan(rows)]
        new_names = {run.config.name for run in runs} - names
        if not new_names:
            return rows
        names |= new_names
        sweep(runs, options, command)
        missing = len(unfinished(runs))
        message = f"{missing} runs are unfinished; run the command without --only for the analysis"
        require(missing == 0, message)
        rows = [row for run in runs for row in read_rows(run) or []]


def placed(run: Run, runs_dir: Path, options: SweepOptions = DEFAULTS) -> Run:
    """Return the run with its folders, and with the seed offset."""
    suffix = f"_plus{options.seed_offset}" if options.seed_offset else ""
    changes: dict[str, Any] = {
        "runs_dir": str(runs_dir),
        "data_dir": data_folder(run.config.data, options.data_dir),
        "name": run.config.name + suffix,
        "seed": run.config.seed + options.seed_offset,
    }
    if run.config.init_from is not None:
        changes["init_from"] = f"{runs_dir}/{run.config.init_from}{suffix}"
    if run.evaluation.tasks:
        run = run.evaluated(tasks_dir=data_folder("sentiment", options.data_dir))
    labels = {"run": run.config.name, **labels_of(run.config), **run.labels}
    return Run(run.config.replace(**changes), labels, run.evaluation)


def data_folder(name: str, data_dir: str | None) -> str | None:
    """Return `data_dir/NAME` if it contains the data set, else data_dir."""
    if data_dir is None or name in data.EMBEDDED:
        return None
    folder = Path(data_dir) / name
    files = [folder] if name in TEXT else [folder / "train", folder / "train.zip"]
    return str(folder) if any(file.exists() for file in files) else data_dir


def sweep(runs: Sequence[Run], options: SweepOptions, command: str) -> None:
    """Train and evaluate the unfinished runs that `options.only` selects.

    A run that diverges or runs out of memory is recorded as failed, and the sweep continues.

    Raises:
      UserError: for missing data or an invalid config.
      Stopped: on a signal, after the states of the current runs are saved.
    """
    if options.retry:
        for run in runs:
            run.failure_file.unlink(missing_ok=True)
    configs = [run.config for run in unfinished(runs, options.only)]
    # Missing images end the sweep before its first run.
    for name, folder in dict.fromkeys((config.data, config.data_dir) for config in configs):
        if name not in (*data.EMBEDDED, *TEXT):
            data.load_raw_splits(DataConfig(data=name, data_dir=folder))
    starts = {run.config.init_from for run in runs}
    first = [run for run in runs if str(run.folder) in starts]
    for wave in (first, runs):
        failed = {str(run.folder) for run in first if run.failure_file.exists()}
        for run in unfinished(wave, options.only):
            if run.config.init_from in failed:
                fail(run, f"{run.config.init_from}, the run it starts from, failed")
        if options.jobs == 1 and jax.default_backend() != "cpu":
            train_together(unfinished(wave, options.only), command)
        to_do = unfinished(wave, options.only)
        ended = map_processes(functools.partial(carry_out, command=command), to_do, options.jobs)
        for number, run in enumerate(ended, 1):
            print(f"{number} of {len(to_do)}: {run.config.name}", file=sys.stderr)


def unfinished(runs: Sequence[Run], patterns: Sequence[str] = ()) -> list[Run]:
    """Return the runs without rows whose names match one of the patterns, if there are any."""
    expression = "|".join(map(fnmatch.translate, patterns or ["*"]))
    selected = [run for run in runs if re.match(expression, run.config.name)]
    return [run for run in selected if read_rows(run) is None]


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


def train_together(runs: Sequence[Run], command: str) -> None:
    """Train runs in one program where possible, without evaluating them."""
    if len(runs) < 2:
        return
    results = train_vmapped([run.config for run in runs], command)
    for run, result in zip(runs, results, strict=True):
        if isinstance(result, Diverged):
            fail(run, result.reason)


def carry_out(run: Run, command: str = "") -> None:
    """Train and evaluate a run, and write its rows or the reason of its failure."""
    xla.keep_compiled(run.config.cache_dir)
    began = time.monotonic()
    try:
        folder = train(run.config, command)
        seconds = {"seconds_training": round(time.monotonic() - began, 1)}
        rows = evaluate(folder, run.evaluation)
    except Diverged as error:
        fail(run, error.reason.partition("; the checkpoint")[0])
        return
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not memory.is_used_up(error):
            raise
        fail(run, memory.described(error)[:200])
        return
    write_predictions(run.rows_file.with_suffix(".npz"), rows)
    plain = [{name: row[name] for name in row if name != PREDICTIONS} for row in rows]
    write_json(run.rows_file, {"rows": [row | seconds for row in plain]})


def fail(run: Run, reason: str) -> None:
    """Record that a run failed."""
    write_json(run.failure_file, {"reason": reason})
