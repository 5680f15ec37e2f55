"""Table 2 of Wang & Isola: encoders of NYU-Depth-V2.

Claim: the printed numbers of each row.

    python run.py reproduce wang-isola/table2 --scale paper --data-dir DATA

paper: encoders of the best of Table 9 (400 epochs of 795 images); an hour on one GPU (estimated).
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
    return table_runs("wang-isola/table2", scale, EVALUATE_NYU)


def plot(rows: Rows, path: Path) -> None:
    """Draw nothing."""
