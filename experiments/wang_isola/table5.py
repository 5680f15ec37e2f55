"""Table 5 of Wang & Isola: encoders of ImageNet (MoCo v2).

Claim: the printed numbers of each row.

    python run.py reproduce wang-isola/table5 --scale paper --data-dir DATA

paper: ResNet-50, 200 epochs; 53 hours per encoder on 8 V100 (MoCo's README).
Not run.
"""

from collections.abc import Sequence

from experiments.lib.sweep import Run
from experiments.wang_isola.encoders import EVALUATE_IMAGENET, table_runs
from experiments.wang_isola.printed_tables import differences

SCALES = ("paper",)
SETTINGS = ("row", "loss")
plot = None

analyze = differences


def runs(scale: str, rows: Sequence = ()) -> list[Run]:
    """Return the encoders of the table's rows."""
    return table_runs("wang-isola/table5", scale, EVALUATE_IMAGENET)
