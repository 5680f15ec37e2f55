"""Accuracies by all instruments with their intervals, above alignment and uniformity."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.inference import INSTRUMENTS, PAPERS, difference
from experiments.predictions import right
from experiments.statistics import Rows, values
from hypersphere_jax.reporting.plots.style import COLORS

STYLES = {
    "logistic": {"color": COLORS[0], "marker": "o"},
    "knn5": {"color": COLORS[1], "marker": "s"},
    "linear": {"color": "0.45", "marker": "^", "linestyle": "--"},
}
CHANCE = 10.0  # of ten classes, in percent


def draw_accuracies(
    axes: Axes, xs: Sequence[float], groups: Sequence[Rows], layer: str, papers: bool = True
) -> None:
    """A curve an instrument: the mean of each group of rows over seeds, and its 95% interval.

    Chance is drawn beside all instruments, which leave the axis its room, and not beside the two.
    """
    for key, label in (INSTRUMENTS | (PAPERS if papers else {})).items():
        means = [difference(right(rows, f"{layer}_{key}")) for rows in groups]
        values = [of.value for of in means]
        bars = [[of.value - of.low for of in means], [of.high - of.value for of in means]]
        axes.errorbar(xs, values, bars, label=label, elinewidth=0.8, **STYLES[key])
    if papers:
        axes.axhline(CHANCE, color="0.6", linestyle=":", linewidth=0.8)


def finish(figure: Figure, accuracy: Axes, metric: Axes, layer: str) -> None:
    """Accuracies from zero on, names of both axes, and one legend of both above the panels."""
    accuracy.set_ylim(bottom=0)
    accuracy.set_ylabel(f"accuracy on the {layer} (%)")
    metric.set_ylabel("metric (lower is better)")
    curves = [axes.get_legend_handles_labels() for axes in (accuracy, metric)]
    handles, labels = ([part for of in curves for part in of[side]] for side in (0, 1))
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))


def draw_metrics(axes: Axes, xs: Sequence[float], groups: Sequence[Rows]) -> None:
    """Means of L_align and exp L_uniform over the seeds of each group of rows."""
    align, uniform = ([np.mean(values(of, n)) for of in groups] for n in ("align", "uniform"))
    label = r"$\mathcal{L}_{\mathrm{align}}$"
    axes.plot(xs, align, color=COLORS[2], marker="D", label=label)
    label = r"$\exp\,\mathcal{L}_{\mathrm{uniform}}$"
    axes.plot(xs, np.exp(uniform), color=COLORS[3], marker="v", label=label)
