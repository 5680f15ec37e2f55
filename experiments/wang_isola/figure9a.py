"""Figure 9a of Wang & Isola: encoders of ImageNet-100 in the plane of alignment and uniformity.

Claim: encoders with low L_align and low L_uniform have a higher accuracy. Includes Tables 3 and 10,
whose encoders these are: the analysis lists the difference from each printed number.

    python run.py reproduce wang-isola/figure9a --scale paper --data-dir DATA

paper: the 42 certain rows of Table 10 (MoCo, ResNet-50, 240 epochs); about 10 GPU-days (estimated).
Not run.
"""

from functools import partial

from experiments.lib import Evaluation, Rows, stats, tables
from experiments.wang_isola.encoders import table_runs
from experiments.wang_isola.plane import analyze_plane, plot_plane

SCALES = ("paper",)
SETTINGS = ("row", "loss")
plot = partial(plot_plane, scores=stats.columns_of("backbone"))
EVALUATION = Evaluation(("backbone",), protocol="moco_imagenet100", folds=3)
runs = partial(table_runs, "wang-isola/table10", EVALUATION)


def analyze(rows: Rows) -> Rows:
    """Correlate accuracy with the metrics, and list differences from the printed numbers."""
    return analyze_plane(rows, stats.columns_of("backbone")) + tables.differences(rows)
