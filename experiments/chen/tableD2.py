"""Tables D.2 and D.3 of Chen, Luo & Li: five contrastive losses on ImageNet.

Claim: the five losses give encoders that are about equally good, with a head of two layers (D.2)
and of three (D.3).

    python run.py reproduce chen/tableD2 --scale paper --data-dir DATA

paper: 120 encoders (ResNet-50, 100 to 800 epochs); days on 8 GPUs each (estimated).
Not run.
"""

from experiments.chen import settings
from experiments.lib import Rows, Run, tables

SCALES = ("paper",)
SETTINGS = ("table", "name", "batch", "epochs")
analyze = tables.differences


def runs(scale: str, rows: Rows) -> list[Run]:
    """Return the encoders of both tables' rows."""
    both = (*tables.table_rows("chen/tableD2"), *tables.table_rows("chen/tableD3"))
    return [settings.row_run(row, name=row.values["loss"]) for row in both]
