"""Linear classification of frozen features: multinomial logistic regression.

Both protocols minimize the same objective over weights W `[num_classes, d]` and a bias

    mean cross-entropy + l2 / 2 |W|^2        (the bias is not penalized)

and choose l2 on a held-out part of the training split. They differ in the optimizer.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from hypersphere_jax.config import require
from hypersphere_jax.evaluation.checks import check_features, check_labels, check_same_dim
from hypersphere_jax.evaluation.classifier import Classifier, best_classes, logits

L2_GRIDS = {
    "lbfgs": (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6),
    "adam": (1e-3, 1e-4, 1e-5, 0.0),
}
TOLERANCE, MAX_STEPS = 1e-6, 1000  # L-BFGS: on the norm of the gradient
EPOCHS, BATCH_SIZE, LEARNING_RATE = 100, 128, 1e-3  # Adam: Wang & Isola, B.1

_lbfgs = optax.lbfgs()
_adam = optax.scale_by_adam(b1=0.5, b2=0.999, eps=1e-8)


def linear_probe(
    train_x,
    train_y,
    test_x,
    test_y,
    *,
    num_classes: int,
    protocol: str = "lbfgs",
    seed: int = 0,
    l2_grid: tuple[float, ...] | None = None,
    valid_fraction: float = 0.2,
) -> dict[str, Any]:
    """Accuracy of a linear classifier on frozen features.

    The classifier is fitted for each l2 on a part of the training split, the l2 with the best top-1
    accuracy on the other part is chosen (the largest of equals), the classifier is fitted again on
    the whole training split, and measured once on the test split.

    - "lbfgs": full-batch L-BFGS to convergence. The features are first centred and divided by one
      number, the root mean square norm of the centred training features, so that one grid suits
      unit features and unnormalized activations. One number, not one a dimension: the result does
      not depend on how the features are rotated, and dimensions without signal stay small.
    - "adam": Wang & Isola's B.1, on the features as they are: 100 epochs of Adam (0.5, 0.999) in
      batches of 128, learning rate 0.001, times 0.2 at epochs 60 and 80. From zero weights; the
      short last batch of an epoch is kept. The paper names no regularization: l2 is added here,
      and 0 is in the grid.

    Args:
      train_x: `[n_train, d]` features, any real dtype; computed in float32.
      train_y: `[n_train]` integers below `num_classes`, of at least two classes.
      test_x: `[n, d]` features.
      test_y: `[n]` integers below `num_classes`.
      num_classes: number of classes.
      protocol: "lbfgs" or "adam".
      seed: of the held-out part, and of Adam's batches.
      l2_grid: values to choose from. None: those of `L2_GRIDS`. A single value is taken as it is,
        without a held-out part.
      valid_fraction: part of each class's training samples that is held out, at least one where a
        class has two. A class's only sample stays in the fitting part.

    Returns:
      What a JSON file can hold: `top1` and `top5` in percent (`top5` is None up to 5 classes), and
      the protocol with what was chosen: `chosen`, and `valid_top1` of each of `l2_grid` (None
      without a held-out part). Under "lbfgs" also how the fit on the whole training split ended:
      `steps`, `gradient_norm`, and `converged` if that is at most `TOLERANCE`.

    Raises:
      UserError: for features, labels or options that do not fit.
    """
    train_x, test_x = check_features("train", train_x), check_features("test", test_x)
    check_same_dim("train", train_x, "test", test_x)
    train_y = check_labels("train", train_y, len(train_x), num_classes)
    test_y = check_labels("test", test_y, len(test_x), num_classes)
    require(np.unique(train_y).size > 1, f"train labels: only class {train_y[0]}, two are needed")
    require(protocol in L2_GRIDS, f"protocol {protocol!r}: choose one of {', '.join(L2_GRIDS)}")
    l2_grid = L2_GRIDS[protocol] if l2_grid is None else l2_grid
    l2_grid = sorted({float(l2) for l2 in l2_grid}, reverse=True)
    require(len(l2_grid) > 0, "l2_grid: give at least one value")
    usable = all(0 <= l2 < math.inf and (l2 > 0 or protocol == "adam") for l2 in l2_grid)
    require(usable, f"l2_grid {l2_grid}: must be positive numbers, with adam also 0")
    require(0 < valid_fraction < 1, f"valid_fraction = {valid_fraction}: must be between 0 and 1")

    if protocol == "lbfgs":
        train_x, test_x = _centred_and_scaled(train_x, test_x)
    x, y = jnp.asarray(train_x), jnp.asarray(train_y)
    zeros = Classifier(jnp.zeros((num_classes, x.shape[1])), jnp.zeros(num_classes))
    if protocol == "lbfgs":
        fit = partial(_fit_lbfgs, zeros, x, y, second_moments(x))
    else:
        fit = partial(_fit_adam, zeros, x, y, seed)

    l2, held_out, valid_top1 = l2_grid[0], (), None
    if len(l2_grid) > 1:
        fitting, held_out = stratified_split(train_y, valid_fraction, seed)
        require(len(held_out) > 0, "no class has two training samples: give l2_grid one value")
        candidates, _ = fit(fitting, l2_grid)
        valid_x, valid_y = x[held_out], train_y[held_out]
        valid_top1 = [_accuracy(candidate, valid_x, valid_y) for candidate in candidates]
        l2 = l2_grid[int(np.argmax(valid_top1))]
    (classifier,), report = fit(np.arange(len(x)), [l2])
    return {
        "protocol": protocol,
        "top1": _accuracy(classifier, test_x, test_y),
        "top5": _accuracy(classifier, test_x, test_y, k=5) if num_classes > 5 else None,
        "n": len(test_x),
        "n_train": len(train_x),
        "n_valid": len(held_out),
        "d": train_x.shape[1],
        "num_classes": num_classes,
        "chosen": {"l2": l2},
        "l2_grid": l2_grid,
        "valid_top1": valid_top1,
        "seed": seed,
        **report,
    }


def stratified_split(y: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to fit on and rows to hold out, the same part of every class.

    Args:
      y: `[n]` labels.
      fraction: of a class's rows to hold out, rounded; at least one where the class has two, and
        never all.
      seed: which rows.

    Returns:
      Two ascending arrays of rows that together are all n.
    """
    rng = np.random.default_rng(seed)
    held_out = np.zeros(len(y), bool)
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        held_out[rows[: min(max(1, round(fraction * len(rows))), len(rows) - 1)]] = True
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


