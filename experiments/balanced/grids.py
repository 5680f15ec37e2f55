"""Grids over alpha and lambda: shared by Figures 4 and 5 and by the theorems."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.balanced import settings
from experiments.balanced.settings import BALANCED, GENERALIZED, NAMES, Task
from experiments.lib import rates
from experiments.lib.evaluation import layers_of
from experiments.lib.plots import grid_of, heat_maps
from experiments.lib.records import Rows, column, correct, group_by
from experiments.lib.stats import ALPHA, Comparison, columns_of, compare, contrast, holm, judge
from experiments.lib.sweep import Run

SETTINGS = ("kind", "alpha", "lam")
VALUES = (1, 2, 4, 8)
FRESH_SEEDS = {"laptop": range(5, 15), "gpu": range(5, 10)}
FIRST_FRESH = 5


def grid(task: Task, seeds: Sequence[int]) -> list[Run]:
    """Return both losses over alpha and lambda."""
    cells = itertools.product(NAMES, VALUES, VALUES, seeds)
    return [settings.grid_run(task, *cell) for cell in cells]


def candidates(task: Task, scale: str) -> list[Run]:
    """Return candidates of the rate of each alpha, at two values of lambda."""
    cells = itertools.product(NAMES, VALUES, (1, 4))
    planned = [settings.grid_run(task, *cell) for cell in cells]
    return rates.candidates(planned, settings.candidate_rates(scale))


def chosen_grid(task: Task, scale: str, rows: Sequence, seeds: Sequence[int] = (0,)) -> list[Run]:
    """Return the candidates and, when they have ended, the grid at the chosen rates."""
    if scale == "gpu":
        return grid(task, seeds)
    first = candidates(task, scale)
    return settings.choose_then_train(first, grid(task, seeds), rows, "alpha")


def selected_again(task: Task, scale: str, rows: Sequence, seeds: Sequence[int]) -> list[Run]:
    """Return the grid and, when it has ended, the selected cells with fresh seeds."""
    planned = chosen_grid(task, scale, rows, seeds)
    if not rates.is_complete(planned, rows) or rates.final(list(rows)) == []:
        return planned
    again = []
    for loss, cells in selected_cells(list(rows)).items():
        for (alpha, lam), seed in itertools.product(cells, FRESH_SEEDS[scale]):
            again.append(settings.grid_run(task, loss, alpha, lam, seed))
    if scale == "laptop":
        again = rates.at_chosen(again, list(rows), "alpha")
    return [*planned, *again]


def selected_cells(rows: Rows) -> dict[str, list[tuple[int, int]]]:
    """Return per loss the best cell with lambda > 1 and the best cell with lambda = 1.

    The best has the highest mean accuracy of logistic regression on held-out training images.
    """
    selected = {}
    for loss, group in group_by(rates.final(rows), "kind").items():
        first = [row for row in group if row["seed"] < FIRST_FRESH]
        cells = group_by(first, "alpha", "lam")
        held_out = {cell: column(of, "backbone_logistic_cv").mean() for cell, of in cells.items()}
        weighted = [cell for cell in cells if cell[1] > 1]
        plain = [cell for cell in cells if cell[1] == 1]
        selected[loss] = [max(part, key=held_out.__getitem__) for part in (weighted, plain)]
    return selected


def analyze(rows: Rows) -> Rows:
    """Compare the selected cells of each loss, and both losses, on fresh seeds."""
    selected = selected_cells(rows)
    final = rates.final(rows)
    fresh = [row for row in final if row["seed"] >= FIRST_FRESH]
    groups = group_by(fresh or final, "kind", "alpha", "lam")
    pairs = {}
    for loss, (best, plain) in selected.items():
        names = f"alpha {best[0]}, lambda {best[1]} is better than alpha {plain[0]}, lambda 1"
        pairs[f"{NAMES[loss]}: {names}"] = ((loss, *best), (loss, *plain))
    both = [(loss, *selected[loss][0]) for loss in (BALANCED, GENERALIZED)]
    pairs["balanced contrastive is better than generalized NT-Xent"] = (both[0], both[1])
    table: Rows = []
    for layer in layers_of(next(iter(groups.values())), ("backbone", "output")):
        comparisons = []
        for claim, (a, b) in pairs.items():
            estimates = compare(groups[a], groups[b], columns_of(layer))
            comparisons.append(Comparison(claim, estimates, labels={"layer": layer}))
        table += judge(comparisons)
    return table


def plot(rows: Rows, path: Path) -> None:
    """Draw accuracies before the head; a dot marks cells that are not worse than the best one."""
    first = [row for row in rates.final(rows) if row["seed"] < FIRST_FRESH]
    maps = {}
    for loss, group in group_by(first, "kind").items():
        cells = group_by(group, "alpha", "lam")
        for instrument, score in columns_of("backbone").items():
            rights = {cell: correct(of, score) for cell, of in cells.items()}
            means = {cell: 100 * of.mean() for cell, of in rights.items()}
            title = f"{NAMES[loss]}, {instrument}"
            maps[title] = grid_of(means, dots=not_worse_cells(rights))
    heat_maps(maps, path, row="alpha", column="lambda")


def not_worse_cells(rights: dict[tuple, np.ndarray]) -> list[tuple]:
    """Return the cells that do not differ significantly from the best one.

    Holm's correction counts all pairs, since the best cell is known by the same test images.
    """
    best = max(rights, key=lambda cell: rights[cell].mean())
    pairs = [*itertools.combinations(rights, 2)]
    p_values = holm([contrast([rights[a], rights[b]], [1, -1]).p for a, b in pairs])
    different = {
        cell
        for pair, p in zip(pairs, p_values, strict=True)
        if best in pair and p < ALPHA
        for cell in pair
    }
    return [cell for cell in rights if cell == best or cell not in different]
