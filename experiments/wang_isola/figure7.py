"""Figure 7 of Wang & Isola: accuracy is an inverted U over the weights of the two losses.

Claim: both losses are needed. Accuracy is flat where neither weight is more than 4 times the other.

    python run.py reproduce wang-isola/figure7 --scale laptop --data-dir DATA

laptop: 13 weights x 5 seeds on digits, 5 x 3 on CIFAR-10 at 16 pixels; 90 minutes on one CPU core.
gpu:    7 weights x 3 seeds, SmallAlexNet, CIFAR-10, 10 epochs; 30 minutes on one H100 (estimated).
paper:  the rows of Table 8 that differ in the two weights only (STL-10, 200 epochs).
Result (laptop): supported on CIFAR-10 (equal weights beat alignment only by 16.0 points and
uniformity only by 9.5), inconclusive on digits.
"""

import math
from pathlib import Path

from experiments.lib import Evaluation, Rows, Run, plots, records, stats, tables
from experiments.wang_isola.encoders import config_of, is_certain, run_of

SCALES = ("laptop", "gpu", "paper")
SETTINGS = ("data", "align_weight", "uniform_weight")
TABLE = "wang-isola/table8"
EQUAL_ROW = 191  # equal weights of 1; everything else is as here
PAPER_ROWS = slice(141, 213)  # 142 to 213: align and uniform, 768 pairs, 128 dimensions
# Name, scale of its config, the smaller weights, seeds, evaluation.
SWEEPS = {
    "laptop": (
        ("digits", "laptop", (0, 1 / 64, 1 / 16, 1 / 8, 1 / 4, 1 / 2), range(5), Evaluation()),
        ("cifar10", "cifar10", (0, 1 / 4), range(3), Evaluation(folds=None)),
    ),
    "gpu": (("gpu", "gpu", (0, 1 / 16, 1 / 4), range(3), Evaluation(folds=None)),),
}
RATIOS = {"alignment only": (1, 0), "uniformity only": (0, 1), "4 : 1": (4, 1), "1 : 4": (1, 4)}


def runs(scale: str, rows: Rows) -> list[Run]:
    """Return encoders that differ in the two weights, of which the larger is 1."""
    if scale == "paper":
        return paper_runs()
    planned = []
    for name, config_scale, smaller, seeds, evaluation in SWEEPS[scale]:
        base = config_of(tables.table_row(TABLE, EQUAL_ROW), config_scale)
        # From alignment only to uniformity only.
        align_heavy = [(1, weight) for weight in smaller]
        uniform_heavy = [(weight, 1) for weight in reversed(smaller)]
        for align, uniform in (*align_heavy, (1, 1), *uniform_heavy):
            labels = {"align_weight": align, "uniform_weight": uniform}
            for seed in seeds:
                run_name = f"figure7_{name}_align{align:g}_uniform{uniform:g}_seed{seed}"
                config = base.replace(name=run_name, seed=seed, **labels)
                planned.append(Run(config, labels, evaluation))
    return planned


def paper_runs() -> list[Run]:
    """Return the rows of Table 8 that differ from the best align+uniform row in weights only."""
    planned = []
    for row in tables.table_rows(TABLE)[PAPER_ROWS]:
        has_defaults = all(row.values[name] in (2, None) for name in ("align_alpha", "uniform_t"))
        if has_defaults and is_certain(row):
            run = run_of(row, "paper", Evaluation())
            names = ("align_weight", "uniform_weight")
            planned.append(run.replace({name: getattr(run.config, name) for name in names}))
    return planned


def analyze(rows: Rows) -> Rows:
    """Compare equal weights with the ends of the U and with ratios of 4, on the output."""
    claims = []
    for data, group in records.group_by(rows, "data").items():
        equal = of_ratio(group, (1, 1))
        for name, ratio in RATIOS.items():
            others = of_ratio(group, ratio)
            if equal and others:
                text = f"equal weights are better than {name}"
                claims.append(stats.Claim(text, equal, others, {"data": data}))
    return stats.judge_accuracies(claims, ["output"])


def of_ratio(rows: Rows, ratio: tuple[float, float]) -> Rows:
    """Return the rows whose weights have a ratio."""
    align, uniform = ratio
    return [row for row in rows if row["align_weight"] * uniform == row["uniform_weight"] * align]


def plot(rows: Rows, path: Path) -> None:
    """Draw accuracies and metrics over the weights, a column per data set."""
    columns = {}
    for data, group in records.group_by(sorted(rows, key=angle), "data").items():
        by_weights = records.group_by(group, "align_weight", "uniform_weight")
        columns[data] = {angle(members[0]): members for members in by_weights.values()}
    plots.accuracy_and_metric_curves(columns, path, xlabel="angle of both weights (degrees)")


def angle(row: dict) -> float:
    """Return 0 for alignment only, 90 for uniformity only."""
    return math.degrees(math.atan2(row["uniform_weight"], row["align_weight"]))
