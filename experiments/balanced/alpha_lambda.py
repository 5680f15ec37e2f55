"""Figures 4 and 5 of the balanced paper: accuracy over alpha and lambda."""

import functools
import itertools

from experiments.balanced import settings
from experiments.balanced.settings import BALANCED, GENERALIZED, Setting
from experiments.plots import comparisons
from experiments.reproduction import Context, Reproduction, Result, scale
from experiments.statistics import Rows, by, interval
from experiments.sweeps import Planned

GRID = (1, 2, 4, 8)
FIGURE4, FIGURE5 = "balanced/figure4", "balanced/figure5"
NAMES = {BALANCED: "balanced contrastive", GENERALIZED: "generalized NT-Xent"}
# (alpha, lambda) with the highest accuracy, as the paper's text says; its grids are pictures.
BEST = {FIGURE4: {BALANCED: (4, 2), GENERALIZED: (2, 2)}, FIGURE5: {BALANCED: (2, 4)}}
NEAR = 1.0  # points from the best
CLAIMS = {
    FIGURE4: "The paper's claim: the term that repels needs a weight lambda of its own, beside "
    "alpha, which says how much more the most similar ones repel: the best accuracy is not at "
    "lambda = 1, where the generalized NT-Xent is NT-Xent (SimCLR's loss), and alpha must be "
    "neither too small nor too large. The balanced contrastive loss, which leaves the positive out "
    "of what repels, has the higher best accuracy, and needs a larger alpha.",
    FIGURE5: "The paper's claim: on CIFAR-10, too, it is important to balance attraction and "
    "repulsion by alpha and by the weight lambda of what repels; for the balanced contrastive loss "
    "it takes alpha 2 and lambda 4.",
}


def plan(setting: Setting, context: Context, rows: Rows) -> list[Planned]:
    """Both losses over alpha and lambda."""
    return [
        settings.run_of_grid(setting, context, loss, alpha, lam)
        for loss, alpha, lam in itertools.product(NAMES, GRID, GRID)
    ]


def result(figure: str, context: Context, rows: Rows) -> Result:
    """Both grids, by a linear classifier and by nearest neighbours, and the best settings."""
    layer = "output" if context.laptop else "backbone"
    k = 200 if figure == FIGURE4 and not context.laptop else 1
    score, nearest = f"{layer}_linear", f"{layer}_knn{k}"
    columns = ["loss", "best alpha, lambda", "linear (%)", "95% interval", "at lambda = 1 (%)"]
    columns += [f"best by {k}-NN", f"{k}-NN (%)", "paper: best (linear)"]
    lines, grids, bests = [], {}, {}
    for loss, group in by(rows, "kind").items():
        scores = {(row["alpha"], row["lam"]): row for row in group}
        best, near = (max(scores, key=lambda at: scores[at][name]) for name in (score, nearest))
        plain = [row[score] for (_, lam), row in scores.items() if lam == 1]
        row, theirs = scores[best], BEST[figure].get(loss)
        line = [NAMES[loss], _pair(best), row[score], interval(row, score)]
        line += [max(plain, default=None), _pair(near), scores[near][nearest]]
        lines.append([*line, theirs and _pair(theirs)])
        bests[loss] = best, scores
        for name, what in ((score, "linear"), (nearest, f"{k}-NN")):
            accuracies = {at: row[name] for at, row in scores.items()}
            grids[f"{NAMES[loss]}, {what}"] = comparisons.grid_of(accuracies, GRID, GRID)
    comparisons.heat_maps(
        grids, context.figure, row="alpha (1 / temperature)", column="lambda", score="accuracy (%)"
    )
    text = [CLAIMS[figure], "The paper has the grids as pictures."]
    if context.laptop:
        text.append(
            "Ours are small encoders of digits, one seed each, evaluated on their output by the "
            "classifier of the other items of digits (Adam, 100 epochs) and by the nearest "
            "neighbour; an accuracy is known to about 2 points, so that neighbours in the grid are "
            "hardly told apart, and the best of 16 is a little too good."
        )
    title = f"Accuracy over alpha and lambda (Figure {figure[-1]})"
    caption = "Accuracy of each setting; the best one is framed"
    verdict = _verdict(bests, score)
    return Result(title, columns, lines, [(context.figure, caption)], text, verdict)


def _pair(setting: tuple[float, float]) -> str:
    return f"{setting[0]:g}, {setting[1]:g}"


def _verdict(bests: dict, score: str) -> str:
    """Where the best setting is, and whether its interval leaves lambda = 1 out."""
    parts = []
    for loss, (best, scores) in bests.items():
        if len(scores) < len(GRID) ** 2:
            return ""
        plain = max(row[score] for (_, lam), row in scores.items() if lam == 1)
        row = scores[best]
        apart = row.get(f"{score}_low", row[score]) > plain
        near = sum(each[score] > row[score] - NEAR for each in scores.values())
        parts.append(
            f"{NAMES[loss]}: best at alpha {best[0]}, lambda {best[1]} ({row[score]:.2f}%; with "
            f"lambda = 1 at best {plain:.2f}%, {'outside' if apart else 'within'} its interval; "
            f"{near} of {len(scores)} settings within {NEAR:g} point)"
        )
    return "; ".join(parts)


REPRODUCTIONS = {
    FIGURE4: Reproduction(
        "alpha against lambda in two losses, on ImageNet",
        functools.partial(result, FIGURE4),
        laptop=scale("digits", functools.partial(plan, settings.DIGITS)),
        paper=scale("imagenet2012", functools.partial(plan, settings.IMAGENET)),
    ),
    FIGURE5: Reproduction(
        "alpha against lambda in two losses, on CIFAR-10",
        functools.partial(result, FIGURE5),
        paper=scale("cifar10", functools.partial(plan, settings.CIFAR10)),
    ),
}