class LogisticFit(NamedTuple):
    """A fitted classifier, and how the fit ended."""

    classifier: Classifier
    steps: jax.Array
    gradient_norm: jax.Array


@jax.jit
def second_moments(x) -> jax.Array:
    """`x.T @ x / n`, `[d, d]`, of features `[n, d]`."""
    return jnp.matmul(x.T, x, precision=lax.Precision.HIGHEST) / len(x)


@jax.jit
def fit_logistic(
    start: Classifier, x, y, moments, row_weight, l2, tolerance=TOLERANCE, max_steps=MAX_STEPS
) -> LogisticFit:
    """Minimizes the objective of this module by preconditioned full-batch L-BFGS.

    Args:
      start: where to begin, such as zeros.
      x: float32 `[n, d]`, best centred and of about unit norm: the tolerance is absolute.
      y: int32 `[n]`.
      moments: `second_moments(x)`. Shapes the steps, not the result.
      row_weight: float32 `[n]`, each row's weight in the mean cross-entropy. Zero leaves a row out,
        without a copy of the others or another compilation.
      l2: strength of the penalty, > 0.
      tolerance: norm of the objective's gradient at which to stop. Float32 reaches about 1e-7.
      max_steps: give up after so many.

    Returns:
      The classifier, with the number of steps and the norm of the gradient there.
    """
    # Activations vary a thousand times more in some directions than in others, where plain L-BFGS
    # takes thousands of steps. It works on U = W C instead, C C^T = moments + ridge: the curvature
    # of the objective, up to a factor. The ridge is also what float32 needs to find C.
    ridge = 10 * l2 + 1e-4 * jnp.trace(moments)
    eye = jnp.eye(len(moments))
    c = jnp.linalg.cholesky(moments + ridge * eye)
    c_inverse = jax.scipy.linalg.solve_triangular(c, eye, lower=True)

    def times(classifier, matrix):
        weights = jnp.matmul(classifier.weights, matrix, precision=lax.Precision.HIGHEST)
        return classifier._replace(weights=weights)

    def value(u):
        return _objective(times(u, c_inverse), x, y, row_weight, l2)

    # The line search has computed both at the point where it ended: they are not computed again.
    value_and_grad = optax.value_and_grad_from_state(value)

    def unfinished(carry):
        fit, _ = carry
        return (fit.gradient_norm > tolerance) & (fit.steps < max_steps)

    def step(carry):
        (u, steps, _), state = carry
        loss, gradient = value_and_grad(u, state=state)
        updates, state = _lbfgs.update(
            gradient, state, u, value=loss, grad=gradient, value_fn=value
        )
        gradient = times(optax.tree.get(state, "grad"), c.T)  # with respect to W again
        fit = LogisticFit(optax.apply_updates(u, updates), steps + 1, optax.tree.norm(gradient))
        return fit, state

    u = times(start, c)
    begin = LogisticFit(u, jnp.int32(0), jnp.float32(jnp.inf))
    fit, _ = lax.while_loop(unfinished, step, (begin, _lbfgs.init(u)))
    return fit._replace(classifier=times(fit.classifier, c_inverse))


