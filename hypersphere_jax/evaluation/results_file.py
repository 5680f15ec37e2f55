"""Results of probes and metrics: files in the run's folder, and one table, CSV or JSON file."""

import csv
import dataclasses
import io
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hypersphere_jax.configs.base import WRITER
from hypersphere_jax.utils.files import atomic_write, write_json

logger = logging.getLogger("hypersphere_jax")

Result = dict[str, Any]
PREDICTIONS = ("targets", "predicted")  # entries of each sample
SCORE_COLUMNS = ("valid", "top1", "top5")  # sorted in descending order
SHARED_COLUMNS = ("run", "step", "task", "layer", "d", "n")  # in the title if all results agree
TABLE_COLUMNS = (*SHARED_COLUMNS, "protocol", *SCORE_COLUMNS, "chosen", "seconds")
COLUMN_TITLES = {"valid": "held out", "top1": "top-1 ± 95%", "top5": "top-5", "seconds": "s"}
ABBREVIATIONS = {"learning_rate": "lr", "weight_decay": "wd", "temperature": "T"}


def sort_results(results: Iterable[Result], column: str | None) -> list[Result]:
    """Return the results sorted by a column of the table, best scores first, unless it is None."""
    if column is None:
        return list(results)

    def key(result: Result) -> tuple[bool, Any]:
        value = _row(result)[column]
        if value is not None and column in SCORE_COLUMNS:
            value = -value
        return value is None, value

    return sorted(results, key=key)


def results_table(results: Sequence[Result]) -> tuple[str, list[str], list[list]]:
    """Return a table of results: title with the shared values, column titles, and rows."""
    rows = [_row(result) for result in results]
    shared = [key for key in SHARED_COLUMNS if len({row[key] for row in rows}) == 1]
    title = [f"{key} {rows[0][key]}" for key in shared if rows[0][key] is not None]
    for row, result in zip(rows, results, strict=True):
        low, high = result.get("top1_interval") or (row["top1"], row["top1"])
        row["top1"] = f"{row['top1']:.2f} ± {(high - low) / 2:.2f}"
        row["seconds"] = f"{row['seconds']:.2f}"
    known = [key for key in TABLE_COLUMNS if any(row[key] is not None for row in rows)]
    columns = [key for key in known if key not in shared]
    titles = [COLUMN_TITLES.get(key, key) for key in columns]
    table = [[row[key] for key in columns] for row in rows]
    return ", ".join([*title, "accuracies in percent"]), titles, table


def write_results(path: Path, results: Sequence[Result]) -> None:
    """Write all results to a .json file, or without their lists to a .csv file.

    The predictions of samples are in the files of `save_result` only.
    """
    results = [{"written_by": WRITER} | _without_predictions(result) for result in results]
    if path.suffix.lower() == ".json":
        return write_json(path, results)
    rows = [_scalars(result) for result in results]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)))
    writer.writeheader()
    writer.writerows(rows)
    with atomic_write(path) as file:
        file.write(text.getvalue().encode())


def save_result(file: Path, result: Result) -> None:
    """Write a result to a JSON file in its run's folder, or log a warning.

    Labels and predicted classes of a classification are arrays `[n]` in an .npz file of that name.
    """
    predictions = {name: np.int32(result[name]) for name in PREDICTIONS if name in result}
    try:
        if predictions:
            with atomic_write(file.with_suffix(".npz")) as stream:
                np.savez_compressed(stream, **predictions)
        write_json(file, _without_predictions(result))
    except OSError as error:
        logger.warning("the result is not saved: %s", error)


def changed_options(config: Any, names: Iterable[str]) -> str:
    """Return the options that are not the default, for the name of a file: "-seed1-standardize"."""
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    changed = ""
    for name in names:
        value = getattr(config, name)
        if value == defaults[name]:
            continue
        if value is True:
            value = ""
        elif isinstance(value, tuple):
            value = "_".join(map(str, value))
        changed += f"-{name}{value}"
    return changed


def _without_predictions(result: Result) -> Result:
    return {key: value for key, value in result.items() if key not in PREDICTIONS}


def _row(result: Result) -> Result:
    """Return the values of the table's columns."""
    chosen = result.get("chosen") or {}
    names = [f"{ABBREVIATIONS.get(name, name)}={value:g}" for name, value in chosen.items()]
    row = {key: result.get(key) for key in TABLE_COLUMNS}
    return row | {
        "run": result.get("run", result.get("features")),
        "layer": "-".join(result[key] for key in ("layer", "pool") if key in result) or None,
        "protocol": _protocol_name(result),
        "valid": result.get("valid_top1"),
        "chosen": ", ".join(names) or None,
        "seconds": result["seconds_probe"],
    }


def _protocol_name(result: Result) -> str:
    """Return the protocol with its options that are not the default."""
    parts = [result["protocol"]]
    if parts[0] == "knn":
        options = (str(result["k"]), result.get("metric"), result.get("vote"))
        parts += [option for option in options if option not in (None, "cosine", "majority")]
    parts += [name for name in ("standardize", "augment", "as_printed") if result.get(name)]
    if result.get("converged") is False:
        parts.append("(not converged)")
    return " ".join(parts)


def _scalars(result: Result) -> Result:
    """Return the entries of a row in a CSV file."""
    row = {}
    for key, value in result.items():
        if isinstance(value, dict):
            row |= {f"{key}.{name}": item for name, item in value.items()}
        elif key == "top1_interval":
            row["top1_low"], row["top1_high"] = value
        elif not isinstance(value, list):
            row[key] = value
    return row
