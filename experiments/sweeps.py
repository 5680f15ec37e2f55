"""Sweeps: many runs in one folder, each trained and measured once, and one table of them all.

What is finished is never done again: a run's rows lie in its folder, under a name that tells its
config and what was measured. A run that fails leaves its reason there, and the others go on.
"""

import contextlib
import csv
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from experiments import workers
from hypersphere_jax import checkpoint, data, runs, sharding, training
from hypersphere_jax.config import (
    DepthConfig,
    Diverged,
    MetricsConfig,
    PretrainConfig,
    ProbeConfig,
    UserError,
    to_dict,
)
from hypersphere_jax.evaluation import depth
from hypersphere_jax.evaluation.measure import measure
from hypersphere_jax.evaluation.probe import probe

Rows = list[dict[str, Any]]
OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"


class Measures(NamedTuple):
    """What is measured of an encoder, beside alignment (alpha 2) and uniformity (t 2).

    Attributes:
      layers: whose outputs are classified.
      protocol: of the linear probe, see `ProbeConfig`; as its paper prints it.
      folds: of the cross-validation on the training split, by which encoders are selected; None: a
        held-out part of it.
      all_steps: of every checkpoint that is kept, also the random initialization.
      depth: depth maps from the layers, in place of metrics and classes.
    """

    layers: tuple[str, ...] = ("output",)
    protocol: str = "stl10"
    folds: int | None = 5
    all_steps: bool = False
    depth: bool = False


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
    together: bool | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Rows:
    """Trains and measures what is not done yet.

    Args:
      planned: the runs. One that others begin from is trained before them.
      jobs: processes that work at a time, each with its share of the processor's cores.
      retry: do those again that failed before.
      command: what the user typed, for the line that says how to continue.
      logs: folder for what several processes print; None: they print here.
      together: train those that differ in numbers alone in one program, see
        `training.train_together`. None: with one job, on accelerators.
      say: is told of each run as it ends.

    Returns:
      All rows, in the order of the plan: `run`, `status` (`done`, or `failed` with its `reason`),
      what the plan says about it, and of one that is done each step's numbers.

    Raises:
      UserError: when the data are not there.
      Stopped: on a signal, once what was in the making is saved.
    """
    for config in {one.config.data: one.config.data for one in planned}.values():
        data.load(config)
    if retry:
        for one in planned:
            _failure(one).unlink(missing_ok=True)
    sources = {one.config.init_from for one in planned}
    waves = [
        [one for one in planned if _path(one) in sources],
        [one for one in planned if _path(one) not in sources],
    ]
    total = sum(rows_of(one) is None for one in planned)
    began, done = time.monotonic(), 0

    def ended(one: Planned) -> None:
        nonlocal done
        done += 1
        rest = (time.monotonic() - began) / done * (total - done)
        ending = f"; about {rest / 60:.0f} min left" if done < total else ""
        say(f"{done} of {total}: {one.config.name}: {_told(rows_of(one))}{ending}")

    for wave in waves:
        open_runs = [one for one in wave if rows_of(one) is None]
        if together if together is not None else jobs == 1 and jax.default_backend() != "cpu":
            for one in _train_together(open_runs, command):
                ended(one)
            open_runs = [one for one in open_runs if rows_of(one) is None]
        for one, result in workers.each(carry_out, open_runs, jobs, command, logs):
            if isinstance(result, str):
                _record_failure(one, result)
            ended(one)
    return known(planned)


def known(planned: Sequence[Planned]) -> Rows:
    """All rows of what is done or failed, in the order of the plan."""
    return [row for one in planned for row in rows_of(one) or []]


def _train_together(planned: Sequence[Planned], command: str) -> list[Planned]:
    """Trains runs, as many of them as can be in one program; those that diverged."""
    if not planned:
        return []
    configs = [one.config for one in planned]
    sharding.keep_compiled(configs[0].runtime.cache_dir)
    try:
        outcomes = training.train_together(configs, command)
    except UserError:  # of one of them: it will be told of that one when it is carried out alone
        return []
    failed = []
    for one, outcome in zip(planned, outcomes, strict=True):
        if isinstance(outcome, Diverged):
            _record_failure(one, outcome.found)
            failed.append(one)
    return failed