def _fit_lbfgs(classifier, x, y, moments, rows, l2s):
    """Fit a classifier for each l2, from the one before, and report how the last fit ended."""
    row_weight = jnp.zeros(len(x)).at[rows].set(1.0)
    classifiers = []
    for l2 in l2s:
        classifier, steps, norm = fit_logistic(classifier, x, y, moments, row_weight, l2)
        classifiers.append(classifier)
    return classifiers, {
        "converged": bool(norm <= TOLERANCE),
        "steps": int(steps),
        "gradient_norm": float(norm),
    }


def _fit_adam(classifier, x, y, seed, rows, l2s):
    """Train a classifier for each l2, all at once on the same batches, and report how."""
    l2s = jnp.asarray(l2s, jnp.float32)
    classifiers = jax.tree.map(lambda leaf: jnp.stack([leaf] * len(l2s)), classifier)
    states = jax.vmap(_adam.init)(classifiers)
    # The last batch is filled up with row 0 at weight 0.
    batches = math.ceil(len(rows) / BATCH_SIZE)
    filler = np.zeros(batches * BATCH_SIZE - len(rows), int)
    row_weight = np.concatenate([np.ones(len(rows), np.float32), np.float32(filler)])
    for epoch in range(EPOCHS):
        order = np.random.default_rng([seed, epoch]).permutation(rows)
        learning_rate = LEARNING_RATE * 0.2 ** ((epoch >= 60) + (epoch >= 80))
        classifiers, states = _adam_epoch(
            classifiers,
            states,
            x,
            y,
            np.concatenate([order, filler]).reshape(batches, BATCH_SIZE),
            row_weight.reshape(batches, BATCH_SIZE),
            l2s,
            learning_rate,
        )
    report = {"epochs": EPOCHS, "batch_size": BATCH_SIZE, "learning_rate": LEARNING_RATE}
    return [Classifier(*pair) for pair in zip(*classifiers, strict=True)], report


@jax.jit
def _adam_epoch(classifiers, states, x, y, batches, row_weights, l2s, learning_rate):
    """One pass over `batches [b, BATCH_SIZE]` of rows, for all classifiers `[g, ...]` at once."""

    def train_batch(carry, batch):
        rows, row_weight = batch

        def update(classifier, state, l2):
            gradient = jax.grad(_objective)(classifier, x[rows], y[rows], row_weight, l2)
            direction, state = _adam.update(gradient, state)
            step = jax.tree.map(lambda leaf: -learning_rate * leaf, direction)
            return optax.apply_updates(classifier, step), state

        return jax.vmap(update)(*carry, l2s), None

    return lax.scan(train_batch, (classifiers, states), (batches, row_weights))[0]


def _objective(classifier: Classifier, x, y, row_weight, l2) -> jax.Array:
    losses = optax.softmax_cross_entropy_with_integer_labels(logits(classifier, x), y)
    penalty = l2 / 2 * jnp.sum(jnp.square(classifier.weights))
    return jnp.vdot(row_weight, losses) / jnp.sum(row_weight) + penalty


def _accuracy(classifier: Classifier, x, y, k: int = 1) -> float:
    """Percent of rows whose label is among the k best classes."""
    hits = np.asarray(best_classes(classifier, x, k=k)) == y[:, None]
    return 100 * float(np.mean(hits.any(axis=1)))


def _centred_and_scaled(train_x, test_x):
    """Both splits, moved and scaled so that the training one has mean zero and RMS norm 1."""
    centre = train_x.mean(axis=0, keepdims=True, dtype=np.float64).astype(np.float32)
    train_x, test_x = train_x - centre, test_x - centre
    scale = np.linalg.norm(train_x) / np.sqrt(np.float32(len(train_x)))
    if scale > 0:  # zero where an encoder maps all images to one point
        train_x /= scale
        test_x /= scale
    return train_x, test_x
