"""Table 1 of Wang & Isola: the best encoders of STL-10 for each kind of loss.

Claim: the best encoder trained with alignment and uniformity is better than the best one trained
with the contrastive loss (by 0.69 points on the output).

    python run.py reproduce wang-isola/table1 --scale laptop --data-dir DATA

laptop: the 51 runs of CIFAR-10 of Figure 5a select a setting per kind by held-out training images,
        which is trained with 5 fresh seeds; 161 minutes on one CPU core.
gpu:    likewise at that scale; 75 minutes on one H100 (estimated), 15 after Figure 5a.
paper:  the three encoders that the paper selected.
Result (laptop): supported, by 5.3 points (logistic regression) and 7.5 points (5-NN). All settings
have the same learning rate.
"""

from dataclasses import replace

from experiments.lib import Rows, Run, rates, records, stats, tables
from experiments.lib.stats import Claim
from experiments.lib.tables import table_row
from experiments.wang_isola import encoders, figure5a
from experiments.wang_isola.encoders import run_of

SCALES = ("laptop", "gpu", "paper")
SETTINGS = ("row", "loss")
TABLE = "wang-isola/table8"
PAPER_ROWS = (79, 174, 109)
FRESH_SEEDS = (3, 4, 5, 6, 7)
FINAL = replace(encoders.EVALUATE_CIFAR10, layers=("output", "fc7"))


def runs(scale: str, rows: Rows) -> list[Run]:
    """Return the grid, then the selected settings with fresh seeds."""
    if scale == "paper":
        return [run_of(table_row(TABLE, n), scale, encoders.EVALUATE_STL10) for n in PAPER_ROWS]
    config_scale = {"laptop": "cifar10", "gpu": "gpu"}[scale]
    grid = figure5a.cifar10_runs(config_scale)
    if not rates.is_complete(grid, rows):
        return grid
    fresh = [
        run_of(table_row(TABLE, number), config_scale, FINAL, seed)
        for number in dict.fromkeys(selected(rows).values())
        for seed in FRESH_SEEDS
    ]
    return [*grid, *fresh]


def selected(rows: Rows) -> dict[str, int]:
    """Return the selected rows of Table 8, without the fresh seeds."""
    grid = [row for row in rows if row["seed"] not in FRESH_SEEDS]
    return encoders.selected(grid, "output_logistic_cv")


def analyze(rows: Rows) -> Rows:
    """Compare the selected encoders of both kinds, on the output (the claim) and on fc7."""
    if rows[0]["data"] == "stl10":
        return tables.differences(rows)  # at paper scale there is one seed per kind
    choice = selected(rows)
    fresh = records.group_by([row for row in rows if row["seed"] in FRESH_SEEDS], "row")
    contrastive = fresh[choice[encoders.CONTRASTIVE]]
    align_uniform = fresh[choice[encoders.ALIGN_UNIFORM]]
    text = "best align + uniform is better than best contrastive"
    return stats.judge_accuracies([Claim(text, align_uniform, contrastive)], ["output", "fc7"])
