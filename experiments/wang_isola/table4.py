"""Table 4 of Wang & Isola: the best sentence encoders of BookCorpus (Quick-Thought).

Claim: alignment and uniformity give representations of sentences that are comparable with the
contrastive loss. In the table the contrastive loss is 3.75 (MR) and 2.91 (CR) points better.

    python run.py reproduce wang-isola/table4 --scale laptop --data-dir DATA

laptop: 16 rows of Table 11 with 100 dimensions, one epoch of eight novels; the encoders selected by
        cross-validation are trained again with 3 fresh seeds. 103 minutes on one CPU core.
paper:  the encoders that the paper selected (BookCorpus, one epoch); about an hour each on one GPU
        (estimated).
Result (laptop): inconclusive. No encoder is better than the mean of random word vectors, so the
order of encoders says little.
"""

from collections.abc import Sequence

from experiments.lib import rates
from experiments.lib.records import Rows, finished
from experiments.lib.stats import Comparison, judge
from experiments.lib.sweep import Run
from experiments.lib.tables import table_row, table_rows
from experiments.wang_isola import sentences
from experiments.wang_isola.encoders import EVALUATE_BOOKS, run_of
from experiments.wang_isola.printed_tables import differences
from experiments.wang_isola.sentences import RANDOM_WORDS, TABLE11, TASKS

SCALES = ("laptop", "paper")
SETTINGS = ("kind", "loss", "step")
plot = None
TABLE4 = "wang-isola/table4"
SELECTED = {
    "contrastive": "best contrastive only",
    "align + uniform": "best align and uniform only",
}


def runs(scale: str, rows: Sequence = ()) -> list[Run]:
    """Return the grid and the baselines, then the selected encoders with fresh seeds."""
    if scale == "paper":
        numbers = dict.fromkeys(n for row in table_rows(TABLE4) for n in rows_of_losses(row))
        return [run_of(table_row(TABLE11, number), scale, EVALUATE_BOOKS) for number in numbers]
    first = [*sentences.grid_runs(), *sentences.baseline_runs()]
    if not rates.is_complete(first, rows):
        return first
    return [*first, *sentences.fresh_runs(rows)]


def rows_of_losses(row) -> list[int]:
    """Return the rows of Table 11 with the losses of a row of Table 4, for MR and for CR."""
    numbers = []
    for task in TASKS:
        losses = {
            name.removeprefix(f"{task}_"): value
            for name, value in row.values.items()
            if name.startswith(f"{task}_")
        }
        numbers += [
            other.number
            for other in table_rows(TABLE11)
            if other.values["l2_normalized"] and losses.items() <= other.values.items()
        ]
    return numbers


def analyze(rows: Rows) -> Rows:
    """Compare both kinds with each other and with random word vectors, on fresh seeds."""
    if not any(row.get("fresh") for row in rows):
        return differences(rows)
    best = sentences.selected(rows)
    comparisons = []
    for task in TASKS:
        words = sentences.random_word_vectors(rows, task)
        predictions = {}
        for name, selection in SELECTED.items():
            number = best[selection, task]["row"]
            fresh = [r for r in finished(rows) if r.get("fresh") and r["row"] == number]
            predictions[name] = sentences.predictions_of(fresh, task)
        pairs = {"contrastive is better than align + uniform": [*predictions.values()]}
        for name, of in predictions.items():
            pairs[f"{name} is better than the {RANDOM_WORDS}"] = [of, words]
        for claim, (a, b) in pairs.items():
            estimates = sentences.difference(a, b)
            comparisons.append(Comparison(claim, estimates, labels={"task": task}))
    return judge(comparisons)
