"""Both sides of an upper bound on features of trained encoders."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hypersphere_jax.plots.common import COLORS, DPI, saved

MARKERS = "osD^v<>"
SPREAD = 1.5  # of the encoders with one alpha, from the first to the last, as a factor


def bound_figure(
    anchors: Mapping[str, tuple[np.ndarray, np.ndarray]],
    encoders: Sequence[Mapping],
    path: Path | None,
    sweep: Mapping[str, np.ndarray] | None = None,
) -> Figure:
    """Left against right side of a bound for anchors, and the gap of each encoder over its alpha.

    Args:
      anchors: name of an encoder -> (left side [n], right side [n]).
      encoders: each with "loss", "alpha" (> 0), "lam", and of the gap, right less left side, over
        its anchors "mean", "least" and "largest".
      path: of the PNG.
      sweep: of one encoder, a third panel: "alpha" [k], and "left", "right" and "slack" [k], the
        mean sides at that alpha, and that part of the right one which depends on no feature.
    """
    count = 2 if sweep is None else 3
    figure = Figure(figsize=(5.2 * count, 5.2), dpi=DPI, layout="constrained")
    sides, gaps, *third = figure.subplots(1, count)
    for (name, (left, right)), color in zip(anchors.items(), COLORS, strict=False):
        sides.plot(left, right, ".", color=color, markersize=3, alpha=0.6, label=name)
    shown = np.concatenate([values for both in anchors.values() for values in both])
    ends = [shown.min(), shown.max()]
    sides.plot(ends, ends, color="gray", linestyle="--", linewidth=1, label="equal")
    sides.set(title="each anchor", xlabel="left side", ylabel="right side: the upper bound")
    _legend(sides, markerscale=3)
    _draw_gaps(gaps, encoders)
    for axes in third:
        for key, label, color, style in (
            ("right", "right side", COLORS[0], "o-"),
            ("left", "left side", COLORS[1], "s-"),
            ("slack", r"$\log(n) / (\nu\alpha)$", COLORS[2], "^--"),
        ):
            axes.plot(sweep["alpha"], sweep[key], style, color=color, label=label)
        _scale_alphas(axes, sweep["alpha"], r"$\alpha$ of the bound, one encoder")
        axes.set(title="as alpha grows", ylabel="mean over anchors")
        _legend(axes)
    for axes in figure.axes:
        axes.grid(alpha=0.3)
    return saved(figure, path)


def _draw_gaps(axes: Axes, encoders: Sequence[Mapping]) -> None:
    """Mean gap of each encoder, with a line from the least to the largest of its anchors."""
    losses = list(dict.fromkeys(each["loss"] for each in encoders))
    lams = sorted({each["lam"] for each in encoders})
    kinds = [(loss, lam) for loss in losses for lam in lams]
    # Side by side, where they would else hide one another.
    shifts = np.geomspace(SPREAD**-0.5, SPREAD**0.5, len(kinds)) if len(kinds) > 1 else [1.0]
    for (loss, lam), shift in zip(kinds, shifts, strict=True):
        chosen = [each for each in encoders if (each["loss"], each["lam"]) == (loss, lam)]
        at = [each["alpha"] * shift for each in chosen]
        mean, least, largest = (
            np.array([each[key] for each in chosen]) for key in ("mean", "least", "largest")
        )
        color = COLORS[losses.index(loss) % len(COLORS)]
        marker = MARKERS[lams.index(lam) % len(MARKERS)]
        label = rf"{loss}, $\lambda$ = {lam:g}"
        axes.vlines(at, least, largest, color=color, linewidth=0.8, alpha=0.6)
        axes.plot(at, mean, marker, color=color, markersize=4, label=label if chosen else None)
    _scale_alphas(axes, [each["alpha"] for each in encoders], r"$\alpha$ of the encoder's loss")
    axes.set(title="each encoder", ylabel="right less left side: mean, least to largest")
    _legend(axes, ncols=2 if len(kinds) > 4 else 1)


def _scale_alphas(axes: Axes, alphas: Sequence[float], label: str) -> None:
    axes.axhline(0, color="gray", linestyle="--", linewidth=1)
    axes.set_xscale("log", base=2)
    ticks = sorted(set(map(float, alphas)))
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xlabel(label)


def _legend(axes: Axes, **options) -> None:
    """Below the panel, where it hides nothing."""
    axes.legend(fontsize="x-small", loc="upper center", bbox_to_anchor=(0.5, -0.13), **options)
