"""Comparison of runs: differences of their scores with 95% intervals.

Runs that differ only in the seed form a group. Differences are to the first group.
"""

import csv
import io
import itertools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hypersphere_jax.configs import ReportConfig, UserError
from hypersphere_jax.configs.base import WRITER, check_output
from hypersphere_jax.evaluation import estimates
from hypersphere_jax.evaluation.results_file import PREDICTIONS
from hypersphere_jax.reporting import plots, run_page
from hypersphere_jax.reporting.page import Section, Table, write_page
from hypersphere_jax.reporting.tables import print_table, with_error
from hypersphere_jax.training import run_dir
from hypersphere_jax.training.metrics import read_metrics
from hypersphere_jax.utils.arrays import open_array
from hypersphere_jax.utils.files import atomic_write

SCORES = ("top1", "align", "uniform")
TASK = ("data", "split", "num_classes")  # results on different tasks are not compared
FIELDS = ("score", "result", "runs", "count", "value", "deviation", "standard_error")
FIELDS += ("difference", "low", "high", "method")
NOTE = (
    "± is the standard deviation over the seeds of a group, or the standard error of a single run. "
    "Differences are to the first group. 95% intervals: Welch's t over seeds; for two runs, paired "
    "by the predictions on the same test samples (Agresti & Min), or from standard errors."
)

Results = Mapping[Path, dict[str, Any]]  # a result by the folder of its run


def write_report(config: ReportConfig) -> Path:
    """Write the page of one run, or the page of several and print their table."""
    check_output(config.out, ".html")
    folders = [run_dir.find(name, config.runs_dir) for name in config.runs]
    if len(folders) == 1:
        return run_page.draw_run_page(folders[0], redraw=False)
    page = config.out or Path(config.runs_dir, "report.html")
    csv_file = page.with_suffix(".csv")
    curves = page.with_name(f"{page.stem}_curves.png")
    if config.out is not None:
        check_output(csv_file, ".csv")
        check_output(curves, ".png")
    rows = compare_runs(folders)
    _write_csv(csv_file, rows)
    columns = ["score", "result", "runs", "value", "difference", "95% interval", "method"]
    table = Table(columns, list(map(_table_row, rows)))
    print_table(table.columns, table.rows)
    names = run_page.run_names(folders)
    records = {name: read_metrics(folder) for name, folder in names.items()}
    plots.training_curves(records, curves)
    sections = [
        Section("Differences", [NOTE], [table]),
        run_page.evaluation_section(folders),
        Section("Options that differ", tables=[_differing_options(folders)]),
        Section("Training", figures={curves: f"Training curves of {len(folders)} runs"}),
    ]
    return write_page(page, "Runs", sections)


def compare_runs(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Return a dict of `FIELDS` for each score, result file and group of runs."""
    groups = _group_by_config(folders)
    names = {folder: name for name, folder in run_page.run_names(folders).items()}
    results = {folder: run_page.read_results(folder) for folder in folders}
    stems = dict.fromkeys(stem for of_run in results.values() for stem in of_run)
    rows = []
    for stem, score in itertools.product(stems, SCORES):
        base = None
        for number, group in enumerate(groups):
            scored = {folder: results[folder].get(stem, {}) for folder in group}
            scored = {f: result for f, result in scored.items() if result.get(score) is not None}
            if not scored:
                continue
            row = {"score": score, "result": stem, "runs": ", ".join(map(names.get, scored))}
            row |= _summary(scored, score)
            if number == 0:
                base = scored
            elif base:
                row |= _difference(scored, base, stem, score)
            rows.append(dict.fromkeys(FIELDS) | row)
    return rows


def _group_by_config(folders: Sequence[Path]) -> list[list[Path]]:
    """Return the runs in groups whose options differ only in the seed and in places."""
    ignored = {*run_dir.NOT_COMPARED, "seed", "data_dir"}
    groups: dict[str, list[Path]] = {}
    for folder in folders:
        config = run_dir.read_record(folder)["config"]
        options = {key: value for key, value in config.items() if key not in ignored}
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
    """Return the difference of the means, with its interval and the interval's method."""
    one = next(iter(results.values()))
    other = next(iter(base.values()))
    if any(one.get(key) != other.get(key) for key in TASK):
        return {"method": "other data"}
    values = [result[score] for result in results.values()]
    base_values = [result[score] for result in base.values()]
    row: dict[str, Any] = {"difference": statistics.fmean(values) - statistics.fmean(base_values)}
    errors = [result.get(f"{score}_standard_error") for result in (one, other)]
    method = interval = None
    if len(values) > 1 and len(base_values) > 1:
        method = "Welch"
        interval = estimates.welch(values, base_values)
    elif len(values) == len(base_values) == 1 and score == "top1":
        method = "paired"
        interval = _paired(results, base, stem)
    elif len(values) == len(base_values) == 1 and None not in errors:
        method = "standard errors"
        interval = estimates.from_errors(one[score], errors[0], other[score], errors[1])
    if interval is None:
        return row
    return row | {"low": interval.low, "high": interval.high, "method": method}


def _paired(results: Results, base: Results, stem: str) -> estimates.Difference | None:
    """Return the difference of two runs, or None without predictions on the same samples."""
    one = _correct(results, stem)
    other = _correct(base, stem)
    if one is None or other is None or not np.array_equal(one[0], other[0]):
        return None
    return estimates.paired(one[1], other[1])


def _correct(results: Results, stem: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Return labels `[n]` of a run and whether each was predicted, or None if unreadable."""
    ((folder, result),) = results.items()
    file = folder / "eval" / f"{stem}.npz"
    try:
        labels, predicted = (open_array(file, name) for name in PREDICTIONS)
    except UserError:
        return None
    if labels.shape != predicted.shape:
        return None
    correct = labels == predicted
    return (labels, correct) if math.isclose(100 * np.mean(correct), result["top1"]) else None


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, ["written_by", *FIELDS])
    writer.writeheader()
    writer.writerows({"written_by": WRITER, **row} for row in rows)
    with atomic_write(path) as file:
        file.write(text.getvalue().encode(errors="backslashreplace"))


def _table_row(row: Mapping[str, Any]) -> list[str | None]:
    difference = interval = None
    if row["difference"] is not None:
        difference = f"{row['difference']:+#.4g}"
    if row["low"] is not None:
        interval = f"{row['low']:+#.4g} to {row['high']:+#.4g}"
    score = run_page.HEADERS.get(row["score"], row["score"])
    value = with_error(row["value"], row["deviation"] or row["standard_error"])
    return [score, row["result"], row["runs"], value, difference, interval, row["method"]]


def _differing_options(folders: Sequence[Path]) -> Table:
    names = run_page.run_names(folders)
    configs = {name: run_dir.read_record(folder)["config"] for name, folder in names.items()}
    keys = dict.fromkeys(key for config in configs.values() for key in config if key != "name")
    differing = [key for key in keys if len({str(c.get(key)) for c in configs.values()}) > 1]
    rows = [[name, *(str(of.get(key)) for key in differing)] for name, of in configs.items()]
    return Table(["run", *differing], rows)
