"""Linear probes by named protocol: hyper-parameters chosen on training data, tested once."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from hypersphere_jax.configs import require
from hypersphere_jax.data.inputs import as_numpy
from hypersphere_jax.evaluation import logistic, scores
from hypersphere_jax.evaluation.checks import SelectedRows, as_float32, check_splits
from hypersphere_jax.evaluation.scores import Classifier
from hypersphere_jax.evaluation.sgd import MINIBATCH_PROTOCOLS, check_grid, fit_grid
from hypersphere_jax.training import distributed

L2S = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
# Allowed excess over the minimal cross-entropy during the choice on large problems. Validation
# accuracies of 20,000 x 2,048 features moved by at most 0.03 points, in half of the steps.
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
    ignore_label: int | None = None,
    epoch_features: Callable[[int], Any] | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> dict[str, Any]:
    """Return the accuracy of a linear classifier on frozen features.

    For each cell of a grid the classifier is fitted without a held-out part of the training split,
    or without each of several folds. The cell with the best mean top-1 accuracy on held-out rows is
    chosen, the first of equal cells (the largest l2, or the paper's cell). The classifier is
    fitted again on the whole training split and scored once on the test split. Classes without a
    training row are left out of the fits, and their test rows are always wrong.

    Protocol "lbfgs" minimizes mean cross-entropy + l2 / 2 |W|^2 (see `logistic`) on features that
    are centred and divided by s, the root mean square norm of the centred training features, so
    that one grid suits features of any scale. scikit-learn's `LogisticRegression` has the same
    minimum at C = 1 / (l2 s^2 n_train) on the original features, and at twice that C for two
    classes, where it penalizes a single vector. With `standardize` each dimension is divided by its
    standard deviation and by sqrt(d), which is C = 1 / (l2 d n_train) after `StandardScaler`.

    The other protocols, `sgd.MINIBATCH_PROTOCOLS`, train on the original features.

    Args:
      train_x: `[n_train, d]` features of any real dtype: an array, a tensor, a data frame, or a
        memory map, which is read in blocks of rows. "lbfgs" makes a float32 copy.
      train_y: `[n_train]` labels, integers or strings, of at least two classes.
      test_x: `[n, d]` features.
      test_y: `[n]` labels.
      num_classes: number of classes, for labels that are integers below it. Defaults to the classes
        that occur in either split.
      protocol: "lbfgs", or a key of `sgd.MINIBATCH_PROTOCOLS`.
      seed: seed of held-out rows, minibatches and the bootstrap.
      folds: number of stratified folds of the training split. Defaults to one held-out part.
      valid_fraction: held-out share of each class without folds.
      grid: values of l2 > 0 for "lbfgs", pairs (learning rate, weight decay) for the others.
        Defaults to `L2S` or the protocol's grid. A single cell holds out rows only for `folds`.
      standardize: option of "lbfgs".
      ignore_label: label of rows of both splits to leave out, such as -1.
      epoch_features: option of the others, see `sgd.fit_grid`.
      devices: local devices, which share the rows. Defaults to JAX's first.

    Returns:
      A dict that JSON can contain: `scores.classification_scores`, `protocol`, `n`, `n_train`, `d`,
      `num_classes`, the choice (`chosen`, `valid_top1`, `grid`, see `scores.grid_rows`) and the
      keys in docs/evaluation.md. `classes` lists the labels unless they are 0, 1, 2, …; class
      numbers are positions in this list.

    Raises:
      UserError: for features, labels or options that do not fit, and training that diverged.
    """
    require(test_x is not None, "test_x and test_y: linear_probe needs a test split")
    splits = check_splits(train_x, train_y, test_x, test_y, num_classes, ignore_label)
    # From here on labels are positions among the classes of the training split.
    classes, y = np.unique(splits.train_y, return_inverse=True)
    cells = _grid_cells(protocol, grid)
    rounds = folds or int(len(cells) > 1)  # parts that are held out in turn
    part = np.zeros(len(y), np.int32)
    if folds is not None:
        part = scores.validation_folds(y, folds, seed)
    elif rounds:
        part = scores.held_out_part(y, valid_fraction, seed)
    options = {"num_classes": len(classes), "devices": devices}
    choice = (splits.train_x, y, part, rounds, cells)
    if protocol == "lbfgs":
        require(epoch_features is None, "epoch_features: lbfgs has no epochs; omit it")
        fitted = _fit_lbfgs(*choice, standardize=standardize, **options)
    else:
        require(not standardize, f"standardize: {protocol} takes features as they are; omit it")
        if epoch_features is not None:
            options["epoch_features"] = _kept_rows(epoch_features, splits.train_rows, len(train_x))
        rule = MINIBATCH_PROTOCOLS[protocol]
        fitted = _fit_minibatches(rule, *choice, seed=seed, **options)
    classifier, prepare, valid_top1, report = fitted
    ranked = scores.top_classes(classifier, splits.test_x, min(len(classes), 5), prepare)
    count = len(splits.classes)
    best = scores.best_cell(valid_top1)
    rows = scores.grid_rows(cells, valid_top1)
    return {
        "protocol": protocol,
        **scores.classification_scores(
            classes[ranked], splits.test_y, num_classes=count, seed=seed
        ),
        **splits.describe(),
        "chosen": cells[best],
        "valid_top1": rows[best]["valid_top1"],
        "grid": rows,
        "folds": folds,
        "valid_fraction": valid_fraction if rounds and folds is None else None,
        "seed": seed,
        **report,
    }


def _grid_cells(protocol: str, grid: Sequence[Any] | None) -> list[dict[str, float]]:
    """Return the cells to choose from, as results name their values."""
    known = ("lbfgs", *MINIBATCH_PROTOCOLS)
    require(protocol in known, f"protocol {protocol!r} is unknown; use one of {', '.join(known)}")
    if grid is None:
        grid = L2S if protocol == "lbfgs" else MINIBATCH_PROTOCOLS[protocol].grid
    if protocol == "lbfgs":
        return [{"l2": l2} for l2 in scores.penalties("grid of l2", grid)]
    distinct = dict.fromkeys(check_grid(grid))
    return [{"learning_rate": rate, "weight_decay": decay} for rate, decay in distinct]


def _kept_rows(epoch_features: Callable, rows: np.ndarray, n: int) -> Callable:
    """Return a function of epochs to some rows of the features `[n, d]`."""
    if len(rows) == n:
        return epoch_features

    def kept(epoch: int) -> SelectedRows:
        features = as_numpy(epoch_features(epoch))
        message = f"epoch {epoch} features: {len(features)} rows, expected {n}"
        require(len(features) == n, message)
        return SelectedRows(features, rows)

    return kept


def _fit_lbfgs(
    x, y, part, rounds: int, cells: list[dict], *, num_classes, standardize, devices
) -> tuple:
    """Return the classifier of the best l2, the scaling of features, accuracies, and a report."""
    l2s = [cell["l2"] for cell in cells]
    options = {"num_classes": num_classes, "standardize": standardize, "devices": devices}
    problem = logistic.place(x, y, fits=len(l2s), **options)
    valid_top1 = np.zeros((0, len(l2s)))
    start = None
    if rounds:
        excess = 0.0 if problem.is_small else EXCESS
        grid = np.tile(l2s, (rounds, 1))
        valid_top1, fitted = logistic.cross_validate(problem, part, grid, excess=excess)
    best = scores.best_cell(valid_top1)
    if rounds:  # the fit without the first fold is nearly the fit on all rows
        start = Classifier(fitted.weights[best], fitted.bias[best])
    fit = logistic.fit_logistic(problem, np.ones(len(y), bool), [l2s[best]], start=start)
    norm = float(fit.gradient_norm[0])
    # C is for the original features, or for features of variance 1.
    scale = x.shape[1]
    if not standardize:
        scale = problem.scaling.scale**2
    factor = 2 if num_classes == 2 else 1
    report = {
        "steps": int(fit.steps[0]),
        "gradient_norm": norm,
        "converged": bool(norm <= logistic.limit(l2s[best])),
        "chosen_at_edge": len(l2s) > 1 and best in (0, len(l2s) - 1),
        "C": factor / (l2s[best] * scale * len(y)),
    }
    classifier = Classifier(fit.classifiers.weights[0], fit.classifiers.bias[0])
    return classifier, problem.scaling.apply, valid_top1, report


def _fit_minibatches(protocol, x, y, part, rounds: int, cells: list[dict], **options: Any) -> tuple:
    """Return the classifier of the best cell, the type of features, accuracies, and a report."""
    pairs = [tuple(cell.values()) for cell in cells]
    valid_top1 = np.zeros((rounds, len(pairs)))
    for fold in range(rounds):
        held_out = np.flatnonzero(part == fold)
        fitted = np.flatnonzero(part != fold)
        classifiers, report = fit_grid(protocol, x, y, fitted, pairs, **options)
        for cell, classifier in enumerate(classifiers):
            predicted = scores.top_classes(classifier, SelectedRows(x, held_out))[:, 0]
            valid_top1[fold, cell] = 100 * np.sum(predicted == y[held_out]) / len(held_out)
        valid_top1[fold, ~np.asarray(report["finite"])] = np.nan
    pair = pairs[scores.best_cell(valid_top1)]
    (classifier,), report = fit_grid(protocol, x, y, np.arange(len(y)), [pair], **options)
    require(
        report["finite"][0],
        f"the classifier diverged at learning rate {pair[0]:g}; pass a grid of smaller rates",
    )
    return classifier, as_float32, valid_top1, report
