"""Figure of `metrics`: pair distances, classes, singular values, and random projections."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hypersphere_jax.evaluation.geometry import sphere_marginal
from hypersphere_jax.reporting.plots.style import COLORS, DPI, UNIFORM_LABEL, save_figure
from hypersphere_jax.utils.terminal import printable

DIRECTIONS = 8  # projections drawn
COLUMNS = 3
NAMED_CLASSES = 24  # more classes are drawn without their names


def metrics_figure(result: Mapping[str, Any], path: str | Path | None = None) -> Figure | None:
    """Draw a result of `metrics`, or return None if nothing in it can be drawn.

    Panels as in Wang & Isola, Figure 3 (distances of pairs), and Chen et al., Figure B.1.
    """
    panels = [(draw, result) for key, draw in PANELS.items() if key in result]
    directions = result.get("projections", [])[:DIRECTIONS]
    panels += [(_draw_projection, {**result, **direction}) for direction in directions]
    if not panels:
        return None
    rows = -(-len(panels) // COLUMNS)
    figure = Figure(figsize=(11, 3.2 * rows + 0.5), dpi=DPI, layout="constrained")
    name = str(result.get("run") or Path(result["features"]).name)
    figure.suptitle(f"{name}: {result['n']:,} points", parse_math=False)
    grid = list(figure.subplots(rows, COLUMNS, squeeze=False).flat)
    for axes, (draw, values) in zip(grid, panels, strict=False):
        draw(axes, values)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="x-small")
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    return save_figure(figure, path)


def _draw_distances(axes: Axes, result: Mapping[str, Any]) -> None:
    counts = np.array(result["pair_distance_counts"])
    edges = np.linspace(0, 2, len(counts) + 1)
    axes.stairs(100 * counts / counts.sum(), edges, fill=True, color=COLORS[0])
    axes.axvline(result["pair_distance"], linestyle="--", color=COLORS[1], label="mean")
    axes.set(xlabel=r"distance of pairs $\|f(x) - f(y)\|_2$", ylabel="pairs (%)", xlim=(0, 2))


def _draw_classes(axes: Axes, result: Mapping[str, Any]) -> None:
    names = [printable(name, 14) for name in result["classes"]]
    values = np.array(result["uniform_by_class"], float)  # NaN for a class with one point
    errors = np.nan_to_num(np.array(result["uniform_by_class_standard_error"], float))
    axes.errorbar(values, range(len(names)), xerr=errors, fmt="o", color=COLORS[0], label="class")
    if len(names) <= NAMED_CLASSES:
        axes.set_yticks(range(len(names)), names, fontsize="small", parse_math=False)
    axes.invert_yaxis()
    axes.axvline(result["uniform"], color=COLORS[1], label="all points")
    axes.axvline(result["uniform_optimum"], color="black", linestyle=":", label="optimum")
    axes.set(xlabel=UNIFORM_LABEL, ylabel="class")


def _draw_spectrum(axes: Axes, result: Mapping[str, Any]) -> None:
    values = np.array(result["singular_values"])
    shown = values[values > 0]
    axes.plot(np.arange(1, len(shown) + 1), shown, color=COLORS[0], marker=".")
    axes.axhline(result["d"] ** -0.5, color="black", linestyle=":", label="uniform sphere")
    axes.axvline(result["effective_rank"], color=COLORS[1], linestyle="--", label="effective rank")
    axes.set(xlabel="index of the singular value", ylabel=r"singular value / $\sqrt{n}$")
    axes.set(yscale="log", xlim=(0, len(values) + 1))


def _draw_projection(axes: Axes, result: Mapping[str, Any]) -> None:
    d = result["d"]
    half_width = result["projection_half_width"]
    counts = np.array(result["counts"])
    edges = np.linspace(-half_width, half_width, len(counts) + 1)
    density = counts / counts.sum() / (edges[1] - edges[0])
    axes.stairs(density, edges, fill=True, color=COLORS[5], label="features")
    x = np.linspace(-half_width, half_width, 401)
    normal = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    axes.plot(x, normal, color="black", linewidth=1, label="normal")
    x = x[np.abs(x) < math.sqrt(d)]
    axes.plot(x, sphere_marginal(d).pdf(x), "--", color=COLORS[1], label="uniform sphere")
    axes.set(xlabel=r"random projection $\cdot\ \sqrt{d}$", ylabel="density")
    axes.set_ylim(0, 1.1 * max(0.45, density.max()))  # the sphere's may be unbounded


PANELS = {
    "pair_distance_counts": _draw_distances,
    "uniform_by_class": _draw_classes,
    "singular_values": _draw_spectrum,
}
