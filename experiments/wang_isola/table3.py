"""Table 3 of Wang & Isola: encoders of ImageNet-100 (MoCo).

Claim: the printed numbers of each row.

    python run.py reproduce wang-isola/table3 --scale paper --data-dir DATA

paper: ResNet-50, 240 epochs; about 6 hours per encoder on 8 V100 (estimated).
Not run.
"""

from collections.abc import Sequence
from pathlib import Path

from experiments.lib.records import Rows
from experiments.lib.sweep import Run
from experiments.wang_isola.encoders import EVALUATE_IMAGENET100, table_runs
from experiments.wang_isola.printed_tables import differences

SCALES = ("paper",)
SETTINGS = ("row", "loss")

analyze = differences


def runs(scale: str, rows: Sequence = ()) -> list[Run]:
    """Return the encoders of the table's rows."""
    return table_runs("wang-isola/table3", scale, EVALUATE_IMAGENET100)


def plot(rows: Rows, path: Path) -> None:
    """Draw nothing."""
