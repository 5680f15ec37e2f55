"""Comparison of runs: differences of their scores with 95% intervals.

Runs that differ only in the seed form a group. Differences are to the first group.
"""

import csv
import io
import itertools
import json
import logging
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.configs.base import WRITER
from hypersphere_jax.evaluate import estimates
from hypersphere_jax.evaluate.results_file import PREDICTIONS, flattened
from hypersphere_jax.reporting import plots
from hypersphere_jax.reporting.page import Section, Table, write_page
from hypersphere_jax.reporting.results import (
    HEADERS,
    SCORES,
    evaluation_section,
    read_results,
    run_names,
)
from hypersphere_jax.reporting.tables import with_error
from hypersphere_jax.training.metrics import read_metrics
from hypersphere_jax.training.run_dir import NOT_COMPARED, read_record
from hypersphere_jax.utils.arrays import open_array
from hypersphere_jax.utils.files import atomic_write

logger = logging.getLogger("hypersphere_jax")

TASK = ("data", "split", "num_classes")  # results on different tasks are not compared
FIELDS = ("score", "result", "runs", "count", "value", "deviation", "standard_error")
FIELDS += ("difference", "low", "high", "method")
NOTE = (
    "± is the standard deviation over the seeds of a group, or the standard error of a single run. "
    "Differences are to the first group, with 95% intervals by the method in the last column. "
    "Welch: means over seeds. Paired: predictions of two runs on the same test samples (Agresti & "
    "Min). Newcombe: accuracies on independent samples, too wide if the samples are the same."
)

Results = Mapping[Path, dict[str, Any]]  # a result by the folder of its run


def write_comparison(folders: Sequence[Path], path: Path) -> Table:
    """Write a page of several runs, its table as CSV, and its curves as PNG.

    Returns:
      The table of differences, for the terminal.
    """
    rows = compare_runs(folders)
    table = difference_table(rows)
    csv_file, curves = comparison_files(path)
    _write_csv(csv_file, rows)
    records = {name: read_metrics(folder) for name, folder in run_names(folders).items()}
    plots.training_curves(records, curves)
    sections = [
        Section("Differences", [NOTE], [table]),
        evaluation_section(folders),
        Section("Options that differ", tables=[_differing_options(folders)]),
        Section("Training", figures={curves: f"Training curves of {len(folders)} runs"}),
    ]
    write_page(path, "Runs", sections)
    return table


def comparison_files(path: Path) -> tuple[Path, Path]:
    """Return the CSV and PNG files of a page of several runs."""
    return path.with_suffix(".csv"), path.with_name(f"{path.stem}_curves.png")


