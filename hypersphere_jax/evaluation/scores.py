"""Linear classifiers, their scores, and the choice of hyper-parameters by held-out scores."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.data import subsets
from hypersphere_jax.evaluation.checks import as_float32, row_blocks
from hypersphere_jax.evaluation.estimates import jsonable

RESAMPLES = 10_000
MAX_TABLE_CLASSES = 100  # more classes have no confusion matrix
SCORED_ENTRIES = 2**24  # numbers of features or logits in a block of rows


class Classifier(NamedTuple):
    """A linear classifier. The logits of features x `[n, d]` are `x @ weights.T + bias`."""

    weights: jax.Array  # [num_classes, d]
    bias: jax.Array  # [num_classes]


def linear_logits(classifier: Classifier, x: jax.Array) -> jax.Array:
    """Return logits `[n, num_classes]` of features `[n, d]`."""
    # This form's gradient does not transpose x, which is twice as fast on CPUs. Without HIGHEST,
    # GPUs round features to 10 bits.
    products = jnp.einsum("nd,cd->nc", x, classifier.weights, precision=lax.Precision.HIGHEST)
    return products + classifier.bias[None, :]


def top_classes(
    classifier: Classifier, x: Any, k: int = 1, prepare: Callable[[np.ndarray], Any] = as_float32
) -> np.ndarray:
    """Return the k classes with the largest logits `[n, k]`, best first, of ties the lower class.

    Features `[n, d]` are read in blocks; `prepare` maps a block to the classifier's features.
    """
    blocks = row_blocks(len(x), max(classifier.weights.shape), SCORED_ENTRIES)
    best = [_top_k(classifier, jnp.asarray(prepare(x[rows])), k=k) for rows in blocks]
    return np.concatenate([np.asarray(classes) for classes in best])


@partial(jax.jit, static_argnames="k")
def _top_k(classifier: Classifier, x: jax.Array, *, k: int) -> jax.Array:
    return lax.top_k(linear_logits(classifier, x), k)[1]


def classification_scores(
    ranked: np.ndarray, y: np.ndarray, *, num_classes: int, seed: int = 0
) -> dict[str, Any]:
    """Return accuracies in percent that JSON can contain.

    Args:
      ranked: `[n, k]` predicted classes of each row, best first. top5 needs 5, or all classes.
      y: `[n]` labels.
      num_classes: number of classes.
      seed: seed of the bootstrap.

    Returns:
      `top1`, `top5`, `top1_interval`, `per_class` and `confusion` as in docs/evaluation.md;
      `targets` and `predicted`, label and predicted class of each row.
    """
    predicted = ranked[:, 0]
    correct = predicted == y
    rows = np.bincount(y, minlength=num_classes)
    correct_rows = np.bincount(y[correct], minlength=num_classes)
    with np.errstate(invalid="ignore"):
        per_class = 100 * correct_rows / rows  # NaN for classes without rows
    top5 = None
    if num_classes > 5:
        top5 = 100 * float((ranked[:, :5] == y[:, None]).any(axis=1).mean())
    confusion = None
    if num_classes <= MAX_TABLE_CLASSES:
        cells = np.bincount(y * num_classes + predicted, minlength=num_classes**2)
        confusion = cells.reshape(num_classes, num_classes).tolist()
    return {
        "top1": 100 * float(correct.mean()),
        "top5": top5,
        "top1_interval": bootstrap_interval(correct, seed),
        "per_class": jsonable(per_class),
        "confusion": confusion,
        "targets": np.asarray(y).tolist(),
        "predicted": predicted.tolist(),
    }


def bootstrap_interval(correct: np.ndarray, seed: int = 0) -> list[float]:
    """Return the percentile bootstrap's 95% interval of the accuracy of booleans `[n]`, in percent.

    The number of correct rows in a resample is binomial, so it is drawn directly.
    """
    n = len(correct)
    draws = np.random.default_rng(seed).binomial(n, np.mean(correct), RESAMPLES)
    return [100 * float(share) for share in np.quantile(draws / n, (0.025, 0.975))]


def held_out_part(y: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Return which rows of labels y are held out: `[n]`, 0 for held-out rows and 1 otherwise.

    Every class has the same share. At least one row of a class with two or more rows is held out,
    and never all.

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
        strengths = np.unique(np.asarray(values, np.float64))
    except (TypeError, ValueError) as error:
        raise UserError(f"{name} {values}: {error}") from error
    is_valid = strengths.size > 0 and strengths.min() > 0 and bool(np.isfinite(strengths).all())
    require(is_valid, f"{name} {values} must be one or more positive numbers")
    return strengths[::-1].tolist()


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
    """Return cells with their accuracies `[folds, cells]`; diverged fits have None."""
    rows = []
    for cell, column in zip(cells, fold_top1.T, strict=True):
        mean = None
        if len(column):
            mean = float(column.mean())
        rows.append(jsonable({**cell, "valid_top1": mean, "fold_top1": column}))
    return rows
