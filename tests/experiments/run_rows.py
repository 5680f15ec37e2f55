"""Rows of runs, as if these had been trained and evaluated; the configs of what is planned."""

import csv

from experiments import tables


def done(**values):
    """A row of a run that is done."""
    return {"status": "done", "run": "r", **values}


def scored(half=2.0, **scores):
    """Scores with the ends of their intervals, so far to either side."""
    ends = {"": 0, "_low": -half, "_high": half}
    return {f"{name}{end}": value + d for name, value in scores.items() for end, d in ends.items()}


def configs(planned):
    return [one.config for one in planned]


def read_csv(path):
    """The rows of a results.csv, numbers as numbers, without the cells that are empty."""
    with path.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    return [{name: tables._value(cell) for name, cell in row.items() if cell} for row in rows]
