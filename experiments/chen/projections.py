"""Figure B.1 of Chen, Luo & Li: outputs along random directions."""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments.chen import settings
from experiments.reproduction import Context, Reproduction, Result, scale
from experiments.statistics import Rows, by, with_deviation
from experiments.sweeps import Planned
from hypersphere_jax.config import MetricsConfig
from hypersphere_jax.evaluate.metrics_verb import run_metrics
from hypersphere_jax.plots.common import COLORS, DPI, saved

Distances = dict[str, dict[str, list[float]]]  # by loss, by setting: of each seed

# More and more of the term that spreads the outputs, by its weight and by the temperature. The
# paper's own values are in its picture only.
ENCODERS = {
    "SWD (uniform hypersphere)": {
        f"lambda {lam:g}": settings.swd("hypersphere", lam) for lam in (0.05, 0.5, 5.0)
    },
    "NT-Xent": {f"tau {tau:g}": settings.nt_xent(tau) for tau in (2.0, 0.5, 0.1)},
}
DIRECTIONS = 6  # drawn of each encoder
SEEDS = range(3)  # at the laptop's scale


def _plan(context: Context, rows: Rows) -> list[Planned]:
    base, planned = settings.LAPTOP if context.laptop else settings.CIFAR10, []
    for group, members in ENCODERS.items():
        for (label, objective), seed in itertools.product(
            members.items(), SEEDS if context.laptop else [0]
        ):
            about = {"group": group, "label": label}
            name = f"{settings.slug(group)}_{settings.slug(label)}_seed{seed}"
            planned.append(settings.encoder(context, base, name, objective, about, seed=seed))
    return planned


def result(context: Context, rows: Rows) -> Result:
    """How far the projections are from those of uniform features, and their histograms."""
    columns = ["loss", "setting", "seeds", "distance from uniform (KS)"]
    columns += ["squared distance (SWD)", "L_uniform", "optimum"]
    lines, histograms, width = [], {}, 0.0
    distances: Distances = {}
    for (group, label), members in by(rows, "group", "label").items():
        measured = [
            run_metrics(MetricsConfig(str(context.runs_dir / row["run"]), parts=("projections",)))
            for row in members
        ]
        names = ("projection_ks_sphere", "sliced_wasserstein", "uniform")
        numbers = [[metrics[name] for metrics in measured] for name in names]
        first, width = measured[0], measured[0]["projection_half_width"]
        spread = map(with_deviation, numbers)
        lines.append([group, label, len(members), *spread, first["uniform_optimum"]])
        distances.setdefault(group, {})[label] = numbers[0]
        counts = [one["counts"] for one in first["projections"][:DIRECTIONS]]
        histograms[f"{group}\n{label}"] = counts
    draw_histograms(histograms, width, context.figure)
    text = [
        "The paper's claim: along random directions, outputs that are spread evenly over the "
        "sphere look like a normal distribution. They come nearer to it as the weight lambda of "
        "the term that spreads them grows (SWD), and as the temperature tau falls (NT-Xent).",
        "The distances are means over all directions of the test split's outputs: the largest "
        "difference of the distribution functions (Kolmogorov-Smirnov, KS), and the squared "
        "Wasserstein distance in units of the uniform features' variance. ±: standard deviation "
        "over seeds.",
        "A repetition gives the rows of NT-Xent to two digits, those of SWD only to some 0.03: "
        "that loss matches sorted values, and its gradient jumps where rounding changes their "
        "order. With seed 0 and lambda 0.5 the KS distance is 0.154, 0.163 and 0.180 on 1, 2 and "
        "4 devices (NT-Xent, tau 0.5: 0.131 on all; `pretrain --config RUN/config.json --name "
        "again --devices 4`, then `metrics again`), and another processor changes it as much.",
    ]
    caption = (
        "Test images along random orthogonal directions, each encoder (its first seed) a row; from "
        "top to bottom the term that spreads the outputs has more and more weight"
    )
    title = "Outputs along random directions (Figure B.1)"
    return Result(title, columns, lines, [(context.figure, caption)], text, _verdict(distances))


def draw_histograms(
    encoders: Mapping[str, Sequence[Sequence[int]]], half_width: float, path: Path | None
) -> Figure:
    """A row of small histograms for each encoder, a column for each direction.

    Args:
      encoders: name -> counts in equal bins `[directions, bins]`.
      half_width: bins reach from minus this to this, in standard deviations of uniform features.
      path: of the picture.
    """
    columns = max(map(len, encoders.values()))
    size = (1.6 * columns + 1.6, 1.25 * len(encoders) + 0.6)
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    grid = figure.subplots(len(encoders), columns, sharex=True, squeeze=False)
    x = np.linspace(-half_width, half_width, 201)
    normal = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    for row, (name, counts) in zip(grid, encoders.items(), strict=True):
        for axes, histogram in zip(row, np.array(counts, float), strict=False):
            edges = np.linspace(-half_width, half_width, len(histogram) + 1)
            density = histogram / histogram.sum() / (edges[1] - edges[0])
            axes.stairs(density, edges, fill=True, color=COLORS[0], alpha=0.6, label="features")
            axes.plot(x, normal, "--", color=COLORS[1], lw=1.2, label="normal distribution")
            axes.set_ylim(0, 1.15 * max(normal.max(), np.quantile(density, 0.98)))
        row[0].set_ylabel(name, rotation=0, ha="right", va="center")
    for axes in grid.flat:
        axes.set_yticks([])
    figure.supxlabel("projection on a random direction, in standard deviations of uniform features")
    handles = grid[0, 0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=2, frameon=False)
    return saved(figure, path)


def _verdict(distances: Distances) -> str:
    """Of each loss, whether the distance falls from setting to setting with every seed."""
    parts = []
    for group, members in distances.items():
        if len(members) < len(ENCODERS[group]):
            continue
        steps = itertools.pairwise(members.values())
        falls = all(a > b for before, after in steps for a, b in zip(before, after, strict=False))
        numbers = ", ".join(f"{np.mean(values):.3f}" for values in members.values())
        first, *_, last = members
        parts.append(
            f"{group}: the distance {'falls' if falls else 'does not fall'} with every seed from "
            f"{first} to {last} (means {numbers}): {'shows' if falls else 'does not show'}"
        )
    return "; ".join(parts)


REPRODUCTIONS = {
    "chen/figureB1": Reproduction(
        "distribution of outputs along random directions",
        result,
        laptop=scale("digits", _plan),
        paper=scale("cifar10", _plan),
    )
}
