"""Figure 9b of Wang & Isola: sentence encoders in the plane of alignment and uniformity.

Claim: sentence encoders with low L_align and low L_uniform have a higher accuracy.

    python run.py reproduce wang-isola/figure9b --scale laptop --data-dir DATA

laptop: the encoders of Table 11; 62 minutes on one CPU core.
paper:  113 rows of Table 11 (BookCorpus, one epoch); an hour each on one GPU (estimated).
Result (laptop): inconclusive, although all four correlations are negative (-0.58 to -0.68). No
encoder is significantly better than the mean of random word vectors.

L_align is measured on neighbouring sentences of held-out text. L_uniform is the sum of both
encoders' (Appendix B.3); its least value is -8.
"""

from pathlib import Path

import numpy as np

from experiments.lib.ranks import metric_correlations
from experiments.lib.records import Rows
from experiments.lib.stats import ALPHA, Comparison, check, holm, judge
from experiments.wang_isola import table11
from experiments.wang_isola.plane import plot_plane
from experiments.wang_isola.table11 import RANDOM_WORDS, TASKS

SCALES = ("laptop", "paper")
SETTINGS = table11.SETTINGS
runs = table11.runs


def analyze(rows: Rows) -> Rows:
    """Correlate accuracy with L_align + L_uniform, and count encoders above the baseline."""
    encoders = table11.grid_rows(rows)
    comparisons = []
    counts = []
    for task in TASKS:
        estimates = {
            name: metric_correlations(encoders, score, [0.5])[0]
            for name, score in table11.text_columns(task).items()
        }
        claim = "L_align + L_uniform ranks all encoders"
        comparisons.append(Comparison(claim, estimates, -1, labels={"task": task}))
        if any(row["kind"] == "baseline" for row in rows):
            counts.append(count_above_baseline(rows, task))
    return judge(comparisons) + counts


def count_above_baseline(rows: Rows, task: str) -> dict:
    """Count encoders that both instruments place significantly above random word vectors."""
    above = []
    p_values = []
    for row in table11.grid_rows(rows):
        estimates = table11.compare_with_words([row], rows, task).values()
        above.append(all(each.effect > 0 for each in estimates))
        p_values.append(max(each.p for each in estimates))
    count = int(np.sum(np.array(above) & (np.array(holm(p_values)) < ALPHA)))
    return check(f"an encoder is above the {RANDOM_WORDS}", count > 0, count, task=task)


def plot(rows: Rows, path: Path) -> None:
    """Draw the plane, coloured by the accuracy on each task."""
    plot_plane(table11.grid_rows(rows), path, {task.upper(): task for task in TASKS})
