"""Hyper-parameters chosen on the training split alone: what is held out, and which cell is best."""

import math
from collections.abc import Sequence

import numpy as np

from hypersphere_jax.config import UserError, require
from hypersphere_jax.data import subsets


def held_out_part(y: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """One held-out part with the same share of every class: `[n]`, 0 in it and 1 in the rest.

    Args:
      y: `[n]` labels.
      fraction: of a class's rows to hold out, rounded; at least one where the class has two, and
        never all.
      seed: which rows.

    Raises:
      UserError: for another fraction than between 0 and 1, or where no class has two rows.
    """
    require(0 < fraction < 1, f"valid_fraction = {fraction}: must be between 0 and 1")
    part = np.ones(len(y), np.int32)
    for rows in subsets.shuffled_classes(y, np.random.default_rng(seed)):
        part[rows[: min(max(1, round(fraction * len(rows))), len(rows) - 1)]] = 0
    require(
        not part.all(),
        "no class has two training samples, so that none can be held out: give one value to "
        "choose from",
    )
    return part


def validation_folds(y: np.ndarray, folds: int, seed: int, name: str = "folds") -> np.ndarray:
    """The stratified fold `[n]` of each row of labels y `[n]`, see `subsets.stratified_folds`."""
    require(2 <= folds <= len(y), f"{name} = {folds}: must be 2 to {len(y)}, the training samples")
    return subsets.stratified_folds(y, folds, np.random.default_rng(seed))


def penalties(name: str, values: Sequence[float]) -> list[float]:
    """Strengths of a penalty to choose from, the largest first: of equals the first is chosen."""
    try:
        values = sorted({float(value) for value in values}, reverse=True)
    except (TypeError, ValueError):
        raise UserError(f"{name} {values}: must be positive numbers") from None
    require(len(values) > 0, f"{name}: give at least one")
    usable = all(0 < value < math.inf for value in values)
    require(usable, f"{name} {values}: must be positive numbers")
    return values


def best_cell(valid_top1: Sequence[Sequence[float]]) -> int:
    """The cell with the best mean over folds, the first of equals.

    Args:
      valid_top1: `[folds, cells]` accuracies; NaN for a fit that diverged, which is never chosen
        before one that did not.
    """
    means = np.mean(np.asarray(valid_top1, np.float64), axis=0)
    means = np.where(np.isnan(means), -np.inf, means)
    return int(np.argmax(means >= means.max() - 1e-9))  # means of equal folds differ by rounding
