"""Table 9 of Wang & Isola: encoders of NYU-Depth-V2, the grid of Figure 5b.

Claim: the printed numbers of each row.

    python run.py reproduce wang-isola/table9 --scale paper --data-dir DATA

paper: 63 encoders, 400 epochs of 795 images; hours on one GPU (estimated).
Not run.
"""

from collections.abc import Sequence
from pathlib import Path

from experiments.lib.records import Rows
from experiments.lib.sweep import Run
from experiments.wang_isola.encoders import EVALUATE_NYU, table_runs
from experiments.wang_isola.printed_tables import differences

SCALES = ("paper",)
SETTINGS = ("row", "loss")

analyze = differences


def runs(scale: str, rows: Sequence = ()) -> list[Run]:
    """Return the encoders of the table's rows."""
    return table_runs("wang-isola/table9", scale, EVALUATE_NYU)


def plot(rows: Rows, path: Path) -> None:
    """Draw nothing."""
