"""Hyper-parameters chosen on the training split alone: what is held out, and which cell is best."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hypersphere_jax.configs import require
from hypersphere_jax.data import subsets


def held_out_part(y: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """One held-out part of labels y, the same share of every class: `[n]`, 0 in it, 1 in the rest.

    Of two or more rows of a class at least one is held out, and never all.
    """
    require(0 < fraction < 1, f"valid_fraction = {fraction}: must be between 0 and 1")
    part = np.ones(len(y), np.int32)
    for rows in subsets.shuffled_classes(y, np.random.default_rng(seed)):
        part[rows[: min(max(1, round(fraction * len(rows))), len(rows) - 1)]] = 0
    require(not part.all(), "no class has two training samples, of which one can be held out")
    return part


def validation_folds(y: np.ndarray, folds: int, seed: int, name: str = "folds") -> np.ndarray:
    """The stratified fold `[n]` of each row of labels y `[n]`, see `subsets.stratified_folds`."""
    require(2 <= folds <= len(y), f"{name} = {folds}: must be 2 to {len(y)}, the training samples")
    return subsets.stratified_folds(y, folds, np.random.default_rng(seed))


def penalties(name: str, values: Sequence[float]) -> list[float]:
    """Strengths of a penalty to choose from, the largest first: of equals the first is chosen."""
    usable = len(values) > 0 and all(0 < value < math.inf for value in values)
    require(usable, f"{name} {values}: must be one or more positive numbers")
    return sorted({float(value) for value in values}, reverse=True)


def best_cell(valid_top1: Sequence[Sequence[float]]) -> int:
    """The cell with the best mean over folds, the first of equals.

    Args:
      valid_top1: `[folds, cells]` accuracies; NaN for a fit that diverged, which is never chosen
        before one that did not.
    """
    means = np.mean(np.asarray(valid_top1, np.float64), axis=0)
    means = np.where(np.isnan(means), -np.inf, means)
    return int(np.argmax(means >= means.max() - 1e-9))  # means of equal folds differ by rounding


def grid_rows(cells: Sequence[dict[str, float]], fold_top1: np.ndarray) -> list[dict[str, Any]]:
    """Cells with their accuracies `[folds, cells]`; None where nothing was held out, or for NaN."""
    rows = []
    for cell, column in zip(cells, fold_top1.T, strict=True):
        values = [None if np.isnan(top1) else float(top1) for top1 in column]
        mean = None if None in values or not values else float(np.mean(values))
        rows.append({**cell, "valid_top1": mean, "fold_top1": values})
    return rows
