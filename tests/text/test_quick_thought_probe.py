"""The probe of sentence encoders against nested cross-validation with scikit-learn."""

import functools
import inspect
import json

import jax
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import confusion_matrix

from hypersphere_jax.evaluation import logistic
from hypersphere_jax.evaluation.knn import knn_probe
from hypersphere_jax.evaluation.selection import validation_folds
from hypersphere_jax.text.quick_thought_probe import STRENGTHS, sentence_probe

N, D, FOLDS, INNER = 121, 6, 4, 2  # with two inner folds the number of fitted rows matters


def fitted(x, y, strength):
    """Return the minimum of the sum of losses + strength / 2 |w|^2, by Newton's method."""
    model = LogisticRegression(C=1 / strength, solver="newton-cholesky", tol=1e-9)
    return model.fit(np.float64(x), y)


def chosen_by_hand(x, y, seed):
    """Return the best strength, and accuracies `[inner folds, strengths]`."""
    part = validation_folds(y, INNER, seed)
    accuracies = np.empty((INNER, len(STRENGTHS)))
    for k, cell in np.ndindex(accuracies.shape):
        model = fitted(x[part != k], y[part != k], STRENGTHS[cell])
        accuracies[k, cell] = 100 * model.score(x[part == k], y[part == k])
    means = accuracies.mean(axis=0)
    return STRENGTHS[int(np.argmax(means > means.max() - 1e-9))], accuracies


@functools.cache
def cross_validated(num_classes):
    # Classes overlap, and features have neither mean 0 nor norm 1.
    rng = np.random.default_rng(num_classes)
    centres = rng.normal(size=(num_classes, D))
    y = rng.integers(num_classes, size=N)
    x = np.float32(0.2 * (centres[y] + 1.5 * rng.normal(size=(N, D))) + 0.5)
    options = {"num_classes": num_classes, "folds": FOLDS, "inner_folds": INNER, "seed": 5}
    return x, y, options, sentence_probe(x, y, **options), validation_folds(y, FOLDS, 5)


@pytest.mark.parametrize("classes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_nested_cross_validation_agrees_with_scikit_learn(classes):
    x, y, options, result, outer = cross_validated(classes)
    choices = []
    predicted = np.full(N, -1)
    for k in range(FOLDS):
        part = outer != k
        choices.append(chosen_by_hand(x[part], y[part], 5))
        predicted[~part] = fitted(x[part], y[part], choices[-1][0]).predict(x[~part])
    by_fold = [strength for strength, _ in choices]
    assert len(set(by_fold)) > 1, "equal choices would show little"
    assert result["chosen_by_fold"] == by_fold
    assert result["chosen"] == {"strength": sorted(by_fold, reverse=True)[1]}
    assert [row["strength"] for row in result["grid"]] == list(STRENGTHS)
    means = np.mean([accuracies for _, accuracies in choices], axis=1)  # [folds, strengths]
    grid = [[*row["fold_top1"], row["valid_top1"]] for row in result["grid"]]
    np.testing.assert_allclose(grid, np.vstack([means, means.mean(axis=0)]).T, rtol=1e-12)
    best = [mean[STRENGTHS.index(s)] for mean, s in zip(means, by_fold, strict=True)]
    assert result["valid_top1"] == pytest.approx(np.mean(best), rel=1e-12)
    is_right = predicted == y
    assert 0.5 < is_right.mean() < 1 and result["top1"] == pytest.approx(100 * is_right.mean())
    accuracies = [100 * is_right[outer == k].mean() for k in range(FOLDS)]
    np.testing.assert_allclose(result["top1_by_fold"], accuracies, rtol=1e-12)
    assert result["confusion"] == confusion_matrix(y, predicted).tolist()
    error = np.std(accuracies, ddof=1) / np.sqrt(FOLDS)
    assert result["top1_standard_error"] == pytest.approx(error)
    low, high = result["top1_interval"]
    assert low < result["top1"] < high and json.loads(json.dumps(result)) == result
    expected = {"protocol": "quick_thought", "n": N, "d": D, "seed": 5, "converged": True}
    expected |= options | {"n_train": N - max(np.bincount(outer))}
    assert {key: result[key] for key in expected} == expected


def test_defaults_are_those_of_the_papers():
    options = inspect.signature(sentence_probe).parameters
    assert options["folds"].default == options["inner_folds"].default == 10
    assert options["strengths"].default == STRENGTHS == tuple(2.0**-k for k in range(9))


@pytest.mark.parametrize("metric", [pytest.param("cosine", marks=pytest.mark.slow), "euclidean"])
def test_neighbours_are_in_the_other_folds(metric):
    """k-NN uses the folds of the logistic probe; the nearest rows are in the query's fold."""
    x, y, options, other, outer = cross_validated(2)
    x = np.float32(x + 0.5 * np.random.default_rng(0).normal(size=(FOLDS, D))[outer])
    options = {name: options[name] for name in ("num_classes", "folds", "seed")}
    result = knn_probe(x, y, k=5, metric=metric, **options)
    exact = x.astype(np.float64)
    predicted = []
    for i in range(N):
        distances = ((exact - exact[i]) ** 2).sum(axis=1)
        if metric == "cosine":
            distances = -exact @ exact[i] / np.linalg.norm(exact, axis=1)
        near = sorted(np.flatnonzero(outer != outer[i]), key=lambda j: distances[j])[:5]
        predicted.append(int(sum(y[near]) >= 3))
    assert result["predicted"] == predicted and result["targets"] == y.tolist()
    assert result["targets"] == other["targets"]
    assert result["top1"] == pytest.approx(100 * np.mean(np.array(predicted) == y))
    expected = {"protocol": "knn", "k": 5, "metric": metric, "n": N, "d": D, "seed": 5}
    expected |= {"folds": FOLDS, "n_train": N - max(np.bincount(outer))}
    assert {key: result[key] for key in expected} == expected
    assert json.loads(json.dumps(result)) == result
    assert knn_probe(x, y, **options | {"seed": 6})["predicted"] != predicted


@pytest.mark.slow
def test_devices_and_groups_of_fits_change_nothing(monkeypatch):
    x, y, options, result, _ = cross_validated(2)
    monkeypatch.setattr(logistic, "AT_ONCE", 3 * 2 * D)  # 3 of 18 fits at a time, and then 4
    found = sentence_probe(x, y, devices=jax.devices()[:3], **options)
    for key in ("grid", "chosen_by_fold", "top1_by_fold", "confusion"):
        assert found[key] == result[key]


def test_a_class_that_folds_and_fits_lack():
    """Classes 2 and 4 of 5 have no row, and class 1 has one, which is always wrong."""
    x, y, options, *_ = cross_validated(2)
    y = np.where(np.arange(N) == 2, 1, 3 * y)
    found = sentence_probe(x, y, **options | {"num_classes": 5})
    scores = found["per_class"]
    assert scores[1:5:3] == [0.0, None] and scores[2] is None and min(scores[0], scores[3]) > 50
    assert np.sum(found["confusion"]) == N and found["converged"]


def test_equal_features_give_the_larger_class():
    y = np.repeat([0, 1], [90, 31])
    found = sentence_probe(np.ones((N, D)), y, num_classes=2, folds=FOLDS, inner_folds=INNER)
    assert found["per_class"] == [100.0, 0.0]
    assert found["chosen"] == {"strength": 1.0} and found["chosen_at_edge"]
