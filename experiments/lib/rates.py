"""Learning rates chosen on training data.

Each candidate trains on four fifths of the training split. The remaining fifth judges it by
logistic regression on the paper's layer. The chosen rates are trained again on the whole split.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.lib.evaluation import Evaluation
from experiments.lib.records import Rows
from experiments.lib.sweep import Run

FOLDS = 5
HELD_OUT = "held_out"  # column of candidates: the fold that judges them


def with_rate(run: Run, rate: float) -> Run:
    """Return the run at another rate, with the rate in its name and labels."""
    name = f"{run.config.name}_rate{rate:g}"
    return run.replace({"rate": rate}, name=name, learning_rate=rate)


def candidates(runs: Sequence[Run], rates: Sequence[float]) -> list[Run]:
    """Return each run at each rate, trained and judged on parts of the training split."""
    planned = []
    for run in runs:
        for rate in rates:
            candidate = with_rate(run, rate)
            fold = candidate.config.fold
            name = f"{candidate.config.name}_choice"
            candidate = candidate.replace({HELD_OUT: fold}, name=name, folds=FOLDS)
            layers = candidate.evaluation.layers[:1]
            planned.append(Run(candidate.config, candidate.labels, Evaluation(layers, None, None)))
    return planned


def is_complete(runs: Sequence[Run], rows: Rows) -> bool:
    """Return whether all runs have ended."""
    ended = {row["run"] for row in rows}
    return all(run.config.name in ended for run in runs)


def final(rows: Rows) -> Rows:
    """Return the rows without candidates."""
    return [row for row in rows if HELD_OUT not in row]


def held_out_accuracies(
    rows: Rows, *names: str, layer: str = "backbone"
) -> dict[Hashable, dict[float, float]]:
    """Return the mean held-out accuracy per rate and value of columns; a failed run counts as 0."""
    scores: dict[Any, dict[float, list[float]]] = {}
    for row in rows:
        if HELD_OUT not in row:
            continue
        values = tuple(row[name] for name in names)
        key = values if len(names) > 1 else values[0]
        score = row[f"{layer}_logistic"] if row["status"] == "done" else 0.0
        scores.setdefault(key, {}).setdefault(row["rate"], []).append(score)
    return {
        key: {rate: float(np.mean(of)) for rate, of in sorted(by_rate.items())}
        for key, by_rate in scores.items()
    }


def chosen(rows: Rows, *names: str, layer: str = "backbone") -> dict[Hashable, float]:
    """Return the best rate per value of columns; the lowest of equally good rates."""
    accuracies = held_out_accuracies(rows, *names, layer=layer)
    return {key: max(by_rate, key=by_rate.__getitem__) for key, by_rate in accuracies.items()}


def at_chosen(runs: Sequence[Run], rows: Rows, *names: str) -> list[Run]:
    """Return the runs at the rates that were chosen for their labels."""
    choice: Mapping[Hashable, float] = chosen(rows, *names)
    planned = []
    for run in runs:
        values = tuple(run.labels[name] for name in names)
        planned.append(with_rate(run, choice[values if len(names) > 1 else values[0]]))
    return planned
