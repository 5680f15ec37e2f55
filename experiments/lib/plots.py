"""Figures that several items share, in the sizes of a printed page."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from experiments.lib.records import Rows, column
from experiments.lib.stats import Estimate, accuracy
from hypersphere_jax.reporting.plots.style import (
    ALIGN_LABEL,
    COLORS,
    DPI,
    LINE_STYLES,
    UNIFORM_LABEL,
    save_figure,
)

COLUMN_WIDTH = 3.3  # inches
PAGE_WIDTH = 6.8
MARKERS = "os^Dv<>P"
PRINT_STYLE = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "errorbar.capsize": 2,
}
INSTRUMENT_STYLES: dict[str, dict[str, Any]] = {
    "logistic": {"label": "logistic regression", "color": COLORS[0], "marker": "o"},
    "knn5": {"label": "5-NN", "color": COLORS[1], "marker": "s"},
    "linear": {"label": "paper's probe", "color": "0.45", "marker": "^", "linestyle": "--"},
}


def printed(draw: Callable) -> Callable:
    """Decorate a function that draws a figure, to use the sizes of print."""

    @functools.wraps(draw)
    def with_style(*args: Any, **options: Any) -> Any:
        with matplotlib.rc_context(PRINT_STYLE):
            return draw(*args, **options)

    return with_style


def new_figure(rows: int, columns: int, height: float, width: float = PAGE_WIDTH, **sharing: Any):
    """Return a figure and its axes `[rows, columns]`; the height is in inches per row."""
    figure = Figure(figsize=(width, height * rows), dpi=DPI, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **sharing)


def shared_legend(figure: Figure, axes: Axes, columns: int = 3, place: str = "lower center"):
    """Draw one legend for all panels."""
    handles, labels = axes.get_legend_handles_labels()
    location: Any = f"outside {place}"
    figure.legend(handles, labels, loc=location, ncols=columns)


class Point(NamedTuple):
    """A value with its interval."""

    x: float
    y: float
    low: float = float("nan")
    high: float = float("nan")


def point(x: float, estimate: Estimate) -> Point:
    """Return an estimate as a point."""
    return Point(x, estimate.effect, estimate.low, estimate.high)


@printed
def curves(
    panels: Mapping[str, Mapping[str, Sequence[Point]]],
    path: Path | None,
    *,
    x: str,
    y: str,
    levels: Mapping[str, float],
    connected: bool = True,
) -> Figure:
    """Draw labelled points with intervals, a panel per title, and horizontal levels.

    Args:
      panels: title -> label -> points.
      path: file of the PNG.
      x: label of the axis.
      y: label of the axis.
      levels: label -> value.
      connected: draw lines between points.
    """
    labels = list(dict.fromkeys(label for lines in panels.values() for label in lines))
    across = min(3, len(panels))
    down = -(-len(panels) // across)
    height = 2.0 + 0.16 * -(-len(labels) // 3) / down + 0.4 / down
    figure, grid = new_figure(down, across, height, sharex=True, sharey=True)
    handles = {}
    for axes, (title, lines) in zip(grid.flat, panels.items(), strict=False):
        for label, points in lines.items():
            number = labels.index(label)
            style = {"color": COLORS[number % len(COLORS)], "marker": MARKERS[number % 8]}
            style["linestyle"] = ""
            if connected:
                style["linestyle"] = LINE_STYLES[number // len(COLORS) % len(LINE_STYLES)]
            xs, ys, low, high = np.array(points).T
            bars = np.stack([ys - low, high - ys])
            handles[label] = axes.errorbar(xs, ys, bars, label=label, elinewidth=0.8, **style)
        for name, level in levels.items():
            handles[name] = axes.axhline(level, color="0.5", linestyle=":", zorder=0)
        axes.set(title=title, xlabel=x, ylabel=y)
        axes.label_outer()
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=3)
    return save_figure(figure, path)


class Grid(NamedTuple):
    """Accuracies over two settings, and cells that get a dot."""

    rows: Sequence[float]
    columns: Sequence[float]
    scores: np.ndarray  # [rows, columns]; NaN without a value
    dots: Sequence[tuple[float, float]] = ()


def grid_of(
    scores: Mapping[tuple[float, float], float], dots: Sequence[tuple[float, float]] = ()
) -> Grid:
    """Return scores by (row, column) as a grid."""
    rows = sorted({cell[0] for cell in scores})
    columns = sorted({cell[1] for cell in scores})
    values = [[scores.get((row, column), np.nan) for column in columns] for row in rows]
    return Grid(rows, columns, np.array(values, float), dots)


@printed
def heat_maps(
    grids: Mapping[str, Grid],
    path: Path | None,
    *,
    row: str,
    column: str,
    best_of_row: bool = False,
    ridge: Callable[[float], float] | None = None,
) -> Figure:
    """Draw grids of accuracies on one color scale, logarithmic in the error.

    Args:
      grids: title -> grid.
      path: file of the PNG.
      row: label of the setting from top to bottom.
      column: label of the setting from left to right.
      best_of_row: frame the best cell of each row instead of the best cell of the grid.
      ridge: row's value -> column's value of a dashed line.
    """
    across = min(3, len(grids))
    down = -(-len(grids) // across)
    figure, places = new_figure(down, across, 2.0)
    finite = np.concatenate([grid.scores[np.isfinite(grid.scores)] for grid in grids.values()])
    best = -np.log(102 - finite.max())
    scale = Normalize(min(-np.log(102 - finite.min()), best - 0.5), best)
    for axes, (title, grid) in zip(places.flat, grids.items(), strict=False):
        _draw_grid(axes, grid, scale, best_of_row)
        axes.set(title=title, xlabel=column, ylabel=row)
        if ridge is not None:
            xs = [_position(ridge(value), grid.columns) for value in grid.rows]
            style = {"color": COLORS[1], "scalex": False, "scaley": False}
            axes.plot(xs, range(len(grid.rows)), "--", **style)
    for axes in places.flat[len(grids) :]:
        axes.set_axis_off()
    bar = figure.colorbar(ScalarMappable(scale, "cividis"), ax=places, aspect=40, fraction=0.04)
    ticks = np.linspace(scale.vmin, scale.vmax, 5)
    bar.set_ticks(ticks, labels=[f"{102 - np.exp(-tick):.1f}" for tick in ticks])
    bar.set_label("accuracy (%)")
    return save_figure(figure, path)


def _draw_grid(axes: Axes, grid: Grid, scale: Normalize, best_of_row: bool) -> None:
    colors = -np.log(102 - grid.scores)
    axes.set_facecolor("0.85")
    axes.grid(visible=False)
    axes.imshow(colors, cmap="cividis", norm=scale, aspect="auto")
    axes.set_xticks(range(len(grid.columns)), [f"{x:g}" for x in grid.columns], rotation=45)
    axes.set_yticks(range(len(grid.rows)), [f"{y:g}" for y in grid.rows])
    for (i, j), value in np.ndenumerate(grid.scores):
        if not np.isfinite(value):
            continue
        color = "black" if scale(colors[i, j]) > 0.5 else "white"
        axes.text(j, i, f"{value:.1f}", ha="center", va="center", color=color, fontsize=6)
        if (grid.rows[i], grid.columns[j]) in grid.dots:
            axes.plot(j + 0.38, i, ".", color=color, markersize=4)
    cells = [np.unravel_index(np.nanargmax(grid.scores), grid.scores.shape)]
    if best_of_row:
        cells = [(i, np.nanargmax(line)) for i, line in enumerate(grid.scores)]
    for i, j in cells:
        frame = Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, edgecolor=COLORS[1], lw=1.5)
        axes.add_patch(frame)


def _position(value: float, settings: Sequence[float]) -> float:
    """Return where a value lies among equally spaced settings, on a logarithmic scale."""
    logs = np.log(settings)
    left = int(np.clip(np.searchsorted(logs, np.log(value)) - 1, 0, len(logs) - 2))
    return float(left + (np.log(value) - logs[left]) / (logs[left + 1] - logs[left]))


def draw_accuracies(
    axes: Axes, xs: Sequence[float], groups: Sequence[Rows], layer: str, papers: bool = True
) -> None:
    """Draw the mean accuracy of each group by each instrument, with 95% intervals."""
    for instrument, style in INSTRUMENT_STYLES.items():
        if instrument == "linear" and not papers:
            continue
        means = [accuracy(group, f"{layer}_{instrument}") for group in groups]
        values = np.array([mean[:3] for mean in means])
        bars = np.stack([values[:, 0] - values[:, 1], values[:, 2] - values[:, 0]])
        axes.errorbar(xs, values[:, 0], bars, elinewidth=0.8, **style)


def draw_metrics(axes: Axes, xs: Sequence[float], groups: Sequence[Rows]) -> None:
    """Draw the mean L_align and exp L_uniform of each group."""
    align = [column(group, "align").mean() for group in groups]
    uniform = [np.exp(column(group, "uniform")).mean() for group in groups]
    axes.plot(xs, align, color=COLORS[2], marker="D", label=r"$L_{align}$")
    axes.plot(xs, uniform, color=COLORS[3], marker="v", label=r"$\exp L_{uniform}$")


@printed
def metric_plane(
    encoders: Sequence[Mapping[str, Any]], path: Path | None, score: str, optimum: float
) -> Figure:
    """Draw named encoders in the plane of alignment and uniformity, coloured by a score."""
    figure, ((axes,),) = new_figure(1, 1, 3.2, 4.4)
    align = column(encoders, "align")
    uniform = column(encoders, "uniform")
    values = column(encoders, score)
    dots = axes.scatter(align, uniform, 45, values, cmap="RdYlBu", edgecolor="black", zorder=3)
    for encoder in encoders:
        place = (encoder["align"], encoder["uniform"])
        axes.annotate(encoder["name"], place, (5, 5), textcoords="offset points")
    axes.axhline(optimum, color="black", ls="--", lw=1, label=f"optimum {optimum:.3f}")
    axes.margins(x=0.3, y=0.15)
    axes.set(xlabel=f"← better    {ALIGN_LABEL}", ylabel=f"← better    {UNIFORM_LABEL}")
    axes.legend()
    figure.colorbar(dots, label=f"{score} (%)")
    return save_figure(figure, path)
