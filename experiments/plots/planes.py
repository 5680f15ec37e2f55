"""Encoders in the plane of alignment and uniformity: Figures 5 and 9 of Wang & Isola."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from hypersphere_jax.plots.common import ALIGN_LABEL, DPI, UNIFORM_LABEL, saved


def metric_planes(
    groups: Mapping[str, Sequence[Mapping]],
    path: Path | None,
    score: str,
    label: str,
    lower_is_better: bool = False,
    optimum: float | None = None,
) -> Figure:
    """A plane for each group (title -> encoders), coloured by a score: blue is better.

    Encoders have "align", "uniform" (nats), the score, and perhaps a "name" to write beside them.
    The optimum of uniformity is a dashed line.
    """
    figure = Figure(figsize=(6 * len(groups), 4.8), dpi=DPI, layout="constrained")
    places = figure.subplots(1, len(groups), squeeze=False)[0]
    for axes, (title, encoders) in zip(places, groups.items(), strict=True):
        keys = ("align", "uniform", score)
        align, uniform, values = np.array([[row[key] for key in keys] for row in encoders]).T
        order = np.argsort(-values if lower_is_better else values)  # the best on top
        style = {"cmap": "RdYlBu_r" if lower_is_better else "RdYlBu", "edgecolor": "black"}
        dots = axes.scatter(align[order], uniform[order], 45, values[order], zorder=3, **style)
        figure.colorbar(dots, label=label)
        middle = (align.min() + align.max()) / 2
        for encoder in encoders:
            place, right = (encoder["align"], encoder["uniform"]), encoder["align"] > middle
            beside = {"xytext": (-7 if right else 7, 5), "ha": "right" if right else "left"}
            axes.annotate(encoder.get("name", ""), place, **beside, textcoords="offset points")
        if optimum is not None:
            axes.axhline(optimum, color="black", ls="--", lw=1)
            on_line = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points"}
            axes.annotate(f"optimum {optimum:.3f}", (0, optimum), (5, 4), **on_line)
            axes.margins(x=0.15, y=0.15)  # room for names
        axes.set_title(f"{title}: {len(encoders)} encoders")
        axes.set_xlabel(f"← better    {ALIGN_LABEL}")
        axes.set_ylabel(f"← better    {UNIFORM_LABEL}")
        axes.grid(alpha=0.3)
    return saved(figure, path)
