"""Linear probes by named protocol: hyper-parameters chosen on training data, tested once."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from hypersphere_jax.configs import require
from hypersphere_jax.evaluate import logistic
from hypersphere_jax.evaluate.checks import as_float32, check_splits, classes_entry
from hypersphere_jax.evaluate.metrics import SelectedRows
from hypersphere_jax.evaluate.scores import Classifier, scores, top_classes
from hypersphere_jax.evaluate.selection import (
    best_cell,
    grid_rows,
    held_out_part,
    penalties,
    validation_folds,
)
from hypersphere_jax.evaluate.sgd import PROTOCOLS, checked_grid, fit_grid
from hypersphere_jax.training import distributed

L2S = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
# Above the minimal cross-entropy, while choosing on large problems: validation accuracies of
# 20,000 x 2,048 features moved by 0.03 points at most, in half of the steps.
EXCESS = 1e-6


@distributed.isolated()
def linear_probe(
    train_x: Any,
    train_y: Any,
    test_x: Any,
    test_y: Any,
    *,
    num_classes: int | None = None,
    protocol: str = "lbfgs",
    seed: int = 0,
    folds: int | None = None,
    valid_fraction: float = 0.2,
    grid: Sequence[Any] | None = None,
    standardize: bool = False,
    epoch_features: Callable[[int], Any] | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> dict[str, Any]:
    """Accuracy of a linear classifier on frozen features.

    The classifier is fitted for each cell of a grid without a held-out part of the training split,
    or without each of several folds. The cell with the best mean top-1 accuracy on what was held
    out is chosen, of equals the first: the largest l2, or the paper's own cell. The classifier is
    fitted again on the whole training split and measured once on the test split. Classes without a
    training row are left out of the fits, and their test rows are always wrong.

    Protocol "lbfgs" minimizes mean cross-entropy + l2 / 2 |W|^2 (see `logistic`) on features that
    are centred and divided by the root mean square norm s of the centred training features, so that
    one grid suits features of any scale. scikit-learn's `LogisticRegression` has that minimum at
    C = 1 / (l2 s^2 n_train) on features as they are, or at twice that C for two classes, of which
    it penalizes one vector. With `standardize` each dimension is divided by its own standard
    deviation, and by sqrt(d): that is C = 1 / (l2 d n_train) after scikit-learn's `StandardScaler`.

    The other protocols, by minibatches, are those of `sgd.PROTOCOLS`, on features as they are.

    Args:
      train_x: `[n_train, d]` features of any real dtype: an array, a tensor, a data frame, or a
        memory map, which is read in blocks of rows. "lbfgs" copies them where they are not
        float32, and to accelerators.
      train_y: `[n_train]` labels, integers or strings, of at least two classes.
      test_x: `[n, d]` features.
      test_y: `[n]` labels.
      num_classes: number of classes, where labels are integers below it; defaults to the classes
        that occur in either split.
      protocol: "lbfgs" or one of `sgd.PROTOCOLS`.
      seed: of what is held out, of batches, and of the bootstrap.
      folds: number of stratified folds of the training split. None: one held-out part.
      valid_fraction: without folds, the share of each class's training samples that is held out.
      grid: cells to choose from: values of l2 > 0 for "lbfgs", pairs (learning rate, weight decay)
        for the others. None: `L2S`, or the protocol's own. Nothing is held out for a single cell,
        unless `folds` are given.
      standardize: for "lbfgs".
      epoch_features: for the others, see `sgd.fit_grid`.
      devices: of this process, which share the rows. None: JAX's first.

    Returns:
      What a JSON file can hold: that of `scores`, and the protocol and keys that docs/evaluation.md
      lists. `grid` is of `selection.grid_rows`. `classes` lists the labels where they are not 0, 1,
      2, …; class numbers are places in it.

    Raises:
      UserError: for features, labels or options that do not fit, or features too large for "lbfgs".
    """
    clock = Clock()
    train_x, train_y, test_x, test_y, labels = check_splits(
        train_x, train_y, test_x, test_y, num_classes
    )
    # Only these are fitted; labels are places among them from here on.
    classes, train_y = np.unique(train_y, return_inverse=True)
    if protocol == "lbfgs":
        require(epoch_features is None, "epoch_features: lbfgs has no epochs, leave them out")
        cells = [{"l2": l2} for l2 in penalties("grid of l2", L2S if grid is None else grid)]
    else:
        require(not standardize, f"standardize: {protocol} takes features as they are")
        known = ", ".join(("lbfgs", *PROTOCOLS))
        require(protocol in PROTOCOLS, f"protocol {protocol!r}: choose one of {known}")
        pairs = dict.fromkeys(checked_grid(PROTOCOLS[protocol].grid if grid is None else grid))
        cells = [{"learning_rate": rate, "weight_decay": decay} for rate, decay in pairs]
    # The first `rounds` of the parts are held out in turn.
    part, rounds = np.zeros(len(train_y), np.int32), 0
    if folds is not None:
        part, rounds = validation_folds(train_y, folds, seed), folds
    elif len(cells) > 1:
        part, rounds = held_out_part(train_y, valid_fraction, seed), 1
    clock.lap("check")

    options = {"num_classes": len(classes), "devices": devices}
    if protocol == "lbfgs":
        options["standardize"] = standardize
        fitted = _lbfgs(train_x, train_y, part, rounds, cells, clock, **options)
    else:
        options |= {"seed": seed, "epoch_features": epoch_features}
        train = partial(fit_grid, PROTOCOLS[protocol], train_x, train_y, **options)
        fitted = _sgd(train, train_x, train_y, part, rounds, cells, clock)
    classifier, prepare, valid_top1, best, report = fitted
    grid = grid_rows(cells, valid_top1)
    ranked = classes[top_classes(classifier, test_x, min(len(classes), 5), prepare)]
    result = scores(ranked, test_y, num_classes=len(labels), seed=seed)
    clock.lap("score")
    return {
        "protocol": protocol,
        **result,
        "n": len(test_x),
        "n_train": len(train_x),
        "d": train_x.shape[1],
        "num_classes": len(labels),
        **classes_entry(labels),
        "chosen": cells[best],
        "valid_top1": grid[best]["valid_top1"],
        "grid": grid,
        "folds": folds,
        "valid_fraction": valid_fraction if rounds and folds is None else None,
        "seed": seed,
        **report,
        "seconds": clock.seconds,
    }


class Clock:
    """Seconds of each part of the work, by name."""

    def __init__(self):
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = round(now - self._last, 3)
        self._last = now


def _lbfgs(x, y, part, rounds: int, cells, clock: Clock, *, num_classes: int, **options):
    jobs = max(1, rounds * len(cells))
    problem = logistic.place(x, y, num_classes=num_classes, jobs=jobs, **options)
    clock.lap("place")
    l2s = [cell["l2"] for cell in cells]
    valid_top1, best, start = np.zeros((rounds, len(cells))), 0, None
    if rounds:
        excess = 0.0 if problem.small else EXCESS
        penalized = np.tile(l2s, (rounds, 1))
        valid_top1, fitted = logistic.cross_validate(problem, part, penalized, excess=excess)
        best = best_cell(valid_top1)
        # Without the first fold, at the chosen l2: almost the fit on all rows.
        start = Classifier(fitted.weights[best], fitted.bias[best])
    clock.lap("select")
    fit = logistic.fit_logistic(problem, part, [l2s[best]], [logistic.NONE], start=start)
    clock.lap("refit")
    classifier, norm = Classifier(*(leaf[0] for leaf in fit.classifiers)), fit.gradient_norm[0]
    report = {
        "steps": int(fit.steps[0]),
        "gradient_norm": float(norm),
        "converged": bool(norm <= logistic.limit(l2s[best])),
        "chosen_at_edge": len(cells) > 1 and best in (0, len(cells) - 1),
        "C": (2 if num_classes == 2 else 1) / (l2s[best] * problem.scaling.penalized * len(x)),
    }
    return classifier, problem.scaling.apply, valid_top1, best, report


def _sgd(train: Callable, x, y, part, rounds: int, cells, clock: Clock):
    pairs = [(cell["learning_rate"], cell["weight_decay"]) for cell in cells]
    valid_top1 = np.zeros((rounds, len(cells)))
    for fold in range(rounds):
        fitting, held_out = np.flatnonzero(part != fold), np.flatnonzero(part == fold)
        classifiers, report = train(fitting, pairs)
        for cell, classifier in enumerate(classifiers):
            right = top_classes(classifier, SelectedRows(x, held_out))[:, 0] == y[held_out]
            top1 = 100 * right.sum() / len(right)
            valid_top1[fold, cell] = top1 if report["finite"][cell] else np.nan
    best = best_cell(valid_top1) if rounds else 0
    clock.lap("select")
    (classifier,), report = train(np.arange(len(x)), [pairs[best]])
    require(
        report["finite"][0],
        f"the classifier diverged at learning rate {pairs[best][0]:g}: give a grid of smaller ones",
    )
    clock.lap("refit")
    return classifier, as_float32, valid_top1, best, report
