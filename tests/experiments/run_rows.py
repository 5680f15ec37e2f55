"""Rows of runs, as if these had been trained and evaluated; the configs of what is planned."""

import csv

import numpy as np

from experiments import rates, tables
from experiments.predictions import Predictions


def done(**values):
    """A row of a run that is done."""
    return {"status": "done", "run": "r", **values}


def scored(half=2.0, **scores):
    """Scores with the ends of their intervals, so far to either side."""
    ends = {"": 0, "_low": -half, "_high": half}
    return {f"{name}{end}": value + d for name, value in scores.items() for end, d in ends.items()}


def predicted(seed=0, n=400, **accuracies):
    """Such scores of n test samples, and their predictions: of a better one the same are right."""
    order, targets = np.random.default_rng(seed).permutation(n), np.zeros(n, int)
    made = {
        name: Predictions(targets, (order >= round(n * value / 100)).astype(int))
        for name, value in accuracies.items()
    }
    return scored(**accuracies) | {"seed": seed, "predictions": made}


def configs(planned):
    return [one.config for one in planned]


def read_csv(path):
    """The rows of a results.csv, numbers as numbers, without the cells that are empty."""
    with path.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    return [{name: tables.value_of(cell) for name, cell in row.items() if cell} for row in rows]


def both(before, output, probe=50):
    """These accuracies by both instruments, before the head and on the output; and by the probe."""
    named = {"backbone": before, "output": output}
    scores = {f"{layer}_{of}": named[layer] for layer in named for of in ("logistic", "knn5")}
    return scores | {f"{layer}_linear": probe for layer in named}


def split(planned):
    """The runs that choose a rate, and the others."""
    choice = [one for one in planned if rates.HELD_OUT in one.about]
    return choice, [one for one in planned if rates.HELD_OUT not in one.about]
