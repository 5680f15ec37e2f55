"""Figures 4 and 5 of the balanced paper: accuracy over alpha and lambda."""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from experiments import inference, rates
from experiments.balanced import settings
from experiments.balanced.settings import BALANCED, GENERALIZED, Setting
from experiments.plots import comparisons
from experiments.predictions import right
from experiments.reproduction import Context, Reproduction, Result, scale
from experiments.statistics import Rows, by, values
from experiments.sweeps import Planned

GRID = (1, 2, 4, 8)
FIGURE4, FIGURE5 = "balanced/figure4", "balanced/figure5"
SEEDS, FRESH = range(5), range(5, 15)  # at the laptop's scale: of the grid, and of what it chose
LITTLE_ROOM = 97.0  # percent, above which small differences are all that there can be
NAMES = {BALANCED: "balanced contrastive", GENERALIZED: "generalized NT-Xent"}
# (alpha, lambda) with the highest accuracy, as the paper's text says; its grids are pictures.
BEST = {FIGURE4: {BALANCED: (4, 2), GENERALIZED: (2, 2)}, FIGURE5: {BALANCED: (2, 4)}}
CLAIMS = {
    FIGURE4: "The term that repels needs a weight lambda of its own, beside "
    "alpha, which says how much more the most similar ones repel: the best accuracy is not at "
    "lambda = 1, where the generalized NT-Xent is NT-Xent (SimCLR's loss), and alpha must be "
    "neither too small nor too large. The balanced contrastive loss, which leaves the positive out "
    "of what repels, has the higher best accuracy, and needs a larger alpha.",
    FIGURE5: "On CIFAR-10, too, it is important to balance attraction and "
    "repulsion by alpha and by the weight lambda of what repels; for the balanced contrastive loss "
    "it takes alpha 2 and lambda 4.",
}


def choose(setting: Setting, context: Context, rows: Rows) -> list[Planned]:
    """Candidates of the rate of each alpha, at two values of lambda."""
    cells = itertools.product(NAMES, GRID, (1, 4))
    runs = [settings.run_of_grid(setting, context, *cell) for cell in cells]
    return rates.candidates(runs, settings.RATES)


def plan(
    setting: Setting, context: Context, rows: Rows, seeds: Sequence[int] = (0,)
) -> list[Planned]:
    """Both losses over alpha and lambda; at the laptop's scale at the rates that were chosen."""
    cells = [(loss, *cell) for loss in NAMES for cell in itertools.product(GRID, GRID)]
    return _encoders(setting, context, rows, cells, seeds)


def confirm(setting: Setting, context: Context, rows: Rows) -> list[Planned]:
    """The chosen cells of each loss again, with seeds of their own."""
    chosen = chosen_cells(rates.final(rows)) or {
        loss: [best, (best[0], 1)] for loss, best in BEST[FIGURE4].items()
    }
    cells = [(loss, *cell) for loss, both in chosen.items() for cell in both]
    return _encoders(setting, context, rows, cells, FRESH)


def _encoders(
    setting: Setting, context: Context, rows: Rows, cells: Sequence[tuple], seeds: Sequence[int]
) -> list[Planned]:
    planned = [
        settings.run_of_grid(setting, context, *cell, seed) for cell in cells for seed in seeds
    ]
    return settings.at_chosen(planned, rows, "alpha") if context.laptop else planned


def chosen_cells(rows: Rows) -> dict[str, list[tuple[int, int]]]:
    """Of each loss two cells (alpha, lambda): the best with lambda > 1, and that with lambda = 1.

    The best by logistic regression on held-out training images, the mean over the grid's seeds;
    empty before the grid is done.
    """
    chosen = {}
    for loss, group in by(rows, "kind").items():
        cells = by([row for row in group if row["seed"] in SEEDS], "alpha", "lam")
        held_out = {cell: np.mean(values(of, "backbone_logistic_cv")) for cell, of in cells.items()}
        if len(held_out) < len(GRID) ** 2:
            return {}
        other, plain = (
            [cell for cell in held_out if (cell[1] == 1) is one] for one in (False, True)
        )
        chosen[loss] = [max(part, key=lambda cell: held_out[cell]) for part in (other, plain)]
    return chosen


