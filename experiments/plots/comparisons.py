"""A score over one or two settings, and one score against another."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import FuncNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from experiments.plots.style import COLUMN, PAGE, printed
from hypersphere_jax.reporting.plots.style import COLORS, DPI, LINE_STYLES, save_figure

MARKERS = "os^Dv<>P"
COLOR_MAP = "cividis"
SPAN = 5.0  # of a colour scale at least, in points: noise is of one colour
NONE = 102.0  # percent of which accuracies fall short: near 100% noise is nearly of one colour
TICKS = (10, 20, 50, 70, 80, 90, 95, 97, 98, 99, 100)


class Point(NamedTuple):
    """A value with the ends of its interval; these are NaN where there is none."""

    x: float
    y: float
    low: float = float("nan")
    high: float = float("nan")


@printed
def curves(
    panels: Mapping[str, Mapping[str, Sequence[Point]]],
    path: Path | None,
    *,
    x: str,
    y: str,
    levels: Mapping[str, float],
    across: int = 2,
) -> Figure:
    """Curves (title of the panel -> label -> points) with intervals, and levels by name.

    Panels, so many across, have one scale, which begins at zero, and one legend below: a label
    looks the same in all of them. Figures C.1 and E.1 of Chen et al.
    """
    labels = list(dict.fromkeys(label for lines in panels.values() for label in lines))
    down = -(-len(panels) // across)
    size = (PAGE, 2.0 * down + 0.4 + 0.16 * -(-len([*labels, *levels]) // 3))
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    places = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat
    shown, lines_of_levels = {}, {}
    for axes, (title, lines) in zip(places, panels.items(), strict=False):
        for label, points in lines.items():
            number = labels.index(label)
            xs, ys, low, high = np.array(points).T
            style = {
                "color": COLORS[number % len(COLORS)],
                "marker": MARKERS[number % len(MARKERS)],
                "linestyle": LINE_STYLES[number // len(COLORS) % len(LINE_STYLES)],
                "elinewidth": 0.8,
            }
            bars = np.stack([ys - low, high - ys])
            shown[label] = axes.errorbar(xs, ys, bars, label=label, **style)
        for name, level in levels.items():
            lines_of_levels[name] = axes.axhline(level, color="0.5", linestyle=":", zorder=0)
        axes.set(title=title, xlabel=x, ylabel=y)
        axes.set_ylim(bottom=0)
        axes.label_outer()
    shown |= lines_of_levels
    figure.legend(list(shown.values()), list(shown), loc="outside lower center", ncols=3)
    return save_figure(figure, path)


@printed
def scatter(
    panels: Mapping[str, Mapping[str, Sequence[Point]]], path: Path | None, *, x: str, y: str
) -> Figure:
    """Points with their intervals (title of the panel -> label -> points), on one scale.

    The balanced paper's Figure 3.
    """
    figure = Figure(figsize=(PAGE, 2.6), dpi=DPI, layout="constrained")
    places = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (title, groups) in zip(places, panels.items(), strict=True):
        for number, (label, points) in enumerate(groups.items()):
            xs, ys, low, high = np.array(points).T
            color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
            style = {"marker": marker, "color": color, "linestyle": "", "elinewidth": 0.8}
            axes.errorbar(xs, ys, yerr=np.stack([ys - low, high - ys]), label=label, **style)
        axes.set(title=title, xlabel=x)
    places[0].set_ylabel(y)
    legend = places[0].get_legend_handles_labels()
    figure.legend(*legend, loc="outside lower center", ncols=len(legend[1]))
    return save_figure(figure, path)


class Grid(NamedTuple):
    """Scores over two settings."""

    rows: Sequence[float]  # the setting that changes from top to bottom
    columns: Sequence[float]
    scores: np.ndarray  # [rows, columns]; NaN where there is none
    ridge: Sequence[tuple[float, float]] = ()  # points of a line, (column's, row's setting)
    near: Sequence[tuple[float, float]] = ()  # cells with a dot, (row's, column's setting)


def grid_of(
    scores: Mapping[tuple[float, float], float],
    rows: Sequence[float],
    columns: Sequence[float],
    ridge: Sequence[tuple[float, float]] = (),
    near: Sequence[tuple[float, float]] = (),
) -> Grid:
    """The grid of scores by (row's setting, column's setting)."""
    table = [[scores.get((row, column), np.nan) for column in columns] for row in rows]
    return Grid(rows, columns, np.array(table, float), ridge, near)


@printed
def heat_maps(
    grids: Mapping[str, Grid],
    path: Path | None,
    row: str,
    column: str,
    score: str,
    ridge: str = "",
    across: int = 2,
    each_row: bool = False,
) -> Figure:
    """Grids of accuracies by title, all of one colour scale: of the error's logarithm.

    So good encoders are told apart beside those that learned nothing.

    Chen, Luo & Li, Figure B.2; the balanced paper, Figures 4 and 5.

    Args:
      grids: title -> grid, so many `across`.
      path: of the picture.
      row: name of the setting that changes from top to bottom.
      column: of the other one.
      score: of what is in the cells.
      ridge: of the grids' lines.
      across: panels side by side.
      each_row: frame the best cell of each row, not that of the whole grid.
    """
    across = min(len(grids), across)
    down = -(-len(grids) // across)
    width = PAGE if across > 1 else COLUMN
    height = 0.24 * max(len(grid.rows) for grid in grids.values()) + 0.35
    figure = Figure(figsize=(width, down * height + 0.75), dpi=DPI, layout="constrained")
    places = figure.subplots(down, across, squeeze=False)
    finite = [grid.scores[np.isfinite(grid.scores)] for grid in grids.values()]
    values = np.concatenate([*finite, np.zeros(0)])
    top = values.max(initial=0)
    scale = FuncNorm((_of_error, _to_accuracy), values.min(initial=top - SPAN), top)
    for place, (title, grid) in enumerate(grids.items()):
        axes = places.flat[place]
        _draw_grid(axes, grid, scale, each_row)
        below = place + across < len(grids)  # whether another panel is
        axes.set(title=title, xlabel="" if below else column)
        axes.set_ylabel("" if place % across else row)
        if place % across and list(grid.rows) == list(grids[[*grids][place - 1]].rows):
            axes.tick_params(labelleft=False)
        if len(grid.ridge):
            points = [(_place(x, grid.columns), _place(y, grid.rows)) for x, y in grid.ridge]
            line = {"color": COLORS[1], "linewidth": 1.2, "scalex": False, "scaley": False}
            (drawn,) = axes.plot(*np.transpose(points), "--", label=ridge, **line)
            figure.legends.clear()
            figure.legend([drawn], [ridge], loc="outside lower center")
    for axes in places.flat[len(grids) :]:
        axes.set_axis_off()
    ticks = [tick for tick in TICKS if scale.vmin <= tick <= scale.vmax]
    if len(ticks) < 3:
        ticks = MaxNLocator(4).tick_values(scale.vmin, scale.vmax)
    bar = {"ax": places, "label": score, "aspect": 40, "fraction": 0.04, "ticks": ticks}
    figure.colorbar(ScalarMappable(scale, COLOR_MAP), format="%g", **bar)
    return save_figure(figure, path)


def _of_error(accuracy: np.ndarray) -> np.ndarray:
    return -np.log(NONE - np.asarray(accuracy))


def _to_accuracy(of_error: np.ndarray) -> np.ndarray:
    return NONE - np.exp(-np.asarray(of_error))


def _draw_grid(axes: Axes, grid: Grid, scale: Normalize, each_row: bool) -> None:
    scores = grid.scores
    axes.set_facecolor("0.85")  # grey, of cells without a value
    axes.grid(visible=False)
    axes.imshow(scores, cmap=COLOR_MAP, norm=scale, aspect="auto")
    axes.set_xticks(range(len(grid.columns)), [f"{value:g}" for value in grid.columns], rotation=45)
    axes.set_yticks(range(len(grid.rows)), [f"{value:g}" for value in grid.rows])
    for (i, j), value in np.ndenumerate(scores):
        if np.isfinite(value):
            color = "black" if scale(value) > 0.5 else "white"
            axes.text(j, i, f"{value:.1f}", ha="center", va="center", color=color, fontsize=7)
            if (grid.rows[i], grid.columns[j]) in grid.near:
                axes.plot(j + 0.38, i, ".", color=color, markersize=4)
    parts = [(i, scores[i : i + 1]) for i in range(len(scores))] if each_row else [(0, scores)]
    for first, part in parts:
        if np.isnan(part).all():
            continue
        i, j = np.unravel_index(np.nanargmax(part), part.shape)
        corner = (j - 0.5, first + i - 0.5)
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=COLORS[1], linewidth=1.5))


def _place(value: float, settings: Sequence[float]) -> float:
    """Where a value is among settings that are drawn side by side, also beyond their ends."""
    logs = np.log(settings)
    left = int(np.clip(np.searchsorted(logs, np.log(value)) - 1, 0, len(logs) - 2))
    return float(left + (np.log(value) - logs[left]) / (logs[left + 1] - logs[left]))
