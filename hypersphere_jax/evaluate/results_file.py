"""Results of probes in order: as a table for the terminal, and as a CSV or JSON file."""

import csv
import dataclasses
import io
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hypersphere_jax.configs.base import WRITER
from hypersphere_jax.utils.files import atomic_write, write_json

logger = logging.getLogger("hypersphere_jax")

Result = dict[str, Any]
BEST_FIRST = ("valid", "top1", "top5")
PREDICTIONS = ("targets", "predicted")  # of a result, for each sample
USUAL = (None, "cosine", "majority")  # options of k-NN that are not named
SHORT = {"learning_rate": "lr", "weight_decay": "wd", "temperature": "T"}
# Columns of the table; those before "protocol" are in its title where all results share them.
HEADERS = {key: key for key in ("run", "step", "task", "layer", "protocol")}
HEADERS |= {"valid": "held out", "top1": "top-1 ± 95%", "top5": "top-5"}
HEADERS |= {"chosen": "chosen", "seconds": "s"}


def ordered(results: Iterable[Result], column: str | None) -> list[Result]:
    """The results sorted by a column of the table, scores from the best on; None: as they are."""

    def key(result: Result) -> tuple[bool, Any]:
        value = _row(result)[column]
        return value is None, -value if value is not None and column in BEST_FIRST else value

    return list(results) if column is None else sorted(results, key=key)


def table(results: Sequence[Result]) -> tuple[str, list[str], list[list]]:
    """What all results share, as a title; and columns and rows of where they differ."""
    rows = [_row(result) for result in results]
    values = {key: {row[key] for row in rows} for key in ("run", "step", "task", "layer")}
    shared = {key: next(iter(several)) for key, several in values.items() if len(several) == 1}
    titles = [str(shared["run"]) if "run" in shared else f"{len(values['run'])} runs"]
    titles += [f"{k} {v}" for k, v in shared.items() if k != "run" and v is not None]
    for key, text in (("d", "d {}"), ("n", "{:,} test samples")):
        several = {result[key] for result in results}
        titles += [text.format(*several)] if len(several) == 1 else []
    for row, result in zip(rows, results, strict=True):
        low, high = result.get("top1_interval") or (row["top1"], row["top1"])
        row["top1"] = f"{row['top1']:.2f} ± {(high - low) / 2:.2f}"
        row["seconds"] = f"{row['seconds']:.2f}"
    columns = [k for k in HEADERS if k not in shared and any(row[k] is not None for row in rows)]
    title = ", ".join([*titles, "accuracies in percent"])
    return title, [HEADERS[key] for key in columns], [[row[key] for key in columns] for row in rows]


def write(path: Path, results: Sequence[Result]) -> None:
    """Writes all results into a .json file, or without their lists into a .csv file.

    What was predicted of each sample is left out: `save` keeps it.
    """
    results = [{"written_by": WRITER} | _without(result, PREDICTIONS) for result in results]
    if path.suffix.lower() == ".json":
        return write_json(path, results)
    rows = [_scalars(result) for result in results]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)))
    writer.writeheader()
    writer.writerows(rows)
    with atomic_write(path) as file:
        file.write(text.getvalue().encode())


def save(file: Path, result: Result) -> None:
    """Writes a result into its run's folder, with a warning where that cannot be written.

    Of a classification, labels (`targets`) and predicted classes of all samples are arrays `[n]` in
    an .npz file beside it.
    """
    predictions = {name: smallest(result[name]) for name in PREDICTIONS if name in result}
    try:
        if predictions:
            with atomic_write(file.with_suffix(".npz")) as stream:
                np.savez_compressed(stream, **predictions)
        write_json(file, _without(result, PREDICTIONS))
    except OSError as error:
        logger.warning("the result is not kept: %s", error)


def smallest(classes: Sequence[int] | np.ndarray) -> np.ndarray:
    """Integers in the smallest type that holds them."""
    array = np.asarray(classes)
    fitting = np.promote_types(np.min_scalar_type(array.min()), np.min_scalar_type(array.max()))
    return array.astype(fitting)


def suffix(config: Any, names: Iterable[str]) -> str:
    """Of a file's name: these options of a verb, where they are not the default."""
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    values = {name: getattr(config, name) for name in names}
    return "".join(f"-{name}{value}" for name, value in values.items() if value != defaults[name])


def _without(result: Result, names: Iterable[str]) -> Result:
    return {key: value for key, value in result.items() if key not in names}


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
    name += " standardized" if result.get("standardized") else ""
    name += "+augment" if result.get("augment") else ""
    # A fit that did not end at the optimum is marked.
    return f"{name}*" if result.get("converged") is False else name


def _scalars(result: Result) -> Result:
    row: Result = {}
    for key, value in result.items():
        if key == "top1_interval":
            row["top1_low"], row["top1_high"] = value
        elif not isinstance(value, list):
            row |= flattened({key: value})
    return row


def flattened(tree: Mapping, prefix: str = "") -> Result:
    """Nested dicts, and lists of them, as one dict with keys such as "sessions.1.command"."""
    flat = {}
    for key, value in tree.items():
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            value = dict(enumerate(value, start=1))
        nested = isinstance(value, Mapping)
        flat |= flattened(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return flat
