"""Sweeps: many runs in one folder, each trained and measured once, and one table of them all.

What is finished is never done again: a run's rows lie in its folder, under a name that tells its
config and what was measured. A run that fails leaves its reason there, and the others go on.
"""

import contextlib
import csv
import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from experiments import workers
from experiments.measures import Measures, Rows, measured
from hypersphere_jax import data
from hypersphere_jax.config import Diverged, PretrainConfig, UserError, require, to_dict
from hypersphere_jax.data import text
from hypersphere_jax.files import read_json, write_json
from hypersphere_jax.train import loop, run_folder, sharding
from hypersphere_jax.train.vmapped import train_vmapped

# Options that came after results were kept, by part of a config: as long as they have their
# default, a result's name does not tell them.
LATER = {
    "data": ("vocabulary", "max_tokens"),
    "model": ("embedding", "unit_norm", "vocabulary"),
    "objective": (
        "loss",
        "loss_tau",
        "loss_alpha",
        "loss_lam",
        "similarity",
        "prior",
        "align_scaling",
        "loss_factor",
    ),
}
LATER_MEASURES = list(Measures()[-3:])  # likewise, what came after results were kept
OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"


# Ends of the names of numbers that are told of a run as it ends.
TOLD = ("align", "uniform", "_mse", "final_loss", "_bias")


class Planned(NamedTuple):
    """A run of a sweep.

    Attributes:
      config: that trains it.
      about: what tells it from the others, as columns of its rows.
      measures: what is measured of it.
    """

    config: PretrainConfig
    about: Mapping[str, Any] = {}
    measures: Measures = Measures()


