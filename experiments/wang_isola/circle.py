"""Features on the circle: densities in the plane and over the angle."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import special

from experiments.lib import plots
from hypersphere_jax.reporting.plots.style import COLORS, DPI, save_figure

BANDWIDTH = 0.1
KAPPA = BANDWIDTH**-2  # a von Mises-Fisher kernel of about the same width
CAPTION = (
    "shading: Gaussian KDE, up to each panel's maximum; "
    "curves: von Mises-Fisher KDE; dashed: the uniform density 1/2π"
)


class Band(NamedTuple):
    """A row of a figure: features `[n, 2]` by title, and distances of positive pairs `[n]`."""

    name: str
    panels: Mapping[str, np.ndarray]
    pair_distances: np.ndarray | None = None


@plots.printed
def circle_figure(rows: Sequence[Band], path: Path | None) -> Figure:
    """Draw the density of features on the circle, and histograms of pair distances."""
    figure = Figure(figsize=(plots.PAGE_WIDTH, 2.6 * len(rows)), dpi=DPI, layout="constrained")
    bands = figure.subfigures(len(rows), 1, squeeze=False)[:, 0]
    angle = None
    for band, (name, panels, distances) in zip(bands, rows, strict=True):
        band.suptitle(name, x=0.01, ha="left", weight="bold")
        first = 0 if distances is None else 1
        cells = band.add_gridspec(2, first + len(panels), height_ratios=(2, 1))
        if distances is not None:
            _draw_distances(band.add_subplot(cells[:, 0]), distances)
        for place, (title, points) in enumerate(panels.items(), first):
            plane = band.add_subplot(cells[0, place], title=title)
            angle = band.add_subplot(cells[1, place], sharey=angle)
            _draw_densities(plane, angle, np.asarray(points))
            angle.tick_params(labelleft=place == first)
            if place == first:
                angle.set_ylabel("density\n(1/rad)")
    angle.set_ylim(bottom=0)
    figure.supxlabel(CAPTION, fontsize=8)
    return save_figure(figure, path)


def vmf_kde(angles: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Return the density `[g]` per radian of angles `[n]` by von Mises-Fisher kernels."""
    kernels = np.exp(KAPPA * (np.cos(grid[:, None] - angles) - 1))
    return kernels.mean(axis=1) / (2 * np.pi * special.i0e(KAPPA))


def gaussian_kde_2d(points: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Return the density `[g, g]` of points `[n, 2]` at (grid[column], grid[row])."""
    kernels = np.exp(-(((grid[:, None, None] - points) / BANDWIDTH) ** 2) / 2)  # [g, n, 2]
    # The kernel is a product over x and y, so the sum over points is a matrix product.
    return kernels[..., 1] @ kernels[..., 0].T / (len(points) * 2 * np.pi * BANDWIDTH**2)


def _draw_distances(axes: Axes, distances: np.ndarray) -> None:
    percent = np.full(len(distances), 100 / len(distances))
    axes.hist(distances, bins=50, range=(0, 2), weights=percent, color=COLORS[0])
    axes.axvline(distances.mean(), linestyle="--", color=COLORS[1])
    axes.set(title=f"mean {distances.mean():.2f} (dashed)", ylabel="pairs (%)")
    axes.set_xlabel(r"positive-pair $\ell_2$ distance")


def _draw_densities(plane: Axes, angle: Axes, features: np.ndarray) -> None:
    """Draw features `[n, 2]` over their density, and the density of their angles."""
    grid = np.linspace(-1.35, 1.35, 136)
    density = gaussian_kde_2d(features, grid)
    plane.imshow(density, cmap="Blues", origin="lower", extent=(grid[0], grid[-1]) * 2, vmin=0)
    circle = np.linspace(-np.pi, np.pi, 361)
    plane.plot(np.cos(circle), np.sin(circle), color="gray", linewidth=0.5)
    plane.plot(*features.T, ",", color="black", alpha=0.2)
    plane.set(xticks=(), yticks=())
    density = vmf_kde(np.arctan2(features[:, 1], features[:, 0]), circle)
    angle.fill_between(circle, density, color=COLORS[0], alpha=0.4, linewidth=0)
    angle.plot(circle, density, color=COLORS[0])
    angle.axhline(1 / (2 * np.pi), linestyle="--", color="gray", linewidth=1)
    angle.set(xlim=(-np.pi, np.pi), xlabel="angle (rad)")
    angle.set_xticks((-np.pi, 0, np.pi), ("−π", "0", "π"))
