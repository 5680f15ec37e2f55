"""Table 11 of Wang & Isola: all sentence encoders of BookCorpus, the grid of Figure 9b.

Claim: none. The question is whether small encoders rank like the paper's encoders.

    python run.py reproduce wang-isola/table11 --scale laptop --data-dir DATA

laptop: 16 rows with 100 dimensions, one epoch of eight novels; 62 minutes on one CPU core.
paper:  113 rows (BookCorpus, one epoch); about an hour each on one GPU (estimated).
Result (laptop): inconclusive. The rank correlations are between -0.22 and -0.50.
"""

from collections.abc import Sequence

from experiments.lib.records import Rows
from experiments.lib.sweep import Run
from experiments.wang_isola import sentences
from experiments.wang_isola.encoders import EVALUATE_BOOKS, table_runs
from experiments.wang_isola.printed_tables import order_agrees
from experiments.wang_isola.sentences import TABLE11, TASKS

SCALES = ("laptop", "paper")
SETTINGS = ("kind", "loss", "step")
plot = None
BESIDE = {f"val_{task}": sentences.text_columns(task) for task in TASKS}


def runs(scale: str, rows: Sequence = ()) -> list[Run]:
    """Return the encoders; at laptop scale also the baselines."""
    if scale == "paper":
        return table_runs(TABLE11, scale, EVALUATE_BOOKS)
    return [*sentences.grid_runs(), *sentences.baseline_runs()]


def analyze(rows: Rows) -> Rows:
    """Correlate our accuracies with the paper's."""
    return order_agrees(sentences.grid_rows(rows), BESIDE)
