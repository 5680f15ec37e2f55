"""Encoders in the plane of alignment and uniformity: shared by Figures 5a, 5b and 9a."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from experiments.lib import Rows, plots, ranks, records, stats
from hypersphere_jax.reporting.plots.style import COLORS, save_figure

SHARES = np.linspace(0, 1, 13)  # weights of L_uniform in the sum of both metrics
FAMILIES = {"contrastive": "o", "align+uniform": "s", "mixtures": "^"}  # markers


def analyze_plane(rows: Rows, scores: Mapping[str, str], expected: int = -1) -> Rows:
    """Correlate a score with both metrics over all encoders and over their better half.

    `scores` are columns by instrument. `expected` is 1 if lower scores are better.
    """
    comparisons = []
    for data, group in records.group_by(rows, "data").items():
        if len(records.group_by(group, "row")) >= ranks.MIN_ENCODERS:
            for half in (0, -expected):
                comparisons.append(sum_ranks(group, scores, expected, half, data=data))
    return stats.judge(comparisons)


def sum_ranks(
    rows: Rows, scores: Mapping[str, str], expected: int = -1, half: int = 0, **labels: Any
) -> stats.Comparison:
    """Correlate a score with L_align + L_uniform; `half` is 0 for all encoders."""
    estimates = {
        instrument: ranks.metric_correlations(rows, score, [0.5], half)[0]
        for instrument, score in scores.items()
    }
    encoders = "better half" if half else "all encoders"
    claim = f"L_align + L_uniform ranks {encoders}"
    return stats.Comparison(claim, estimates, expected, labels=labels)


def order_agrees(rows: Rows, compared: Mapping[str, Mapping[str, str]]) -> Rows:
    """Correlate our accuracies with the paper's over encoders, one seed each.

    `compared` has our columns by instrument for each column of the paper.
    """
    comparisons = []
    for name, scores in compared.items():
        paper = f"paper_{name}"
        both = [row for row in records.finished(rows) if paper in row]
        estimates = {
            instrument: ranks.encoder_correlations(both, score, (paper,), np.ones((1, 1)))[0]
            for instrument, score in scores.items()
        }
        comparisons.append(stats.Comparison(f"our order agrees with {name}", estimates))
    return stats.judge(comparisons)


@plots.printed
def plot_plane(
    rows: Rows, path: Path, scores: Mapping[str, str], lower_is_better: bool = False
) -> Figure:
    """Draw the encoders, coloured by the rank of their score, and correlations over weights.

    `scores` are columns by instrument. Instruments that decide get a panel.
    """
    data_sets = records.group_by(rows, "data")
    deciding = {name: score for name, score in scores.items() if name != stats.PAPER_PROBE}
    figure, grid = plots.new_figure(len(data_sets), len(deciding) + 1, 2.3)
    for places, (data, group) in zip(grid, data_sets.items(), strict=True):
        for axes, (instrument, score) in zip(places, deciding.items(), strict=False):
            dots = _draw_encoders(axes, group, score, lower_is_better)
            axes.set(title=f"{data}: {instrument}", xlabel=r"← better   $L_{align}$")
        places[0].set_ylabel(r"← better   $L_{uniform}$")
        if len(records.group_by(group, "row")) >= ranks.MIN_ENCODERS:
            _draw_correlations(places[-1], group, scores)
    figure.colorbar(dots, ax=grid, label="rank of the score (1: best)", aspect=40, fraction=0.03)
    grid[0, 0].legend()
    grid[0, -1].legend()
    return save_figure(figure, path)


def _draw_encoders(axes: Axes, rows: Rows, score: str, lower_is_better: bool) -> PathCollection:
    groups = [*records.group_by(rows, "row").values()]
    align = np.array([records.column(group, "align").mean() for group in groups])
    uniform = np.array([records.column(group, "uniform").mean() for group in groups])
    scores = np.array([records.column(group, score).mean() for group in groups])
    order = scipy.stats.rankdata(-scores if lower_is_better else scores) / len(groups)
    kinds = [group[0]["kind"] for group in groups]
    families = [kind if kind in FAMILIES else "mixtures" for kind in kinds]
    style = {"cmap": "RdYlBu", "vmin": 0, "vmax": 1, "edgecolor": "black", "linewidth": 0.3}
    for family, marker in FAMILIES.items():
        mine = [i for i in np.argsort(order) if families[i] == family]  # the best on top
        style |= {"marker": marker, "label": family}
        dots = axes.scatter(align[mine], uniform[mine], 14, order[mine], **style)
    return dots


def _draw_correlations(axes: Axes, rows: Rows, scores: Mapping[str, str]) -> None:
    """Draw rank correlations over the weight of L_uniform, with intervals."""
    for (instrument, score), color in zip(scores.items(), COLORS, strict=False):
        estimates = ranks.metric_correlations(rows, score, SHARES)
        low, high = np.array([[each.low, each.high] for each in estimates]).T
        axes.plot(SHARES, [each.effect for each in estimates], color=color, label=instrument)
        axes.fill_between(SHARES, low, high, color=color, alpha=0.15, lw=0)
    axes.set(ylim=(-1, 1), title="rank correlation, all encoders")
    axes.set_xlabel(r"share of $L_{uniform}$ in the sum")
