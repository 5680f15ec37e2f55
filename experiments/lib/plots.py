"""Figures that several items share, in the sizes of a printed page."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import FuncNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from experiments.lib.records import Rows, column
from experiments.lib.stats import INSTRUMENTS, Estimate, accuracy
from hypersphere_jax.reporting.plots.style import COLORS, DPI, LINE_STYLES, save_figure

PAGE_WIDTH = 6.8  # inches
MARKERS = "os^Dv<>P"
MAX_MARKERS = 20  # longer lines are drawn without markers
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
INSTRUMENT_NAMES = dict(
    zip(INSTRUMENTS, ("logistic regression", "5-NN", "paper's probe"), strict=True)
)


def printed(draw: Callable) -> Callable:
    """Decorate a function that draws a figure, to use the sizes of print."""

    @functools.wraps(draw)
    def with_style(*args: Any, **options: Any) -> Any:
        with matplotlib.rc_context(PRINT_STYLE):
            return draw(*args, **options)

    return with_style


def new_figure(rows: int, columns: int, height: float, **sharing: Any) -> tuple[Figure, Any]:
    """Return a figure and its axes `[rows, columns]`; the height is in inches per row."""
    width = PAGE_WIDTH * min(1, (2 + columns) / 5)
    figure = Figure(figsize=(width, height * rows), dpi=DPI, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **sharing)


class Point(NamedTuple):
    """A value with its interval."""

    x: float
    y: float
    low: float = float("nan")
    high: float = float("nan")


Lines = Mapping[str, Sequence[Point]]  # points by label


def point(x: float, estimate: Estimate) -> Point:
    """Return an estimate as a point."""
    return Point(x, estimate.effect, estimate.low, estimate.high)


def line(xs: Sequence[float], ys: Sequence[float]) -> list[Point]:
    """Return points without intervals."""
    return [Point(x, y) for x, y in zip(xs, ys, strict=True)]


def accuracy_lines(groups: Mapping[float, Rows], layer: str) -> Lines:
    """Return the mean accuracy of groups over x, by instrument."""
    return {
        name: [point(x, accuracy(group, f"{layer}_{key}")) for x, group in groups.items()]
        for key, name in INSTRUMENT_NAMES.items()
    }


def metric_lines(groups: Mapping[float, Rows]) -> Lines:
    """Return the mean L_align and exp L_uniform of groups over x."""
    align = [column(group, "align").mean() for group in groups.values()]
    uniform = [np.exp(column(group, "uniform")).mean() for group in groups.values()]
    return {r"$L_{align}$": line([*groups], align), r"$\exp L_{uniform}$": line([*groups], uniform)}


@printed
def curves(
    panels: Mapping[str, Lines],
    path: Path | None,
    *,
    across: int = 3,
    connected: bool = True,
    levels: Mapping[str, float] | None = None,
    share: tuple[Any, Any] = (True, True),
    own: Mapping[str, Mapping[str, Any]] | None = None,
    **settings: Any,
) -> Figure:
    """Draw lines of labelled points with intervals, a panel per title, and horizontal levels.

    Args:
      panels: title -> label -> points.
      path: file of the PNG.
      across: panels in a row, at most.
      connected: draw lines between points.
      levels: label -> value.
      share: how panels share the x and y axis, as in `plt.subplots`.
      own: title -> settings of one panel.
      **settings: settings of all panels, such as xlabel and yscale.
    """
    labels = list(dict.fromkeys(label for lines in panels.values() for label in lines))
    levels = levels or {}
    across = min(across, len(panels))
    down = -(-len(panels) // across)
    columns = min(3, across + 1)
    legend_rows = -(-(len(labels) + len(levels)) // columns)
    height = 2.1 + (0.4 + 0.16 * legend_rows) / down
    figure, grid = new_figure(down, across, height, sharex=share[0], sharey=share[1])
    handles = {}
    for axes, (title, lines) in zip(grid.flat, panels.items(), strict=False):
        axes.set(title=title, **settings | dict((own or {}).get(title, {})))
        for label, points in lines.items():
            handles[label] = _draw_line(axes, points, labels.index(label), connected)
        for name, level in levels.items():
            handles[name] = axes.axhline(level, color="0.5", linestyle=":", zorder=0)
        if all(share):
            axes.label_outer()
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    place: Any = "outside lower center"
    figure.legend(list(handles.values()), list(handles), loc=place, ncols=columns)
    return save_figure(figure, path)


def _draw_line(axes: Axes, points: Sequence[Point], number: int, connected: bool) -> Any:
    """Draw points with intervals in the style of a number, and return the legend's handle."""
    style = {"color": COLORS[number % len(COLORS)], "linestyle": ""}
    if connected:
        style["linestyle"] = LINE_STYLES[number // len(COLORS) % len(LINE_STYLES)]
    if len(points) <= MAX_MARKERS:
        style["marker"] = MARKERS[number % len(MARKERS)]
    xs, ys, low, high = np.array(points, float).T
    return axes.errorbar(xs, ys, np.stack([ys - low, high - ys]), elinewidth=0.8, **style)


@printed
def heat_maps(
    grids: Mapping[str, Mapping[tuple[float, float], float]],
    path: Path | None,
    row: str,
    column: str,
) -> Figure:
    """Draw accuracies by (row, column) on one color scale, with a frame at the best of each row.

    The scale is logarithmic in the error.
    """
    across = min(3, len(grids))
    down = -(-len(grids) // across)
    figure, places = new_figure(down, across, 2.0)
    best = max(max(grid.values()) for grid in grids.values())
    least = min(min(grid.values()) for grid in grids.values())
    functions = (lambda score: -np.log(102 - score), lambda value: 102 - np.exp(-value))
    scale = FuncNorm(functions, least, best)
    for axes, (title, grid) in zip(places.flat, grids.items(), strict=False):
        _draw_grid(axes, grid, scale)
        axes.set(title=title, xlabel=column, ylabel=row)
    for axes in places.flat[len(grids) :]:
        axes.set_axis_off()
    bar = figure.colorbar(ScalarMappable(scale, "cividis"), ax=places, aspect=40, fraction=0.04)
    bar.set_label("accuracy (%)")
    return save_figure(figure, path)


def _draw_grid(axes: Axes, grid: Mapping[tuple[float, float], float], scale: Normalize) -> None:
    rows = sorted({cell[0] for cell in grid})
    columns = sorted({cell[1] for cell in grid})
    scores = np.array([[grid.get((row, column), np.nan) for column in columns] for row in rows])
    axes.set_facecolor("0.85")
    axes.grid(visible=False)
    axes.imshow(scores, cmap="cividis", norm=scale, aspect="auto")
    axes.set_xticks(range(len(columns)), [f"{x:g}" for x in columns], rotation=45)
    axes.set_yticks(range(len(rows)), [f"{y:g}" for y in rows])
    for (i, j), value in np.ndenumerate(scores):
        color = "black" if scale(value) > 0.5 else "white"
        axes.text(j, i, f"{value:.1f}", ha="center", va="center", color=color, fontsize=6)
    for i, j in enumerate(np.nanargmax(scores, axis=1)):
        axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, edgecolor=COLORS[1], lw=1.5))
