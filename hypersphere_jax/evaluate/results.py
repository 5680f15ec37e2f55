"""Results of probes in order: as a table for the terminal, and as a CSV or JSON file."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hypersphere_jax.files import whole_file, write_json

Result = dict[str, Any]
BEST_FIRST = ("valid", "top1", "top5")
SHORT = {"learning_rate": "lr", "weight_decay": "wd", "temperature": "T"}
# Columns of the table; those before "protocol" go above it where all results share the value.
HEADERS = {
    "run": "run",
    "step": "step",
    "task": "task",
    "layer": "layer",
    "protocol": "protocol",
    "valid": "held out",
    "top1": "top-1 ± 95%",
    "top5": "top-5",
    "chosen": "chosen",
    "seconds": "s",
}


def ordered(results: Iterable[Result], column: str | None) -> list[Result]:
    """The results sorted by a column of the table, scores from the best on; None: as they are."""
    results = list(results)
    if column is None:
        return results
    known = [result for result in results if _row(result)[column] is not None]
    known.sort(key=lambda result: _row(result)[column], reverse=column in BEST_FIRST)
    return known + [result for result in results if _row(result)[column] is None]


def table(results: Sequence[Result]) -> tuple[str, list[str], list[list]]:
    """What all results share, as a title; and columns and rows of where they differ."""
    rows = [_row(result) for result in results]
    places = {key: {row[key] for row in rows} for key in ("run", "step", "task", "layer")}
    shared = {key: values.pop() for key, values in places.items() if len(values) == 1}
    titles = [str(shared["run"])] if "run" in shared else [f"{len(places['run'])} runs"]
    titles += [
        f"{key} {shared[key]}" for key in ("step", "task", "layer") if shared.get(key) is not None
    ]
    for key, what in (("d", "d {}"), ("n", "{:,} test samples")):
        values = {result[key] for result in results}
        titles += [what.format(*values)] if len(values) == 1 else []
    titles.append("accuracies in percent")
    for row, result in zip(rows, results, strict=True):
        low, high = result.get("top1_interval") or (row["top1"], row["top1"])
        row["top1"] = f"{row['top1']:.2f} ± {(high - low) / 2:.2f}"
        row["seconds"] = f"{row['seconds']:.2f}"
    columns = [
        key for key in HEADERS if key not in shared and any(row[key] is not None for row in rows)
    ]
    values = [[row[key] for key in columns] for row in rows]
    return ", ".join(titles), [HEADERS[key] for key in columns], values


def write(path: Path, results: Sequence[Result]) -> None:
    """Writes all results into a .json file, or into a .csv file what of them is no list."""
    if path.suffix.lower() == ".json":
        write_json(path, list(results))
        return
    flat = [dict(_flat(result)) for result in results]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in flat for key in row)))
    writer.writeheader()
    writer.writerows(flat)
    with whole_file(path) as file:
        file.write(text.getvalue().encode())


def _row(result: Result) -> Result:
    """The values of the table's columns."""
    chosen = result.get("chosen") or {}
    return {
        "run": result.get("run", result.get("features")),
        "step": result.get("step"),
        "task": result.get("task"),
        "layer": "-".join(result[key] for key in ("layer", "pool") if key in result) or None,
        "protocol": _protocol(result),
        "valid": result.get("valid_top1"),
        "top1": result["top1"],
        "top5": result.get("top5"),
        "chosen": ", ".join(f"{SHORT.get(k, k)}={v:g}" for k, v in chosen.items()) or None,
        "seconds": result["seconds_probe"],
    }


def _protocol(result: Result) -> str:
    """The protocol with its options, but for usual ones."""
    if result["protocol"] != "knn":
        options = [" as printed"] if result.get("as_printed") else []
        options += ["+augment"] if result.get("augment") else []
        # A fit that did not end at the optimum is marked.
        options += ["*"] if result.get("converged") is False else []
        return "".join([result["protocol"], *options])
    usual = {"metric": "cosine", "vote": "majority"}
    unusual = [result[key] for key in usual if result.get(key, usual[key]) != usual[key]]
    return " ".join([f"knn {result['k']}", *unusual])


def _flat(result: Result, prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in result.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif key == "top1_interval":
            yield from zip(("top1_low", "top1_high"), value, strict=True)
        elif not isinstance(value, list):
            yield f"{prefix}{key}", value
