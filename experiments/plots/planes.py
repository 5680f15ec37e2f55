"""Encoders in the plane of alignment and uniformity: Figures 5 and 9 of Wang & Isola."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.inference import INSTRUMENTS, PAPERS, Estimate
from experiments.plots.style import PAGE, printed
from hypersphere_jax.reporting.plots.style import (
    ALIGN_LABEL,
    COLORS,
    DPI,
    UNIFORM_LABEL,
    save_figure,
)

# Of encoders in a plane, by the losses that they were trained with.
MARKERS = {"contrastive": "o", "align and uniform": "s", "mixtures": "^"}


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
    return save_figure(figure, path)


class Plane(NamedTuple):
    """Encoders of a data set, with means over their seeds."""

    kinds: Sequence[str]  # which losses take part, such as `contrastive+align`
    align: np.ndarray  # [encoders, 3]: mean, least and greatest
    uniform: np.ndarray  # likewise
    scores: Mapping[str, np.ndarray]  # [encoders] by instrument
    curves: Mapping[str, Mapping[str, list[Estimate]]]  # of `all` and `better half`, by instrument


@printed
def encoder_planes(
    planes: Mapping[str, Plane],
    path: Path | None,
    shares: np.ndarray,
    lower_is_better: bool = False,
) -> Figure:
    """A row of planes for each data set, one an instrument; below, rank correlations over weights.

    Colours are ranks among the encoders of a data set, so that one scale is right for all panels
    and the good encoders differ in it as much as the others.
    """
    instruments = list(next(iter(planes.values())).scores)
    width = max(len(instruments), len(planes) + 1)
    figure = Figure(figsize=(PAGE, 2 * len(planes) + 2.3), dpi=DPI, layout="constrained")
    grid = figure.subplots(len(planes) + 1, width, sharex="row", sharey="row", squeeze=False)
    for places, (name, plane) in zip(grid, planes.items(), strict=False):
        for axes, instrument in zip(places, instruments, strict=False):
            dots = _dots(axes, plane, plane.scores[instrument], lower_is_better)
            axes.set_title(f"{name}: {instrument}")
            axes.set_xlabel(r"← better   $\mathcal{L}_{\mathrm{align}}$")
        places[0].set_ylabel(r"← better   $\mathcal{L}_{\mathrm{uniform}}$  (nats)")
        for axes in places[len(instruments) :]:
            axes.set_axis_off()
    below = grid[-1]
    for axes, (name, plane) in zip(below, planes.items(), strict=False):
        _curves(axes, plane, shares)
        axes.set_title(f"{name}: {len(plane.kinds)} encoders")
        axes.set_xlabel(r"share of $\mathcal{L}_{\mathrm{uniform}}$ in the sum")
    below[0].set_ylabel("rank correlation")
    below[0].set_ylim(-1, 1)
    for axes in below[len(planes) :]:
        axes.set_axis_off()
    handles = [Line2D([], [], color="0.4", marker=m, ls="") for m in MARKERS.values()]
    handles += [Line2D([], [], **_style(instrument)) for instrument in instruments]
    handles += [Line2D([], [], color="0.4", ls="-"), Line2D([], [], color="0.4", ls=":")]
    labels = [*MARKERS, *instruments, "all encoders", "the better half"]
    key = below[len(planes)]
    key.legend(handles, labels, loc="upper left", borderaxespad=0, labelspacing=0.3)
    place = key.inset_axes([0.05, 0.02, 0.9, 0.06])
    bar = figure.colorbar(dots, cax=place, orientation="horizontal", label="rank of the score")
    bar.set_ticks([0, 0.5, 1], labels=["worst", "median", "best"])
    return save_figure(figure, path)


def _dots(
    axes: Axes, plane: Plane, score: np.ndarray, lower_is_better: bool
) -> PathCollection | None:
    """The encoders, a marker for each family of losses; the best on top."""
    ranks = scipy.stats.rankdata(-score if lower_is_better else score)
    ranks = (ranks - 1) / max(1, len(ranks) - 1)
    size = 9 if len(ranks) > 60 else 22
    (x, *_), (y, *_) = plane.align.T, plane.uniform.T
    ends = [np.abs(of[:, 1:].T - of[:, 0]) for of in (plane.align, plane.uniform)]
    axes.errorbar(x, y, ends[1], ends[0], fmt="none", ecolor="0.5", elinewidth=0.6, capsize=0)
    dots = None
    for family, marker in MARKERS.items():
        mine = np.array([family_of(kind) == family for kind in plane.kinds])
        order = np.flatnonzero(mine)[np.argsort(ranks[mine])]
        style = {"cmap": "RdYlBu", "vmin": 0, "vmax": 1, "edgecolor": "black", "linewidth": 0.3}
        style |= {"marker": marker, "zorder": 3}
        dots = axes.scatter(x[order], y[order], size, ranks[order], **style)
    return dots


def _curves(axes: Axes, plane: Plane, shares: np.ndarray) -> None:
    """Rank correlations over the weights, with their intervals."""
    middle = len(shares) // 2
    for half, by_instrument in plane.curves.items():
        for place, (instrument, estimates) in enumerate(by_instrument.items()):
            value, low, high, *_ = np.array(estimates).T
            style = _style(instrument)
            decides = instrument not in PAPERS.values()
            axes.plot(shares, value, **style | ({"ls": ":"} if half != "all" else {}))
            if half == "all" and decides:
                axes.fill_between(shares, low, high, color=style["color"], alpha=0.15, lw=0)
            elif decides:  # at equal weights, beside each other
                bars = np.abs([value - low, high - value])[:, [middle]]
                beside = shares[middle] + 0.02 * (2 * place - 1)
                axes.errorbar(beside, value[middle], bars, fmt=".", color=style["color"], lw=0.8)
    axes.axhline(0, color="black", lw=0.6)


def _style(instrument: str) -> dict[str, str]:
    paper = instrument in PAPERS.values()
    known = [*INSTRUMENTS.values()]
    place = known.index(instrument) if instrument in known else 0
    return {"color": "0.45" if paper else COLORS[place], "ls": "--" if paper else "-"}


def family_of(kind: str) -> str:
    """Of an encoder's losses, the name in `MARKERS`."""
    alone, without, mixed = MARKERS
    return alone if kind == "contrastive" else mixed if "contrastive" in kind else without
