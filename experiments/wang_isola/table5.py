"""Table 5 of Wang & Isola: encoders of ImageNet (MoCo v2).

Claim: the printed numbers of each row.

    python run.py reproduce wang-isola/table5 --scale paper --data-dir DATA

paper: ResNet-50, 200 epochs; 53 hours per encoder on 8 V100 (MoCo's README).
Not run.
"""

from functools import partial

from experiments.lib import Evaluation, tables
from experiments.wang_isola.encoders import table_runs

SCALES = ("paper",)
SETTINGS = ("row", "loss")
EVALUATION = Evaluation(("backbone",), protocol="moco", folds=None)
runs = partial(table_runs, "wang-isola/table5", EVALUATION)
analyze = tables.differences
