"""A score over one or two settings, and one score against another."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from hypersphere_jax.plots.common import COLORS, DPI, LINE_STYLES, saved

MARKERS = "os^Dv<>P"
BELOW = {"frameon": False, "loc": "upper center", "bbox_to_anchor": (0.5, -0.14)}  # the legend


class Point(NamedTuple):
    """A value with the ends of its interval; these are NaN where there is none."""

    x: float
    y: float
    low: float = float("nan")
    high: float = float("nan")


def point(row: Mapping, x: str, score: str) -> Point:
    """The point of a run: two of its columns, and the interval of the second."""
    return Point(row[x], row[score], row[f"{score}_low"], row[f"{score}_high"])


def curves(
    panels: Mapping[str, Mapping[str, Sequence[Point]]],
    path: Path | None,
    *,
    x: str,
    y: str,
    levels: Mapping[str, float],
) -> Figure:
    """Curves (title of the panel -> label -> points) with intervals, and levels by name.

    Figures C.1 and E.1 of Chen et al.
    """
    size = (4.6 * len(panels), 3.8 + 0.2 * max(map(len, panels.values()), default=0))
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    places = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, lines) in zip(places, panels.items(), strict=True):
        for number, (label, points) in enumerate(lines.items()):
            color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
            xs, ys, low, high = np.array(points).T
            style = LINE_STYLES[number // len(COLORS) % len(LINE_STYLES)]
            axes.plot(xs, ys, style, marker=marker, color=color, label=label, markersize=5)
            axes.fill_between(xs, low, high, color=color, alpha=0.15, linewidth=0)
        for name, level in levels.items():
            axes.axhline(level, color="0.5", linestyle=":", zorder=0)
            style = {"fontsize": 7, "color": "0.35", "va": "bottom"}
            axes.text(0.01, level, name, transform=axes.get_yaxis_transform(), **style)
        axes.set(title=title, xlabel=x)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small", **BELOW)
    places[0].set_ylabel(y)
    return saved(figure, path)


def scatter(groups: Mapping[str, Sequence[Point]], path: Path | None, *, x: str, y: str) -> Figure:
    """Points of groups (label -> points) with their intervals: the balanced paper's Figure 3."""
    figure = Figure(figsize=(6, 4.4), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    for number, (label, points) in enumerate(groups.items()):
        xs, ys, low, high = np.array(points).T
        color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
        style = {"marker": marker, "color": color, "capsize": 2, "linestyle": ""}
        axes.errorbar(xs, ys, yerr=np.stack([ys - low, high - ys]), label=label, **style)
    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize="small")
    return saved(figure, path)


class Grid(NamedTuple):
    """Scores over two settings."""

    rows: Sequence[float]  # the setting that changes from top to bottom
    columns: Sequence[float]
    scores: np.ndarray  # [rows, columns]; NaN where there is none
    ridge: Sequence[tuple[float, float]] = ()  # points of a line, (column's, row's setting)


def grid_of(
    scores: Mapping[tuple[float, float], float],
    rows: Sequence[float],
    columns: Sequence[float],
    ridge: Sequence[tuple[float, float]] = (),
) -> Grid:
    """The grid of scores by (row's setting, column's setting)."""
    table = [[scores.get((row, column), np.nan) for column in columns] for row in rows]
    return Grid(rows, columns, np.array(table, float), ridge)


def heat_maps(
    grids: Mapping[str, Grid], path: Path | None, row: str, column: str, score: str, ridge: str = ""
) -> Figure:
    """Grids by title, two by two, with their numbers in the cells; the best one is framed.

    Chen, Luo & Li, Figure B.2; the balanced paper, Figures 4 and 5.
    """
    across, down = min(len(grids), 2), -(-len(grids) // 2)
    width = max(3.2, 0.62 * max(len(grid.columns) for grid in grids.values()) + 1.6)
    height = max(3.2, 0.5 * max(len(grid.rows) for grid in grids.values()) + 1.6)
    figure = Figure(figsize=(across * width, down * height), dpi=DPI, layout="constrained")
    places = figure.subplots(down, across, squeeze=False).flat
    for axes, (title, grid) in zip(places, grids.items(), strict=False):
        _draw_grid(axes, grid, score)
        axes.set(title=title, xlabel=column, ylabel=row)
        if len(grid.ridge):
            points = [(_place(x, grid.columns), _place(y, grid.rows)) for x, y in grid.ridge]
            line = {"color": COLORS[1], "linewidth": 2, "scalex": False, "scaley": False}
            axes.plot(*np.transpose(points), "--", label=ridge, **line)
            axes.legend(**BELOW)
    return saved(figure, path)


def _draw_grid(axes: Axes, grid: Grid, score: str) -> None:
    scores = grid.scores
    axes.set_facecolor("0.85")  # grey, of cells without a value
    axes.figure.colorbar(axes.imshow(scores, cmap="cividis", aspect="auto"), label=score)
    axes.set_xticks(range(len(grid.columns)), [f"{value:g}" for value in grid.columns])
    axes.set_yticks(range(len(grid.rows)), [f"{value:g}" for value in grid.rows])
    if np.isnan(scores).all():
        return
    middle = (np.nanmin(scores) + np.nanmax(scores)) / 2
    for (i, j), value in np.ndenumerate(scores):
        if np.isfinite(value):
            color = "black" if value > middle else "white"
            axes.text(j, i, f"{value:.1f}", ha="center", va="center", color=color, fontsize=7)
    i, j = np.unravel_index(np.nanargmax(scores), scores.shape)
    frame = Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, edgecolor=COLORS[1], linewidth=2)
    axes.add_patch(frame)


def _place(value: float, settings: Sequence[float]) -> float:
    """Where a value is among settings that are drawn side by side, also beyond their ends."""
    logs = np.log(settings)
    left = int(np.clip(np.searchsorted(logs, np.log(value)) - 1, 0, len(logs) - 2))
    return float(left + (np.log(value) - logs[left]) / (logs[left + 1] - logs[left]))
