"""Sentence encoders of Tables 4 and 11 and Figure 9b: runs, baselines and selection."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from experiments.lib.records import Rows, correct, finished
from experiments.lib.stats import Estimate, contrast
from experiments.lib.sweep import Run
from experiments.lib.tables import table_row
from experiments.wang_isola.encoders import EVALUATE_BOOKS, SELECTIONS, run_of

TABLE11 = "wang-isola/table11"
TASKS = ("mr", "cr")
# Quick-Thought as it was; the contrastive loss over its range of tau; alignment and uniformity over
# their range of weights, with the paper's best (row 47).
LAPTOP_ROWS = (1, 2, 4, 5, 6, 7, 11, 16, 42, 47, 71, 75, 77, 83, 87, 106)
BASELINE_ROW = 6
FRESH_SEEDS = (1, 2, 3)
RANDOM_WORDS = "mean of random word vectors"


def text_columns(task: str) -> dict[str, str]:
    """Return the score columns of a task by instrument."""
    return {"logistic": task, "knn5": f"{task}_knn5"}


def grid_runs() -> list[Run]:
    """Return the laptop's encoders, seed 0."""
    rows = [table_row(TABLE11, number) for number in LAPTOP_ROWS]
    return [run_of(row, "laptop", EVALUATE_BOOKS) for row in rows]


def baseline_runs() -> list[Run]:
    """Return an encoder with three seeds, whose initial word vectors are the baseline."""
    evaluation = replace(EVALUATE_BOOKS, layers=("output", "bag"), initial=True)
    planned = []
    for seed in FRESH_SEEDS:
        run = run_of(table_row(TABLE11, BASELINE_ROW), "laptop", evaluation, seed)
        planned.append(run.replace({"kind": "baseline"}))
    return planned


def fresh_runs(rows: Sequence) -> list[Run]:
    """Return the selected encoders with fresh seeds."""
    planned = []
    for number in dict.fromkeys(row["row"] for row in selected(rows).values()):
        for seed in FRESH_SEEDS:
            run = run_of(table_row(TABLE11, number), "laptop", EVALUATE_BOOKS, seed)
            planned.append(run.replace({"fresh": True}))
    return planned


def grid_rows(rows: Sequence) -> Rows:
    """Return the rows of the grid, without baselines and fresh seeds."""
    return [row for row in finished(rows) if row["kind"] != "baseline" and not row.get("fresh")]


def selected(rows: Sequence) -> dict[tuple[str, str], dict]:
    """Return the best encoder by cross-validation per selection and task."""
    best = {}
    for name, kinds in SELECTIONS.items():
        candidates = [row for row in grid_rows(rows) if kinds is None or row["kind"] in kinds]
        for task in TASKS:
            scores = [row[f"{task}_cv"] for row in candidates]
            best[name, task] = candidates[int(np.argmax(scores))]
    return best


def predictions_of(rows: Rows, task: str) -> dict[str, np.ndarray]:
    """Return which sentences are classified correctly, by instrument."""
    return {name: correct(rows, score) for name, score in text_columns(task).items()}


def random_word_vectors(rows: Sequence, task: str) -> dict[str, np.ndarray]:
    """Return the predictions with the mean of random word vectors, by instrument."""
    made = [row for row in finished(rows) if row["kind"] == "baseline" and row["step"] == 0]
    return predictions_of(made, f"{task}_bag")


def difference(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> dict[str, Estimate]:
    """Return the accuracy of a minus the accuracy of b, by instrument."""
    return {name: contrast([a[name], b[name]], [1, -1]) for name in a}
