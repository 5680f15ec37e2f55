"""Many encoders at once: Figures 5, 7 and 8 of Wang & Isola."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hypersphere_jax.plots.common import ALIGN_LABEL, COLORS, DPI, UNIFORM_LABEL, saved

EXP_UNIFORM = r"$\exp\,\mathcal{L}_{\mathrm{uniform}}$"
ALIGN = r"$\mathcal{L}_{\mathrm{align}}$"
ACCURACY = "linear accuracy on the output (%)"


def metrics_planes(
    groups: Mapping[str, Sequence[Mapping]],
    path: str | Path | None = None,
    score: str = "output_linear",
    label: str = ACCURACY,
    lower_is_better: bool = False,
) -> Figure:
    """Planes of alignment and uniformity, coloured by a score: Figures 5 and 9, blue is better.

    Args:
      groups: title -> encoders, each with "align", "uniform" (nats) and the score.
      path: where the PNG goes; None: nowhere.
      score: key of the score.
      label: of its colours.
      lower_is_better: as of an error.
    """
    figure = Figure(figsize=(6 * len(groups), 4.8), dpi=DPI, layout="constrained")
    for axes, (title, encoders) in zip(
        figure.subplots(1, len(groups), squeeze=False)[0], groups.items(), strict=True
    ):
        keys = ("align", "uniform", score)
        align, uniform, values = np.array([[row[key] for key in keys] for row in encoders]).T
        order = np.argsort(-values if lower_is_better else values)  # the best on top
        dots = axes.scatter(
            align[order],
            uniform[order],
            c=values[order],
            cmap="RdYlBu_r" if lower_is_better else "RdYlBu",
            s=45,
            zorder=3,
        )
        dots.set_edgecolor("black")
        figure.colorbar(dots, label=label)
        axes.set_title(f"{title}: {len(encoders)} encoders")
        axes.set_xlabel(f"← better    {ALIGN_LABEL}")
        axes.set_ylabel(f"← better    {UNIFORM_LABEL}")
        axes.grid(alpha=0.3)
    return saved(figure, path)


def weights_curves(
    labels: Sequence[str], rows: Sequence[Sequence[Mapping]], path: str | Path | None = None
) -> Figure:
    """Metrics and accuracy over the weights of alignment and uniformity: Figure 7.

    Args:
      labels: of each pair of weights, in order.
      rows: for each label, encoders of one or several seeds with "align", "uniform" and
        "output_linear" (percent). Lines go through their means; points are the encoders.
      path: where the PNG goes; None: nowhere.
    """
    figure = Figure(figsize=(9, 6), dpi=DPI, layout="constrained")
    accuracy, metrics = figure.subplots(2, 1, sharex=True)
    _means(accuracy, rows, lambda row: row["output_linear"], COLORS[0], "o", ACCURACY)
    accuracy.set_ylabel(ACCURACY)
    _means(metrics, rows, lambda row: row["align"], COLORS[1], "s", ALIGN)
    _means(metrics, rows, lambda row: np.exp(row["uniform"]), COLORS[2], "^", EXP_UNIFORM)
    metrics.set_ylabel("metric (lower is better)")
    metrics.legend(frameon=False)
    metrics.set_xticks(range(len(labels)), labels, rotation=45, ha="right")
    metrics.set_xlabel("weight of alignment : weight of uniformity")
    for axes in (accuracy, metrics):
        axes.grid(alpha=0.3)
    return saved(figure, path)


def trajectories(
    panels: Mapping[str, Sequence[Mapping]],
    path: str | Path | None = None,
    label: str = "training step",
) -> Figure:
    """Metrics and accuracy of a run's checkpoints, a column a run: Figure 8.

    Args:
      panels: title -> checkpoints in order, each with "step", "align", "uniform" and
        "output_linear" (percent), and its interval "output_linear_low", "output_linear_high".
      path: where the PNG goes; None: nowhere.
      label: of the x-axis.
    """
    figure = Figure(figsize=(4 * len(panels), 6), dpi=DPI, layout="constrained")
    grid = figure.subplots(2, len(panels), sharex="col", sharey="row", squeeze=False)
    for (above, below), (title, rows) in zip(grid.T, panels.items(), strict=True):
        steps = [row["step"] for row in rows]
        low, high = ([row[f"output_linear_{end}"] for row in rows] for end in ("low", "high"))
        above.plot(steps, [row["output_linear"] for row in rows], "o-", color=COLORS[0])
        above.fill_between(steps, low, high, color=COLORS[0], alpha=0.2, linewidth=0)
        below.plot(steps, [row["align"] for row in rows], "s-", color=COLORS[1], label=ALIGN)
        exponentials = [np.exp(row["uniform"]) for row in rows]
        below.plot(steps, exponentials, "^-", color=COLORS[2], label=EXP_UNIFORM)
        above.set_title(title)
        below.set_xlabel(label)
        for axes in (above, below):
            axes.grid(alpha=0.3)
    grid[0, 0].set_ylabel(f"{ACCURACY},\n95% interval shaded")
    grid[1, 0].set_ylabel("metric (lower is better)")
    grid[1, 0].legend(frameon=False)
    return saved(figure, path)


def _means(axes: Axes, rows: Sequence, value, color: str, marker: str, label: str) -> None:
    for place, encoders in enumerate(rows):
        values = [value(row) for row in encoders]
        axes.plot([place] * len(values), values, marker, color=color, alpha=0.5, markersize=4)
    means = [np.mean([value(row) for row in encoders]) for encoders in rows]
    axes.plot(range(len(means)), means, "-", color=color, marker=marker, label=label)