def carry_out(one: Planned, command: str = "") -> str | None:
    """Trains a run and measures it; the reason where that fails, and None where it does not."""
    began = time.monotonic()
    sharding.keep_compiled(one.config.runtime.cache_dir)
    try:
        folder = training.train(one.config, command)
        trained = time.monotonic()
        rows = _measured(folder, one.measures)
    except (Diverged, UserError) as error:
        return getattr(error, "found", str(error))
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
    runs.write_json(_result(one), {"rows": [row | seconds for row in rows]})
    return None


def rows_of(one: Planned) -> Rows | None:
    """The rows of a run that is done or failed; None for one that is still to do."""
    common = {"run": one.config.name, **one.about}
    if _result(one).is_file():
        rows = runs.read_json(_result(one))["rows"]
        return [common | {"status": "done"} | row for row in rows]
    if _failure(one).is_file():
        reason = runs.read_json(_failure(one))["reason"]
        return [common | {"status": "failed", "reason": reason}]
    return None


def read_csv(path: Path) -> Rows:
    """The rows of a CSV file, numbers as numbers, without the cells that are empty."""
    with path.open(newline="", encoding="utf-8") as stream:
        return [
            {column: _value(cell) for column, cell in row.items() if cell != ""}
            for row in csv.DictReader(stream)
        ]


def _measured(folder: Path, measures: Measures) -> Rows:
    steps = checkpoint.steps(folder / "checkpoints") if measures.all_steps else [None]
    score = _depths if measures.depth else _accuracies
    rows = []
    for step in steps:
        found = measure(MetricsConfig(str(folder), parts=(), step=step))
        row = {"step": found["step"]}
        for metric in ("align", "uniform"):
            row[metric] = found[metric]
            row[f"{metric}_error"] = found[f"{metric}_standard_error"]
        rows.append(row | score(folder, step, measures))
    # They are many, and large beside all else of a run; what was measured of them is kept.
    shutil.rmtree(folder / "features", ignore_errors=True)
    return rows


def _accuracies(folder: Path, step: int | None, measures: Measures) -> dict[str, Any]:
    """Linear and 5-NN accuracy on each layer, in percent, with the ends of their intervals."""
    row = {}
    for score in probe(
        ProbeConfig(
            (str(folder),),
            layers=measures.layers,
            protocols=(measures.protocol, "knn"),
            folds=measures.folds,
            as_printed=True,
            step=step,
        )
    ):
        nearest = score["protocol"] == "knn"
        name = f"{score['layer']}_{'knn5' if nearest else 'linear'}"
        row[name] = score["top1"]
        row[f"{name}_low"], row[f"{name}_high"] = score["top1_interval"]
        if not nearest:
            row |= {f"{name}_cv": score["valid_top1"], f"{name}_top5": score["top5"]}
    return row


def _depths(folder: Path, step: int | None, measures: Measures) -> dict[str, Any]:
    """Mean squared error of depth maps from each layer."""
    row = {}
    for layer in measures.layers:
        config = DepthConfig((str(folder),), layer=layer, folds=measures.folds or 0, step=step)
        (found,) = depth.evaluate(config).results
        row[f"{layer}_mse"] = found["mse"]
        row |= {f"{layer}_mse_cv": found["cv_mse"]} if measures.folds else {}
    return row


def _told(rows: Rows) -> str:
    last = rows[-1]
    if last["status"] == "failed":
        return f"failed: {last['reason']}"
    measured = [name for name in last if not name.startswith("paper_")]
    names = [name for name in measured if name.endswith(("align", "uniform", "_mse"))]
    numbers = [f"{name.replace('_', ' ')} {last[name]:.3f}" for name in names]
    names = [name for name in measured if name.endswith(("_linear", "_knn5"))]
    numbers += [f"{name.replace('_', ' ')} {last[name]:.2f}%" for name in names]
    seconds = last["seconds_training"] + last["seconds_measuring"]
    return f"{', '.join(numbers)} ({seconds:.0f} s)"


def _record_failure(one: Planned, reason: str) -> None:
    runs.write_json(_failure(one), {"reason": reason, "config": to_dict(one.config)})


def _folder(one: Planned) -> Path:
    return runs.folder_of(one.config)


def _path(one: Planned) -> str:
    return str(_folder(one))


def _result(one: Planned) -> Path:
    return _folder(one) / "sweep" / f"{_key(one)}.json"


def _failure(one: Planned) -> Path:
    return _folder(one) / "sweep" / f"{_key(one)}.failed.json"


def _key(one: Planned) -> str:
    content = json.dumps([runs.shaping(one.config), one.measures], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _value(cell: str) -> str | int | float:
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(cell)
    return cell
