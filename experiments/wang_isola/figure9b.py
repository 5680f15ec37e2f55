"""Figure 9b of Wang & Isola: sentence encoders in the plane of alignment and uniformity.

Claim: sentence encoders with low L_align and low L_uniform have a higher accuracy.

    python run.py reproduce wang-isola/figure9b --scale laptop --data-dir DATA

laptop: the encoders of Table 11; 62 minutes on one CPU core.
paper:  113 rows of Table 11 (BookCorpus, one epoch); an hour each on one GPU (estimated).
Result (laptop): inconclusive, although all four correlations are negative (-0.58 to -0.68). No
encoder is significantly better than the mean of random word vectors. L_align is measured on
neighbouring sentences, L_uniform is the sum of both encoders' (Appendix B.3).
"""

from pathlib import Path

import numpy as np

from experiments.lib import Rows, stats
from experiments.lib.stats import judge
from experiments.wang_isola import table11
from experiments.wang_isola.plane import plot_plane, sum_ranks
from experiments.wang_isola.table11 import RANDOM_WORDS, TASKS

SCALES = ("laptop", "paper")
SETTINGS = table11.SETTINGS
runs = table11.runs


def analyze(rows: Rows) -> Rows:
    """Correlate accuracy with L_align + L_uniform, and count encoders above the baseline."""
    encoders = table11.grid_rows(rows)
    table = judge([sum_ranks(encoders, table11.text_columns(task), task=task) for task in TASKS])
    if any(row["kind"] == "baseline" for row in rows):
        table += [count_above_baseline(rows, task) for task in TASKS]
    return table


def count_above_baseline(rows: Rows, task: str) -> dict:
    """Count encoders that both instruments place significantly above random word vectors."""
    above = []
    p_values = []
    for row in table11.grid_rows(rows):
        estimates = table11.compare_with_words([row], rows, task).values()
        above.append(all(each.effect > 0 for each in estimates))
        p_values.append(max(each.p for each in estimates))
    count = int(np.sum(np.array(above) & (np.array(stats.holm(p_values)) < stats.ALPHA)))
    return stats.check(f"an encoder is above the {RANDOM_WORDS}", count > 0, count, task=task)


def plot(rows: Rows, path: Path) -> None:
    """Draw the plane, coloured by the accuracy on each task."""
    plot_plane(table11.grid_rows(rows), path, {task.upper(): task for task in TASKS})
