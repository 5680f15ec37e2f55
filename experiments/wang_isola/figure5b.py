"""Figure 5b of Wang & Isola: encoders of NYU-Depth-V2 in the plane of alignment and uniformity.

Claim: encoders with low L_align and low L_uniform predict depth with a lower error. Includes Tables
2 and 9, whose encoders these are: the analysis lists the difference from each printed number.

    python run.py reproduce wang-isola/figure5b --scale paper --data-dir DATA

paper: the 63 certain rows of Table 9 (400 epochs of 795 images); hours on one GPU (estimated).
Not run.
"""

from functools import partial

from experiments.lib import Evaluation, Rows, tables
from experiments.wang_isola.encoders import table_runs
from experiments.wang_isola.plane import analyze_plane, plot_plane

SCALES = ("paper",)
SETTINGS = ("row", "loss")
SCORES = {"mean squared error": "conv5_mse"}
plot = partial(plot_plane, scores=SCORES, lower_is_better=True)
runs = partial(table_runs, "wang-isola/table9", Evaluation(("conv5", "conv4"), depth=True))


def analyze(rows: Rows) -> Rows:
    """Correlate the error with the metrics, and list differences from the printed numbers."""
    return analyze_plane(rows, SCORES, expected=1) + tables.differences(rows)
