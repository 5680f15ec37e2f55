"""Logistic regression against scikit-learn, on any devices and in any blocks."""

import jax
import numpy as np
import pytest
from overlapping import fit_scikit_learn, splits

from hypersphere_jax.evaluation import logistic

CLASSES, N, D = 6, 300, 16


def place(x, y, **options):
    return logistic.place(x, np.int32(y), num_classes=CLASSES, **{"fits": 4} | options)


def cell(classifiers, index):
    return jax.tree.map(lambda leaf: leaf[index], classifiers)


def fit(x, y, l2, **options):
    found = logistic.fit_logistic(place(x, y), np.ones(N, bool), [l2], **options)
    return found, cell(found.classifiers, 0)


def assert_minimum(classifier, x, y, l2):
    expected = fit_scikit_learn(x, y, 1 / (l2 * len(y)))
    tolerance = 2e-3 * np.abs(expected.coef_).max()
    np.testing.assert_allclose(classifier.weights, expected.coef_, atol=tolerance)
    # A number added to every bias changes nothing.
    shift = np.mean(expected.intercept_ - classifier.bias)
    np.testing.assert_allclose(classifier.bias + shift, expected.intercept_, atol=tolerance)


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize(
    ("devices", "fits"),  # with room for many fits, blocks have few rows
    [(1, 4), pytest.param(3, 50_000, marks=pytest.mark.slow)],
)
def test_minima_match_scikit_learn(rng, standardize, devices, fits):
    x, y, _, _ = splits(rng)
    x = x * np.logspace(0, -2, D, dtype=np.float32) + 3
    problem = place(x, y, fits=fits, standardize=standardize, devices=jax.devices()[:devices])
    assert (len(problem.blocks) > 1) == (fits > 4)
    x = np.asarray(problem.scaling.apply(x))
    fitted = rng.random(N) < 0.8
    l2s = [1e-1, 1e-3, 1e-5, 1e-4]
    found = logistic.fit_logistic(problem, fitted, l2s)
    assert (found.gradient_norm <= logistic.limit(l2s)).all()
    accuracies = logistic.accuracies(problem, found.classifiers, ~fitted)
    for index, l2 in enumerate(l2s):
        classifier = cell(found.classifiers, index)
        assert_minimum(classifier, x[fitted], y[fitted], l2)
        predicted = np.argmax(x[~fitted] @ classifier.weights.T + classifier.bias, axis=1)
        assert accuracies[index] == pytest.approx(100 * np.mean(predicted == y[~fitted]))


def test_fits_in_groups_equal_single_fits(rng):
    x, y, _, _ = splits(rng)
    l2s = [1e-1, 1e-3, 1e-2]
    found = logistic.fit_logistic(place(x, y, fits=2), np.ones(N, bool), l2s)
    for weights, l2 in zip(found.classifiers.weights, l2s, strict=True):
        np.testing.assert_allclose(weights, fit(x, y, l2)[1].weights, atol=1e-3)


def test_features_of_very_unequal_variance_converge(rng):
    sizes = np.logspace(0, -4, D)
    x = (rng.normal(size=(N, D)) * sizes).astype(np.float32)
    y = (x / sizes @ rng.normal(size=(D, CLASSES))).argmax(axis=1)
    found, _ = fit(x, y, 1e-6)
    assert found.gradient_norm <= logistic.TOLERANCE
    again, _ = fit(x, y, 1e-6, start=cell(found.classifiers, 0))
    assert again.steps <= 1
