"""Both sides of an upper bound on features of trained encoders."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.plots.style import PAGE, printed
from hypersphere_jax.reporting.plots.style import COLORS, DPI, save_figure

MARKERS = "osD^v<>"
SPREAD = 1.5  # of the settings with one alpha, from the first to the last, as a factor
BELOW = {"loc": "upper center", "bbox_to_anchor": (0.45, -0.2), "handlelength": 1.2}


@printed
def bound_figure(
    anchors: Mapping[tuple[str, float, float], tuple[np.ndarray, np.ndarray]],
    settings: Sequence[Mapping],
    path: Path | None,
    sweep: Mapping[str, np.ndarray] | None = None,
) -> Figure:
    """Left against right side of a bound for anchors, and the gap of each setting over its alpha.

    Args:
      anchors: loss, alpha and lambda of an encoder -> (left side [n], right side [n]).
      settings: each with "loss", "alpha" (> 0), "lam", and of the gap, right less left side, over
        the anchors of its encoders "mean", "least" and "largest".
      path: of the PNG.
      sweep: of one encoder, a third panel: "alpha" [k], and "left", "right" and "slack" [k], the
        mean sides at that alpha, and that part of the right one which depends on no feature.
    """
    count = 2 if sweep is None else 3
    figure = Figure(figsize=(PAGE, 3.1), dpi=DPI, layout="constrained")
    sides, gaps, *third = figure.subplots(1, count)
    for ((loss, alpha, lam), (left, right)), color in zip(anchors.items(), COLORS, strict=False):
        label = rf"{_words(loss)}, $\alpha$ = {alpha:g}, $\lambda$ = {lam:g}"
        sides.plot(left, right, ".", color=color, markersize=2, alpha=0.6, label=label)
    xs, ys = (np.concatenate(part) for part in zip(*anchors.values(), strict=True))
    ends = [max(xs.min(), ys.min()), min(xs.max(), ys.max())]
    ends = ends if ends[0] < ends[1] else [xs.min(), xs.max()]
    sides.plot(ends, ends, color="black", linestyle="--", linewidth=0.8, label="equal")
    sides.set(title="each anchor", xlabel="left side", ylabel="right side: the upper bound")
    sides.legend(markerscale=3, **BELOW)
    _draw_gaps(gaps, settings)
    for axes in third:
        for key, label, color, style in (
            ("right", "right side", COLORS[0], "o-"),
            ("left", "left side", COLORS[1], "s-"),
            ("slack", r"$\log(n) / (\nu\alpha)$", COLORS[2], "^--"),
        ):
            axes.plot(sweep["alpha"], sweep[key], style, color=color, label=label)
        _scale_alphas(axes, sweep["alpha"], r"$\alpha$ of the bound")
        axes.set(title=r"one encoder over $\alpha$", ylabel="mean over anchors")
        axes.legend(**BELOW)
    return save_figure(figure, path)


def _words(loss: str) -> str:
    """A loss in a legend."""
    names = {"balanced_contrastive": "balanced", "generalized_nt_xent": "generalized NT-Xent"}
    return names.get(loss, loss)


def _draw_gaps(axes: Axes, settings: Sequence[Mapping]) -> None:
    """Mean gap of each setting, with a line from the least to the largest of its anchors."""
    losses = list(dict.fromkeys(each["loss"] for each in settings))
    lams = sorted({each["lam"] for each in settings})
    kinds = [(loss, lam) for loss in losses for lam in lams]
    # Side by side, where they would else hide one another.
    shifts = np.geomspace(SPREAD**-0.5, SPREAD**0.5, len(kinds)) if len(kinds) > 1 else [1.0]
    for (loss, lam), shift in zip(kinds, shifts, strict=True):
        chosen = [each for each in settings if (each["loss"], each["lam"]) == (loss, lam)]
        at = [each["alpha"] * shift for each in chosen]
        mean, least, largest = (
            np.array([each[key] for each in chosen]) for key in ("mean", "least", "largest")
        )
        color = COLORS[losses.index(loss) % len(COLORS)]
        marker = MARKERS[lams.index(lam) % len(MARKERS)]
        axes.vlines(at, least, largest, color=color, linewidth=0.7, alpha=0.6)
        axes.plot(at, mean, marker, color=color, markersize=3)
    for place, loss in enumerate(losses):
        axes.plot([], [], color=COLORS[place % len(COLORS)], label=_words(loss))
    for place, lam in enumerate(lams):
        marker = MARKERS[place % len(MARKERS)]
        axes.plot([], [], marker, color="0.4", label=rf"$\lambda$ = {lam:g}")
    _scale_alphas(axes, [each["alpha"] for each in settings], r"$\alpha$ of the loss")
    axes.set(title="each setting", ylabel="gap: mean, least to largest")
    axes.legend(ncols=2, **BELOW)


def _scale_alphas(axes: Axes, alphas: Sequence[float], label: str) -> None:
    axes.axhline(0, color="gray", linestyle="--", linewidth=0.8)
    axes.set_xscale("log", base=2)
    ticks = sorted(set(map(float, alphas)))
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xlabel(label)
