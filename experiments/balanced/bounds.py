"""Both sides of the bounds of Theorems 4.4 and 4.6 on features of trained encoders."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.balanced import figure5, grids, settings
from experiments.lib import rates
from experiments.lib.evaluation import view_features
from experiments.lib.plots import MARKERS, new_figure, printed
from experiments.lib.records import Rows, group_by
from experiments.lib.sweep import Run
from hypersphere_jax.reporting.plots.style import COLORS, save_figure

SCALES = ("laptop", "gpu", "paper")
SETTINGS = grids.SETTINGS
VIEWS = 16  # estimate the expectation over augmentations; one more view is the anchor
PER_CLASS = 100
ROUNDING = 1e-5  # tolerance for float32 sums that are divided by nu


class Sides(NamedTuple):
    """Both sides of a bound for each anchor `[n]`, and where its condition is met."""

    left: np.ndarray
    right: np.ndarray
    allowed: np.ndarray

    @property
    def holds(self) -> np.ndarray:
        return self.left <= self.right + ROUNDING

    @property
    def gap(self) -> np.ndarray:
        return self.right - self.left


def runs(scale: str, rows: Sequence = ()) -> list[Run]:
    """Return the encoders of Figure 4 (one seed), or of Figure 5 at gpu scale."""
    if scale == "laptop":
        return grids.chosen_grid(settings.DIGITS, scale, rows)
    if scale == "gpu":
        return grids.grid(figure5.GPU, seeds=(0,))
    best = settings.BEST_IMAGENET.items()
    return [settings.grid_run(settings.IMAGENET, loss, *cell) for loss, cell in best]


def measure(
    rows: Rows, bound: Callable[[dict, np.ndarray, np.ndarray], Sides]
) -> dict[tuple[str, float, float], Sides]:
    """Return the sides of a bound per encoder, by (loss, alpha, lambda).

    Args:
      rows: finished runs with their folders.
      bound: (row, features `[1 + VIEWS, n, d]`, labels `[n]`) -> sides. The first view of each
        image is the anchor.
    """
    measured = {}
    for key, (row, *_) in group_by(rates.final(rows), *SETTINGS).items():
        views, labels = view_features(Path(row["folder"]), VIEWS + 2, PER_CLASS)
        measured[key] = bound(row, np.concatenate([views[VIEWS:-1], views[:VIEWS]]), labels)
    return measured


@printed
def plot_sides(measured: Mapping[tuple[str, float, float], Sides], path: Path | None):
    """Draw right against left sides of a few encoders, and the mean gap over alpha."""
    figure, ((sides, gaps),) = new_figure(1, 2, 3.1)
    keys = [*measured]
    drawn = np.unique(np.linspace(0, len(keys) - 1, 4).round().astype(int))
    for index, color in zip(drawn, COLORS, strict=False):
        loss, alpha, lam = keys[index]
        of = measured[keys[index]]
        label = f"{settings.NAMES[loss]}, α {alpha:g}, λ {lam:g}"
        sides.plot(of.left, of.right, ".", color=color, markersize=2, alpha=0.6, label=label)
    low, high = np.array([[of.left.min(), of.left.max()] for of in measured.values()]).T
    ends = [low.min(), high.max()]
    sides.plot(ends, ends, color="black", linestyle="--", linewidth=0.8, label="equal")
    sides.set(xlabel="left side", ylabel="right side: the upper bound", title="each anchor")
    sides.legend(markerscale=3)
    for number, ((loss, alpha, lam), of) in enumerate(measured.items()):
        color = COLORS[[*settings.NAMES].index(loss)]
        marker = MARKERS[sorted({key[2] for key in keys}).index(lam)]
        place = alpha * (1 + 0.03 * (number % 4))
        gaps.vlines(place, of.gap.min(), of.gap.max(), color=color, linewidth=0.7, alpha=0.6)
        gaps.plot(place, of.gap.mean(), marker, color=color)
    gaps.set_xscale("log", base=2)
    gaps.set(xlabel="alpha of the loss", title="gap of each setting: mean, least to largest")
    return save_figure(figure, path)