def sweep(
    planned: Sequence[Planned],
    jobs: int = 1,
    retry: bool = False,
    command: str = "",
    logs: Path | None = None,
    vmapped: bool | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[str]:
    """Trains and measures what is not done yet. A run that fails is recorded, the others go on.

    Args:
      planned: the runs. One that others begin from is trained before them.
      jobs: processes that work at a time, each with its share of the processor's cores.
      retry: do those again that failed before.
      command: what the user typed, for the line that says how to continue.
      logs: folder for what several processes print; None: they print here.
      vmapped: train those that differ in scalar hyper-parameters alone in one program, see
        `vmapped.train_vmapped`. None: with one job, on accelerators.
      say: is told of each run as it ends.

    Returns:
      Of each run that a mistake keeps from being done, a line that says why. The same call does it
      once that is mended.

    Raises:
      UserError: when the data are not there, or no longer those of the runs that are done.
      Stopped: on a signal, once what was in the making is saved.
    """
    _check_data(planned)
    if retry:
        for one in planned:
            _failure(one).unlink(missing_ok=True)
    sources = {one.config.init_from for one in planned}
    waves = [
        [one for one in planned if _path(one) in sources],
        [one for one in planned if _path(one) not in sources],
    ]
    total = sum(rows_of(one) is None for one in planned)
    began, done, mistakes = time.monotonic(), 0, []

    def ended(one: Planned) -> None:
        nonlocal done
        done += 1
        rest = (time.monotonic() - began) / done * (total - done)
        ending = f"; about {rest / 60:.0f} min left" if done < total else ""
        say(f"{done} of {total}: {one.config.name}: {_told(rows_of(one), one.measures)}{ending}")

    for wave in waves:
        for one in wave:
            if rows_of(one) is None and _source_failed(one, planned):
                _record_failure(one, f"{one.config.init_from}, from which it begins, failed")
                ended(one)
        if vmapped if vmapped is not None else jobs == 1 and jax.default_backend() != "cpu":
            for one in _train_vmapped(_open(wave), command, say):
                ended(one)
            began = time.monotonic()  # what is left is measuring
        for one, result in workers.each(carry_out, _open(wave), jobs, command, logs):
            if isinstance(result, UserError):
                mistakes.append(f"{one.config.name}: {result}")
                say(mistakes[-1])
                continue
            if isinstance(result, str):
                _record_failure(one, result)
            ended(one)
    return mistakes


def _open(planned: Sequence[Planned]) -> list[Planned]:
    return [one for one in planned if rows_of(one) is None]


def _source_failed(one: Planned, planned: Sequence[Planned]) -> bool:
    """Whether the run that this one begins from is one of the plan, and failed."""
    sources = [other for other in planned if _path(other) == one.config.init_from]
    return any(row["status"] == "failed" for row in known(sources))


def _check_data(planned: Sequence[Planned]) -> None:
    digests: dict[Any, str] = {}
    for task, where in {(task, m.tasks_dir) for _, _, m in planned for task in m.tasks}:
        data.load_labelled(task, where and Path(where), text.SPECIAL)
    for one in planned:
        config = one.config.data
        if config not in digests:
            digests[config] = data.load(config).digest()
        record = _folder(one) / "config.json"
        if record.is_file() and rows_of(one) is not None:
            require(
                read_json(record).get("data_digest") == digests[config],
                f"the images of {config.name} are no longer those that {_folder(one)} was trained "
                "on: restore them, or choose another --out",
            )


def known(planned: Sequence[Planned]) -> Rows:
    """All rows of what is done or failed, in the order of the plan."""
    return [row for one in planned for row in rows_of(one) or []]


def _train_vmapped(
    planned: Sequence[Planned], command: str, say: Callable[[str], None]
) -> list[Planned]:
    """Trains runs, as many of them as can be in one program; those that diverged."""
    if not planned:
        return []
    configs = [one.config for one in planned]
    sharding.keep_compiled(configs[0].runtime.cache_dir)
    try:
        outcomes = train_vmapped(configs, command)
    except UserError as error:  # of one of them: that one will fail by itself, and the others not
        say(f"not in one program: {error}")
        return []
    except jax.errors.JaxRuntimeError as error:
        if OUT_OF_MEMORY not in str(error):
            raise
        say("out of memory in one program: now one after the other")
        return []
    failed = []
    for one, outcome in zip(planned, outcomes, strict=True):
        if isinstance(outcome, Diverged):
            _record_failure(one, outcome.found)
            failed.append(one)
    return failed


def carry_out(one: Planned, command: str = "") -> str | UserError | None:
    """Trains a run and measures it.

    Returns:
      None; the reason where it failed and would fail again; or a mistake that the user can mend.
    """
    began = time.monotonic()
    sharding.keep_compiled(one.config.runtime.cache_dir)
    try:
        folder = loop.train(one.config, command)
        trained = time.monotonic()
        rows = measured(folder, one.measures)
    except Diverged as error:
        return error.found
    except UserError as error:
        return error
    except MemoryError:
        return "out of memory"
    except jax.errors.JaxRuntimeError as error:
        if OUT_OF_MEMORY not in str(error):
            raise
        return f"out of memory: {str(error).splitlines()[0][:200]}"
    seconds = {
        "seconds_training": round(trained - began, 1),
        "seconds_measuring": round(time.monotonic() - trained, 1),
    }
    write_json(_result(one), {"rows": [row | seconds for row in rows]})
    return None


def rows_of(one: Planned) -> Rows | None:
    """The rows of a run that is done or failed; None for one that is still to do."""
    common = {"run": one.config.name, **one.about}
    if _result(one).is_file():
        rows = read_json(_result(one))["rows"]
        return [common | {"status": "done"} | row for row in rows]
    if _failure(one).is_file():
        reason = read_json(_failure(one))["reason"]
        return [common | {"status": "failed", "reason": reason}]
    return None


def read_csv(path: Path) -> Rows:
    """The rows of a CSV file, numbers as numbers, without the cells that are empty."""
    with path.open(newline="", encoding="utf-8") as stream:
        return [
            {column: _value(cell) for column, cell in row.items() if cell != ""}
            for row in csv.DictReader(stream)
        ]


def _told(rows: Rows, measures: Measures) -> str:
    last = rows[-1]
    if last["status"] == "failed":
        return f"failed: {last['reason']}"
    measured = [name for name in last if not name.startswith("paper_")]
    names = [name for name in measured if name.endswith(TOLD)]
    numbers = [f"{name.replace('_', ' ')} {last[name]:.3f}" for name in names]
    names = [
        name
        for name in measured
        if re.fullmatch(r".*_(linear|knn\d+)", name) or name in measures.tasks
    ]
    numbers += [f"{name.replace('_', ' ')} {last[name]:.2f}%" for name in names]
    seconds = last["seconds_training"] + last["seconds_measuring"]
    return f"{', '.join(numbers)} ({seconds:.0f} s)"


def _record_failure(one: Planned, reason: str) -> None:
    write_json(_failure(one), {"reason": reason, "config": to_dict(one.config)})


def _folder(one: Planned) -> Path:
    return run_folder.folder_of(one.config)


def _path(one: Planned) -> str:
    return str(_folder(one))


def _result(one: Planned) -> Path:
    return _folder(one) / "sweep" / f"{_key(one)}.json"


def _failure(one: Planned) -> Path:
    return _folder(one) / "sweep" / f"{_key(one)}.failed.json"


def _key(one: Planned) -> str:
    shaping = run_folder.shaping(one.config)
    if one.config.init_from is not None:  # wherever that one is
        shaping["init_from"] = Path(one.config.init_from).name
    standard = run_folder.shaping(PretrainConfig())
    for part, names in LATER.items():
        for name in names:
            if shaping[part][name] == standard[part][name]:
                del shaping[part][name]
    *always, tasks, _, initial, neighbours, prototype, logged = one.measures
    more = [tasks, initial] if tasks or initial else []
    later = [neighbours, prototype, logged]
    more += later if later != LATER_MEASURES else []
    content = json.dumps([shaping, [*always, *more]], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _value(cell: str) -> str | int | float:
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(cell)
    return cell