def compare_runs(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Return a dict of `FIELDS` for each score, result file and group of runs."""
    require(len(folders) > 0, "no runs to compare; name at least one run's folder")
    groups = _group_by_config(folders)
    names = {folder: name for name, folder in run_names(folders).items()}
    results = {folder: read_results(folder) for folder in folders}
    stems = dict.fromkeys(stem for of_run in results.values() for stem in of_run)
    rows = []
    for stem, score in itertools.product(stems, SCORES):
        base: Results | None = None
        for group in groups:
            found = {folder: results[folder].get(stem, {}) for folder in group}
            found = {folder: of for folder, of in found.items() if of.get(score) is not None}
            row = dict.fromkeys(FIELDS)
            row |= {"score": score, "result": stem, "runs": ", ".join(map(names.get, found))}
            if base is None:
                base = found
            elif base and found:
                row |= _difference(found, base, stem, score)
            if found:
                rows.append(row | _summary(found, score))
    return rows


def difference_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the rows of `compare_runs` as a table."""
    columns = ["score", "result", "runs", "value", "difference", "95% interval", "method"]
    shown = []
    for row in rows:
        difference = interval = None
        if row["difference"] is not None:
            difference = f"{row['difference']:+#.4g}"
        if row["low"] is not None:
            interval = f"{row['low']:+#.4g} to {row['high']:+#.4g}"
        score = HEADERS.get(row["score"], row["score"])
        value = with_error(row["value"], row["deviation"] or row["standard_error"])
        named = [score, row["result"], row["runs"], value]
        shown.append([*named, difference, interval, row["method"]])
    return Table(columns, shown)


def _group_by_config(folders: Sequence[Path]) -> list[list[Path]]:
    """Return the runs in groups whose options differ only in the seed and in places."""
    groups: dict[str, list[Path]] = {}
    for folder in folders:
        config = read_record(folder)["config"]
        options = flattened({k: v for k, v in config.items() if k not in NOT_COMPARED})
        for key in ("seed", "data_dir", "data.data_dir"):
            options.pop(key, None)
        groups.setdefault(json.dumps(options, sort_keys=True), []).append(folder)
    return list(groups.values())


def _summary(results: Results, score: str) -> dict[str, Any]:
    """Return mean and standard deviation of several runs, or value and error of one."""
    values = [result[score] for result in results.values()]
    summary = {"count": len(values), "value": statistics.fmean(values)}
    if len(values) > 1:
        return summary | {"deviation": statistics.stdev(values)}
    (result,) = results.values()
    return summary | {"standard_error": result.get(f"{score}_standard_error")}


def _difference(results: Results, base: Results, stem: str, score: str) -> dict[str, Any]:
    """Return the difference of the means with its interval, and the interval's method."""
    one = next(iter(results.values()))
    other = next(iter(base.values()))
    if any(one.get(key) != other.get(key) for key in TASK):
        return {"method": "other data"}
    values = [result[score] for result in results.values()]
    base_values = [result[score] for result in base.values()]
    method = None
    interval = None
    if len(values) > 1 and len(base_values) > 1:
        method = "Welch"
        interval = estimates.welch(values, base_values)
    elif len(values) == len(base_values) == 1:
        method, interval = _single_interval(results, base, stem, score)
    row = {"difference": statistics.fmean(values) - statistics.fmean(base_values)}
    if interval is not None:
        row |= {"low": interval.low, "high": interval.high, "method": method}
    return row


def _single_interval(
    results: Results, base: Results, stem: str, score: str
) -> tuple[str | None, estimates.Difference | None]:
    """Return method and interval of the difference between two single runs."""
    ((folder, one),) = results.items()
    ((base_folder, other),) = base.items()
    if score == "top1":
        labels, correct = _read_predictions(folder / "eval" / f"{stem}.npz", one)
        base_labels, base_correct = _read_predictions(base_folder / "eval" / f"{stem}.npz", other)
        if labels.size and np.array_equal(labels, base_labels):
            return "paired", estimates.paired(correct, base_correct)
        if one.get("n") and other.get("n"):
            counts = (one["top1"], one["n"], other["top1"], other["n"])
            return "Newcombe", estimates.newcombe(*counts)
    errors = [result.get(f"{score}_standard_error") for result in (one, other)]
    if None in errors:
        return None, None
    return "standard errors", estimates.from_errors(one[score], errors[0], other[score], errors[1])


def _read_predictions(file: Path, result: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return labels `[n]` and whether each was predicted; empty unless they fit the result."""
    nothing = np.zeros(0), np.zeros(0, bool)
    if not file.is_file():
        return nothing
    try:
        labels, predicted = (open_array(file, name) for name in PREDICTIONS)
    except UserError as error:
        logger.warning("%s; these predictions are ignored", error)
        return nothing
    if labels.ndim != 1 or labels.shape != predicted.shape or not labels.size:
        return nothing
    correct = labels == predicted
    if not math.isclose(100 * correct.mean(), result["top1"]):
        return nothing
    return labels, correct


def _differing_options(folders: Sequence[Path]) -> Table:
    configs = {name: flattened(read_record(f)["config"]) for name, f in run_names(folders).items()}
    keys = dict.fromkeys(key for config in configs.values() for key in config if key != "name")
    differing = [
        key for key in keys if len({str(config.get(key)) for config in configs.values()}) > 1
    ]
    rows = [[name, *(str(of.get(key)) for key in differing)] for name, of in configs.items()]
    return Table(["run", *differing], rows)


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, ["written_by", *FIELDS])
    writer.writeheader()
    writer.writerows({"written_by": WRITER, **row} for row in rows)
    with atomic_write(path) as file:
        file.write(text.getvalue().encode(errors="backslashreplace"))
