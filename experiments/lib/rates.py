"""Learning rates chosen on training data.

Each candidate trains on four fifths of the training split. The remaining fifth judges it by
logistic regression on the paper's layer. The chosen rates are trained again on the whole split.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from experiments.lib.evaluation import Evaluation
from experiments.lib.records import Rows, key_of
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
        evaluation = Evaluation(run.evaluation.layers[:1], protocol=None, folds=None)
        for rate in rates:
            candidate = with_rate(run, rate)
            name = f"{candidate.config.name}_choice"
            candidate = candidate.replace({HELD_OUT: run.config.fold}, name=name, folds=FOLDS)
            planned.append(Run(candidate.config, candidate.labels, evaluation))
    return planned


def is_complete(runs: Sequence[Run], rows: Rows) -> bool:
    """Return whether all runs have ended."""
    ended = {row["run"] for row in rows}
    return all(run.config.name in ended for run in runs)


def final(rows: Rows) -> Rows:
    """Return the rows without candidates."""
    return [row for row in rows if HELD_OUT not in row]


def chosen(rows: Rows, *names: str) -> dict[Hashable, float]:
    """Return the rate with the best mean held-out accuracy per value of columns.

    The lowest of equally good rates is chosen. A failed run has accuracy 0.
    """
    scores: dict[Any, dict[float, list[float]]] = {}
    for row in rows:
        if HELD_OUT in row:
            score = row["backbone_logistic"] if row["status"] == "done" else 0.0
            by_rate = scores.setdefault(key_of(row, names), {})
            by_rate.setdefault(row["rate"], []).append(score)
    choice = {}
    for key, by_rate in scores.items():
        means = {rate: np.mean(by_rate[rate]) for rate in sorted(by_rate)}
        choice[key] = max(means, key=means.__getitem__)
    return choice


def choose_then_train(
    candidates: Sequence[Run], planned: Sequence[Run], rows: Rows, *names: str
) -> list[Run]:
    """Return the candidates and, when they have ended, the planned runs at the chosen rates.

    Rates are chosen per value of the labels `names`.
    """
    if not is_complete(candidates, rows):
        return [*candidates]
    return [*candidates, *at_chosen(planned, rows, *names)]


def at_chosen(runs: Sequence[Run], rows: Rows, *names: str) -> list[Run]:
    """Return the runs at the rates that were chosen for their labels."""
    choice = chosen(rows, *names)
    return [with_rate(run, choice[key_of(run.labels, names)]) for run in runs]
