"""A score over a setting, and one score against another."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from hypersphere_jax.plots.common import COLORS, DPI, LINE_STYLES, saved

MARKERS = "os^Dv<>P"


class Point(NamedTuple):
    """A value with the ends of its interval; these are NaN where there is none."""

    x: float
    y: float
    low: float = float("nan")
    high: float = float("nan")


def curves(
    panels: Mapping[str, Mapping[str, Sequence[Point]]],
    path: str | Path | None = None,
    *,
    x: str,
    y: str,
    levels: Mapping[str, float] | None = None,
) -> Figure:
    """Curves with their intervals shaded: Figures C.1 and E.1 of Chen, Luo & Li.

    Args:
      panels: title -> label -> points from left to right.
      path: where the PNG goes; None: nowhere.
      x: name of the horizontal axis.
      y: name of the vertical one, which the panels share.
      levels: values that are drawn across all panels, by name.
    """
    most = max(map(len, panels.values()), default=0)
    size = (4.6 * len(panels), 3.8 + 0.2 * most)
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    places = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, lines) in zip(places, panels.items(), strict=True):
        for number, (label, points) in enumerate(lines.items()):
            color = COLORS[number % len(COLORS)]
            xs, ys, low, high = (np.array(column) for column in zip(*points, strict=True))
            marker = MARKERS[number % len(MARKERS)]
            style = LINE_STYLES[number // len(COLORS) % len(LINE_STYLES)]
            axes.plot(xs, ys, style, marker=marker, color=color, label=label, markersize=5)
            axes.fill_between(xs, low, high, color=color, alpha=0.15, linewidth=0)
        for name, level in (levels or {}).items():
            axes.axhline(level, color="0.5", linestyle=":", zorder=0)
            axes.annotate(
                name,
                (0.01, level),
                xycoords=("axes fraction", "data"),
                fontsize=7,
                ha="left",
                va="bottom",
                color="0.35",
            )
        axes.set_title(title)
        axes.set_xlabel(x)
        axes.grid(alpha=0.3)
        axes.legend(
            frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.14)
        )
    places[0].set_ylabel(y)
    return saved(figure, path)


def scatter(
    groups: Mapping[str, Sequence[Point]],
    path: str | Path | None = None,
    *,
    x: str,
    y: str,
) -> Figure:
    """Points of several groups, with their intervals: Figure 3 of the balanced paper.

    Args:
      groups: label -> points.
      path: where the PNG goes; None: nowhere.
      x: name of the horizontal axis.
      y: name of the vertical one.
    """
    figure = Figure(figsize=(6, 4.4), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    for number, (label, points) in enumerate(groups.items()):
        xs, ys, low, high = (np.array(column) for column in zip(*points, strict=True))
        color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
        bars = np.stack([ys - low, high - ys])
        style = {"marker": marker, "color": color, "capsize": 2, "linestyle": ""}
        axes.errorbar(xs, ys, yerr=np.nan_to_num(bars), label=label, **style)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize="small")
    return saved(figure, path)
