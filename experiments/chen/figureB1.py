"""Figure B.1 of Chen, Luo & Li: outputs along random directions.

Claim: outputs that are spread over the sphere look normal along random directions, more so with a
larger weight lambda of the spreading term (SWD) and with a lower temperature (NT-Xent).

    python run.py reproduce chen/figureB1 --scale laptop

laptop: 6 settings x 5 seeds on digits, rates chosen on training data; 13 minutes on one CPU core.
gpu:    6 settings x 3 seeds, ResNet-18, CIFAR-10, 30 epochs; 50 minutes on one H100 (estimated).
paper:  6 settings (ResNet-50, 100 epochs). The paper's own values are in its picture only.
Result (laptop): supported for SWD; inconclusive for NT-Xent, although L_uniform falls in all steps.
The distance is Kolmogorov-Smirnov's along 16 random directions, tested over seeds.
"""

import itertools
import math
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments.chen import settings
from experiments.chen.settings import LOSSES, NT_XENT, SWD
from experiments.lib import Rows, Run, plots, rates, records, stats
from hypersphere_jax.reporting.plots.style import COLORS, save_figure

SCALES = ("laptop", "gpu", "paper")
SETTINGS = ("group", "label")
ENCODERS = {
    SWD: {f"lambda {lam:g}": LOSSES[SWD].replace(loss_lam=lam) for lam in (0.05, 0.5, 5.0)},
    NT_XENT: {f"tau {tau:g}": LOSSES[NT_XENT].replace(loss_tau=tau) for tau in (2.0, 0.5, 0.1)},
}
BASES = {"laptop": settings.LAPTOP, "gpu": settings.GPU, "paper": settings.CIFAR10}
SEEDS = {"laptop": range(5), "gpu": range(3), "paper": range(1)}
FOLDS = {"laptop": rates.FOLDS, "gpu": 1}
METRICS = {"KS distance": "projection_ks_sphere", "L_uniform": "uniform"}


def runs(scale: str, rows: Rows) -> list[Run]:
    """Return candidates of each loss's rate, then the encoders."""
    base = BASES[scale]
    planned = []
    for group, members in ENCODERS.items():
        for (label, objective), seed in itertools.product(members.items(), SEEDS[scale]):
            name = f"{settings.slug(group)}_{settings.slug(label)}"
            labels = {"group": group, "label": label, "name": group}
            run = settings.loss_run(base, name, objective, seed, **labels)
            planned.append(run.evaluated(projections=True, protocol=None))
    if scale == "paper":
        return planned
    candidates = settings.rate_candidates(base, FOLDS[scale], [*ENCODERS], scale)
    return rates.choose_then_train(candidates, planned, rows, "name")


def analyze(rows: Rows) -> Rows:
    """Test each step to more of the spreading term, by the distance and by L_uniform."""
    groups = records.group_by(rates.final(rows), "group", "label")
    table: Rows = []
    for metric, name in METRICS.items():
        comparisons = []
        for group, members in ENCODERS.items():
            for before, after in itertools.pairwise(members):
                sides = [records.column(groups[group, label], name) for label in (after, before)]
                estimates = {metric: stats.seed_difference(*sides)}
                claim = f"{metric} falls from {before} to {after}"
                comparisons.append(stats.Comparison(claim, estimates, -1, labels={"loss": group}))
        table += stats.judge(comparisons)
    return table


@plots.printed
def plot(rows: Rows, path: Path) -> Figure:
    """Draw histograms of the first seed, a row per encoder and a column per direction."""
    groups = records.group_by(rates.final(rows), "group", "label")
    first = {key: members[0] for key, members in groups.items()}
    columns = len(next(iter(first.values()))["projection_counts"].split("; "))
    figure, grid = plots.new_figure(len(first), columns, 0.75, sharex=True, sharey=True)
    x = np.linspace(-4, 4, 201)
    normal = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    for places, ((group, label), row) in zip(grid, first.items(), strict=True):
        width = row["projection_half_width"]
        for axes, text in zip(places, row["projection_counts"].split("; "), strict=True):
            counts = np.array([*map(float, text.split())])
            edges = np.linspace(-width, width, len(counts) + 1)
            axes.stairs(counts / counts.sum() / np.diff(edges), edges, fill=True, alpha=0.6)
            axes.plot(x, normal, "--", color=COLORS[1], lw=1)
            axes.set(yticks=[], ylim=(0, 3 * normal.max()))
            axes.grid(visible=False)
        name = f"{group.partition(' (')[0]}\n{label}"
        places[0].set_ylabel(name, rotation=0, ha="right", va="center")
    figure.supxlabel("projection, in standard deviations of uniform features (dashed: normal)")
    return save_figure(figure, path)
