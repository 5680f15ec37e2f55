"""Linear probes by named protocol: hyper-parameters chosen on training data, tested once."""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from hypersphere_jax.config import UserError, require
from hypersphere_jax.evaluate import logistic
from hypersphere_jax.evaluate.checks import as_float32, check_features, check_labels, check_same_dim
from hypersphere_jax.evaluate.classifier import Classifier
from hypersphere_jax.evaluate.scores import rows_at_once, scores, top_classes
from hypersphere_jax.evaluate.selection import best_cell, stratified_folds, stratified_part
from hypersphere_jax.evaluate.sgd import PROTOCOLS, fit_grid
from hypersphere_jax.train import sharding

L2S = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
# Large problems, while choosing: a mean cross-entropy that is so close to the minimum. Validation
# accuracies of 20,000 x 2,048 features then moved by 0.03 points at most, in half of the steps.
EXCESS = 1e-6
# Weights of fits that are made at once, of which L-BFGS keeps some twenty copies.
AT_ONCE = 2**24
# Multiplications in an evaluation of a small problem, which takes less time than a compilation.
SMALL = 2**30
# Of a device's memory for its share of the scaled features; the rest is for what else is there.
MEMORY_SHARE = 0.8


def linear_probe(
    train_x,
    train_y,
    test_x,
    test_y,
    *,
    num_classes: int,
    protocol: str = "lbfgs",
    seed: int = 0,
    folds: int | None = None,
    valid_fraction: float = 0.2,
    grid: Sequence[Any] | None = None,
    epoch_features: Callable[[int], Any] | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> dict[str, Any]:
    """Accuracy of a linear classifier on frozen features.

    The classifier is fitted for each cell of a grid without a part of the training split, for one
    such part or each of several folds. The cell with the best mean top-1 accuracy on the parts that
    were left out is chosen, of equals the first: the largest l2, or the paper's own cell. The
    classifier is fitted again on the whole training split and measured once on the test split,
    whose labels influence nothing else: a class without a training row has no part in the fits, and
    its test rows are always wrong.

    Protocol "lbfgs" minimizes mean cross-entropy + l2 / 2 |W|^2 (see `logistic`). The features are
    first centred and divided by one number s, the root mean square norm of the centred training
    features, so that one grid suits unit features and unnormalized activations. One number, not one
    a dimension: the result does not depend on how the features are rotated, and dimensions without
    signal stay small. scikit-learn's `LogisticRegression` has the same minimum at
    C = 1 / (l2 n_train) on these features, and at C = 1 / (l2 s^2 n_train) on features as they are;
    of two classes it penalizes one vector, half as much as both of theirs, and C is twice that.

    The other protocols, by minibatches, are those of `sgd.PROTOCOLS`, on features as they are.

    Args:
      train_x: `[n_train, d]` features of any real dtype, an array or a memory map, which is read in
        blocks of rows; computed in float32. "lbfgs" makes one scaled copy on the devices.
      train_y: `[n_train]` integers below `num_classes`, of at least two classes.
      test_x: `[n, d]` features.
      test_y: `[n]` integers below `num_classes`.
      num_classes: number of classes.
      protocol: "lbfgs" or one of `sgd.PROTOCOLS`.
      seed: of what is held out, of batches, and of the bootstrap.
      folds: number of stratified folds of the training split. None: one held-out part.
      valid_fraction: without folds, the part of each class's training samples that is held out, at
        least one where a class has two. A class's only sample stays in the fitting part.
      grid: cells to choose from: values of l2 > 0 for "lbfgs", pairs (learning rate, weight decay)
        for the others. None: `L2S`, or the protocol's own. A single cell is taken as it is, and
        scored on what is held out only if `folds` are given.
      epoch_features: for the others, see `sgd.fit_grid`.
      devices: of this host, which share the rows. None: JAX's first.

    Returns:
      What a JSON file can hold: that of `scores`; the protocol, `n`, `n_train`, `d`, `num_classes`,
      `seed`, `folds`, and `valid_fraction` (None where it was not used); `chosen`, the best cell;
      its `valid_top1`, by which encoders may be chosen too; `grid`, for each cell its numbers,
      `valid_top1` (the mean over folds in percent; None where nothing was held out, or a fit
      diverged) and `fold_top1`, one a fold; `seconds` of each part. Under "lbfgs" also how the last
      fit ended: `steps`, `gradient_norm`, `converged` if that is at most its `logistic.limit`;
      `chosen_at_edge` if the smallest or largest of several l2 was chosen, beyond which there may
      be a better one; and `C`, scikit-learn's for the features as they are.

    Raises:
      UserError: for features, labels or options that do not fit, and for "lbfgs" features that do
        not fit into memory.
    """
    clock = Clock()
    train_x, test_x = check_features("train", train_x), check_features("test", test_x)
    check_same_dim("train", train_x, "test", test_x)
    train_y = check_labels("train", train_y, len(train_x), num_classes)
    test_y = check_labels("test", test_y, len(test_x), num_classes)
    # Only these are fitted; labels are places among them from here on.
    seen, train_y = np.unique(train_y, return_inverse=True)
    require(len(seen) > 1, f"train labels: only class {seen[0]}, two are needed")
    if protocol == "lbfgs":
        require(epoch_features is None, "epoch_features: lbfgs has no epochs, leave them out")
        cells = _l2_cells(L2S if grid is None else grid)
    else:
        known = ", ".join(("lbfgs", *PROTOCOLS))
        require(protocol in PROTOCOLS, f"protocol {protocol!r}: choose one of {known}")
        cells = _sgd_cells(PROTOCOLS[protocol].grid if grid is None else grid)
    part = np.zeros(len(train_y), np.int32)
    if len(cells) == 1 and folds is None:
        parts = range(0)
    elif folds is None:
        part, parts = stratified_part(train_y, valid_fraction, seed), range(1)
    else:
        part, parts = stratified_folds(train_y, folds, seed), range(folds)
    clock.lap("check")

    if protocol == "lbfgs":
        fitted = _lbfgs(train_x, train_y, part, parts, cells, len(seen), devices, clock)
    else:
        train = partial(
            fit_grid,
            PROTOCOLS[protocol],
            train_x,
            train_y,
            num_classes=len(seen),
            seed=seed,
            epoch_features=epoch_features,
            devices=devices,
        )
        fitted = _sgd(train, train_x, train_y, part, parts, cells, clock)
    classifier, prepare, valid_top1, best, report = fitted
    grid_rows = [_row(cell, column) for cell, column in zip(cells, valid_top1.T, strict=True)]
    ranked = seen[top_classes(classifier, test_x, min(len(seen), 5), prepare)]
    found = scores(ranked, test_y, num_classes=num_classes, seed=seed)
    clock.lap("score")
    return {
        "protocol": protocol,
        **found,
        "n": len(test_x),
        "n_train": len(train_x),
        "d": train_x.shape[1],
        "num_classes": num_classes,
        "chosen": cells[best],
        "valid_top1": grid_rows[best]["valid_top1"],
        "grid": grid_rows,
        "folds": folds if parts else None,
        "valid_fraction": valid_fraction if parts and folds is None else None,
        "seed": seed,
        **report,
        "seconds": clock.seconds,
    }


class Clock:
    """Seconds between laps, by name."""

    def __init__(self):
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = round(now - self._last, 3)
        self._last = now


def _l2_cells(grid: Sequence[float]) -> list[dict[str, float]]:
    """The cells of a grid, the most regularized first."""
    try:
        values = sorted({float(l2) for l2 in grid}, reverse=True)
    except TypeError:
        raise UserError(f"grid {grid}: lbfgs chooses from numbers, values of l2") from None
    require(len(values) > 0, "grid: give at least one value of l2")
    require(all(0 < l2 < math.inf for l2 in values), f"grid {values}: l2 must be positive numbers")
    return [{"l2": l2} for l2 in values]


def _sgd_cells(grid: Sequence[tuple[float, float]]) -> list[dict[str, float]]:
    """The cells of a grid in its order: of equals the first is chosen, the paper's own."""
    expected = "pairs (learning rate > 0, weight decay >= 0)"
    try:
        pairs = list(dict.fromkeys((float(rate), float(decay)) for rate, decay in grid))
    except (TypeError, ValueError):
        raise UserError(f"grid {grid}: this protocol chooses from {expected}") from None
    require(len(pairs) > 0, f"grid: give at least one of the {expected}")
    usable = all(0 < rate < math.inf and 0 <= decay < math.inf for rate, decay in pairs)
    require(usable, f"grid {pairs}: must be {expected}")
    return [{"learning_rate": rate, "weight_decay": decay} for rate, decay in pairs]


def _row(cell: dict[str, float], fold_top1: np.ndarray) -> dict[str, Any]:
    each = [None if np.isnan(top1) else float(top1) for top1 in fold_top1]
    mean = None if None in each or not each else float(np.mean(each))
    return {**cell, "valid_top1": mean, "fold_top1": each}


def _check_memory(n: int, d: int, devices: Sequence[jax.Device]) -> None:
    """The scaled copy of the features, of which each device holds its share of the rows."""
    needed = 4 * -(-n // len(devices)) * d
    room = sharding.memory(devices)
    require(
        needed <= MEMORY_SHARE * room,
        f"lbfgs needs a float32 copy of all {n:,} x {d} training features, {needed / 1e9:.3g} GB "
        f"on each of {len(devices)} device(s), which hold {room / 1e9:.3g} GB: take more devices, "
        f"or a protocol that reads the features in minibatches ({', '.join(PROTOCOLS)})",
    )


def _lbfgs(x, y, part, parts, cells, num_classes, devices, clock: Clock):
    n, d = x.shape
    devices = jax.local_devices()[:1] if devices is None else devices
    _check_memory(n, d, devices)
    scaling = logistic.scaling(x)
    jobs = [(cell, fold) for fold in parts for cell in range(len(cells))]
    at_once = max(1, AT_ONCE // (num_classes * d))
    groups = np.array_split(np.reshape(jobs, (-1, 2)).astype(int), -(-len(jobs) // at_once) or 1)
    problem = logistic.place(
        x, y, part, scaling, num_classes=num_classes, fits=len(groups[0]) or 1, devices=devices
    )
    clock.lap("place")
    small = n * d * num_classes * len(groups[0]) < SMALL
    excess = 0.0 if small else EXCESS
    l2s = [cell["l2"] for cell in cells]
    valid_top1 = np.zeros((len(parts), len(cells)))
    best, start = 0, None
    if jobs:
        fits = []
        for group in groups:
            held_out = group[:, 1]
            values = [l2s[cell] for cell in group[:, 0]]
            fit = logistic.fit_logistic(problem, values, held_out, excess=excess)
            right = logistic.hits(problem, fit.classifiers, held_out)
            for (cell, fold), count in zip(group, right, strict=True):
                valid_top1[fold, cell] = 100 * count / np.sum(part == fold)
            fits.append(fit.classifiers)
        best = best_cell(valid_top1)
        # Without the first fold, at the chosen l2: almost the fit on all rows.
        first = Classifier(*(np.concatenate(leaves) for leaves in zip(*fits, strict=True)))
        start = Classifier(first.weights[best][None], first.bias[best][None])
    clock.lap("select")
    # A small problem is fitted in as many copies as before, by the same compiled program.
    copies = len(groups[0]) if small and jobs else 1
    start = start and Classifier(*(np.repeat(leaf, copies, axis=0) for leaf in start))
    fit = logistic.fit_logistic(
        problem, [l2s[best]] * copies, [logistic.NONE] * copies, start=start
    )
    clock.lap("refit")
    classifier = Classifier(fit.classifiers.weights[0], fit.classifiers.bias[0])
    norm = float(fit.gradient_norm[0])
    report = {
        "steps": int(fit.steps[0]),
        "gradient_norm": norm,
        "converged": bool(norm <= logistic.limit(l2s[best])),
        "chosen_at_edge": len(cells) > 1 and best in (0, len(cells) - 1),
        "C": (2 if num_classes == 2 else 1) / (l2s[best] * scaling.scale**2 * n),
    }
    return classifier, scaling.apply, valid_top1, best, report


def _sgd(train, x, y, part, parts, cells, clock: Clock):
    pairs = [(cell["learning_rate"], cell["weight_decay"]) for cell in cells]
    valid_top1 = np.zeros((len(parts), len(cells)))
    for fold in parts:
        fitting, held_out = np.flatnonzero(part != fold), np.flatnonzero(part == fold)
        classifiers, _ = train(fitting, pairs)
        size = rows_at_once(*classifiers[0].weights.shape)
        for rows in np.split(held_out, range(size, len(held_out), size)):
            valid_x = as_float32(x[rows])  # one reading for all cells
            for cell, classifier in enumerate(classifiers):
                right = top_classes(classifier, valid_x)[:, 0] == y[rows]
                valid_top1[fold, cell] += 100 * right.sum() / len(held_out)
        diverged = [not _finite(classifier) for classifier in classifiers]
        valid_top1[fold, diverged] = np.nan
    best = best_cell(valid_top1) if parts else 0
    clock.lap("select")
    (classifier,), report = train(np.arange(len(x)), [pairs[best]])
    require(
        _finite(classifier),
        f"the classifier diverged at learning rate {pairs[best][0]:g}: give a grid of smaller ones",
    )
    clock.lap("refit")
    return classifier, as_float32, valid_top1, best, report


def _finite(classifier: Classifier) -> bool:
    return all(np.isfinite(leaf).all() for leaf in jax.tree.map(np.asarray, classifier))
