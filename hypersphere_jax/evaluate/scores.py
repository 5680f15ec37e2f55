"""Linear classifiers on features, and the scores of classifications."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hypersphere_jax.evaluate.checks import as_float32, row_blocks

RESAMPLES = 10_000
TABLE = 100  # classes up to which the confusion is a table
BLOCK = 2**24  # numbers of a block of rows: features or logits


class Classifier(NamedTuple):
    """The logits of features x `[n, d]` are `x @ weights.T + bias`."""

    weights: jax.Array  # [num_classes, d]
    bias: jax.Array  # [num_classes]


def logits(classifier: Classifier, x) -> jax.Array:
    """Logits `[n, num_classes]` of features `[n, d]`."""
    # The gradient never transposes x: on CPU, twice as fast. GPUs round features to 10 bits else.
    products = jnp.einsum("nd,cd->nc", x, classifier.weights, precision=lax.Precision.HIGHEST)
    return products + classifier.bias[None, :]


def top_classes(
    classifier: Classifier, x, k: int = 1, prepare: Callable[[np.ndarray], Any] = as_float32
) -> np.ndarray:
    """The k classes with the largest logits `[n, k]`, the best first, the lower of equals first.

    Features x `[n, d]` are an array or memory map of any real dtype, read in blocks of rows, each
    of which goes through `prepare`.
    """
    blocks = row_blocks(len(x), max(classifier.weights.shape), BLOCK)
    best = [_best(classifier, jnp.asarray(prepare(x[rows])), k=k) for rows in blocks]
    return np.concatenate([np.asarray(classes) for classes in best])


@partial(jax.jit, static_argnames="k")
def _best(classifier: Classifier, x, *, k: int) -> jax.Array:
    return lax.top_k(logits(classifier, x), k)[1]


def scores(ranked: np.ndarray, y: np.ndarray, *, num_classes: int, seed: int = 0) -> dict[str, Any]:
    """Accuracies in percent, as a JSON file can hold them.

    Args:
      ranked: `[n, k]` classes of each row, the best first; for top5, k is 5 or all classes.
      y: `[n]` labels.
      num_classes: number of classes.
      seed: of the bootstrap.

    Returns:
      top1; top5, None up to 5 classes; top1_interval, see `bootstrap_interval`; per_class, top1 of
      each class's rows, None without any; confusion, see `confusion`; and of each row its label and
      the class that was predicted.
    """
    right = ranked[:, 0] == y
    rows, rows_right = (np.bincount(labels, minlength=num_classes) for labels in (y, y[right]))
    per_class = 100 * rows_right / np.maximum(rows, 1)
    top5 = (ranked[:, :5] == y[:, None]).any(axis=1) if num_classes > 5 else None
    return {
        "top1": 100 * float(right.mean()),
        "top5": None if top5 is None else 100 * float(top5.mean()),
        "top1_interval": bootstrap_interval(right, seed),
        "per_class": [
            float(percent) if n else None for percent, n in zip(per_class, rows, strict=True)
        ],
        "confusion": confusion(ranked[:, 0], y, num_classes),
        "targets": np.asarray(y).tolist(),
        "predicted": ranked[:, 0].tolist(),
    }


def confusion(predicted: np.ndarray, y: np.ndarray, num_classes: int) -> list[list[int]]:
    """How often each label `[n]` was given each class `[n]`.

    Up to 100 classes, a table: a list for each label, in it a count for each predicted class. With
    more, sorted triples [label, predicted class, count] of the pairs that occur.
    """
    pairs = np.asarray(y, np.int64) * num_classes + predicted
    pairs, counts = np.unique(pairs, return_counts=True)
    if num_classes > TABLE:
        return np.stack([*np.divmod(pairs, num_classes), counts], axis=1).tolist()
    table = np.zeros(num_classes**2, np.int64)
    table[pairs] = counts
    return table.reshape(num_classes, num_classes).tolist()


def bootstrap_interval(right: np.ndarray, seed: int = 0) -> list[float]:
    """95% interval of the percentage that is right of booleans `[n]`, by the percentile bootstrap.

    The number of right rows among n drawn with replacement is binomial: it is drawn directly.
    """
    n = len(right)
    draws = np.random.default_rng(seed).binomial(n, np.mean(right), RESAMPLES)
    return [100 * float(share) for share in np.quantile(draws / n, (0.025, 0.975))]
