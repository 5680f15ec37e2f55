"""Table 4 of Wang & Isola: the best sentence encoders of BookCorpus (Quick-Thought).

Claim: alignment and uniformity are comparable with the contrastive loss for table11. In the table
the contrastive loss is 3.75 (MR) and 2.91 (CR) points better.

    python run.py reproduce wang-isola/table4 --scale laptop --data-dir DATA

laptop: the encoders of Table 11, of which those selected by cross-validation are trained again with
        3 fresh seeds; 103 minutes on one CPU core.
paper:  the encoders that the paper selected; about an hour each on one GPU (estimated).
Result (laptop): inconclusive. No encoder is better than the mean of random word vectors, so the
order of encoders says little.
"""

from experiments.lib import rates
from experiments.lib.records import Rows, finished
from experiments.lib.stats import Comparison, compare, judge
from experiments.lib.sweep import Run
from experiments.lib.tables import differences, table_row
from experiments.wang_isola import table11
from experiments.wang_isola.encoders import EVALUATE_BOOKS, run_of
from experiments.wang_isola.table11 import RANDOM_WORDS, TASKS

SCALES = ("laptop", "paper")
SETTINGS = ("kind", "loss", "step")
plot = None
PAPER_ROWS = (5, 4, 47)  # rows of Table 11 with the losses of Table 4
SELECTED = {
    "contrastive": "best contrastive only",
    "align + uniform": "best align and uniform only",
}


def runs(scale: str, rows: Rows) -> list[Run]:
    """Return the grid and the baselines, then the selected encoders with fresh seeds."""
    if scale == "paper":
        return [run_of(table_row(table11.TABLE, row), scale, EVALUATE_BOOKS) for row in PAPER_ROWS]
    first = table11.runs(scale, rows)
    if not rates.is_complete(first, rows):
        return first
    return [*first, *table11.fresh_runs(rows)]


def analyze(rows: Rows) -> Rows:
    """Compare both kinds with each other and with random word vectors, on fresh seeds."""
    if not any(row.get("fresh") for row in rows):
        return differences(rows)
    best = table11.selected(rows)
    comparisons = []
    for task in TASKS:
        encoders = {}
        for name, selection in SELECTED.items():
            number = best[selection, task]
            encoders[name] = [r for r in finished(rows) if r.get("fresh") and r["row"] == number]
        estimates = compare(*encoders.values(), table11.text_columns(task))
        claims = {"contrastive is better than align + uniform": estimates}
        for name, group in encoders.items():
            claim = f"{name} is better than the {RANDOM_WORDS}"
            claims[claim] = table11.compare_with_words(group, rows, task)
        for claim, estimates in claims.items():
            comparisons.append(Comparison(claim, estimates, labels={"task": task}))
    return judge(comparisons)
