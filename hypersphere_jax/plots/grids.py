"""Heat maps over two settings: Chen, Luo & Li, Figure B.2; balanced paper, Figures 4 and 5."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from hypersphere_jax.plots.common import COLORS, DPI, saved

MISSING = "0.85"  # grey, of cells without a value


class Grid(NamedTuple):
    """Scores over two settings.

    Attributes:
      rows: values of the setting that changes from top to bottom.
      columns: values of the setting that changes from left to right.
      scores: `[rows, columns]`; NaN where there is none.
      ridge: (column's setting, row's setting) of points of a line, in the units of the settings,
        which are taken as evenly spaced in the logarithm between neighbours.
    """

    rows: Sequence[float]
    columns: Sequence[float]
    scores: np.ndarray
    ridge: Sequence[tuple[float, float]] = ()


def heat_maps(
    grids: Mapping[str, Grid],
    path: str | Path | None = None,
    *,
    row: str,
    column: str,
    score: str,
    ridge: str = "",
) -> Figure:
    """Grids two by two, with their numbers in the cells; the best one is framed.

    Args:
      grids: by title. Each has colours of its own: scores of different data do not compare.
      path: where the PNG goes; None: nowhere.
      row: name of the rows' setting.
      column: name of the columns' setting.
      score: what the numbers are.
      ridge: name of the lines.
    """
    across = min(len(grids), 2)
    down = -(-len(grids) // 2)
    width = max(3.2, 0.62 * max(len(grid.columns) for grid in grids.values()) + 1.6)
    height = max(3.2, 0.5 * max(len(grid.rows) for grid in grids.values()) + 1.6)
    size = (across * width, down * height)
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    places = figure.subplots(down, across, squeeze=False).flat
    for axes, (title, grid) in zip(places, grids.items(), strict=False):
        _draw(axes, grid, score)
        axes.set_title(title)
        axes.set_xlabel(column)
        axes.set_ylabel(row)
        if len(grid.ridge):
            points = [(_place(x, grid.columns), _place(y, grid.rows)) for x, y in grid.ridge]
            axes.plot(*zip(*points, strict=True), "--", color=COLORS[1], lw=2, label=ridge)
            axes.set_xlim(-0.5, len(grid.columns) - 0.5)
            axes.set_ylim(len(grid.rows) - 0.5, -0.5)
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False)
    return saved(figure, path)


def _draw(axes: Axes, grid: Grid, score: str) -> None:
    scores = np.asarray(grid.scores, float)
    known = scores[np.isfinite(scores)]
    axes.set_facecolor(MISSING)
    image = axes.imshow(scores, cmap="cividis", aspect="auto")
    axes.figure.colorbar(image, label=score)
    axes.set_xticks(range(len(grid.columns)), [f"{value:g}" for value in grid.columns])
    axes.set_yticks(range(len(grid.rows)), [f"{value:g}" for value in grid.rows])
    if not known.size:
        return
    middle = (known.min() + known.max()) / 2
    for (i, j), value in np.ndenumerate(scores):
        if np.isfinite(value):
            color = "black" if value > middle else "white"
            axes.text(j, i, f"{value:.1f}", ha="center", va="center", color=color, fontsize=7)
    i, j = np.unravel_index(np.nanargmax(scores), scores.shape)
    corner = (j - 0.5, i - 0.5)
    axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=COLORS[1], linewidth=2))


def _place(value: float, settings: Sequence[float]) -> float:
    """Where a value stands among settings that are drawn side by side."""
    logs, places = np.log(settings), np.arange(len(settings))
    slopes = np.diff(logs)
    if np.log(value) < logs[0]:
        return float((np.log(value) - logs[0]) / slopes[0])
    if np.log(value) > logs[-1]:
        return float(places[-1] + (np.log(value) - logs[-1]) / slopes[-1])
    return float(np.interp(np.log(value), logs, places))
