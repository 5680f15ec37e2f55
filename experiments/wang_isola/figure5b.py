"""Figure 5b of Wang & Isola: encoders of NYU-Depth-V2 in the plane of alignment and uniformity.

Claim: encoders with low L_align and low L_uniform predict depth with a lower error.

    python run.py reproduce wang-isola/figure5b --scale paper --data-dir DATA

paper: the 63 certain rows of Table 9 (400 epochs of 795 images); hours on one GPU (estimated).
Not run.
"""

from collections.abc import Sequence
from functools import partial

from experiments.lib.sweep import Run
from experiments.wang_isola.encoders import EVALUATE_NYU, random_rows, run_of
from experiments.wang_isola.plane import analyze_plane, plot_plane

SCALES = ("paper",)
SETTINGS = ("row", "loss")
SCORES = {"mean squared error": "conv5_mse"}

analyze = partial(analyze_plane, scores=SCORES, expected=1)
plot = partial(plot_plane, scores=SCORES, lower_is_better=True)


def runs(scale: str, rows: Sequence = ()) -> list[Run]:
    """Return the encoders of Table 9."""
    return [run_of(row, scale, EVALUATE_NYU) for row in random_rows("wang-isola/table9")]
