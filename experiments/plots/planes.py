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
    """A plane for each group, coloured by a score: blue is better.

    Args:
      groups: title -> encoders, each with "align", "uniform" (nats) and the score; those with a
        "name" have it beside them.
      path: of the PNG.
      score: key of the score.
      label: of its colours.
      lower_is_better: as of an error.
      optimum: the least possible uniformity, as a dashed line.
    """
    figure = Figure(figsize=(6 * len(groups), 4.8), dpi=DPI, layout="constrained")
    for axes, (title, encoders) in zip(
        figure.subplots(1, len(groups), squeeze=False)[0], groups.items(), strict=True
    ):
        keys = ("align", "uniform", score)
        align, uniform, values = np.array([[row[key] for key in keys] for row in encoders]).T
        order = np.argsort(-values if lower_is_better else values)  # the best on top
        dots = axes.scatter(
            align[order],
            uniform[order],
            c=values[order],
            cmap="RdYlBu_r" if lower_is_better else "RdYlBu",
            s=45,
            zorder=3,
        )
        dots.set_edgecolor("black")
        figure.colorbar(dots, label=label)
        for encoder in encoders:
            place = (encoder["align"], encoder["uniform"])
            axes.annotate(encoder.get("name", ""), place, (7, 5), textcoords="offset points")
        if optimum is not None:
            axes.axhline(optimum, color="black", ls="--", lw=1, label=f"optimum {optimum:.3f}")
            axes.legend(loc="upper right")
            axes.margins(x=0.3, y=0.15)  # room for names
        axes.set_title(f"{title}: {len(encoders)} encoders")
        axes.set_xlabel(f"← better    {ALIGN_LABEL}")
        axes.set_ylabel(f"← better    {UNIFORM_LABEL}")
        axes.grid(alpha=0.3)
    return saved(figure, path)
