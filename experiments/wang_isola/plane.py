"""Encoders in the plane of alignment and uniformity: shared by Figures 5a, 5b and 9a."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import scipy
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from experiments.lib.plots import new_figure, printed
from experiments.lib.ranks import MIN_ENCODERS, encoder_correlations, metric_correlations
from experiments.lib.records import Rows, column, finished, group_by
from experiments.lib.stats import PAPER_PROBE, Comparison, judge
from hypersphere_jax.reporting.plots.style import COLORS, save_figure

SHARES = np.linspace(0, 1, 13)  # weights of L_uniform in the sum of both metrics
FAMILIES = {"contrastive": "o", "align+uniform": "s", "mixtures": "^"}  # markers


def analyze_plane(rows: Rows, scores: Mapping[str, str], expected: int = -1) -> Rows:
    """Correlate a score with L_align + L_uniform over all encoders and over their better half.

    Args:
      rows: encoders of several data sets and seeds.
      scores: score column by instrument.
      expected: sign of the correlation in the claim; 1 if lower scores are better.
    """
    comparisons = []
    for data, group in group_by(rows, "data").items():
        if len(group_by(group, "row")) < MIN_ENCODERS:
            continue
        for half, encoders in ((0, "all encoders"), (-expected, "better half")):
            estimates = {
                instrument: metric_correlations(group, score, [0.5], half)[0]
                for instrument, score in scores.items()
            }
            claim = f"L_align + L_uniform ranks {encoders}"
            comparisons.append(Comparison(claim, estimates, expected, labels={"data": data}))
    return judge(comparisons)


def order_agrees(rows: Rows, compared: dict[str, dict[str, str]]) -> Rows:
    """Correlate our accuracies with the paper's over encoders.

    Args:
      rows: one seed per row of the table.
      compared: the paper's column -> our columns by instrument.
    """
    comparisons = []
    for name, scores in compared.items():
        paper = f"paper_{name}"
        both = [row for row in finished(rows) if paper in row]
        if len(both) < MIN_ENCODERS:
            continue
        estimates = {
            instrument: encoder_correlations(both, score, (paper,), np.ones((1, 1)))[0]
            for instrument, score in scores.items()
        }
        comparisons.append(Comparison(f"our order agrees with {name}", estimates))
    return judge(comparisons)


@printed
def plot_plane(
    rows: Rows, path: Path, scores: Mapping[str, str], lower_is_better: bool = False
) -> Figure:
    """Draw the encoders, coloured by the rank of their score, and correlations over weights.

    Args:
      rows: encoders.
      path: file of the PNG.
      scores: score column by instrument; instruments that decide get a panel.
      lower_is_better: the score is an error.
    """
    data_sets = group_by(rows, "data")
    deciding = {name: score for name, score in scores.items() if name != PAPER_PROBE}
    figure, grid = new_figure(len(data_sets), len(deciding) + 1, 2.3)
    for places, (data, group) in zip(grid, data_sets.items(), strict=True):
        for axes, (instrument, score) in zip(places, deciding.items(), strict=False):
            dots = _draw_encoders(axes, group, score, lower_is_better)
            axes.set(title=f"{data}: {instrument}", xlabel=r"← better   $L_{align}$")
        places[0].set_ylabel(r"← better   $L_{uniform}$")
        if len(group_by(group, "row")) >= MIN_ENCODERS:
            _draw_correlations(places[-1], group, scores)
    figure.colorbar(dots, ax=grid, label="rank of the score (1: best)", aspect=40, fraction=0.03)
    grid[0, 0].legend()
    grid[0, -1].legend()
    return save_figure(figure, path)


def _draw_encoders(axes: Axes, rows: Rows, score: str, lower_is_better: bool) -> PathCollection:
    groups = [*group_by(rows, "row").values()]
    align = np.array([column(group, "align").mean() for group in groups])
    uniform = np.array([column(group, "uniform").mean() for group in groups])
    scores = np.array([column(group, score).mean() for group in groups])
    ranks = scipy.stats.rankdata(-scores if lower_is_better else scores) / len(groups)
    kinds = np.array([group[0]["kind"] for group in groups])
    is_other = ~np.isin(kinds, [*FAMILIES])
    for kind, marker in FAMILIES.items():
        mine = np.flatnonzero(is_other if kind == "mixtures" else kinds == kind)
        mine = mine[np.argsort(ranks[mine])]  # the best on top
        style = {"cmap": "RdYlBu", "vmin": 0, "vmax": 1, "edgecolor": "black", "linewidth": 0.3}
        dots = axes.scatter(
            align[mine], uniform[mine], 14, ranks[mine], marker=marker, label=kind, **style
        )
    return dots


def _draw_correlations(axes: Axes, rows: Rows, scores: Mapping[str, str]) -> None:
    """Draw rank correlations over the weight of L_uniform, with intervals."""
    for (instrument, score), color in zip(scores.items(), COLORS, strict=False):
        estimates = metric_correlations(rows, score, SHARES)
        low, high = np.array([[each.low, each.high] for each in estimates]).T
        axes.plot(SHARES, [each.effect for each in estimates], color=color, label=instrument)
        axes.fill_between(SHARES, low, high, color=color, alpha=0.15, lw=0)
    axes.set(ylim=(-1, 1), title="rank correlation, all encoders")
    axes.set_xlabel(r"share of $L_{uniform}$ in the sum")
