"""What encoders of sentences are worth: the probe and the metrics of Quick-Thought Vectors.

Both as in Wang & Isola, B.3, which follows Kiros et al. (2015) and Logeswaran & Lee (2018).
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from hypersphere_jax.config import UserError, require
from hypersphere_jax.evaluate import logistic, metrics
from hypersphere_jax.evaluate.checks import (
    as_float32,
    check_features,
    check_labels,
    check_same_dim,
    row_blocks,
)
from hypersphere_jax.evaluate.classifier import Classifier
from hypersphere_jax.evaluate.feature_files import TOLERANCE
from hypersphere_jax.evaluate.linear import AT_ONCE, SMALL, Clock
from hypersphere_jax.evaluate.scores import scores, top_classes
from hypersphere_jax.evaluate.selection import best_cell, stratified_folds

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

    The protocol of the tasks MR and CR (Kiros et al., 2015; Logeswaran & Lee, 2018; Wang & Isola,
    B.3): the strength of an L2 penalty is chosen by cross-validation on the training part, as the
    one with the best mean accuracy over the inner folds, of equals the largest. The classifier is
    fitted again on the whole training part and measured once on the held-out part. Tasks without a
    split of their own are cut into folds, and each is the held-out part once, with a choice of its
    own (nested cross-validation): each row is tested exactly once.

    A fit minimizes

        sum of the cross-entropies of its rows + strength / 2 |w|^2    (the bias is not penalized)

    on features as they are, the objective of scikit-learn's `LogisticRegression` at
    C = 1 / strength: for two classes w is one vector `[d]`, for more a matrix `[classes, d]`. How
    the strength compares with the losses depends on the number of rows, in each fit on its own.

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
      devices: of this host, which share the rows. None: JAX's first.

    Returns:
      What a JSON file can hold: that of `scores` over all tested rows; the protocol
      "quick_thought"; `n`, the tested rows; `n_train`, the rows of the training part, of several
      the smallest; `d`, `num_classes`, `seed`, `folds` (None with a split), `inner_folds`;
      `chosen`, of several the median (of an even number the larger of the two in the middle), and
      then `chosen_by_fold`; `valid_top1`, the mean accuracy over the inner folds of what was
      chosen, and over the outer ones; `grid`, for each strength its `valid_top1` and `fold_top1`,
      which is one an inner fold with a split, and else the mean over these, one an outer fold;
      `chosen_at_edge` if `chosen` is the smallest or largest of several strengths; `top1_by_fold`
      (None with a split); `top1_standard_error`, from the spread of the outer folds, whose training
      parts overlap, so that it is a rough one, or with a split the binomial one; `steps`, the most
      that one of the last fits took, and `converged` if the gradients of these are at most their
      `logistic.limit`; `seconds` of each part.

    Raises:
      UserError: for features, labels or options that do not fit.
    """
    clock = Clock()
    nested = test_x is None
    require(nested == (test_y is None), "test features and test labels: give both or neither")
    train_x = check_features("train", train_x)
    train_y = check_labels("train", train_y, len(train_x), num_classes)
    if not nested:
        test_x = check_features("test", test_x)
        check_same_dim("train", train_x, "test", test_x)
        test_y = check_labels("test", test_y, len(test_x), num_classes)
    strengths = _checked_strengths(strengths)
    # Only these are fitted; labels are places among them from here on.
    seen, y = np.unique(train_y, return_inverse=True)
    require(len(seen) > 1, f"train labels: only class {seen[0]}, two are needed")
    outer, rounds = np.zeros(len(y), np.int32), [logistic.NONE]
    if nested:
        outer, rounds = stratified_folds(y, folds, seed), list(range(folds))
    n_train = min(int((outer != fold).sum()) for fold in rounds)
    require(
        2 <= inner_folds <= n_train,
        f"inner_folds = {inner_folds}: must be 2 to {n_train}, the samples of a training part",
    )
    clock.lap("check")

    training = _place(train_x, y, len(seen), inner_folds * len(strengths), devices)
    clock.lap("place")
    # Accuracies [inner folds, strengths] of each round.
    valid = [
        _cross_validate(training, outer != fold, strengths, inner_folds, seed) for fold in rounds
    ]
    best = [best_cell(accuracies) for accuracies in valid]
    chosen = [strengths[cell] for cell in best]
    clock.lap("select")
    last, l2s = _fit(training, outer, rounds, chosen)
    clock.lap("refit")

    tested = [(slice(None), test_x)]
    if nested:
        rows_of = [np.flatnonzero(outer == fold) for fold in rounds]
        tested, test_y = [(rows, metrics.Rows(train_x, rows)) for rows in rows_of], train_y
    ranked = np.empty((len(test_y), min(len(seen), 5)), np.int32)
    for (rows, x), *leaves in zip(tested, *last.classifiers, strict=True):
        classifier = Classifier(*leaves)
        ranked[rows] = seen[top_classes(classifier, x, ranked.shape[1], training.scaling.apply)]
    right = ranked[:, 0] == test_y
    by_fold = [100 * float(right[rows].mean()) for rows, _ in tested]
    if nested:
        error = np.std(by_fold, ddof=1) / math.sqrt(folds)
        fold_top1 = np.mean(valid, axis=1)
    else:
        error = 100 * math.sqrt(right.mean() * (1 - right.mean()) / len(right))
        fold_top1 = valid[0]
    found = scores(ranked, test_y, num_classes=num_classes, seed=seed)
    middle = sorted(chosen)[len(chosen) // 2]
    clock.lap("score")
    return {
        "protocol": "quick_thought",
        **found,
        "n": len(right),
        "n_train": n_train,
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
    `quick_thought_align_loss` and `quick_thought_uniform_loss`, which say where they differ from
    the printed sums (in the weights, and in the logs of the potentials).

    Features are read in chunks of rows: memory holds a few numbers a sentence beside these. Time
    grows with n^2.

    Args:
      f: `[n, d]` unit features of n consecutive sentences by one encoder: an array or memory map.
      g: `[n, d]` unit features of the same sentences by the other encoder.
      documents: integers `[k + 1]`: the first sentence of each of k documents, then n.
      alpha: power of the distance, > 0.
      t: scale of the potential, > 0.
      devices: which share the pairs of uniformity. None: one.

    Returns:
      What a JSON file can hold, None where a standard error is not known:
      align: with `align_standard_error`. Neighbours share pairs and subjects; the units that are
        taken as independent are pieces of about 50 consecutive sentences of one document, or a
        whole shorter one, and the error is that of a ratio of sums over units (Cochran, Sampling
        Techniques, 2.11).
      uniform_f, uniform_g: with their standard errors, for sentences drawn one by one: those of one
        document are more alike, so that they are rather too small.
      uniform: the sum. Both encoders read the same sentences, and how their errors go together is
        not estimated: its standard error is the sum of both, which is the largest that it can be.
      n, d: of the features.
      pairs: how many (i, j); and documents.

    Raises:
      UserError: for features that do not fit together, are not finite or have no unit norm,
        documents that are not in order, no neighbours at all, alpha or t that is not positive.
    """
    f, g = check_features("f", f), check_features("g", g)
    require(f.shape == g.shape, f"f and g: must have one shape, got {f.shape} and {g.shape}")
    for name, x in (("f", f), ("g", g)):
        _check_unit(name, x)
    for name, value in (("alpha", alpha), ("t", t)):
        require(0 < value < math.inf, f"{name} = {value}: must be finite and positive")
    n, d = f.shape
    documents = _checked_documents(documents, n)
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
    result = {
        "align": align.value,
        "align_standard_error": align.standard_error,
        "align_alpha": alpha,
        "uniform": uniform_f.value + uniform_g.value,
        "uniform_standard_error": uniform_f.standard_error + uniform_g.standard_error,
        "uniform_f": uniform_f.value,
        "uniform_f_standard_error": uniform_f.standard_error,
        "uniform_g": uniform_g.value,
        "uniform_g_standard_error": uniform_g.standard_error,
        "uniform_t": t,
        "n": n,
        "d": d,
        "pairs": 2 * int(joined.sum()),
        "documents": len(documents) - 1,
    }
    return {key: None if value != value else value for key, value in result.items()}


class _Training(NamedTuple):
    """Rows that all fits of a probe share."""

    problem: logistic.Problem
    scaling: logistic.Scaling
    y: np.ndarray
    fits: int  # that are made at once


def _checked_strengths(strengths: Sequence[float]) -> list[float]:
    """The largest first: of equals the first is chosen."""
    try:
        values = sorted({float(strength) for strength in strengths}, reverse=True)
    except (TypeError, ValueError):
        raise UserError(f"strengths {strengths}: must be positive numbers") from None
    require(len(values) > 0, "strengths: give at least one")
    usable = all(0 < value < math.inf for value in values)
    require(usable, f"strengths {values}: must be positive numbers")
    return values


def _place(x, y, num_classes: int, jobs: int, devices) -> _Training:
    # The scaling of all rows, tested ones included, is only in what units the fits compute: `_fit`
    # makes up for it, and the minimum is that of the features as they are.
    scaling = logistic.scaling(x)
    fits = min(jobs, max(1, AT_ONCE // (num_classes * x.shape[1])))
    part = np.zeros(len(y), np.int32)
    problem = logistic.place(
        x, y, part, scaling, num_classes=num_classes, fits=fits, devices=devices
    )
    return _Training(problem, scaling, y, fits)


def _cross_validate(
    training: _Training, fitted: np.ndarray, strengths: list[float], inner_folds: int, seed: int
) -> np.ndarray:
    """Accuracies in percent `[inner folds, strengths]`, of the rows where `fitted [n]` alone."""
    part = np.full(len(fitted), logistic.PADDING, np.int32)
    part[fitted] = stratified_folds(training.y[fitted], inner_folds, seed)
    held_out = np.repeat(np.arange(inner_folds), len(strengths))
    each = np.tile(strengths, inner_folds)
    right = []
    for group in np.split(np.arange(len(each)), range(training.fits, len(each), training.fits)):
        fit, _ = _fit(training, part, held_out[group], each[group])
        divided = logistic.with_parts(training.problem, part)
        right.append(logistic.hits(divided, fit.classifiers, held_out[group]))
    right = np.concatenate(right).reshape(inner_folds, len(strengths))
    return 100 * right / np.bincount(part[fitted])[:, None]


def _fit(
    training: _Training, part: np.ndarray, held_out: Sequence[int], strengths: Sequence[float]
) -> tuple[logistic.LogisticFit, np.ndarray]:
    """Fits without their held-out parts, and their l2, as `logistic` means it.

    That is of the mean over the rows, and of features divided by the scale. With two classes it
    counts w / 2 and -w / 2, which have half the squared norm of w.
    """
    known = part != logistic.PADDING
    rows = np.array([np.sum(known & (part != fold)) for fold in held_out])
    l2s = np.asarray(strengths) / (rows * training.scaling.scale**2)
    if training.problem.num_classes == 2:
        l2s *= 2
    # Few fits of a small problem are filled up with copies, for the program of many is compiled.
    count = fits = len(l2s)
    numbers = len(part) * len(training.problem.basis) * training.problem.num_classes
    if numbers * training.fits < SMALL:
        fits = max(count, training.fits)
    divided = logistic.with_parts(training.problem, part)
    found = logistic.fit_logistic(divided, np.resize(l2s, fits), np.resize(held_out, fits))
    return jax.tree.map(lambda leaf: leaf[:count], found), l2s


def _checked_documents(documents, n: int) -> np.ndarray:
    documents = np.asarray(documents)
    integers = documents.ndim == 1 and np.issubdtype(documents.dtype, np.integer)
    require(
        integers and len(documents) > 1,
        f"documents: expected integers [documents + 1], got {documents.dtype} {documents.shape}",
    )
    ordered = documents[0] == 0 and documents[-1] == n and (np.diff(documents) > 0).all()
    require(ordered, f"documents: must rise from 0 to {n}, the number of sentences")
    return documents.astype(np.int64)


def _check_unit(name: str, x) -> None:
    norms = np.concatenate(
        [np.linalg.norm(as_float32(x[rows]), axis=1) for rows in row_blocks(*x.shape, READ)]
    )
    worst = int(np.argmax(np.abs(norms - 1)))
    require(
        abs(norms[worst] - 1) <= TOLERANCE,
        f"{name} features: must have unit norm, but row {worst} has {norms[worst]:.4g}: divide "
        "each row by its norm",
    )


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
