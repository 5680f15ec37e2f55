"""Features on the circle: Figure 3 of Wang & Isola."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from hypersphere_jax.plots.common import COLORS, DPI, saved
from hypersphere_jax.plots.density import gaussian_kde_2d, vmf_kde

# One smoothing for both densities of the circle: near its mode, a von Mises-Fisher kernel is a
# Gaussian of width 1 / sqrt(kappa).
BANDWIDTH = 0.1
KAPPA = BANDWIDTH**-2


def circle_figure(
    encoders: Sequence[Mapping],
    path: str | Path | None,
    class_names: Sequence[str],
    classes: Sequence[int],
) -> Figure:
    """Features on the circle, as in Figure 3 of Wang and Isola: one row an encoder.

    From the left: distances within positive pairs; all features; the features of each chosen class.
    Features are drawn in the plane, shaded by Gaussian KDE, above the von Mises-Fisher KDE of their
    angles.

    Args:
      encoders: each with "name", "features" [n, 2] of unit norm, "labels" [n] and
        "pair_distances" [n], the norms ||f(x) - f(y)||.
      path: where the PNG goes; None: nowhere.
      class_names: name of each label.
      classes: the labels to show.

    Raises:
      ValueError: if features are not [n, 2], or a class has none.
    """
    figure = Figure(figsize=(12, 3.7 * len(encoders)), dpi=DPI, layout="constrained")
    rows = figure.subfigures(len(encoders), 1, squeeze=False)[:, 0]
    for row, encoder in zip(rows, encoders, strict=True):
        features, labels = np.asarray(encoder["features"]), np.asarray(encoder["labels"])
        if features.ndim != 2 or features.shape[1] != 2:
            raise ValueError(f"{encoder['name']}: features must be [n, 2], got {features.shape}")
        groups = [("all classes", features)]
        groups += [(class_names[label], features[labels == label]) for label in classes]
        for title, group in groups:
            if len(group) == 0:
                raise ValueError(f"{encoder['name']}: no features of class {title!r}")
        row.suptitle(encoder["name"], x=0.01, ha="left", weight="bold")
        _draw_circle_row(row, groups, np.asarray(encoder["pair_distances"]))
    figure.supxlabel(
        "shading: Gaussian KDE, up to each panel's maximum; "
        "curves: von Mises-Fisher KDE; dashed: the uniform density 1/2π",
        fontsize=10,
    )
    return saved(figure, path)


def _draw_circle_row(row: SubFigure, groups: Sequence[tuple], distances: np.ndarray) -> None:
    cells = row.add_gridspec(2, 1 + len(groups), height_ratios=(2, 1))
    _draw_distances(row.add_subplot(cells[:, 0]), distances)
    plane = angle = None  # one scale a row, written at its left end
    for column, (title, features) in enumerate(groups, start=1):
        plane = row.add_subplot(cells[0, column], sharey=plane, title=title)
        angle = row.add_subplot(cells[1, column], sharey=angle)
        draw_plane_density(plane, features)
        draw_angle_density(angle, features)
        if column == 1:
            plane.set_ylabel("second coordinate")
            angle.set_ylabel("density\n(1/rad)")
        else:
            plane.tick_params(labelleft=False)
            angle.tick_params(labelleft=False)
    angle.set_ylim(bottom=0)


def _draw_distances(axes: Axes, distances: np.ndarray) -> None:
    share = np.full(len(distances), 100 / len(distances))
    axes.hist(distances, bins=50, range=(0, 2), weights=share, color=COLORS[0])
    mean = distances.mean()
    axes.axvline(mean, linestyle="--", color=COLORS[1])
    axes.set_title(f"mean {mean:.2f} (dashed)")
    axes.set_xlabel(r"positive-pair $\ell_2$ distance")
    axes.set_ylabel("pairs (%)")


def draw_plane_density(axes: Axes, features: np.ndarray) -> None:
    """Draw features [n, 2] as points in the plane, shaded by Gaussian KDE."""
    grid = np.linspace(-1.35, 1.35, 136)
    density = gaussian_kde_2d(features, grid, BANDWIDTH)
    axes.imshow(density, cmap="Blues", origin="lower", extent=(grid[0], grid[-1]) * 2, vmin=0)
    circle = np.linspace(-np.pi, np.pi, 361)
    axes.plot(np.cos(circle), np.sin(circle), color="gray", linewidth=0.5)
    axes.plot(*features.T, ",", color="black", alpha=0.2)
    axes.set_xticks((-1, 0, 1))
    axes.set_yticks((-1, 0, 1))
    axes.set_xlabel("first coordinate")


def draw_angle_density(axes: Axes, features: np.ndarray) -> None:
    """Draw the von Mises-Fisher KDE of the angles of features [n, 2]."""
    grid = np.linspace(-np.pi, np.pi, 361)
    density = vmf_kde(np.arctan2(features[:, 1], features[:, 0]), grid, KAPPA)
    axes.fill_between(grid, density, color=COLORS[0], alpha=0.4, linewidth=0)
    axes.plot(grid, density, color=COLORS[0])
    axes.axhline(1 / (2 * np.pi), linestyle="--", color="gray", linewidth=1)
    axes.set_xlim(-np.pi, np.pi)
    axes.set_xticks((-np.pi, 0, np.pi), ("−π", "0", "π"))
    axes.set_xlabel("angle (rad)")
