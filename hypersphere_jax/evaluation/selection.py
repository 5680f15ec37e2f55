"""Choice of hyper-parameters on the training split: held-out rows, and the best cell of a grid."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hypersphere_jax.configs import require
from hypersphere_jax.data import subsets
from hypersphere_jax.evaluation.estimates import jsonable


def held_out_part(y: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Return which rows of labels y are held out: `[n]`, 0 for held-out rows and 1 otherwise.

    Every class has the same share. Of two or more rows of a class at least one is held out, and
    never all.

    Raises:
      UserError: for a fraction outside (0, 1), or no class with two rows.
    """
    require(0 < fraction < 1, f"valid_fraction={fraction} must be between 0 and 1")
    part = np.ones(len(y), np.int32)
    for rows in subsets.shuffled_classes(y, np.random.default_rng(seed)):
        count = max(1, round(fraction * len(rows)))
        part[rows[: min(count, len(rows) - 1)]] = 0
    require(not part.all(), "no class has two training samples, one of which could be held out")
    return part


def validation_folds(y: np.ndarray, folds: int, seed: int, name: str = "folds") -> np.ndarray:
    """Return the stratified fold `[n]` of each row of labels y; see `subsets.stratified_folds`."""
    require(2 <= folds <= len(y), f"{name}={folds} must be 2 to {len(y)}, the training samples")
    return subsets.stratified_folds(y, folds, np.random.default_rng(seed))


def penalties(name: str, values: Sequence[float]) -> list[float]:
    """Return strengths of a penalty, largest first, because the first of equal cells is chosen."""
    try:
        strengths = {float(value) for value in values}
    except (TypeError, ValueError):
        strengths = set()
    is_valid = len(strengths) > 0 and all(0 < strength < math.inf for strength in strengths)
    require(is_valid, f"{name} {values} must be one or more positive numbers")
    return sorted(strengths, reverse=True)


def best_cell(valid_top1: Sequence[Sequence[float]] | np.ndarray) -> int:
    """Return the cell with the best mean accuracy over folds, the first of equal cells.

    Args:
      valid_top1: `[folds, cells]` accuracies. NaN marks a fit that diverged; it is chosen only if
        all diverged. Without folds, the first cell is chosen.
    """
    if not len(valid_top1):
        return 0
    means = np.mean(np.asarray(valid_top1, np.float64), axis=0)
    means = np.where(np.isnan(means), -np.inf, means)
    return int(np.argmax(means >= means.max() - 1e-9))  # rounding separates equal means


def grid_rows(cells: Sequence[dict[str, float]], fold_top1: np.ndarray) -> list[dict[str, Any]]:
    """Return cells with their accuracies `[folds, cells]`; None for NaN, and for no folds."""
    rows = []
    for cell, column in zip(cells, fold_top1.T, strict=True):
        values = jsonable(column)
        mean = None
        if values and None not in values:
            mean = float(np.mean(values))
        rows.append({**cell, "valid_top1": mean, "fold_top1": values})
    return rows
