"""Table 4 of Wang & Isola: the best sentence encoders of BookCorpus (Quick-Thought).

Claim: alignment and uniformity are comparable with the contrastive loss for sentences. In the table
the contrastive loss is 3.75 (MR) and 2.91 (CR) points better.

    python run.py reproduce wang-isola/table4 --scale laptop --data-dir DATA

laptop: the encoders of Table 11, of which those selected by cross-validation are trained again with
        3 fresh seeds; 103 minutes on one CPU core.
paper:  the encoders that the paper selected; about an hour each on one GPU (estimated).
Result (laptop): inconclusive. No encoder is better than the mean of random word vectors, so the
order of encoders says little.
"""

import itertools

from experiments.lib import Rows, Run, rates, records, stats, tables
from experiments.lib.tables import table_row
from experiments.wang_isola import encoders, table11
from experiments.wang_isola.encoders import EVALUATE_BOOKS, run_of
from experiments.wang_isola.table11 import RANDOM_WORDS, TASKS

SCALES = ("laptop", "paper")
SETTINGS = ("kind", "loss", "step")
PAPER_ROWS = (5, 4, 47)  # rows of Table 11 with the losses of Table 4
FRESH_SEEDS = (1, 2, 3)
SELECTED = {"contrastive": encoders.CONTRASTIVE, "align + uniform": encoders.ALIGN_UNIFORM}


def runs(scale: str, rows: Rows) -> list[Run]:
    """Return the grid and the baselines, then the selected encoders with fresh seeds."""
    if scale == "paper":
        return [run_of(table_row(table11.TABLE, row), scale, EVALUATE_BOOKS) for row in PAPER_ROWS]
    planned = table11.runs(scale, rows)
    if not rates.is_complete(planned, rows):
        return planned
    numbers = dict.fromkeys(n for task in TASKS for n in selected(rows, task).values())
    for number, seed in itertools.product(numbers, FRESH_SEEDS):
        run = run_of(table_row(table11.TABLE, number), scale, EVALUATE_BOOKS, seed)
        planned.append(run.replace({"fresh": True}))
    return planned


def selected(rows: Rows, task: str) -> dict[str, int]:
    """Return the rows of Table 11 with the best cross-validation on a task, by selection."""
    return encoders.selected(table11.grid_rows(rows), f"{task}_cv")


def analyze(rows: Rows) -> Rows:
    """Compare both kinds with each other and with random word vectors, on fresh seeds."""
    fresh = records.group_by([row for row in rows if row.get("fresh")], "row")
    if not fresh:
        return tables.differences(rows)
    comparisons = []
    for task in TASKS:
        best = selected(rows, task)
        groups = {name: fresh[best[selection]] for name, selection in SELECTED.items()}
        estimates = stats.compare(*groups.values(), table11.text_columns(task))
        claims = {"contrastive is better than align + uniform": estimates}
        for name, group in groups.items():
            claim = f"{name} is better than the {RANDOM_WORDS}"
            claims[claim] = table11.compare_with_words(group, rows, task)
        for claim, estimates in claims.items():
            comparisons.append(stats.Comparison(claim, estimates, labels={"task": task}))
    return stats.judge(comparisons)
