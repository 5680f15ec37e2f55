"""Figures 4, 10 and 11 of Wang & Isola, and pictures of their two theorems on the loss."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from hypersphere_jax.plots.circle import draw_angle_density, draw_plane_density
from hypersphere_jax.plots.common import COLORS, DPI, LINE_STYLES, UNIFORM_LABEL, saved

COLUMNS = 4
MARKERS = "osD^v"


def potential_sheet(
    panels: Sequence[Mapping], path: str | Path | None = None, t: float = 2.0
) -> Figure:
    """Points on the circle under their mean Gaussian potential: Figure 4 of Wang and Isola.

    Points are drawn in the plane, shaded by Gaussian KDE, above the von Mises-Fisher KDE of their
    angles. The angles' densities have scales of their own.

    Args:
      panels: each with "name", "features" [n, 2] of unit norm and "potential", their mean pairwise
        Gaussian potential.
      path: where the PNG goes; None: nowhere.
      t: scale of the potential.

    Raises:
      ValueError: if there is no panel, or features are not [n, 2].
    """
    if not panels:
        raise ValueError("potential_sheet needs at least one panel, got none")
    rows = -(-len(panels) // COLUMNS)
    columns = min(COLUMNS, len(panels))
    figure = Figure(figsize=(3.1 * columns, 4.7 * rows + 0.4), dpi=DPI, layout="constrained")
    cells = figure.add_gridspec(2 * rows, columns, height_ratios=(2, 1) * rows)
    for index, panel in enumerate(panels):
        row, column = divmod(index, columns)
        features = np.asarray(panel["features"])
        if features.ndim != 2 or features.shape[1] != 2:
            raise ValueError(f"{panel['name']}: features must be [n, 2], got {features.shape}")
        plane = figure.add_subplot(cells[2 * row, column])
        angle = figure.add_subplot(cells[2 * row + 1, column])
        title = f"{panel['name']}\nmean $G_{{{t:g}}}$ potential {panel['potential']:.4f}"
        plane.set_title(title, fontsize="medium")
        draw_plane_density(plane, features)
        draw_angle_density(angle, features)
        angle.set_ylim(bottom=0)
        if column == 0:
            plane.set_ylabel("second coordinate")
            angle.set_ylabel("density\n(1/rad)")
    figure.supxlabel(
        "shading: Gaussian KDE, up to each panel's maximum; "
        "curves: von Mises-Fisher KDE; dashed: the uniform density 1/2π",
        fontsize=10,
    )
    return saved(figure, path)


def hypergeometric_curves(
    alphas: np.ndarray, curves: Mapping[float, np.ndarray], path: str | Path | None = None
) -> Figure:
    """0F1(; alpha; z) against alpha, a line a z: Figure 10 of Wang and Isola.

    Args:
      alphas: `[k]`, above 0.
      curves: z -> values `[k]`.
      path: where the PNG goes; None: nowhere.
    """
    figure = Figure(figsize=(7, 4.5), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    for (z, values), color in zip(curves.items(), COLORS, strict=False):
        axes.plot(alphas, values, color=color, label=f"z = {z:g}")
    axes.axhline(1, color="gray", linestyle="--", linewidth=1, label="limit 1")
    axes.set(xscale="log", yscale="log", xlabel=r"$\alpha$", xlim=(alphas[0], alphas[-1]))
    axes.set_ylabel(r"${}_0F_1(;\alpha;z)$")
    for axis in (axes.xaxis, axes.yaxis):
        _plain_decades(axis)
    axes.grid(alpha=0.3)
    axes.legend()
    return saved(figure, path)


def optimum_curves(
    dims: np.ndarray, curves: Mapping[float, np.ndarray], path: str | Path | None = None
) -> Figure:
    """The least uniformity against the dimension, a line a t: Figure 11 of Wang and Isola.

    Args:
      dims: `[k]`, dimensions of the space that holds the sphere.
      curves: t -> values `[k]`; the limit -2t is drawn beside each.
      path: where the PNG goes; None: nowhere.
    """
    figure = Figure(figsize=(8, 4.8), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    for (t, values), color in zip(curves.items(), COLORS, strict=False):
        axes.plot(dims, values, color=color, marker=".", label=f"t = {t:g}")
        axes.axhline(-2 * t, color=color, linestyle="--", linewidth=1)
    axes.plot([], [], color="gray", linestyle="--", linewidth=1, label="limit −2t")
    axes.set_xscale("log", base=2)
    axes.set_xticks(dims, [f"{dim:g}" for dim in dims], rotation=45)
    axes.set_xlabel("feature dimension m  (features on the sphere in $R^m$)")
    axes.set_ylabel(f"optimal {UNIFORM_LABEL}")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper")
    return saved(figure, path)


def limit_deviations(series: Sequence[Mapping], path: str | Path | None = None) -> Figure:
    """How far the contrastive loss less log M lies from its limit, against M: Theorem 1.

    Left: one draw of the negatives, root mean square over draws; right: the mean over draws.
    Dots with two standard errors are measured, dashed lines are the first order.

    Args:
      series: one a kind of features: "name", "sizes" [k], and "rms", "rms_error", "bias",
        "bias_error" [k], the errors being standard errors; and of the first order "rms_constant",
        for rms_constant / sqrt(M), and "bias_constant", for bias_constant / M.
      path: where the PNG goes; None: nowhere.
    """
    figure = Figure(figsize=(11, 4.8), dpi=DPI, layout="constrained")
    panels = figure.subplots(1, 2)
    kinds = (
        ("rms", 0.5, "one draw of M negatives", "root mean square deviation (nats)"),
        ("bias", 1.0, "expectation over draws", "absolute deviation (nats)"),
    )
    for axes, (key, power, title, label) in zip(panels, kinds, strict=True):
        for item, color, marker in zip(series, COLORS, MARKERS, strict=False):
            sizes = np.asarray(item["sizes"])
            values, errors = np.abs(item[key]), 2 * np.asarray(item[f"{key}_error"])
            style = {"color": color, "marker": marker, "markersize": 5, "linestyle": ""}
            axes.errorbar(sizes, values, errors, capsize=3, label=item["name"], **style)
            first_order = abs(item[f"{key}_constant"]) * sizes**-power
            axes.plot(sizes, first_order, color=color, linestyle="--", linewidth=1)
        slope = "−1/2" if power == 0.5 else "−1"
        axes.plot([], [], color="gray", linestyle="--", label=f"first order, slope {slope}")
        axes.set(yscale="log", title=title, ylabel=label)
        axes.set_xscale("log", base=2)
        sizes = series[0]["sizes"]
        axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
        axes.set_xlabel("number M of negatives")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    return saved(figure, path)


def single_negative_sheet(
    angles: Mapping[float, tuple[np.ndarray, np.ndarray]],
    concentrations: Mapping[float, tuple[np.ndarray, np.ndarray]],
    spaced: Mapping[float, tuple[np.ndarray, np.ndarray]],
    descent: Mapping[str, np.ndarray | float],
    path: str | Path | None = None,
) -> Figure:
    """The loss with one negative, above that of aligned and uniform features: Theorem 2.

    Four panels: positives at an angle; von Mises-Fisher features; n equally spaced points; points
    that gradient descent moves.

    Args:
      angles: tau -> (degrees between positives, loss above).
      concentrations: tau -> (kappa, loss above).
      spaced: tau -> (numbers of points, loss above).
      descent: "tau", "steps" [k], "above" [starts, k], and "least", the best of equally spaced
        points.
      path: where the PNG goes; None: nowhere.
    """
    figure = Figure(figsize=(11, 8), dpi=DPI, layout="constrained")
    (aligned, uniform), (points, free) = figure.subplots(2, 2)
    for axes, curves in ((aligned, angles), (uniform, concentrations), (points, spaced)):
        for index, (tau, (at, above)) in enumerate(curves.items()):
            style = {"color": COLORS[index], "label": f"τ = {tau:g}"}
            if axes is points:
                style |= {"marker": MARKERS[index], "markersize": 4, "linewidth": 0.8}
            axes.plot(at, above, **style)
    aligned.set(title="less aligned, uniform", xlabel="angle between positives (degrees)")
    aligned.set_xticks(range(0, 181, 30))
    uniform.set(title="aligned, less uniform: von Mises-Fisher", xscale="log")
    uniform.set_xlabel("concentration κ")
    _plain_decades(uniform.xaxis)
    points.set(title="aligned, at n equally spaced points", xlabel="number of points n")
    points.set_xticks(spaced[next(iter(spaced))][0])
    points.set_yscale("symlog", linthresh=1e-4)
    points.set_ylim(-5e-3, 3)
    points.yaxis.set_minor_locator(NullLocator())
    free.set_title(f"aligned, free points under gradient descent, τ = {descent['tau']:g}")
    for index, above in enumerate(descent["above"]):
        line = LINE_STYLES[index % len(LINE_STYLES)]
        free.plot(descent["steps"], above, linestyle=line, color=COLORS[index % len(COLORS)])
    least = descent["least"]
    free.axhline(least, color="black", linestyle=":", label="best of equally spaced points")
    free.set_ylim(1.6 * least, -4 * least)
    free.set_xlabel("step")
    free.ticklabel_format(axis="y", style="sci", scilimits=(-3, -3), useMathText=True)
    for axes in (aligned, uniform, points, free):
        axes.axhline(0, color="gray", linestyle="--", linewidth=1)
        axes.set_ylabel("loss above aligned + uniform (nats)")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    return saved(figure, path)


def _plain_decades(axis: Axes) -> None:
    """Ticks at 1, 2 and 5 of each decade, written as plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("")
