"""What encoders of sentences are worth: the probe and the metrics of Quick-Thought Vectors.

Both as in Wang & Isola, B.3, which follows Kiros et al. (2015) and Logeswaran & Lee (2018).
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from hypersphere_jax.config import require
from hypersphere_jax.evaluate import logistic, metrics
from hypersphere_jax.evaluate.checks import as_float32, check_features, check_splits, row_blocks
from hypersphere_jax.evaluate.feature_files import TOLERANCE
from hypersphere_jax.evaluate.linear import Clock
from hypersphere_jax.evaluate.scores import Classifier, scores, top_classes
from hypersphere_jax.evaluate.selection import best_cell, penalties, validation_folds

STRENGTHS = tuple(2.0**-k for k in range(9))
UNIT = 50  # consecutive sentences that make a unit of the standard error of alignment
READ = 2**22  # numbers of the features that are read at a time


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
    cross-validation on the training part, of equals the largest. The classifier is fitted again on
    the whole training part and measured once on the held-out part. Tasks without a split of their
    own are cut into folds, and each is the held-out part once, with a choice of its own (nested
    cross-validation).

    A fit minimizes

        sum of the cross-entropies of its rows + strength / 2 |w|^2    (the bias is not penalized)

    on features as they are, the objective of scikit-learn's `LogisticRegression` at
    C = 1 / strength: for two classes w is one vector `[d]`, for more a matrix `[classes, d]`.

    Args:
      train_x: `[n_train, d]` features of any real dtype, an array or a memory map, unit norm in the
        papers. One float32 copy is made on the devices.
      train_y: `[n_train]` integers below `num_classes`, of at least two classes.
      test_x: `[n, d]` features of the held-out part. None: the training rows are cut into folds.
      test_y: `[n]` integers below `num_classes`, or None as `test_x` is.
      num_classes: number of classes.
      seed: of the folds and of the bootstrap.
      folds: outer ones, stratified; without `test_x` only.
      inner_folds: stratified, of each training part.
      strengths: to choose from, > 0; the papers' by default, 1 to 2^-8.
      devices: of this process, which share the rows. None: JAX's first.

    Returns:
      What a JSON file can hold: that of `scores` over all tested rows, and the protocol. Without a
      split, `chosen` is the median over the outer folds, `n_train` the smallest training part, and
      `fold_top1` in `grid` the mean over the inner folds, one an outer fold; `top1_standard_error`
      is from the spread of the outer folds, whose training parts overlap, so that it is a rough
      one, and with a split binomial. `steps` is the most that one of the last fits took.

    Raises:
      UserError: for features, labels or options that do not fit.
    """
    clock = Clock()
    nested = test_x is None
    require(nested == (test_y is None), "test features and test labels: give both or neither")
    train_x, train_y, test_x, test_y = check_splits(train_x, train_y, test_x, test_y, num_classes)
    strengths = penalties("strengths", strengths)
    # Only these are fitted; labels are places among them from here on.
    seen, y = np.unique(train_y, return_inverse=True)
    outer, rounds = np.zeros(len(y), np.int32), [logistic.NONE]
    if nested:
        outer, rounds = validation_folds(y, folds, seed), list(range(folds))
    training = [outer != fold for fold in rounds]  # rows of each training part
    inner = [validation_folds(y[rows], inner_folds, seed, "inner_folds") for rows in training]
    clock.lap("check")

    # The scaling of all rows, tested ones included, is only in what units the fits compute: `l2_of`
    # makes up for it, and the minimum is that of the features as they are.
    scaling, jobs = logistic.scaling(train_x), inner_folds * len(strengths)
    problem = logistic.place(train_x, y, scaling, num_classes=len(seen), jobs=jobs, devices=devices)
    clock.lap("place")

    def l2_of(strengths, rows):
        """As `logistic` means it: of the mean over a fit's rows, and of scaled features.

        With two classes it counts w / 2 and -w / 2, which have half the squared norm of w.
        """
        return np.asarray(strengths) / (rows * scaling.scale**2) * (2 if len(seen) == 2 else 1)

    valid = []  # accuracies [inner folds, strengths] of each round
    for rows, folds_of_rows in zip(training, inner, strict=True):
        part = np.full(len(y), logistic.PADDING, np.int32)
        part[rows] = folds_of_rows
        fitted = rows.sum() - np.bincount(folds_of_rows)
        l2s = l2_of([strengths], fitted[:, None])
        valid.append(logistic.cross_validate(problem, part, l2s)[0])
    best = [best_cell(accuracies) for accuracies in valid]
    chosen = [strengths[cell] for cell in best]
    clock.lap("select")
    sizes = np.array([rows.sum() for rows in training])
    l2s = l2_of(chosen, sizes)
    last = logistic.fit_logistic(problem, outer, l2s, rounds)
    clock.lap("refit")

    tested = [(slice(None), test_x)]
    if nested:
        held_out = [np.flatnonzero(~rows) for rows in training]
        tested, test_y = [(rows, metrics.Rows(train_x, rows)) for rows in held_out], train_y
    ranked = np.empty((len(test_y), min(len(seen), 5)), np.int32)
    for (rows, x), *leaves in zip(tested, *last.classifiers, strict=True):
        classifier = Classifier(*leaves)
        ranked[rows] = seen[top_classes(classifier, x, ranked.shape[1], scaling.apply)]
    right = ranked[:, 0] == test_y
    by_fold = [100 * float(right[rows].mean()) for rows, _ in tested]
    if nested:
        error = np.std(by_fold, ddof=1) / math.sqrt(folds)
        fold_top1 = np.mean(valid, axis=1)
    else:
        error = 100 * math.sqrt(right.mean() * (1 - right.mean()) / len(right))
        fold_top1 = valid[0]
    result = scores(ranked, test_y, num_classes=num_classes, seed=seed)
    middle = sorted(chosen)[len(chosen) // 2]
    clock.lap("score")
    return {
        "protocol": "quick_thought",
        **result,
        "n": len(right),
        "n_train": int(sizes.min()),
        "d": train_x.shape[1],
        "num_classes": num_classes,
        "chosen": {"strength": middle},
        "chosen_by_fold": chosen if nested else None,
        "chosen_at_edge": len(strengths) > 1 and middle in (strengths[0], strengths[-1]),
        "valid_top1": float(np.mean([of[:, cell] for of, cell in zip(valid, best, strict=True)])),
        "top1_by_fold": by_fold if nested else None,
        "top1_standard_error": float(error),
        "grid": [
            {"strength": strength, "valid_top1": float(column.mean()), "fold_top1": column.tolist()}
            for strength, column in zip(strengths, fold_top1.T, strict=True)
        ],
        "folds": folds if nested else None,
        "inner_folds": inner_folds,
        "seed": seed,
        "steps": int(last.steps.max()),
        "converged": bool((last.gradient_norm <= logistic.limit(l2s)).all()),
        "seconds": clock.seconds,
    }


def neighbour_metrics(
    f,
    g,
    documents,
    alpha: float = 2.0,
    t: float = 2.0,
    *,
    devices: Sequence[jax.Device] | None = None,
) -> dict[str, Any]:
    r"""Alignment and uniformity of two encoders of sentences, on whole documents.

    The metrics of Wang & Isola, B.3, of held-out text in place of a minibatch:

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
      What a JSON file can hold, None where a standard error is not known. Neighbours share pairs
      and sentences; `align_standard_error` takes as independent units pieces of about 50
      consecutive sentences of one document, or a whole shorter one: it is the error of a ratio of
      sums over units (Cochran, Sampling Techniques, 2.11). Those of `uniform_f` and `uniform_g` are
      for sentences drawn one by one, rather too small; of their sum, the largest that it can be.
      `pairs` counts (i, j).

    Raises:
      UserError: for features that do not fit together, are not finite or have no unit norm, no
        neighbours at all, alpha or t that is not positive.
    """
    f, g = check_features("f", f), check_features("g", g)
    require(f.shape == g.shape, f"f and g: must have one shape, got {f.shape} and {g.shape}")
    for name, x in (("f", f), ("g", g)):
        _check_unit(name, x)
    for name, value in (("alpha", alpha), ("t", t)):
        require(0 < value < math.inf, f"{name} = {value}: must be finite and positive")
    n, d = f.shape
    documents = np.asarray(documents)
    require(documents[0] == 0 and documents[-1] == n, f"documents: must go from 0 to {n}")
    joined = np.ones(n - 1, bool)  # sentence i and the next one are of one document
    joined[documents[1:-1] - 1] = False
    require(joined.any(), "documents: all are of one sentence, none has a neighbour")

    sums, neighbours = np.zeros(n), np.zeros(n)
    ahead = metrics.distance_powers(f[:-1], g[1:], alpha)
    behind = metrics.distance_powers(f[1:], g[:-1], alpha)
    for side, powers in ((slice(None, -1), ahead), (slice(1, None), behind)):
        sums[side] += np.where(joined, powers, 0.0)
        neighbours[side] += joined
    has_any = neighbours > 0
    align = _mean_of_units(sums[has_any] / neighbours[has_any], _units(documents)[has_any])
    uniform_f, uniform_g = (metrics.uniformity(x, t, devices=devices) for x in (f, g))
    both = metrics.Estimate(*(sum(pair) for pair in zip(uniform_f, uniform_g, strict=True)))
    result = {
        **_reported("align", align),
        "align_alpha": alpha,
        **_reported("uniform", both),
        **_reported("uniform_f", uniform_f),
        **_reported("uniform_g", uniform_g),
        "uniform_t": t,
        "n": n,
        "d": d,
        "pairs": 2 * int(joined.sum()),
        "documents": len(documents) - 1,
    }
    return {key: None if value != value else value for key, value in result.items()}


def _reported(name: str, found: metrics.Estimate) -> dict[str, float]:
    return {name: found.value, f"{name}_standard_error": found.standard_error}


def _check_unit(name: str, x) -> None:
    for rows in row_blocks(*x.shape, READ):
        norms = np.linalg.norm(as_float32(x[rows]), axis=1)
        worst = norms[np.argmax(np.abs(norms - 1))]
        require(abs(worst - 1) <= TOLERANCE, f"{name} features: a norm is {worst:.4g}, must be 1")


def _units(documents: np.ndarray) -> np.ndarray:
    """Which unit each sentence belongs to, `[n]`: documents in equal pieces of about `UNIT`."""
    lengths = np.diff(documents)
    pieces = np.maximum(1, np.round(lengths / UNIT).astype(np.int64))
    place = np.arange(documents[-1]) - np.repeat(documents[:-1], lengths)
    first = np.cumsum(pieces) - pieces
    lengths_of, pieces_of, first_of = (np.repeat(a, lengths) for a in (lengths, pieces, first))
    return first_of + place * pieces_of // lengths_of


def _mean_of_units(values: np.ndarray, units: np.ndarray) -> metrics.Estimate:
    """The mean of values `[n]`, with the error of one whose units `[n]` are independent."""
    mean = values.mean()
    _, unit = np.unique(units, return_inverse=True)
    excesses = np.bincount(unit, values - mean)
    count = len(excesses)
    if count < 2:
        return metrics.Estimate(float(mean), math.nan)
    error = math.sqrt(count / (count - 1) * np.sum(excesses**2)) / len(values)
    return metrics.Estimate(float(mean), error)
