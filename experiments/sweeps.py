"""Sweeps: many runs in one folder, each trained and evaluated once, and one table of them all.

What is finished is never done again: a run's rows lie in its folder, under a name that tells its
config and evaluation. A run that fails leaves its reason there, and the others go on.
"""

import hashlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from experiments import predictions, workers
from experiments.protocols import Evaluation, evaluate
from experiments.statistics import Rows
from hypersphere_jax.configs import (
    DataConfig,
    Diverged,
    PretrainConfig,
    UserError,
    section,
    to_dict,
)
from hypersphere_jax.text.labelled import load_labelled
from hypersphere_jax.text.packing import SPECIAL
from hypersphere_jax.training import run_dir
from hypersphere_jax.training import train as training
from hypersphere_jax.training.vmapped import train_vmapped
from hypersphere_jax.utils import memory, xla
from hypersphere_jax.utils.files import read_kept, write_json
from hypersphere_jax.utils.terminal import say

# Of a row, what is left out as a run ends: ends and parts of the names.
DETAILS = ("_error", "_low", "_high", "_cv", "_top5")


class Planned(NamedTuple):
    """A run of a sweep."""

    config: PretrainConfig
    about: Mapping[str, Any] = {}  # what tells it from the others, as columns of its rows
    evaluation: Evaluation = Evaluation()


def sweep(
    planned: Sequence[Planned],
    jobs: int = 1,
    retry: bool = False,
    command: str = "",
    logs: Path | None = None,
    vmapped: bool | None = None,
) -> list[str]:
    """Trains and evaluates what is not done yet. A run that fails is recorded, the others go on.

    Args:
      planned: the runs. One that others begin from is trained before them.
      jobs: processes at a time, each with its share of the cores.
      retry: do those again that failed before.
      command: what the user typed, to continue with.
      logs: folder for what several processes print; None: they print here.
      vmapped: train those that differ in scalar hyper-parameters alone in one program, see
        `train_vmapped`. None: with one job, on accelerators.

    Returns:
      A line for each run that invalid input keeps from being done.

    Raises:
      UserError: when the data are missing.
      Stopped: on a signal, once the state of the runs that train is saved.
    """
    for config in {section(one.config, DataConfig): one.config for one in planned}.values():
        run_dir.open_data(config)
    for task, folder in {
        (t, one.evaluation.tasks_dir) for one in planned for t in one.evaluation.tasks
    }:
        load_labelled(task, folder and Path(folder), SPECIAL)
    if retry:
        for one in planned:
            _failure(one).unlink(missing_ok=True)
    if vmapped is None:
        vmapped = jobs == 1 and jax.default_backend() != "cpu"
    sources = {one.config.init_from for one in planned}
    waves = [
        [one for one in planned if _path(one) in sources],
        [one for one in planned if _path(one) not in sources],
    ]
    total = len(_to_do(planned))
    began, ended, errors = time.monotonic(), 0, []

    def end(one: Planned, failure: str | None) -> None:
        nonlocal ended
        if failure is not None:
            write_json(_failure(one), {"reason": failure, "config": to_dict(one.config)})
        ended += 1
        rest = (time.monotonic() - began) / ended * (total - ended)
        ending = f"; about {rest / 60:.0f} min left" if ended < total else ""
        _log(f"{ended} of {total}: {one.config.name}: {_summary(one)}{ending}")

    def begun(wave: Sequence[Planned]) -> Iterator[Planned]:
        for one in wave:
            if jobs == 1:
                _log(f"{ended + 1} of {total}: {one.config.name} begins")
            yield one

    for wave in waves:
        for one in _to_do(wave):
            if _source_failed(one, planned):
                end(one, f"{one.config.init_from}, from which it begins, failed")
        if vmapped:
            for one, failure in _train_vmapped(_to_do(wave), command):
                end(one, failure)
            began = time.monotonic()  # what is left is evaluation
        for one, outcome in workers.each(carry_out, begun(_to_do(wave)), jobs, command, logs):
            if isinstance(outcome, UserError):
                errors.append(f"{one.config.name}: {outcome}")
                _log(errors[-1])
            else:
                end(one, outcome)
    return errors


def _log(line: str) -> None:
    say(line, sys.stderr)


def _to_do(planned: Sequence[Planned]) -> list[Planned]:
    return [one for one in planned if rows_of(one) is None]


