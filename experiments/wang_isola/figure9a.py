"""Figure 9a of Wang & Isola: encoders of ImageNet-100 in the plane of alignment and uniformity.

Claim: encoders with low L_align and low L_uniform have a higher accuracy.

    python run.py reproduce wang-isola/figure9a --scale paper --data-dir DATA

paper: the 42 certain rows of Table 10 (MoCo, ResNet-50, 240 epochs); about 10 GPU-days (estimated).
Not run.
"""

from collections.abc import Sequence
from functools import partial

from experiments.lib.stats import columns_of
from experiments.lib.sweep import Run
from experiments.wang_isola.encoders import EVALUATE_IMAGENET100, random_rows, run_of
from experiments.wang_isola.plane import analyze_plane, plot_plane

SCALES = ("paper",)
SETTINGS = ("row", "loss")

analyze = partial(analyze_plane, scores=columns_of("backbone"))
plot = partial(plot_plane, scores=columns_of("backbone"))


def runs(scale: str, rows: Sequence = ()) -> list[Run]:
    """Return the encoders of Table 10."""
    return [run_of(row, scale, EVALUATE_IMAGENET100) for row in random_rows("wang-isola/table10")]
