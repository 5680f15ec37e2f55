"""Learning rates that are chosen on training data: a stage of runs, and what it gives the next one.

Each candidate trains on four fifths of the training split, and the fifth that is held out judges it
by logistic regression at the paper's layer. The test split is not read, and what is compared in the
end is trained anew, on the whole training split.
"""

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.protocols import Evaluation
from experiments.statistics import Rows, by
from experiments.sweeps import Planned

FOLDS = 5  # of the training split
HELD_OUT = "held_out"  # column: the fold that judged, of the rows of candidates alone


def at(one: Planned, rate: float) -> Planned:
    """The run at another rate, which its name and the column `rate` tell."""
    config = dataclasses.replace(
        one.config,
        name=f"{one.config.name}_rate{rate:g}",
        learning_rate=rate,
    )
    return one._replace(config=config, about={**one.about, "rate": rate})


def candidates(runs: Sequence[Planned], rates: Sequence[float]) -> list[Planned]:
    """Each run at each rate, trained and measured on parts of the training split.

    Held out is the fold that the run's data name, usually the first.
    """
    planned = []
    for one in (at(run, rate) for run in runs for rate in rates):
        config = one.config.replace(name=f"{one.config.name}_choice", folds=FOLDS)
        layers = one.evaluation.layers[:1]
        how = Evaluation(layers, protocol=None, folds=None)
        planned.append(Planned(config, {**one.about, HELD_OUT: config.fold}, how))
    return planned


def of_candidates(rows: Rows) -> Rows:
    """The rows of candidates, failed ones too."""
    return [row for row in rows if HELD_OUT in row]


def final(rows: Rows) -> Rows:
    """All others."""
    return [row for row in rows if HELD_OUT not in row]


def accuracies(rows: Rows, *names: str, layer: str = "backbone") -> dict[Any, dict[float, float]]:
    """Of each value of these columns: mean accuracy on the held-out fifth by rate, in percent.

    The mean is over all runs of a rate, such as seeds. One that failed counts as 0.
    """
    score = f"{layer}_logistic"
    scored = [
        {**row, "status": "done", score: row.get(score, 0.0) if row["status"] == "done" else 0.0}
        for row in of_candidates(rows)
    ]
    return {
        key: {
            rate: float(np.mean([row[score] for row in of_rate]))
            for rate, of_rate in sorted(by(group, "rate").items())
        }
        for key, group in by(scored, *names).items()
    }


def chosen(rows: Rows, *names: str, layer: str = "backbone") -> dict[Any, float]:
    """Of each value of these columns: the rate with the best accuracy, of equal ones the lowest."""
    of = accuracies(rows, *names, layer=layer)
    return {key: max(by_rate, key=lambda rate: by_rate[rate]) for key, by_rate in of.items()}


def told(choice: Mapping[Hashable, float], rates: Sequence[float], folds: int = 1) -> str:
    """Which rates were chosen, by how many folds, for a text; says where one is at the edge."""
    where = "a fifth of the training images that is held out"
    if folds > 1:
        where = f"{folds} fifths of the training images, each held out once"
    each = ", ".join(f"{key}: {rate:g}" for key, rate in choice.items())
    edge = [f"{key}" for key, rate in choice.items() if rate in (min(rates), max(rates))]
    text = (
        f"Learning rates, of {', '.join(f'{rate:g}' for rate in rates)} the best by logistic "
        f"regression on {where}: {each}."
    )
    if edge:
        text += f" At the edge of the candidates, so that others may be better: {', '.join(edge)}."
    return text
