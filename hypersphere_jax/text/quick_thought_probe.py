"""Classification of sentences by cross-validated logistic regression (Quick-Thought's protocol)."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hypersphere_jax.configs import ProbeConfig, require
from hypersphere_jax.data import Dataset
from hypersphere_jax.evaluation import logistic
from hypersphere_jax.evaluation.checks import SelectedRows, check_splits
from hypersphere_jax.evaluation.scores import (
    Classifier,
    best_cell,
    classification_scores,
    grid_rows,
    penalties,
    top_classes,
    validation_folds,
)
from hypersphere_jax.text.labelled import load_labelled
from hypersphere_jax.text.sentence_training import run_vocabulary
from hypersphere_jax.training import distributed

STRENGTHS = tuple(2.0**-k for k in range(9))
# Protocols that cross-validate, since labelled sentences have no test split.
CROSS_VALIDATED = {"quick_thought", "knn", "knn_weighted"}


@distributed.isolated()
def sentence_probe(
    x,
    y,
    *,
    num_classes: int,
    seed: int = 0,
    folds: int = 10,
    inner_folds: int = 10,
    strengths: Sequence[float] = STRENGTHS,
    devices: Sequence[jax.Device] | None = None,
) -> dict[str, Any]:
    r"""Return the accuracy of logistic regression by nested cross-validation.

    Each of the stratified outer folds is the test part once. Cross-validation on the other folds
    chooses the strength of the penalty, the largest of equals, for a last fit on all of them. A fit
    minimizes

        sum of the cross-entropies + strength / 2 |w|^2    (the bias is not penalized)

    on the features as they are, like scikit-learn's `LogisticRegression` with C = 1 / strength.

    Args:
      x: features `[n, d]`.
      y: labels `[n]`.
      num_classes: number of classes.
      seed: seed of the folds and of the bootstrap.
      folds: outer folds.
      inner_folds: folds of each training part.
      strengths: penalties to choose from, > 0.
      devices: devices of this process that share the rows. Defaults to JAX's first.

    Returns:
      The entries of `classification_scores` over all rows, and the choices. `chosen` is the median,
      `n_train` the minimum and `fold_top1` the mean over the outer folds. `top1_standard_error`
      comes from the spread of the outer folds.

    Raises:
      UserError: for invalid features, labels or options.
    """
    x, y, *_ = check_splits(x, y, None, None, num_classes)
    strengths = penalties("strengths", strengths)
    classes, ids = np.unique(y, return_inverse=True)
    outer = validation_folds(ids, folds, seed)
    options = {"num_classes": len(classes), "devices": devices}
    problem = logistic.place(x, ids, fits=len(strengths), **options)
    n_train = len(y) - np.bincount(outer)
    ranked = np.empty((len(y), min(problem.num_classes, 5)), np.int32)  # best classes of each row
    top1 = []
    chosen = []
    fits = []
    for fold in range(folds):
        top1.append(_inner_top1(problem, ids, outer != fold, strengths, inner_folds, seed))
        chosen.append(strengths[best_cell(top1[-1])])
        penalty = _penalty(problem, chosen[-1:], n_train[fold])
        fit = logistic.fit_logistic(problem, outer != fold, penalty)
        fits.append(fit)
        classifier = Classifier(*(leaf[0] for leaf in fit.classifiers))
        rows = np.flatnonzero(outer == fold)
        part = SelectedRows(x, rows)
        best = top_classes(classifier, part, ranked.shape[1], problem.scaling.apply)
        ranked[rows] = classes[best]
    limits = logistic.limit(_penalty(problem, chosen, n_train))
    gradient_norms = np.concatenate([fit.gradient_norm for fit in fits])
    by_fold = [100 * float(np.mean((ranked[:, 0] == y)[outer == fold])) for fold in range(folds)]
    return {
        "protocol": "quick_thought",
        **classification_scores(ranked, y, num_classes=num_classes, seed=seed),
        "n": len(y),
        "n_train": int(n_train.min()),
        "d": x.shape[1],
        "num_classes": num_classes,
        **_describe_choices(chosen, strengths, top1),
        "top1_by_fold": by_fold,
        "top1_standard_error": float(np.std(by_fold, ddof=1) / math.sqrt(folds)),
        "folds": folds,
        "inner_folds": inner_folds,
        "seed": seed,
        "converged": bool((gradient_norms <= limits).all()),
    }


def _inner_top1(
    problem: logistic.Problem,
    ids: np.ndarray,
    is_training: np.ndarray,
    strengths: Sequence[float],
    folds: int,
    seed: int,
) -> np.ndarray:
    """Return accuracies on the inner folds of a training part `[folds, strengths]`."""
    inner = validation_folds(ids[is_training], folds, seed, "inner_folds")
    fold_of_row = np.full(len(ids), -1, np.int32)
    fold_of_row[is_training] = inner
    fitted_rows = is_training.sum() - np.bincount(inner)
    penalty = _penalty(problem, [strengths], fitted_rows[:, None])
    top1, _ = logistic.cross_validate(problem, fold_of_row, penalty)
    return top1


def _penalty(problem: logistic.Problem, strengths: Any, rows: np.ndarray) -> np.ndarray:
    """Convert strengths for sums to penalties for means over rows of scaled features."""
    vectors = 2 if problem.num_classes == 2 else 1  # scikit-learn has one vector for two classes
    return np.asarray(strengths) / (rows * problem.scaling.scale**2) * vectors


def _describe_choices(
    chosen: Sequence[float], strengths: Sequence[float], top1: Sequence[np.ndarray]
) -> dict[str, Any]:
    median = sorted(chosen)[len(chosen) // 2]
    best = [
        inner[:, strengths.index(strength)] for inner, strength in zip(top1, chosen, strict=True)
    ]
    cells = [{"strength": strength} for strength in strengths]
    return {
        "chosen": {"strength": median},
        "chosen_by_fold": list(chosen),
        "chosen_at_edge": len(strengths) > 1 and median in (strengths[0], strengths[-1]),
        "valid_top1": float(np.mean(best)),
        "grid": grid_rows(cells, np.mean(top1, axis=1)),
    }


def probe_tasks(folder: Path, config: ProbeConfig) -> dict[str, Dataset]:
    """Load the labelled sentences that a config names, in the vocabulary of a run.

    Returns:
      The data of each task, by the last part of its path.

    Raises:
      UserError: for no task, tasks of equal names, or a protocol that needs a test split.
    """
    advice = "name labelled sentences with data=, such as mr with data_dir="
    require(bool(config.data), f"{folder} is a run of sentences: {advice}")
    vocabulary = run_vocabulary(folder)
    data_dir = Path(config.data_dir) if config.data_dir else None
    tasks = {Path(name).name: load_labelled(name, data_dir, vocabulary) for name in config.data}
    require(len(tasks) == len(config.data), "data=: two tasks have the same name")
    is_usable = set(config.protocols) <= CROSS_VALIDATED
    require(is_usable, "labelled sentences have no test split: use protocols=quick_thought or knn")
    return tasks