def result(figure: str, context: Context, rows: Rows) -> Result:
    """Both grids by each instrument, and the chosen cells, on the laptop with fresh seeds."""
    layers = ("backbone", "output") if context.laptop else ("backbone",)
    choice, rows = rates.chosen(rows, "alpha"), rates.final(rows)
    grid = by([row for row in rows if row["seed"] not in FRESH], "kind", "alpha", "lam")
    chosen = chosen_cells(rows)
    fresh = by([row for row in rows if row["seed"] in FRESH], "kind", "alpha", "lam") or grid
    columns = ["loss", "alpha, lambda", "seeds", *inference.columns(layers)]
    columns += ["paper: best (linear)"]
    lines = []
    for loss, cells in chosen.items():
        theirs = BEST[figure].get(loss)
        for cell in cells:
            group = fresh.get((loss, *cell), [])
            line = [NAMES[loss], _pair(cell), len(group)]
            line += inference.accuracies(group, layers)
            lines.append([*line, theirs and _pair(theirs)])
    near, maps = {}, {}
    for layer, loss, (key, name) in itertools.product(layers, NAMES, inference.ALL.items()):
        cells = {at[1:]: group for at, group in grid.items() if at[0] == loss}
        scores = {cell: right(group, f"{layer}_{key}") for cell, group in cells.items()}
        alike, means = _near(scores), {at: 100 * float(of.mean()) for at, of in scores.items()}
        title = f"{NAMES[loss]},\n{inference.LAYERS[layer]}: {name}"
        maps[title] = comparisons.grid_of(means, GRID, GRID, near=alike)
        if layer == layers[0]:
            near[f"{NAMES[loss]}, {name}"] = alike
    comparisons.heat_maps(
        maps,
        context.figure,
        row="alpha (1 / tau)",
        column="lambda",
        score="accuracy (%)",
        across=len(inference.ALL),
    )
    seeds = max(map(len, grid.values()), default=0)
    text = [
        CLAIMS[figure],
        _what_was_done(context, seeds),
        f"{_room(grid, layers[0])}The paper has its grids as pictures. ±: half of the 95% interval "
        "over seeds and test images.",
        f"Settings that {inference.where(layers[0])} are not told apart from the best one of their "
        f"grid (5%, Holm over all {math.comb(len(GRID) ** 2, 2)} pairs of settings, since which "
        "one is best is known by the same test images): "
        + "; ".join(
            f"{title}, {len(cells) - 1} of {len(GRID) ** 2 - 1}"
            for title, cells in near.items()
            if cells
        )
        + ".",
    ]
    edge = [
        f"{NAMES[loss]} ({_at(best)})"
        for loss, (best, _) in chosen.items()
        if best[0] in (min(GRID), max(GRID))
    ]
    if edge:
        text.append(
            "At the edge of the grid's alphas, so that others may be better, and of the best alpha "
            f"nothing is said: {', '.join(edge)}."
        )
    if choice:
        named = {f"alpha {alpha}": rate for alpha, rate in choice.items()}
        text.append(rates.told(named, settings.RATES))
    title = f"Accuracy over alpha and lambda (Figure {figure[-1]})"
    caption = (
        f"Mean accuracy over {seeds} seeds; framed: the best setting; a dot: not told apart from it"
    )
    verdict, short = _verdict(chosen, fresh, layers, context.laptop)
    return Result(title, columns, lines, [(context.figure, caption)], text, verdict, short)


