"""What encoders predicted of single test samples: one small file an evaluation, or a result."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hypersphere_jax.evaluate.results_file import smallest
from hypersphere_jax.utils.files import atomic_write


class Predictions(NamedTuple):
    """Of one score: labels and predicted classes of the same test samples, integers `[n]`."""

    targets: np.ndarray
    predicted: np.ndarray

    @property
    def right(self) -> np.ndarray:
        """Booleans `[n]`."""
        return self.targets == self.predicted


COLUMN = "predictions"  # of a row: `Predictions` by the name of the score


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes the predictions of rows into an .npz file.

    For each score, and each set of labels that it was measured on (`SCORE/0`, `SCORE/1`, ...):
    `targets` [n], the places `rows` [r] of the rows that have it, and what they `predicted` [r, n].
    """
    groups: dict[str, list[tuple[np.ndarray, list[int], list[np.ndarray]]]] = {}
    for place, row in enumerate(rows):
        for score, (targets, predicted) in row.get(COLUMN, {}).items():
            of_score = groups.setdefault(score, [])
            alike = [group for group in of_score if np.array_equal(group[0], targets)]
            if not alike:
                of_score.append((targets, [], []))
                alike = of_score[-1:]
            alike[0][1].append(place)
            alike[0][2].append(predicted)
    arrays = {}
    for score, of_score in groups.items():
        for number, (targets, places, predicted) in enumerate(of_score):
            parts = {"targets": targets, "rows": places, "predicted": np.stack(predicted)}
            for name, values in parts.items():
                # Column by column: of a sample encoders agree, and the file is a fourth smaller.
                arrays[f"{score}/{number}/{name}"] = np.asfortranarray(smallest(values))
    with atomic_write(path) as stream:
        np.savez_compressed(stream, **arrays)


def read(path: Path, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows with their predictions, from a file that `write` made of them."""
    whole: list[dict[str, Any]] = [{**row, COLUMN: {}} for row in rows]
    with np.load(path, allow_pickle=False) as arrays:
        for name in arrays.files:
            if not name.endswith("/rows"):
                continue
            group, score = name.removesuffix("/rows"), name.split("/")[0]
            targets, predicted = arrays[f"{group}/targets"], arrays[f"{group}/predicted"]
            for place, classes in zip(arrays[name], predicted, strict=True):
                whole[place][COLUMN][score] = Predictions(targets, classes)
    return whole


def without(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows as a table can hold them."""
    return [{key: row[key] for key in row if key != COLUMN} for row in rows]


def right(rows: Sequence[Mapping[str, Any]], score: str) -> np.ndarray:
    """Whether each test sample was classified right, booleans `[rows, n]`."""
    return np.stack([row[COLUMN][score].right for row in rows])
