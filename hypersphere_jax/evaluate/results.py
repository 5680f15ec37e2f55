"""Results of probes in order: as a table for the terminal, and as a CSV or JSON file."""

import csv
import dataclasses
import io
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hypersphere_jax.files import atomic_write, write_json

logger = logging.getLogger("hypersphere_jax")

Result = dict[str, Any]
BEST_FIRST = ("valid", "top1", "top5")
USUAL = (None, "cosine", "majority")  # options of k-NN that are not named
SHORT = {"learning_rate": "lr", "weight_decay": "wd", "temperature": "T"}
# Columns of the table; those before "protocol" go above it where all results share the value.
HEADERS = {key: key for key in ("run", "step", "task", "layer", "protocol")}
HEADERS |= {"valid": "held out", "top1": "top-1 ± 95%", "top5": "top-5"}
HEADERS |= {"chosen": "chosen", "seconds": "s"}


def ordered(results: Iterable[Result], column: str | None) -> list[Result]:
    """The results sorted by a column of the table, scores from the best on; None: as they are."""

    def place(result: Result) -> tuple[bool, Any]:
        value = _row(result)[column]
        return value is None, -value if value is not None and column in BEST_FIRST else value

    return list(results) if column is None else sorted(results, key=place)


def table(results: Sequence[Result]) -> tuple[str, list[str], list[list]]:
    """What all results share, as a title; and columns and rows of where they differ."""
    rows = [_row(result) for result in results]
    values = {key: {row[key] for row in rows} for key in ("run", "step", "task", "layer")}
    shared = {key: its.pop() for key, its in values.items() if len(its) == 1}
    titles = [str(shared["run"]) if "run" in shared else f"{len(values['run'])} runs"]
    titles += [
        f"{key} {shared[key]}" for key in list(shared) if key != "run" and shared[key] is not None
    ]
    for key, what in (("d", "d {}"), ("n", "{:,} test samples")):
        its = {result[key] for result in results}
        titles += [what.format(*its)] if len(its) == 1 else []
    for row, result in zip(rows, results, strict=True):
        low, high = result.get("top1_interval") or (row["top1"], row["top1"])
        row["top1"] = f"{row['top1']:.2f} ± {(high - low) / 2:.2f}"
        row["seconds"] = f"{row['seconds']:.2f}"
    columns = [
        key for key in HEADERS if key not in shared and any(row[key] is not None for row in rows)
    ]
    title = ", ".join([*titles, "accuracies in percent"])
    return title, [HEADERS[key] for key in columns], [[row[key] for key in columns] for row in rows]


def write(path: Path, results: Sequence[Result]) -> None:
    """Writes all results into a .json file, or without their lists into a .csv file."""
    if path.suffix.lower() == ".json":
        write_json(path, list(results))
        return
    rows = [dict(_flat(result)) for result in results]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)))
    writer.writeheader()
    writer.writerows(rows)
    with atomic_write(path) as file:
        file.write(text.getvalue().encode())


def save(file: Path, result: Result) -> None:
    """Writes a result into its run's folder, with a warning where that cannot be written."""
    try:
        write_json(file, result)
    except OSError as error:
        logger.warning("the result is not kept: %s", error)


def suffix(config: Any, names: Iterable[str]) -> str:
    """Of a file's name: these options of a verb, where they are not the default."""
    standard = {field.name: field.default for field in dataclasses.fields(config)}
    values = {name: getattr(config, name) for name in names}
    changed = (name for name in values if values[name] != standard[name])
    return "".join(f"-{name}{values[name]}" for name in changed)


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
    name = result["protocol"]
    if name == "knn":
        options = [str(result["k"]), result.get("metric"), result.get("vote")]
        return " ".join([name, *(each for each in options if each not in USUAL)])
    name += " as printed" if result.get("as_printed") else ""
    name += "+augment" if result.get("augment") else ""
    # A fit that did not end at the optimum is marked.
    return f"{name}*" if result.get("converged") is False else name


def _flat(result: Result, prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in result.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif key == "top1_interval":
            yield from zip(("top1_low", "top1_high"), value, strict=True)
        elif not isinstance(value, list):
            yield f"{prefix}{key}", value
