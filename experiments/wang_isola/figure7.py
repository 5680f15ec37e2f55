"""Figure 7 of Wang & Isola: accuracy is an inverted U over the weights of the two losses.

Claim: both alignment and uniformity are needed. Accuracy is high while neither weight is more than
4 times the other, and does not depend on the weights there.

    python run.py reproduce wang-isola/figure7 --scale laptop --data-dir DATA

laptop: 13 weights x 5 seeds on digits, 5 weights x 3 seeds on CIFAR-10 at 16 pixels; 90 minutes on
        one CPU core.
gpu:    7 weights x 3 seeds on CIFAR-10, SmallAlexNet, 10 epochs; about 30 minutes on one H100
        (estimated).
paper:  the rows of Table 8 that differ in the two weights only (STL-10, 200 epochs).
Result (laptop): supported on CIFAR-10 (equal weights beat alignment only by 16.0 points and
uniformity only by 9.5), inconclusive on digits.
"""

import math
from collections.abc import Sequence
from pathlib import Path

from experiments.lib.evaluation import Evaluation
from experiments.lib.plots import draw_accuracies, draw_metrics, new_figure, printed, shared_legend
from experiments.lib.records import Rows, finished, group_by
from experiments.lib.stats import Comparison, columns_of, compare, judge
from experiments.lib.sweep import Run
from experiments.lib.tables import table_row, table_rows
from experiments.wang_isola.encoders import config_of, refusal, run_of
from hypersphere_jax.reporting.plots.style import save_figure

SCALES = ("laptop", "gpu", "paper")
SETTINGS = ("data", "align_weight", "uniform_weight")
TABLE = "wang-isola/table8"
EQUAL_ROW = 191  # equal weights of 1; everything else is as here
BEST_ROW = 174
# Weights of alignment and uniformity, from alignment only to uniformity only.
ALIGN_HEAVY = tuple((1, weight) for weight in (0, 1 / 64, 1 / 16, 1 / 8, 1 / 4, 1 / 2))
UNIFORM_HEAVY = tuple((weight, 1) for weight in (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 64, 0))
MANY = (*ALIGN_HEAVY, (1, 1), *UNIFORM_HEAVY)
FEW = ((1, 0), (1, 1 / 4), (1, 1), (1 / 4, 1), (0, 1))
SEVEN = ((1, 0), (1, 1 / 16), (1, 1 / 4), (1, 1), (1 / 4, 1), (1 / 16, 1), (0, 1))
# Scale and name of its config, weights, seeds, evaluation.
SWEEPS = {
    "laptop": (
        ("digits", "laptop", MANY, range(5), Evaluation()),
        ("cifar10", "cifar10", FEW, range(3), Evaluation(folds=None)),
    ),
    "gpu": (("gpu", "gpu", SEVEN, range(3), Evaluation(folds=None)),),
}
OTHER_RATIOS = {
    "alignment only": (1, 0),
    "uniformity only": (0, 1),
    "4 : 1": (4, 1),
    "1 : 4": (1, 4),
}


def runs(scale: str, rows: Sequence = ()) -> list[Run]:
    """Return encoders that differ in the two weights, of which the larger is 1."""
    if scale == "paper":
        return paper_runs()
    planned = []
    for name, config_scale, weights, seeds, evaluation in SWEEPS[scale]:
        base = config_of(table_row(TABLE, EQUAL_ROW), config_scale)
        for align, uniform in weights:
            labels = {"align_weight": align, "uniform_weight": uniform}
            for seed in seeds:
                run_name = f"figure7_{name}_align{align:g}_uniform{uniform:g}_seed{seed}"
                config = base.replace(name=run_name, seed=seed, **labels)
                planned.append(Run(config, labels, evaluation))
    return planned


def paper_runs() -> list[Run]:
    """Return the rows of Table 8 that differ from the best align+uniform row in weights only."""
    best = table_row(TABLE, BEST_ROW).values
    planned = []
    for row in table_rows(TABLE):
        shared = ("contrastive_weight", "init", "epochs", "batch_size", "dim")
        is_similar = all(row.values[name] == best[name] for name in shared)
        has_defaults = all(row.values[name] in (2, None) for name in ("align_alpha", "uniform_t"))
        if is_similar and has_defaults and refusal(row) is None:
            run = run_of(row, "paper", Evaluation())
            names = ("align_weight", "uniform_weight")
            planned.append(run.replace({name: getattr(run.config, name) for name in names}))
    return planned


def analyze(rows: Rows) -> Rows:
    """Compare equal weights with the ends of the U and with ratios of 4, on the output."""
    comparisons = []
    for data, group in group_by(rows, "data").items():
        equal = of_ratio(group, (1, 1))
        for name, ratio in OTHER_RATIOS.items():
            others = of_ratio(group, ratio)
            if equal and others:
                claim = f"equal weights are better than {name}"
                estimates = compare(equal, others, columns_of("output"))
                comparisons.append(Comparison(claim, estimates, labels={"data": data}))
    return judge(comparisons)


def of_ratio(rows: Rows, ratio: tuple[float, float]) -> Rows:
    """Return the rows whose weights have a ratio."""
    align, uniform = ratio
    return [row for row in rows if row["align_weight"] * uniform == row["uniform_weight"] * align]


@printed
def plot(rows: Rows, path: Path | None):
    """Draw accuracies and metrics over the weights, a column per data set."""
    data_sets = group_by(sorted(finished(rows), key=angle), "data")
    figure, grid = new_figure(2, len(data_sets), 2.6, sharex="col", sharey="row")
    for (above, below), (data, group) in zip(grid.T, data_sets.items(), strict=True):
        groups = group_by(group, "align_weight", "uniform_weight")
        places = range(len(groups))
        draw_accuracies(above, places, [*groups.values()], "output")
        draw_metrics(below, places, [*groups.values()])
        labels = [f"{align:.3g} : {uniform:.3g}" for align, uniform in groups]
        below.set_xticks(places, labels, rotation=90)
        below.set_xlabel("weights, alignment : uniformity")
        above.set_title(data)
    grid[0, 0].set_ylabel("accuracy on the output (%)")
    grid[1, 0].set_ylabel("metric (lower is better)")
    grid[1, 0].legend()
    shared_legend(figure, grid[0, 0], place="upper center")
    return save_figure(figure, path)


def angle(row: dict) -> float:
    """Return 0 for alignment only, pi / 2 for uniformity only."""
    return math.atan2(row["uniform_weight"], row["align_weight"])
