"""Table D.3 of Chen, Luo & Li: five contrastive losses on ImageNet, with a head of three layers.

Claim: the five losses give encoders that are about equally good.

    python run.py reproduce chen/tableD3 --scale paper --data-dir DATA

paper: 60 encoders (ResNet-50, 100 to 800 epochs); days on 8 GPUs each (estimated).
Not run.
"""

from collections.abc import Sequence
from pathlib import Path

from experiments.chen import settings
from experiments.lib.records import Rows, finished
from experiments.lib.sweep import Run
from experiments.lib.tables import table_rows

SCALES = ("paper",)
SETTINGS = ("name", "batch", "epochs")


def runs(scale: str, rows: Sequence = ()) -> list[Run]:
    """Return the encoders of the table's rows."""
    return [settings.row_run(row, name=row.values["loss"]) for row in table_rows("chen/tableD3")]


def analyze(rows: Rows) -> Rows:
    """Return the difference from the printed accuracy of each row."""
    return [
        {"row": row["row"], "effect": row["backbone_linear"] - row["paper_top1"]}
        for row in finished(rows)
    ]


def plot(rows: Rows, path: Path) -> None:
    """Draw nothing."""
