"""Features on the circle: Figures 3 and 4 of Wang & Isola."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import special

from experiments.plots.style import PAGE, printed
from hypersphere_jax.reporting.plots.style import COLORS, DPI, save_figure

# Near its mode, a von Mises-Fisher kernel is a Gaussian of width 1 / sqrt(kappa).
BANDWIDTH = 0.1
KAPPA = BANDWIDTH**-2
LEGEND = (
    "shading: Gaussian KDE, up to each panel's maximum; "
    "curves: von Mises-Fisher KDE; dashed: the uniform density 1/2π"
)
COLUMNS = 4  # of the panels of potentials


@printed
def circle_figure(
    encoders: Sequence[Mapping],
    path: Path | None,
    class_names: Sequence[str],
    classes: Sequence[int],
) -> Figure:
    """Figure 3: one row an encoder: distances of positive pairs; all features; those of classes.

    Encoders have "name", "features" [n, 2] of unit norm, "labels" [n] and "pair_distances" [n],
    the norms ||f(x) - f(y)||; classes are the labels to show.
    """
    figure = Figure(figsize=(PAGE, 2.2 * len(encoders)), dpi=DPI, layout="constrained")
    rows = figure.subfigures(len(encoders), 1, squeeze=False)[:, 0]
    angle = None  # all angles have one scale, written at the left end of each row
    for row, encoder in zip(rows, encoders, strict=True):
        features, labels = np.asarray(encoder["features"]), np.asarray(encoder["labels"])
        groups = {"all classes": features}
        groups |= {class_names[label]: features[labels == label] for label in classes}
        row.suptitle(encoder["name"], x=0.01, ha="left", weight="bold")
        cells = row.add_gridspec(2, 1 + len(groups), height_ratios=(2, 1))
        _draw_distances(row.add_subplot(cells[:, 0]), np.asarray(encoder["pair_distances"]))
        for column, (title, points) in enumerate(groups.items(), start=1):
            plane = row.add_subplot(cells[0, column], title=title)
            angle = row.add_subplot(cells[1, column], sharey=angle)
            _draw_densities(plane, angle, points, labelled=column == 1)
            angle.tick_params(labelleft=column == 1)
    angle.set_ylim(bottom=0)
    figure.supxlabel(LEGEND, fontsize=8)
    return save_figure(figure, path)


@printed
def potential_figure(panels: Sequence[Mapping], path: Path | None, t: float) -> Figure:
    """Figure 4: points on the circle under their mean Gaussian potential at scale t.

    Panels have "name", "features" [n, 2] of unit norm, and "potential".
    """
    rows, columns = -(-len(panels) // COLUMNS), min(COLUMNS, len(panels))
    figure = Figure(figsize=(PAGE, 2.8 * rows + 0.2), dpi=DPI, layout="constrained")
    cells = figure.add_gridspec(2 * rows, columns, height_ratios=(2, 1) * rows)
    angles = []
    for index, panel in enumerate(panels):
        row, column = divmod(index, columns)
        plane = figure.add_subplot(cells[2 * row, column])
        angle = figure.add_subplot(cells[2 * row + 1, column])
        name = textwrap.fill(panel["name"], 20)
        title = f"{name}\nmean $G_{{{t:g}}}$ {panel['potential']:.4f}"
        plane.set_title(title)
        _draw_densities(plane, angle, np.asarray(panel["features"]), labelled=column == 0)
        angles.append(angle)
    top = max(angle.get_ylim()[1] for angle in angles)
    for angle in angles:
        angle.set_ylim(0, top)
    figure.supxlabel(LEGEND, fontsize=8)
    return save_figure(figure, path)


def vmf_kde(angles: np.ndarray, grid: np.ndarray, kappa: float) -> np.ndarray:
    """Density `[g]` per radian of angles `[n]` at angles `[g]`, by von Mises-Fisher kernels.

    p(g) = 1/n sum_i exp(kappa cos(g - angle_i)) / (2 pi I_0(kappa))
    """
    # 1 - cos as a square of the sine: no cancellation where the angles are close.
    kernels = np.exp(-2 * kappa * np.sin((grid[:, None] - angles) / 2) ** 2)
    return kernels.mean(axis=1) / (2 * np.pi * special.i0e(kappa))


def gaussian_kde_2d(points: np.ndarray, grid: np.ndarray, bandwidth: float) -> np.ndarray:
    """Density `[g, g]` of points `[n, 2]`, at (grid[column], grid[row]), by Gaussian kernels."""
    kernels = np.exp(-(((grid[:, None, None] - points) / bandwidth) ** 2) / 2)  # [g, n, 2]
    # The kernel is a product over x and y, so the sum over points is a matrix product.
    return kernels[..., 1] @ kernels[..., 0].T / (len(points) * 2 * np.pi * bandwidth**2)


def _draw_distances(axes: Axes, distances: np.ndarray) -> None:
    share, mean = np.full(len(distances), 100 / len(distances)), distances.mean()
    axes.hist(distances, bins=50, range=(0, 2), weights=share, color=COLORS[0])
    axes.axvline(mean, linestyle="--", color=COLORS[1])
    axes.set(title=f"mean {mean:.2f} (dashed)", ylabel="pairs (%)")
    axes.set_xlabel(r"positive-pair $\ell_2$ distance")


def _draw_densities(plane: Axes, angle: Axes, features: np.ndarray, labelled: bool) -> None:
    """Features [n, 2] in the plane, shaded by their density, and the density of their angles."""
    grid = np.linspace(-1.35, 1.35, 136)
    density = gaussian_kde_2d(features, grid, BANDWIDTH)
    plane.imshow(density, cmap="Blues", origin="lower", extent=(grid[0], grid[-1]) * 2, vmin=0)
    circle = np.linspace(-np.pi, np.pi, 361)
    plane.plot(np.cos(circle), np.sin(circle), color="gray", linewidth=0.5)
    plane.plot(*features.T, ",", color="black", alpha=0.2)
    plane.set(xticks=(), yticks=())
    density = vmf_kde(np.arctan2(features[:, 1], features[:, 0]), circle, KAPPA)
    angle.fill_between(circle, density, color=COLORS[0], alpha=0.4, linewidth=0)
    angle.plot(circle, density, color=COLORS[0])
    angle.axhline(1 / (2 * np.pi), linestyle="--", color="gray", linewidth=1)
    angle.set(xlim=(-np.pi, np.pi), xlabel="angle (rad)")
    angle.set_xticks((-np.pi, 0, np.pi), ("−π", "0", "π"))
    if labelled:
        angle.set_ylabel("density\n(1/rad)")
