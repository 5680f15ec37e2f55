"""Table 8 of Wang & Isola: all encoders of STL-10, the grid of Figure 5a.

Claim: none. The question is whether small encoders of digits rank like the paper's encoders.

    python run.py reproduce wang-isola/table8 --scale laptop

laptop: 219 encoders of digits, one seed each; 113 minutes on one CPU core.
paper:  the same rows (STL-10, 200 epochs); about 219 x 30 minutes on one GPU (estimated).
Result (laptop): supported. The rank correlation with the paper's linear accuracy is 0.78 by
logistic regression and 0.68 by 5-NN.
"""

from experiments.lib import Evaluation, Rows, Run, stats, tables
from experiments.wang_isola.encoders import EVALUATE_STL10, table_runs
from experiments.wang_isola.plane import order_agrees

SCALES = ("laptop", "paper")
SETTINGS = ("row", "loss")
BESIDE = {f"val_{name}": stats.columns_of("output") for name in ("output_linear", "output_knn5")}


def runs(scale: str, rows: Rows) -> list[Run]:
    """Return the encoders of all rows that specify a config."""
    evaluation = EVALUATE_STL10 if scale == "paper" else Evaluation()
    return table_runs("wang-isola/table8", evaluation, scale, rows)


def analyze(rows: Rows) -> Rows:
    """Correlate our accuracies with the paper's; at paper scale, list the differences."""
    return tables.differences(rows) if rows[0]["data"] == "stl10" else order_agrees(rows, BESIDE)
