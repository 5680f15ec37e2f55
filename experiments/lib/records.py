"""Rows of runs, and the CSV and NPZ files that contain them.

A row is a dict of one evaluated checkpoint. Its `predictions` entry maps a score such as
`output_knn5` to the labels and predicted classes of all test samples.
"""

import contextlib
import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hypersphere_jax.utils.files import atomic_write

Rows = list[dict[str, Any]]
PREDICTIONS = "predictions"
NOT_WRITTEN = (PREDICTIONS, "folder")
WORDS = {"": None, "yes": True, "no": False, "True": True, "False": False}


class Predictions(NamedTuple):
    """Labels and predicted classes of the same test samples, integers `[n]`."""

    targets: np.ndarray
    predicted: np.ndarray


def finished(rows: Sequence[Mapping]) -> Rows:
    """Return the rows of runs that did not fail."""
    return [dict(row) for row in rows if row["status"] == "done"]


def group_by(rows: Sequence[Mapping], *names: str) -> dict[Any, Rows]:
    """Group finished rows by the values of columns, in order of first appearance."""
    groups: dict[Any, Rows] = {}
    for row in finished(rows):
        groups.setdefault(key_of(row, names), []).append(row)
    return groups


def key_of(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Return the values of columns, or the value of a single one."""
    values = tuple(row[name] for name in names)
    return values if len(names) > 1 else values[0]


def column(rows: Sequence[Mapping], name: str) -> np.ndarray:
    """Return the values of a column."""
    return np.array([row[name] for row in rows])


def correct(rows: Sequence[Mapping], score: str) -> np.ndarray:
    """Return which test samples each encoder classified correctly, booleans `[rows, n]`."""
    predictions = [row[PREDICTIONS][score] for row in rows]
    return np.stack([each.targets == each.predicted for each in predictions])


def parse_cell(cell: str) -> str | float | bool | None:
    """Parse a CSV cell: a number, a boolean, text, or None for an empty cell."""
    if cell in WORDS:
        return WORDS[cell]
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(cell)
    return cell


def read_csv(path: Path) -> Rows:
    """Read the rows of a CSV file, without empty cells."""
    with path.open(newline="", encoding="utf-8") as stream:
        cells = list(csv.DictReader(stream))
    return [{name: parse_cell(cell) for name, cell in row.items() if cell} for row in cells]


def write_csv(path: Path, rows: Sequence[Mapping]) -> None:
    """Write rows to a CSV file whose header is the union of their columns."""
    names = dict.fromkeys(name for row in rows for name in row if name not in NOT_WRITTEN)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(names), extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    with atomic_write(path) as file:
        file.write(text.getvalue().encode())


def write_predictions(path: Path, rows: Sequence[Mapping]) -> None:
    """Write the predictions of rows to an NPZ file.

    Each score, and each distinct set of labels of a score, has three arrays under `SCORE/NUMBER/`:
    `targets` [n], the indices `rows` [r] of its rows, and `predicted` [r, n].
    """
    groups: dict[tuple[str, bytes], list[tuple[int, Predictions]]] = {}
    for index, row in enumerate(rows):
        for score, predictions in row.get(PREDICTIONS, {}).items():
            key = (score, predictions.targets.tobytes())
            groups.setdefault(key, []).append((index, predictions))
    arrays = {}
    for number, ((score, _), members) in enumerate(groups.items()):
        indices, predictions = zip(*members, strict=True)
        predicted = np.stack([each.predicted for each in predictions])
        prefix = f"{score}/{number}"
        arrays[f"{prefix}/targets"] = _smallest(predictions[0].targets)
        arrays[f"{prefix}/rows"] = _smallest(np.array(indices))
        # Encoders agree on most samples: the file is a quarter smaller column by column.
        arrays[f"{prefix}/predicted"] = np.asfortranarray(_smallest(predicted))
    with atomic_write(path) as stream:
        np.savez_compressed(stream, **arrays)


def read_predictions(path: Path, rows: Sequence[Mapping]) -> Rows:
    """Return the rows with their predictions from a file that `write_predictions` wrote."""
    complete: Rows = [{**row, PREDICTIONS: {}} for row in rows]
    with np.load(path, allow_pickle=False) as arrays:
        for name in arrays.files:
            prefix, _, part = name.rpartition("/")
            if part != "rows":
                continue
            score = prefix.split("/")[0]
            targets = arrays[f"{prefix}/targets"]
            predicted = arrays[f"{prefix}/predicted"]
            for index, classes in zip(arrays[name], predicted, strict=True):
                complete[index][PREDICTIONS][score] = Predictions(targets, classes)
    return complete


def read_results(folder: Path) -> Rows:
    """Read the results.csv of a folder, with predictions where they were recorded."""
    rows = read_csv(folder / "results.csv")
    file = folder / "predictions.npz"
    return read_predictions(file, rows) if file.is_file() else rows


def write_results(folder: Path, rows: Sequence[Mapping]) -> None:
    """Write results.csv and predictions.npz."""
    write_csv(folder / "results.csv", rows)
    write_predictions(folder / "predictions.npz", rows)


def _smallest(values: np.ndarray) -> np.ndarray:
    """Cast integers to the smallest type that contains them."""
    low = np.min_scalar_type(values.min())
    high = np.min_scalar_type(values.max())
    return values.astype(np.promote_types(low, high))
