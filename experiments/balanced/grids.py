"""Figures 4 and 5 of the balanced paper: accuracy over alpha and lambda."""

import functools
import itertools

import numpy as np

from experiments.balanced import settings
from experiments.balanced.settings import BALANCED, GENERALIZED, Setting
from experiments.items import Context, Item, Scale
from experiments.measures import Rows
from experiments.shown import Shown, between, by
from experiments.sweeps import Planned
from hypersphere_jax import plots

GRID = (1, 2, 4, 8)
NAMES = {BALANCED: "balanced contrastive", GENERALIZED: "generalized NT-Xent"}
# (alpha, lambda) with the highest accuracy, as the paper's text says; its grids are pictures.
BEST = {
    "balanced/figure4": {BALANCED: (4, 2), GENERALIZED: (2, 2)},
    "balanced/figure5": {BALANCED: (2, 4)},
}
NEAR = 1.0  # points from the best


def plan(setting: Setting, context: Context, rows: Rows) -> list[Planned]:
    """Both losses over alpha and lambda."""
    return [
        settings.run_of_grid(setting, context, loss, alpha, lam)
        for loss, alpha, lam in itertools.product(NAMES, GRID, GRID)
    ]


def show(figure: str, context: Context, rows: Rows) -> Shown:
    """Both grids, and the best settings."""
    laptop = context.scale == "laptop"
    score = "output_linear" if laptop else "backbone_linear"
    columns = ["loss", "best alpha", "lambda", "linear (%)", "95% interval", "at lambda = 1 (%)"]
    columns += ["paper: best alpha, lambda"]
    lines, grids, found = [], {}, {}
    for loss, group in by(rows, "kind").items():
        scores = {(row["alpha"], row["lam"]): row for row in group}
        best = max(scores, key=lambda key: scores[key][score])
        plain = [row[score] for (_, lam), row in scores.items() if lam == 1]
        theirs = BEST[figure].get(loss)
        row = scores[best]
        line = [NAMES[loss], *best, row[score], between(row, score), max(plain, default=None)]
        lines.append([*line, theirs and f"{theirs[0]}, {theirs[1]}"])
        found[loss] = best, {key: each[score] for key, each in scores.items()}
        table = [[found[loss][1].get((a, lam), np.nan) for lam in GRID] for a in GRID]
        grids[NAMES[loss]] = plots.Grid(GRID, GRID, np.array(table))
    path = context.folder / "figure.png"
    plots.heat_maps(
        grids, path, row="alpha (1 / temperature)", column="lambda", score="linear accuracy (%)"
    )
    text = [
        "The paper's claim: the term that repels needs a weight lambda of its own, beside alpha, "
        "which says how much more the most similar ones repel: the best accuracy is not at lambda "
        "= 1, where the generalized NT-Xent is NT-Xent (SimCLR's loss), and alpha must be neither "
        "too small nor too large. The balanced contrastive loss, which leaves the positive out of "
        "what repels, has the higher best accuracy, and needs a larger alpha.",
        "The grids stand in the paper as pictures; its text names the best settings alone.",
    ]
    if laptop:
        text.append(
            "Ours are small encoders of digits, one seed each, evaluated on their output; an "
            "accuracy is known to about 2 points, so that neighbours in the grid are hardly told "
            "apart, and the best of 16 is a little too good."
        )
    number = figure[-1]
    title = f"Accuracy over alpha and lambda (Figure {number})"
    caption = "Linear accuracy of each setting; the best one is framed"
    return Shown(title, columns, lines, [(path, caption)], text, _verdict(found))


def _verdict(found: dict) -> str:
    parts = []
    for loss, (best, scores) in found.items():
        if len(scores) < len(GRID) ** 2:
            return ""
        plain = max(value for (_, lam), value in scores.items() if lam == 1)
        gain = scores[best] - plain
        near = sum(value > scores[best] - NEAR for value in scores.values())
        parts.append(
            f"{NAMES[loss]}: best at alpha {best[0]}, lambda {best[1]} ({scores[best]:.2f}%, "
            f"{gain:+.2f} points from the best with lambda 1; {near} of {len(scores)} settings "
            f"within {NEAR:g} point of it)"
        )
    return "; ".join(parts)


def _item(figure: str, title: str, scales: dict[str, Scale]) -> Item:
    return Item(title, scales, functools.partial(show, figure))


ITEMS = {
    "balanced/figure4": _item(
        "balanced/figure4",
        "alpha against lambda in two losses, on ImageNet",
        {
            "laptop": Scale(("digits",), 0.25, (functools.partial(plan, settings.DIGITS),)),
            "paper": Scale(
                ("imagenet2012",), 560_000, (functools.partial(plan, settings.IMAGENET),)
            ),
        },
    ),
    "balanced/figure5": _item(
        "balanced/figure5",
        "alpha against lambda in two losses, on CIFAR-10",
        {"paper": Scale(("cifar10",), 5_900, (functools.partial(plan, settings.CIFAR10),))},
    ),
}
