"""The probe and the metrics of Quick-Thought Vectors, for encoders of sentences.

Both are as in Wang & Isola, B.3, which follows Kiros et al. (2015) and Logeswaran & Lee (2018).
"""

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hypersphere_jax import data
from hypersphere_jax.configs import require
from hypersphere_jax.evaluate import logistic, metrics
from hypersphere_jax.evaluate.checks import check_features, check_splits, check_unit_norm
from hypersphere_jax.evaluate.features import split_features
from hypersphere_jax.evaluate.linear import Clock
from hypersphere_jax.evaluate.rows import SelectedRows
from hypersphere_jax.evaluate.scores import Classifier, classification_scores, top_classes
from hypersphere_jax.evaluate.selection import best_cell, grid_rows, penalties, validation_folds
from hypersphere_jax.theory import uniformity_lower_bound, uniformity_optimum
from hypersphere_jax.training import distributed, run_dir

STRENGTHS = tuple(2.0**-k for k in range(9))
UNIT = 50  # consecutive sentences that make a unit of the standard error of alignment


@distributed.isolated()
def sentence_probe(
    train_x,
    train_y,
    test_x=None,
    test_y=None,
    *,
    num_classes: int,
    seed: int = 0,
    folds: int = 10,
    inner_folds: int = 10,
    strengths: Sequence[float] = STRENGTHS,
    devices: Sequence[jax.Device] | None = None,
) -> dict[str, Any]:
    """Accuracy of a logistic classifier of sentences, its regularization cross-validated.

    The protocol of the tasks MR and CR: the strength of an L2 penalty is chosen by
    cross-validation on the training part, of equals the largest; the classifier is fitted again on
    the whole training part and measured once on the held-out part. Tasks without a split of their
    own are cut into folds, and each is the held-out part once, with a choice of its own (nested
    cross-validation). A fit minimizes

        sum of the cross-entropies of its rows + strength / 2 |w|^2    (the bias is not penalized)

    on features as they are, the objective of scikit-learn's `LogisticRegression` at
    C = 1 / strength: for two classes w is one vector `[d]`, for more a matrix `[classes, d]`.

    Features and labels are as for `linear_probe`, of unit norm in the papers.

    Args:
      train_x: `[n_train, d]` features.
      train_y: `[n_train]` labels.
      test_x: `[n, d]` features of the held-out part. None: the training rows are cut into folds.
      test_y: `[n]` labels, or None.
      num_classes: number of classes.
      seed: of the folds and of the bootstrap.
      folds: outer ones, stratified; without `test_x` only.
      inner_folds: stratified, of each training part.
      strengths: to choose from, > 0.
      devices: of this process, which share the rows. None: JAX's first.

    Returns:
      What a JSON file can hold: that of `scores` over all tested rows, and the protocol. Without a
      split, `chosen` is the median over the outer folds, `n_train` the smallest training part, and
      `fold_top1` in `grid` the mean over the inner folds, one an outer fold; `top1_standard_error`
      is a rough one, from the spread of the outer folds; with a split it is binomial.

    Raises:
      UserError: for features, labels or options that do not fit.
    """
    clock, nested = Clock(), test_x is None
    require(nested == (test_y is None), "test features and test labels: give both or neither")
    train_x, train_y, test_x, test_y, *_ = check_splits(
        train_x, train_y, test_x, test_y, num_classes
    )
    strengths = penalties("strengths", strengths)
    # Only these are fitted; labels are places among them from here on.
    classes, y = np.unique(train_y, return_inverse=True)
    outer, held_out = np.zeros(len(y), np.int32), [-1]
    if nested:
        outer, held_out = validation_folds(y, folds, seed), list(range(folds))
    training = [outer != fold for fold in held_out]  # rows of each training part
    clock.lap("check")

    # Of all rows, tested ones included, but only a unit: `l2_of` makes up for it.
    options = {"num_classes": len(classes), "fits": len(strengths), "devices": devices}
    problem = logistic.place(train_x, y, **options)
    scaling = problem.scaling
    clock.lap("place")

    def l2_of(strengths, rows):
        """Of the mean over a fit's rows of scaled features; two classes share a vector w."""
        return np.asarray(strengths) / (rows * scaling.scale**2) * (2 if len(classes) == 2 else 1)

    valid_top1, chosen, chosen_top1 = [], [], []  # of each training part
    for rows in training:
        inner = validation_folds(y[rows], inner_folds, seed, "inner_folds")
        part = np.full(len(y), -1, np.int32)
        part[rows] = inner
        fitted = rows.sum() - np.bincount(inner)
        top1, _ = logistic.cross_validate(problem, part, l2_of([strengths], fitted[:, None]))
        best = best_cell(top1)
        valid_top1.append(top1)
        chosen.append(strengths[best])
        chosen_top1.append(top1[:, best])
    clock.lap("select")
    sizes = np.array([rows.sum() for rows in training])
    l2s = l2_of(chosen, sizes)
    fits = [logistic.fit_logistic(problem, r, [l2]) for r, l2 in zip(training, l2s, strict=True)]
    last = jax.tree.map(lambda *leaves: np.concatenate(leaves), *fits)
    clock.lap("refit")

    x, y = (train_x, train_y) if nested else (test_x, test_y)
    tested = [np.flatnonzero(~rows) for rows in training] if nested else [np.arange(len(y))]
    ranked = np.empty((len(y), min(len(classes), 5)), np.int32)
    for rows, *leaves in zip(tested, *last.classifiers, strict=True):
        part = SelectedRows(x, rows)
        top = top_classes(Classifier(*leaves), part, ranked.shape[1], scaling.apply)
        ranked[rows] = classes[top]
    right = ranked[:, 0] == y
    top1_by_fold = [100 * float(right[rows].mean()) for rows in tested]
    error = 100 * math.sqrt(right.mean() * (1 - right.mean()) / len(right))
    if nested:
        error = np.std(top1_by_fold, ddof=1) / math.sqrt(folds)
    fold_top1 = np.mean(valid_top1, axis=1) if nested else valid_top1[0]
    result = classification_scores(ranked, y, num_classes=num_classes, seed=seed)
    median = sorted(chosen)[len(chosen) // 2]
    clock.lap("score")
    return {
        "protocol": "quick_thought",
        **result,
        "n": len(right),
        "n_train": int(sizes.min()),
        "d": train_x.shape[1],
        "num_classes": num_classes,
        "chosen": {"strength": median},
        "chosen_by_fold": chosen if nested else None,
        "chosen_at_edge": len(strengths) > 1 and median in (strengths[0], strengths[-1]),
        "valid_top1": float(np.mean(chosen_top1)),
        "top1_by_fold": top1_by_fold if nested else None,
        "top1_standard_error": float(error),
        "grid": grid_rows([{"strength": strength} for strength in strengths], fold_top1),
        "folds": folds if nested else None,
        "inner_folds": inner_folds,
        "seed": seed,
        "steps": int(last.steps.max()),
        "converged": bool((last.gradient_norm <= logistic.limit(l2s)).all()),
        "seconds": clock.seconds,
    }


def neighbour_metrics(
    f, g, documents, alpha: float = 2.0, t: float = 2.0, *, devices: Sequence | None = None
) -> dict[str, Any]:
    r"""Alignment and uniformity of two encoders of sentences, on whole documents.

    The metrics of Wang & Isola, B.3:

    .. math::
        \text{align} = \frac{1}{K} \sum_i \sum_{j = i \pm 1} w_{ij} \|f_i - g_j\|_2^\alpha
        \qquad \text{uniform} = \mathcal{L}_{uniform}(f; t) + \mathcal{L}_{uniform}(g; t)

    The neighbours of a sentence are those of its document, with weight 1/2 each, or 1 where there
    is one; K counts the sentences that have a neighbour. On one document these are
    `quick_thought_align_loss` and `quick_thought_uniform_loss`.

    Args:
      f: `[n, d]` unit features of n consecutive sentences by one encoder: an array or memory map.
      g: `[n, d]` unit features of the same sentences by the other encoder.
      documents: integers `[k + 1]`: the first sentence of each of k documents, then n.
      alpha: power of the distance, > 0.
      t: scale of the potential, > 0.
      devices: which share the pairs of uniformity. None: one.

    Returns:
      What a JSON file can hold, None where a standard error is not known. `align_standard_error`
      is that of a ratio of sums over units (Cochran, Sampling Techniques, 2.11): about 50
      consecutive sentences of one document each, or a whole shorter one. Those of `uniform_f` and
      `uniform_g` are for independent sentences, rather too small; that of their sum is the largest
      possible. `pairs` counts (i, j).

    Raises:
      UserError: for features or options that do not fit, or no neighbours at all.
    """
    f, g = check_features("f", f), check_features("g", g)
    require(f.shape == g.shape, f"f and g: must have one shape, got {f.shape} and {g.shape}")
    for name, x in (("f", f), ("g", g)):
        check_unit_norm(name, x)
    for name, value in (("alpha", alpha), ("t", t)):
        require(0 < value < math.inf, f"{name} = {value}: must be finite and positive")
    n, d = f.shape
    documents = np.asarray(documents)
    require(documents[0] == 0 and documents[-1] == n, f"documents: must go from 0 to {n}")
    joined = np.ones(n - 1, bool)  # sentence i and the next one are of one document
    joined[documents[1:-1] - 1] = False
    require(joined.any(), "documents: all are of one sentence, none has a neighbour")

    sums, neighbours, ahead, behind = np.zeros(n), np.zeros(n), slice(1, None), slice(None, -1)
    for one, other in ((behind, ahead), (ahead, behind)):
        sums[one] += np.where(joined, metrics.distance_powers(f[one], g[other], alpha), 0.0)
        neighbours[one] += joined
    has_any = neighbours > 0
    align = _mean_of_units(sums[has_any] / neighbours[has_any], _units(documents)[has_any])
    uniform_f, uniform_g = (metrics.uniformity(x, t, devices=devices) for x in (f, g))
    both = metrics.Estimate(*(sum(pair) for pair in zip(uniform_f, uniform_g, strict=True)))
    result = {
        **metrics.entries("align", align),
        "align_alpha": alpha,
        **metrics.entries("uniform", both),
        **metrics.entries("uniform_f", uniform_f),
        **metrics.entries("uniform_g", uniform_g),
        "uniform_t": t,
        "n": n,
        "d": d,
        "pairs": 2 * int(joined.sum()),
        "documents": len(documents) - 1,
    }
    return metrics.jsonable(result)


def _units(documents: np.ndarray) -> np.ndarray:
    """Which unit each sentence belongs to, `[n]`: documents in equal pieces of about `UNIT`."""
    units = []
    for length in np.diff(documents):
        pieces = max(1, round(length / UNIT))
        first = units[-1][-1] + 1 if units else 0
        units.append(first + np.arange(length) * pieces // length)
    return np.concatenate(units)


def _mean_of_units(values: np.ndarray, units: np.ndarray) -> metrics.Estimate:
    """The mean of values `[n]`, with the error of one whose units `[n]` are independent."""
    mean = float(values.mean())
    excesses = np.bincount(np.unique(units, return_inverse=True)[1], values - mean)
    count, error = len(excesses), math.nan
    if count > 1:
        error = math.sqrt(count / (count - 1) * np.sum(excesses**2)) / len(values)
    return metrics.Estimate(mean, error)


def neighbour_inputs(encoder, corpus, devices):
    """Return features of f, features of f and g for all pairs of neighbours, and their summary."""
    features = split_features(encoder, corpus, ["f", "g"], devices).features
    f, g = (check_features(name, features[name].x) for name in ("f", "g"))
    ends = corpus.documents[1:-1] - 1  # whose next sentence is another document's
    before = np.setdiff1d(np.arange(len(f) - 1), ends)
    one, other = np.concatenate([before, before + 1]), np.concatenate([before + 1, before])
    pairs = (SelectedRows(f, one), SelectedRows(g, other))
    return f, pairs, functools.partial(_summary, f, g, corpus.documents)


def _summary(f, g, documents, alpha, t, devices):
    values = neighbour_metrics(f, g, documents, alpha, t, devices=devices)
    n, d = f.shape
    optimum, bound = uniformity_optimum(d, t), uniformity_lower_bound(d, t, n)
    return values | {"uniform_optimum": 2 * optimum, "uniform_lower_bound": 2 * bound}


def probe_tasks(folder, config):
    """Return the labelled sentences that a config names, by the last part of their names."""
    require(bool(config.data), f"{folder} is of sentences: name labelled ones with data=")
    vocabulary = run_dir.read_vocabulary(folder)
    where = None if config.data_dir is None else Path(config.data_dir).expanduser()
    tasks = {Path(task).name: data.load_labelled(task, where, vocabulary) for task in config.data}
    require(len(tasks) == len(config.data), "data=: two of these have the same name")
    without_test = [task for task, dataset in tasks.items() if dataset.test is None]
    usable = not without_test or set(config.protocols) <= {"quick_thought", "knn", "knn_weighted"}
    needed = "no test split; take protocols=quick_thought knn"
    require(usable, f"{', '.join(without_test)}: {needed}")
    return tasks