def _source_failed(one: Planned, planned: Sequence[Planned]) -> bool:
    """Whether the run that this one begins from is one of the plan, and failed."""
    sources = [other for other in planned if _path(other) == one.config.init_from]
    return any(row["status"] == "failed" for row in known(sources))


def known(planned: Sequence[Planned]) -> Rows:
    """All rows of what is done or failed, in the order of the plan."""
    return [row for one in planned for row in rows_of(one) or []]


def with_predictions(planned: Sequence[Planned]) -> Rows:
    """The same, each with what was predicted of the test samples."""
    rows: Rows = []
    for one in planned:
        of_run, file = rows_of(one) or [], _rows_file(one).with_suffix(".npz")
        is_done = any(row["status"] == "done" for row in of_run)
        rows += predictions.read(file, of_run) if is_done else of_run
    return rows


def _train_vmapped(planned: Sequence[Planned], command: str) -> list[tuple[Planned, str]]:
    """Trains runs, as many of them as can be in one program; those that diverged, and how."""
    if not planned:
        return []
    configs = [one.config for one in planned]
    xla.keep_compiled(configs[0].cache_dir)
    try:
        outcomes = train_vmapped(configs, command)
    except (UserError, jax.errors.JaxRuntimeError) as error:
        if not isinstance(error, UserError) and not memory.is_used_up(error):
            raise
        _log(f"now one after the other: {str(error).splitlines()[0]}")
        return []
    pairs = zip(planned, outcomes, strict=True)
    return [(one, outcome.reason) for one, outcome in pairs if isinstance(outcome, Diverged)]


def carry_out(one: Planned, command: str = "") -> str | UserError | None:
    """Trains and evaluates a run: None, the reason of its failure, or an error of the input."""
    began, is_new = time.monotonic(), not run_dir.folder_of(one.config).exists()
    xla.keep_compiled(one.config.cache_dir)
    try:
        folder = training.train(one.config, command)
        trained = time.monotonic()
        rows = evaluate(folder, one.evaluation)
    except Diverged as error:
        return error.reason.partition("; the checkpoint")[0]  # a table names no folder
    except UserError as error:
        return error
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not memory.is_used_up(error):
            raise
        return memory.described(error)[:200]
    # Of a run that an earlier command began, the time of its training is not known.
    seconds = {"training": trained - began} if is_new else {}
    seconds["measuring"] = time.monotonic() - trained
    times = {f"seconds_{part}": round(value, 1) for part, value in seconds.items()}
    predictions.write(_rows_file(one).with_suffix(".npz"), rows)
    rows = predictions.without(rows)
    write_json(_rows_file(one), {"rows": [row | times for row in rows]})
    return None


def rows_of(one: Planned) -> Rows | None:
    """The rows of a run that is done or failed; None for one that is still to do."""
    common = {"run": one.config.name, **one.about}
    if not (run_dir.folder_of(one.config) / "sweep").is_dir():
        return None
    if result := read_kept(_rows_file(one), {"rows": list[dict]}):
        return [common | {"status": "done"} | row for row in result["rows"]]
    if failure := read_kept(_failure(one), {"reason": str}):
        return [common | {"status": "failed", "reason": failure["reason"]}]
    return None


def _summary(one: Planned) -> str:
    """What was measured, of the last checkpoint."""
    last = rows_of(one)[-1]
    if last["status"] == "failed":
        return f"failed: {last['reason']}"
    numbers = {
        name.replace("_", " "): value
        for name, value in last.items()
        if isinstance(value, float) and name not in one.about and not name.endswith(DETAILS)
    }
    return ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())


def _path(one: Planned) -> str:
    return str(run_dir.folder_of(one.config))


def _rows_file(one: Planned) -> Path:
    return run_dir.folder_of(one.config) / "sweep" / f"{_key(one)}.json"


def _failure(one: Planned) -> Path:
    return _rows_file(one).with_suffix(".failed.json")


def _key(one: Planned) -> str:
    """Of a config and an evaluation, wherever the data and the run that it begins from are."""
    settings = run_dir.training_config(one.config)
    if one.config.init_from is not None:
        settings["init_from"] = Path(one.config.init_from).name
    usual = Evaluation()._asdict()
    how = one.evaluation._replace(tasks_dir=None)._asdict()
    how = {name: value for name, value in how.items() if value != usual[name]}
    content = json.dumps([settings, how], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]
