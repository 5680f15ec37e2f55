"""Linear classifiers, and scores of classifications."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hypersphere_jax.evaluation.checks import as_float32, row_blocks

RESAMPLES = 10_000
MAX_TABLE_CLASSES = 100  # more classes have a sparse confusion matrix
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

    Args:
      classifier: the classifier.
      x: `[n, d]` features of any real dtype, an array or a memory map, read in blocks of rows.
      k: number of classes.
      prepare: maps each block of rows to what the classifier was trained on.
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
      `top1`; `top5`, None up to 5 classes; `top1_interval`, see `bootstrap_interval`; `per_class`,
      the top-1 accuracy of each class, None without rows; `confusion`, see `confusion_counts`;
      `targets` and `predicted`, label and predicted class of each row.
    """
    predicted = ranked[:, 0]
    correct = predicted == y
    rows = np.bincount(y, minlength=num_classes)
    correct_rows = np.bincount(y[correct], minlength=num_classes)
    per_class: list[float | None] = [None] * num_classes
    for label in np.flatnonzero(rows):
        per_class[label] = 100 * float(correct_rows[label]) / float(rows[label])
    top5 = None
    if num_classes > 5:
        top5 = 100 * float((ranked[:, :5] == y[:, None]).any(axis=1).mean())
    return {
        "top1": 100 * float(correct.mean()),
        "top5": top5,
        "top1_interval": bootstrap_interval(correct, seed),
        "per_class": per_class,
        "confusion": confusion_counts(predicted, y, num_classes),
        "targets": np.asarray(y).tolist(),
        "predicted": predicted.tolist(),
    }


def confusion_counts(predicted: np.ndarray, y: np.ndarray, num_classes: int) -> list[list[int]]:
    """Return how often rows of each label `[n]` were predicted as each class `[n]`.

    Returns:
      Up to 100 classes, a table with a list of counts by predicted class for each label. For more
      classes, sorted triples [label, predicted class, count] of the pairs that occur.
    """
    pairs = np.asarray(y, np.int64) * num_classes + predicted
    pairs, counts = np.unique(pairs, return_counts=True)
    if num_classes > MAX_TABLE_CLASSES:
        return np.stack([*np.divmod(pairs, num_classes), counts], axis=1).tolist()
    table = np.zeros(num_classes**2, np.int64)
    table[pairs] = counts
    return table.reshape(num_classes, num_classes).tolist()


def bootstrap_interval(correct: np.ndarray, seed: int = 0) -> list[float]:
    """Return the percentile bootstrap's 95% interval of the accuracy of booleans `[n]`, in percent.

    The number of correct rows in a resample is binomial, so it is drawn directly.
    """
    n = len(correct)
    draws = np.random.default_rng(seed).binomial(n, np.mean(correct), RESAMPLES)
    return [100 * float(share) for share in np.quantile(draws / n, (0.025, 0.975))]
