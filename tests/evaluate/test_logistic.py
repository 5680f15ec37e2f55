"""Logistic regressions, many at once: the minima are scikit-learn's, on any devices and blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from overlapping import scikit_learn, splits

from hypersphere_jax.evaluate import lbfgs, logistic
from hypersphere_jax.evaluate.logistic import NONE, PADDING

CLASSES, N, D = 6, 300, 16


def place(x, y, **options):
    as_they_are = logistic.Scaling(np.zeros(D, np.float32), 1.0)
    options |= {"num_classes": CLASSES, "jobs": 4, "scaling": as_they_are}
    return logistic.place(x, np.int32(y), **options)


def fit(x, y, l2, **options):
    """Most tests share one compiled program."""
    part = np.zeros(N, np.int32)
    found = logistic.fit_logistic(place(x, y), part, [l2], [NONE], **options)
    return jax.tree.map(lambda leaf: leaf[0], found)


@pytest.mark.parametrize("devices", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_minima_without_parts_of_the_rows_are_those_of_scikit_learn(rng, devices, monkeypatch):
    """Also of rows dealt out over devices in small blocks, by a rough model of the curvature."""
    x, y, _, _ = splits(rng)
    if devices > 1:
        monkeypatch.setattr(logistic, "READ", 40 * D)  # the last one has rows of the one before
        monkeypatch.setattr(logistic, "RANK", 5)
        monkeypatch.setattr(logistic, "_curvature", logistic._curvature.__wrapped__)
    part = rng.integers(3, size=N).astype(np.int32)
    part[:9] = PADDING  # in no fit
    problem = place(x, y, devices=jax.devices()[:devices])
    assert (len(problem.blocks) > 1) == (devices > 1)
    l2s, held_out = [1e-1, 1e-3, 1e-5, 1e-4], [NONE, 0, 1, 2]
    found = logistic.fit_logistic(problem, part, l2s, held_out)
    assert (found.gradient_norm <= 1e-6).all() and logistic.limit(1e-7) == pytest.approx(3e-7)
    for cell, (l2, left_out) in enumerate(zip(l2s, held_out, strict=True)):
        inside, valid = (part != left_out) & (part != PADDING), part == left_out
        one = jax.tree.map(lambda leaf, at=cell: leaf[at], found.classifiers)
        expected = scikit_learn(x[inside], y[inside], 1 / (l2 * inside.sum()))
        tolerance = 2e-3 * np.abs(expected.coef_).max()
        np.testing.assert_allclose(one.weights, expected.coef_, atol=tolerance)
        # A number added to every bias changes nothing: neither penalizes it.
        shift = np.mean(expected.intercept_ - one.bias)
        np.testing.assert_allclose(one.bias + shift, expected.intercept_, atol=tolerance)
        right = np.argmax(x[valid] @ one.weights.T + one.bias, axis=1) == y[valid]
        assert found.hits[cell] == np.sum(right), cell


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize(("away", "how"), [(0.05, "fold"), (50.0, "frame")])
def test_features_that_stay_where_they_are(rng, away, how, standardize, tmp_path):
    """Weights are scaled, or each pass scales what is far from 0: as of a copy that is scaled."""
    x, y, _, _ = splits(rng)
    x = np.float32(x * np.logspace(0, -1, D) + away)
    np.save(tmp_path / "x.npy", x)
    part, l2s, held_out = rng.integers(3, size=N).astype(np.int32), [1e-2, 1e-4], [0, 1]

    def found(x):
        options = {"num_classes": CLASSES, "jobs": 4, "standardize": standardize}
        problem = logistic.place(x, np.int32(y), **options)
        return problem, logistic.fit_logistic(problem, part, l2s, held_out)

    mapped, fits = found(np.load(tmp_path / "x.npy", mmap_mode="r"))
    copied, expected = found(np.float64(x))
    for problem, kept in ((mapped, how), (copied, None)):
        for name in ("fold", "frame"):
            assert (getattr(problem, name) is None) == (name != kept), (name, kept)
    weights = expected.classifiers.weights
    tolerance = 2e-3 * np.abs(weights).max()
    np.testing.assert_allclose(fits.classifiers.weights, weights, atol=tolerance)
    assert (fits.gradient_norm <= 1e-6).all() and (fits.hits == expected.hits).all()


@pytest.mark.parametrize("scale", [2.0, np.full(D, 2.0)], ids=["one scale", "one a dimension"])
def test_how_far_from_zero_weights_are_scaled(scale):
    """Up to four deviations: of a row's norm, or of each dimension's."""
    reach = 8 / D**0.5  # of each dimension alike: 8 in all
    for times, folds in ((0.99, True), (1.01, False)):
        centre = np.full(D, times * reach, np.float32)
        assert logistic.Scaling(centre, scale).folds == folds
    assert not logistic.Scaling(np.zeros(D, np.float32), 1e20 * np.asarray(scale)).folds


def test_features_of_very_unequal_variance(rng):
    sizes = np.logspace(0, -4, D)
    x = (rng.normal(size=(N, D)) * sizes).astype(np.float32)
    y = (x / sizes @ rng.normal(size=(D, CLASSES))).argmax(axis=1)
    found = fit(x, y, 1e-6)
    assert found.gradient_norm <= logistic.TOLERANCE and found.steps < 200
    assert fit(x, y, 1e-6, start=found.classifiers).steps == 0


def test_how_a_fit_ended(rng, monkeypatch):
    """The norm is that of the objective's gradient; an early end is as near as it was told."""
    x, y, _, _ = splits(rng)

    def value_and_norm(found):
        weights, bias = np.float64(found.classifiers.weights), np.float64(found.classifiers.bias)
        p = np.exp(x @ weights.T + bias)
        p /= p.sum(axis=1, keepdims=True)
        errors = (p - np.eye(CLASSES)[y]) / N
        value = -np.log(p[range(N), y]).mean() + 1e-4 / 2 * (weights**2).sum()
        return value, np.linalg.norm(np.c_[errors.T @ x + 1e-4 * weights, errors.sum(axis=0)])

    whole, early = fit(x, y, 1e-4), fit(x, y, 1e-4, excess=1e-3)
    monkeypatch.setattr(logistic, "MAX_STEPS", 3)
    cut = fit(x, y, 1e-4)
    assert 0 < value_and_norm(early)[0] - value_and_norm(whole)[0] < 4e-3  # an estimate
    assert cut.steps == 3 < early.steps < whole.steps
    assert cut.gradient_norm == pytest.approx(value_and_norm(cut)[1], rel=1e-3)


def test_steps_that_go_too_far_are_shortened():
    """Far from the minimum, log cosh is straight: steps by its curvature there are too long."""
    centres = np.array([0.3, -2.0, 5.0, 0.0], np.float32).reshape(2, 1, 2)

    @jax.jit
    def advance(state):
        slopes = lambda points: jnp.tanh(4 * (points - centres))  # noqa: E731
        return lbfgs.advance(state, slopes(state.trial), lambda vectors: 50 * vectors, 1e-5, 0.0)

    state = lbfgs.begin(np.ones((2, 1, 2), np.float32))
    for _ in range(60):
        state = advance(state)
    assert state.done.all() and (state.norm <= 1e-5).all()
    np.testing.assert_allclose(state.point, centres, atol=1e-5)
