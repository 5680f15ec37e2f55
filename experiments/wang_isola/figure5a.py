"""Figure 5a of Wang & Isola: encoders of STL-10 in the plane of alignment and uniformity.

Claim: the best encoders have low L_align and low L_uniform. The paper prints no correlation.

    python run.py reproduce wang-isola/figure5a --scale laptop --data-dir DATA

laptop: 190 encoders of digits x 5 seeds (all rows of Table 8 with random initialization), and 17
        rows x 3 seeds on CIFAR-10 at 16 pixels; 490 minutes on one CPU core.
gpu:    17 rows x 2 seeds, SmallAlexNet, CIFAR-10, 10 epochs; an hour on one H100 (estimated).
paper:  all rows with random initialization (STL-10, 200 epochs).
Result (laptop): supported over all encoders of both data sets and over the better half on CIFAR-10;
inconclusive over the better half on digits.
"""

import dataclasses
from functools import partial

from experiments.lib import Evaluation, Rows, Run, stats, tables
from experiments.wang_isola import encoders
from experiments.wang_isola.encoders import run_of
from experiments.wang_isola.plane import analyze_plane, plot_plane

SCALES = ("laptop", "gpu", "paper")
SETTINGS = ("data", "row", "loss")
TABLE = "wang-isola/table8"
DIGITS_SEEDS = range(5)
CIFAR10_SEEDS = {"cifar10": (0, 1, 2), "gpu": (0, 1)}
# Contrastive only; align and uniform only; mixtures. The rows of Table 1 are among them, and the
# others span the paper's range of accuracies. All have 128 dimensions and a batch of 768.
CONTRASTIVE_ROWS = (67, 69, 79, 83, 85, 87)
ALIGN_UNIFORM_ROWS = (145, 154, 158, 174, 186, 184, 198)
MIXTURE_ROWS = (89, 95, 107, 109)

RANDOM_ROWS = [row for row in encoders.certain_rows(TABLE) if row.values["init"] == "rand"]

analyze = partial(analyze_plane, scores=stats.columns_of("output"))
plot = partial(plot_plane, scores=stats.columns_of("output"))


def runs(scale: str, rows: Rows) -> list[Run]:
    """Return the encoders of a scale."""
    if scale == "paper":
        return [run_of(row, scale, encoders.EVALUATE_STL10) for row in RANDOM_ROWS]
    if scale == "gpu":
        return cifar10_runs(scale)
    return [*digits_runs(), *cifar10_runs("cifar10")]


def cifar10_runs(config_scale: str) -> list[Run]:
    """Return the encoders of CIFAR-10."""
    return [
        run_of(tables.table_row(TABLE, number), config_scale, encoders.EVALUATE_CIFAR10, seed)
        for number in (*CONTRASTIVE_ROWS, *ALIGN_UNIFORM_ROWS, *MIXTURE_ROWS)
        for seed in CIFAR10_SEEDS[config_scale]
    ]


def digits_runs() -> list[Run]:
    """Return the encoders of digits. Rows that become equal at this scale are trained once."""
    distinct = {}
    for row in RANDOM_ROWS:
        config = encoders.config_of(row, "laptop")
        distinct.setdefault(dataclasses.replace(config, name="encoder", seed=0), row)
    # The first seed is the run of Table 8, under its name.
    return [
        run_of(row, "laptop", Evaluation(), seed or None)
        for row in distinct.values()
        for seed in DIGITS_SEEDS
    ]
