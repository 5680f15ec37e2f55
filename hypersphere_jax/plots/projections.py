"""Histograms of features along random directions: Figure B.1 of Chen, Luo & Li."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from hypersphere_jax.plots.common import COLORS, DPI, saved


def projection_sheet(
    groups: Mapping[str, Mapping[str, Sequence[Sequence[int]]]],
    half_width: float,
    path: str | Path | None = None,
) -> Figure:
    """A row of small histograms for each encoder, a column for each direction.

    Args:
      groups: group of encoders -> encoder -> counts in equal bins `[directions, bins]`.
      half_width: bins reach from minus this to this, in standard deviations of uniform features.
      path: where the PNG goes; None: nowhere.
    """
    encoders = [
        (group, label, counts) for group, of in groups.items() for label, counts in of.items()
    ]
    columns = max(len(counts) for *_, counts in encoders)
    figure = Figure(
        figsize=(1.6 * columns + 1.6, 1.25 * len(encoders) + 0.6), dpi=DPI, layout="constrained"
    )
    grid = figure.subplots(len(encoders), columns, sharex=True, squeeze=False)
    for row, (group, label, counts) in zip(grid, encoders, strict=True):
        for axes, histogram in zip(row, counts, strict=False):
            _draw(axes, np.asarray(histogram, float), half_width)
        row[0].set_ylabel(f"{group}\n{label}", rotation=0, ha="right", va="center")
    for axes in grid.flat:
        axes.set_yticks([])
    figure.supxlabel("projection on a random direction, in standard deviations of uniform features")
    figure.legend(
        *grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False
    )
    return saved(figure, path)


def _draw(axes, histogram: np.ndarray, half_width: float) -> None:
    edges = np.linspace(-half_width, half_width, len(histogram) + 1)
    density = histogram / histogram.sum() / (edges[1] - edges[0])
    axes.stairs(density, edges, fill=True, color=COLORS[0], alpha=0.6, label="features")
    x = np.linspace(-half_width, half_width, 201)
    normal = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    axes.plot(x, normal, "--", color=COLORS[1], lw=1.2, label="normal distribution")
    axes.set_ylim(0, 1.15 * max(normal.max(), np.quantile(density, 0.98)))