def _what_was_done(context: Context, seeds: int) -> str:
    if not context.laptop:
        return (
            f"Here: the paper's grid, {seeds} seed(s) of each setting. The best one is chosen by "
            "logistic regression on held-out training images."
        )
    return (
        f"Here: small encoders of digits, {seeds} seeds of each of 32 settings, the learning rate "
        "chosen for each alpha on training images. Of each loss the best setting with lambda above "
        "1 and the best with lambda = 1 are chosen by logistic regression on held-out training "
        f"images, and compared on test images by {len(FRESH)} encoders each with fresh seeds. That "
        "lambda needs to be other than 1 is taken to show where the former is ahead."
    )


def _room(grid: Mapping[tuple, Rows], layer: str) -> str:
    """Between which accuracies all settings lie, where that leaves little to tell apart."""
    means = [100 * right(group, f"{layer}_logistic").mean() for group in grid.values()] or [0]
    if min(means) < LITTLE_ROOM:
        return ""
    return (
        "These images leave little room for the claim: by logistic regression all settings are at "
        f"{min(means):.2f} to {max(means):.2f}%. "
    )


def _near(scores: Mapping[tuple[float, float], np.ndarray]) -> list[tuple[float, float]]:
    """The best cell, and those that are not told apart from it.

    All pairs of cells are counted, as the best is known by the same test images.
    """
    if not scores:
        return []
    best = max(scores, key=lambda cell: scores[cell].mean())
    pairs = [*itertools.combinations(scores, 2)]
    p = inference.holm([inference.difference(scores[a], scores[b]).p for a, b in pairs])
    apart = {
        cell
        for pair, each in zip(pairs, p, strict=True)
        if best in pair and each < inference.ALPHA
        for cell in pair
    } - {best}
    return [best, *(cell for cell in scores if cell not in {best, *apart})]


def _at(setting: tuple[float, float]) -> str:
    return "alpha {:g}, lambda {:g}".format(*setting)


def _pair(setting: tuple[float, float]) -> str:
    return f"{setting[0]:g}, {setting[1]:g}"


def _verdict(
    chosen: Mapping[str, Sequence[tuple]], groups: Mapping, layers: Sequence[str], laptop: bool
) -> tuple[str, str]:
    """The chosen cells of each loss against each other, and both losses."""
    pairs = {
        f"The {NAMES[loss]} loss at {_at(best)} against that at {_at(plain)}": (
            (loss, *best),
            (loss, *plain),
        )
        for loss, (best, plain) in chosen.items()
    }
    if len(chosen) == len(NAMES):
        both = [(loss, *best) for loss, (best, _) in chosen.items()]
        pairs["Of lambda above 1, balanced contrastive against generalized NT-Xent"] = tuple(both)
    if not pairs or not all(groups.get(one) for pair in pairs.values() for one in pair):
        return "", ""
    compared = {
        layer: {
            name: inference.compare(*(groups[one] for one in pair), layer)
            for name, pair in pairs.items()
        }
        for layer in layers
    }
    told = (inference.sentences(of, layer) for layer, of in compared.items())
    short = inference.short({layers[0]: compared[layers[0]]})
    return " ".join(told), f"With fresh seeds: {short[:1].lower()}{short[1:]}" if laptop else short


REPRODUCTIONS = {
    FIGURE4: Reproduction(
        "alpha against lambda in two losses, on ImageNet",
        functools.partial(result, FIGURE4),
        laptop=scale(
            "digits",
            functools.partial(choose, settings.DIGITS),
            functools.partial(plan, settings.DIGITS, seeds=SEEDS),
            functools.partial(confirm, settings.DIGITS),
        ),
        paper=scale("imagenet2012", functools.partial(plan, settings.IMAGENET)),
    ),
    FIGURE5: Reproduction(
        "alpha against lambda in two losses, on CIFAR-10",
        functools.partial(result, FIGURE5),
        paper=scale("cifar10", functools.partial(plan, settings.CIFAR10)),
    ),
}
