"""Hyper-parameters chosen on the training split alone: what is held out, and which cell is best."""

from collections.abc import Sequence

import numpy as np

from hypersphere_jax.config import require


def stratified_part(y: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """One held-out part with the same share of every class.

    Args:
      y: `[n]` labels.
      fraction: of a class's rows to hold out, rounded; at least one where the class has two, and
        never all.
      seed: which rows.

    Returns:
      `[n]` integers: 0 in the held-out part, 1 in the rest.

    Raises:
      UserError: for another fraction than between 0 and 1, or where no class has two rows.
    """
    require(0 < fraction < 1, f"valid_fraction = {fraction}: must be between 0 and 1")
    part = np.ones(len(y), np.int32)
    for rows in _shuffled_classes(y, seed):
        part[rows[: min(max(1, round(fraction * len(rows))), len(rows) - 1)]] = 0
    require(
        not part.all(),
        "no class has two training samples, so that none can be held out: give one value to "
        "choose from",
    )
    return part


def stratified_folds(y: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """Folds of equal size with equal numbers of every class, both up to one row.

    Args:
      y: `[n]` labels.
      folds: how many, at least 2. A class with fewer rows is in as many folds as it has rows.
      seed: which rows.

    Returns:
      `[n]` integers: the fold of each row, from 0 to `folds - 1`.

    Raises:
      UserError: for fewer than 2 folds, or more than rows.
    """
    require(2 <= folds <= len(y), f"folds = {folds}: must be 2 to {len(y)}, the training samples")
    # The rows, class by class, are dealt out like cards.
    part = np.empty(len(y), np.int32)
    part[np.concatenate(_shuffled_classes(y, seed))] = np.arange(len(y)) % folds
    return part


def best_cell(valid_top1: Sequence[Sequence[float]]) -> int:
    """The cell with the best mean over folds, the first of equals.

    Args:
      valid_top1: `[folds, cells]` accuracies; NaN for a fit that diverged, which is never chosen
        before one that did not.
    """
    means = np.mean(np.asarray(valid_top1, np.float64), axis=0)
    means = np.where(np.isnan(means), -np.inf, means)
    return int(np.argmax(means >= means.max() - 1e-9))  # means of equal folds differ by rounding


def _shuffled_classes(y: np.ndarray, seed: int) -> list[np.ndarray]:
    """The rows of each class that has any, in random order."""
    rng = np.random.default_rng(seed)
    by_class = np.argsort(y, kind="stable")
    ends = np.flatnonzero(np.diff(y[by_class])) + 1
    return [rng.permutation(rows) for rows in np.split(by_class, ends)]
