"""Table 11 of Wang & Isola: all sentence encoders of BookCorpus, the grid of Figure 9b.

Claim: none. The question is whether small encoders rank like the paper's encoders.

    python run.py reproduce wang-isola/table11 --scale laptop --data-dir DATA

laptop: 16 rows with 100 dimensions, one epoch of eight novels; 62 minutes on one CPU core.
paper:  113 rows (BookCorpus, one epoch); about an hour each on one GPU (estimated).
Result (laptop): inconclusive. The rank correlations are between -0.22 and -0.50.
"""

from dataclasses import replace

from experiments.lib import Rows, Run, records, stats, tables
from experiments.lib.records import finished
from experiments.wang_isola.encoders import EVALUATE_BOOKS, run_of, table_runs
from experiments.wang_isola.plane import order_agrees

SCALES = ("laptop", "paper")
SETTINGS = ("kind", "loss", "step")
TABLE = "wang-isola/table11"
TASKS = ("mr", "cr")
# Quick-Thought as it was; the contrastive loss over its range of tau; alignment and uniformity over
# their range of weights, with the paper's best (row 47).
LAPTOP_ROWS = (1, 2, 4, 5, 6, 7, 11, 16, 42, 47, 71, 75, 77, 83, 87, 106)
BASELINE_ROW = 6
BASELINE_SEEDS = (1, 2, 3)
RANDOM_WORDS = "mean of random word vectors"


def runs(scale: str, rows: Rows) -> list[Run]:
    """Return the encoders, at laptop scale also the baseline: initial word vectors, three seeds."""
    if scale == "paper":
        return table_runs(TABLE, EVALUATE_BOOKS, scale, rows)
    planned = [run_of(tables.table_row(TABLE, row), scale, EVALUATE_BOOKS) for row in LAPTOP_ROWS]
    evaluation = replace(EVALUATE_BOOKS, layers=("output", "bag"), initial=True)
    for seed in BASELINE_SEEDS:
        run = run_of(tables.table_row(TABLE, BASELINE_ROW), scale, evaluation, seed)
        planned.append(run.replace({"kind": "baseline"}))
    return planned


def analyze(rows: Rows) -> Rows:
    """Correlate our accuracies with the paper's."""
    compared = {f"val_{task}": text_columns(task) for task in TASKS}
    return order_agrees(grid_rows(rows), compared)


def text_columns(task: str) -> dict[str, str]:
    """Return the score columns of a task by instrument."""
    return {"logistic": task, "knn5": f"{task}_knn5"}


def grid_rows(rows: Rows) -> Rows:
    """Return the rows of the grid, without baselines and fresh seeds."""
    return [row for row in finished(rows) if row["kind"] != "baseline" and not row.get("fresh")]


def compare_with_words(encoders: Rows, rows: Rows, task: str) -> dict[str, stats.Estimate]:
    """Return the accuracy of encoders minus the baseline's, by instrument."""
    words = [row for row in finished(rows) if row["kind"] == "baseline" and row["step"] == 0]
    word_columns = text_columns(f"{task}_bag")
    estimates = {}
    for name, score in text_columns(task).items():
        sides = [records.correct(encoders, score), records.correct(words, word_columns[name])]
        estimates[name] = stats.contrast(sides, [1, -1])
    return estimates
