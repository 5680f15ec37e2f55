"""Figures that several items share, in the sizes of a printed page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.lib.records import Rows, column, group_by
from experiments.lib.stats import INSTRUMENTS, LAYERS, accuracy, layers_of
from hypersphere_jax.reporting.plots.style import COLORS, DPI, LINE_STYLES, save_figure

PAGE_WIDTH = 6.8  # inches
MARKERS = "os^Dv<>P"
MAX_MARKERS = 20  # longer lines are drawn without markers
PRINT_STYLE = {
    "font.size": 8,
    "axes.titlesize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "errorbar.capsize": 2,
}
printed = matplotlib.rc_context(PRINT_STYLE)  # decorates functions that draw
INSTRUMENT_NAMES = dict(
    zip(INSTRUMENTS, ("logistic regression", "5-NN", "paper's probe"), strict=True)
)


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


def line(xs: Sequence[float], ys: Sequence[float]) -> list[Point]:
    """Return points without intervals."""
    return [Point(x, y) for x, y in zip(xs, ys, strict=True)]


def accuracy_lines(groups: Mapping[float, Rows], layer: str) -> Lines:
    """Return the mean accuracy of groups over x, by instrument."""
    return {
        name: [Point(x, *accuracy(group, f"{layer}_{key}")[:3]) for x, group in groups.items()]
        for key, name in INSTRUMENT_NAMES.items()
    }


def accuracy_panels(
    groups: Mapping[str, Rows], x: str, layers: Sequence[str] = LAYERS
) -> Mapping[str, Lines]:
    """Return the mean accuracies of groups over column x: a panel per layer and instrument."""
    panels: dict[str, dict[str, Sequence[Point]]] = {}
    for label, group in groups.items():
        for layer in layers_of(group, layers):
            for instrument, points in accuracy_lines(group_by(group, x), layer).items():
                panels.setdefault(f"{layer}: {instrument}", {})[label] = points
    return panels


def accuracy_and_metric_curves(
    columns: Mapping[str, Mapping[float, Rows]], path: Path, xlabel: str
) -> Figure:
    """Draw accuracies on the output above L_align and exp L_uniform, a column per title.

    `columns` has the rows over x by title.
    """
    above = {}
    below = {}
    for title, groups in columns.items():
        above[f"{title}\naccuracy (%)"] = accuracy_lines(groups, "output")
        align = [column(group, "align").mean() for group in groups.values()]
        uniform = [np.exp(column(group, "uniform")).mean() for group in groups.values()]
        below[f"{title}\nmetrics"] = {
            r"$L_{align}$": line([*groups], align),
            r"$\exp L_{uniform}$": line([*groups], uniform),
        }
    return curves(above | below, path, across=len(columns), sharey="row", xlabel=xlabel)


@printed
def curves(
    panels: Mapping[str, Lines],
    path: Path | None,
    *,
    across: int = 3,
    connected: bool = True,
    levels: Mapping[str, float] | None = None,
    sharey: Any = True,
    **settings: Any,
) -> Figure:
    """Draw lines of labelled points with intervals, a panel per title, and horizontal levels.

    Args:
      panels: title -> label -> points.
      path: file of the PNG.
      across: panels in a row, at most.
      connected: draw lines between points.
      levels: label -> value.
      sharey: how panels share the y axis, as in `plt.subplots`.
      **settings: settings of all panels, such as xlabel and yscale.
    """
    labels = list(dict.fromkeys(label for lines in panels.values() for label in lines))
    levels = levels or {}
    across = min(across, len(panels))
    down = -(-len(panels) // across)
    columns = min(3, across + 1)
    legend_rows = -(-(len(labels) + len(levels)) // columns)
    height = 2.1 + (0.4 + 0.16 * legend_rows) / down
    figure, grid = new_figure(down, across, height, sharex=True, sharey=sharey)
    handles = {}
    for axes, (title, lines) in zip(grid.flat, panels.items(), strict=False):
        axes.set(title=title, **settings)
        for label, points in lines.items():
            handles[label] = _draw_line(axes, points, labels.index(label), connected)
        for name, level in levels.items():
            handles[name] = axes.axhline(level, color="0.5", linestyle=":", zorder=0)
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
