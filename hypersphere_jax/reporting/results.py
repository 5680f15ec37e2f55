"""Evaluation results in the folders of runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hypersphere_jax.reporting.page import Section, Table
from hypersphere_jax.reporting.tables import with_error
from hypersphere_jax.utils.files import read_kept

SCORES = ("top1", "align", "uniform")  # compared between runs
HEADERS = {"top1": "top-1 (%)", "top1_interval": "95% interval", "top5": "top-5 (%)"}
NOT_SHOWN = {"run", "protocol", "num_classes", "gradient_norm", "chosen_at_edge"}


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the results of a run by the stem of their file; damaged files are left out."""
    results = {file.stem: read_kept(file) for file in sorted((folder / "eval").glob("*.json"))}
    return {stem: result for stem, result in results.items() if result is not None}


def run_names(folders: Sequence[Path]) -> dict[str, Path]:
    """Return run folders by name, or by path if two have the same name."""
    names = {folder.resolve().name: folder for folder in folders}
    if len(names) == len(folders):
        return names
    return {str(folder): folder for folder in folders}


def evaluation_section(folders: Sequence[Path]) -> Section:
    """Return all results of some runs, with a table for each protocol."""
    by_protocol: dict[str, list[dict]] = {}
    for name, folder in run_names(folders).items():
        for stem, result in read_results(folder).items():
            row = {"run": name, "result": stem} | _shown(result)
            by_protocol.setdefault(str(result.get("protocol", stem)), []).append(row)
    tables = []
    for protocol, rows in by_protocol.items():
        keys = dict.fromkeys(key for row in rows for key in row)
        columns = [HEADERS.get(key, key.replace("_", " ")) for key in keys]
        tables.append(Table(columns, [[row.get(key) for key in keys] for row in rows], protocol))
    text = "± is the standard error." if tables else "No results yet; run probe or metrics."
    return Section("Evaluation", [text], tables)


def _shown(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a result: scores with their errors, intervals, and options."""
    row = {}
    for key, value in result.items():
        is_hidden = key in NOT_SHOWN or "seconds" in key or key.endswith("_standard_error")
        is_array = isinstance(value, list) and not key.endswith("_interval")
        if is_hidden or is_array or value is None:
            continue
        error = result.get(f"{key}_standard_error")
        if isinstance(value, float) and isinstance(error, float):
            value = with_error(value, error)
        row[key] = value
    return row
