"""Logistic regressions: their minima are scikit-learn's, on any devices and in any blocks."""

import jax
import numpy as np
import pytest
from overlapping import scikit_learn, splits

from hypersphere_jax.evaluation import logistic

CLASSES, N, D = 6, 300, 16


def place(x, y, **options):
    return logistic.place(x, np.int32(y), num_classes=CLASSES, fits=4, **options)


def fit(x, y, l2, **options):
    """Most tests share one compiled program."""
    problem = place(x, y)
    found = logistic.fit_logistic(problem, np.ones(N, bool), [l2], **options)
    return np.asarray(problem.scaling.apply(x)), jax.tree.map(lambda leaf: leaf[0], found)


def assert_minimum(classifier, x, y, l2):
    expected = scikit_learn(x, y, 1 / (l2 * len(y)))
    tolerance = 2e-3 * np.abs(expected.coef_).max()
    np.testing.assert_allclose(classifier.weights, expected.coef_, atol=tolerance)
    # A number added to every bias changes nothing: neither penalizes it.
    shift = np.mean(expected.intercept_ - classifier.bias)
    np.testing.assert_allclose(classifier.bias + shift, expected.intercept_, atol=tolerance)


@pytest.mark.parametrize("devices", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("standardize", [False, True])
def test_minima_match_scikit_learn(rng, devices, standardize, monkeypatch):
    """Also on several devices, in small blocks, and with a rough model of the curvature."""
    x, y, _, _ = splits(rng)
    x = x * np.logspace(0, -2, D, dtype=np.float32) + 3
    if devices > 1:
        monkeypatch.setattr(logistic, "CPU_ENTRIES", 40 * D)
        monkeypatch.setattr(logistic, "RANK", 5)
        monkeypatch.setattr(logistic, "_fit_curvature", logistic._fit_curvature.__wrapped__)
    problem = place(x, y, standardize=standardize, devices=jax.devices()[:devices])
    assert (len(problem.blocks) > 1) == (devices > 1)
    x = np.asarray(problem.scaling.apply(x))
    fitted = rng.random(N) < 0.8
    l2s = [1e-1, 1e-3, 1e-5, 1e-4]
    found = logistic.fit_logistic(problem, fitted, l2s)
    assert (found.gradient_norm <= 1e-6).all() and logistic.limit(1e-7) == pytest.approx(3e-7)
    valid = logistic.accuracies(problem, found.classifiers, ~fitted)
    for cell, l2 in enumerate(l2s):
        one = jax.tree.map(lambda leaf, at=cell: leaf[at], found.classifiers)
        assert_minimum(one, x[fitted], y[fitted], l2)
        predicted = np.argmax(x[~fitted] @ one.weights.T + one.bias, axis=1)
        assert valid[cell] == pytest.approx(100 * np.mean(predicted == y[~fitted]))


def test_cross_validation_leaves_out_folds_and_negative_parts(rng):
    x, y, _, _ = splits(rng)
    part = rng.integers(-1, 2, size=N)
    problem = place(x, y)
    l2s = np.array([[1e-2, 1e-4], [1e-3, 1e-5]])
    valid_top1, first = logistic.cross_validate(problem, part, l2s)
    x = np.asarray(problem.scaling.apply(x))
    for fold, cell in np.ndindex(2, 2):
        fitted = part == 1 - fold
        model = scikit_learn(x[fitted], y[fitted], 1 / (l2s[fold, cell] * fitted.sum()))
        score = 100 * model.score(x[part == fold], y[part == fold])
        assert valid_top1[fold, cell] == pytest.approx(score, abs=101 / np.sum(part == fold))
    assert first.weights.shape == (2, CLASSES, D)


def test_scaling_centres_features(rng):
    x = 1e6 + rng.normal(size=(500, 3)) * [1, 10, 0]
    scaling = logistic.fit_scaling(x.astype(np.float32), standardize=True)
    found = np.asarray(scaling.apply(x.astype(np.float32)))
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=0.02)
    np.testing.assert_allclose(found.std(axis=0), [3**-0.5, 3**-0.5, 0], rtol=0.02)
    one = logistic.fit_scaling(x.astype(np.float32), standardize=False)
    assert one.scale == pytest.approx(x.var(axis=0).sum() ** 0.5, rel=1e-2)
    assert logistic.fit_scaling(np.ones((4, 2)), standardize=False).scale == 1


def test_features_of_very_unequal_variance(rng):
    sizes = np.logspace(0, -4, D)
    x = (rng.normal(size=(N, D)) * sizes).astype(np.float32)
    y = (x / sizes @ rng.normal(size=(D, CLASSES))).argmax(axis=1)
    _, found = fit(x, y, 1e-6)
    assert found.gradient_norm <= logistic.TOLERANCE and found.steps < 200
    _, again = fit(x, y, 1e-6, start=found.classifiers)
    assert again.steps <= 1


def test_how_a_fit_ends(rng, monkeypatch):
    """The norm is that of the objective's gradient; an early end is within the excess."""
    x, y, _, _ = splits(rng)

    def value_and_norm(x, found):
        weights, bias = np.float64(found.classifiers.weights), np.float64(found.classifiers.bias)
        p = np.exp(x @ weights.T + bias)
        p /= p.sum(axis=1, keepdims=True)
        errors = (p - np.eye(CLASSES)[y]) / N
        value = -np.log(p[range(N), y]).mean() + 1e-4 / 2 * (weights**2).sum()
        return value, np.linalg.norm(np.c_[errors.T @ x + 1e-4 * weights, errors.sum(axis=0)])

    scaled, whole = fit(x, y, 1e-4)
    _, early = fit(x, y, 1e-4, excess=1e-3)
    monkeypatch.setattr(logistic, "MAX_STEPS", 3)
    _, cut = fit(x, y, 1e-4)
    assert 0 < value_and_norm(scaled, early)[0] - value_and_norm(scaled, whole)[0] < 4e-3
    assert cut.steps <= 3 < early.steps < whole.steps
    assert cut.gradient_norm == pytest.approx(value_and_norm(scaled, cut)[1], rel=1e-3)


def test_steps_that_are_too_long_are_cut(rng, monkeypatch):
    """A model of a much smaller curvature proposes steps that are too long."""
    x, y, _, _ = splits(rng)
    small = logistic.CurvatureModel(np.eye(D), np.full(D, 1e-6), np.float32(0))
    monkeypatch.setattr(logistic, "_fit_curvature", lambda x: small)
    scaled, found = fit(x, y, 1e-3)
    assert found.gradient_norm <= 1e-6
    assert_minimum(found.classifiers, scaled, y, 1e-3)
