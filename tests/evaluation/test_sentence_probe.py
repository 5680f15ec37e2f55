"""The probe of sentence encoders: nested cross-validation by hand, with scikit-learn."""

import functools
import inspect
import json

import jax
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from hypersphere_jax.config import UserError
from hypersphere_jax.evaluation import sentences
from hypersphere_jax.evaluation.selection import stratified_folds
from hypersphere_jax.evaluation.sentences import STRENGTHS, sentence_probe

N, D, FOLDS, INNER = 121, 6, 4, 2  # two halves: the number of rows of a fit is worth a cell
NONE = -1


def problem(num_classes):
    """Features whose mean is not 0 and whose norm is not 1, of classes that overlap."""
    rng = np.random.default_rng(num_classes)
    centres = rng.normal(size=(num_classes, D))
    labels = rng.integers(num_classes, size=N)
    x = 0.2 * (centres[labels] + 1.5 * rng.normal(size=(N, D))) + 0.5
    return x.astype(np.float32), labels


def fit(x, y, strength):
    # Second-order steps, of which a few reach the minimum to the last digits.
    model = LogisticRegression(C=1 / strength, solver="newton-cholesky", tol=1e-9)
    return model.fit(x.astype(float), y)


def chosen_by_hand(x, y, seed=0):
    """The best strength, of equals the largest, and the accuracies `[inner folds, strengths]`."""
    part = stratified_folds(y, INNER, seed)
    accuracies = np.empty((INNER, len(STRENGTHS)))
    for k, cell in np.ndindex(accuracies.shape):
        model = fit(x[part != k], y[part != k], STRENGTHS[cell])
        accuracies[k, cell] = 100 * model.score(x[part == k], y[part == k])
    means = accuracies.mean(axis=0)
    return STRENGTHS[int(np.argmax(means > means.max() - 1e-9))], accuracies


def confusion(y, predicted):
    table = np.zeros((y.max() + 1, y.max() + 1), int)
    np.add.at(table, (y, predicted), 1)
    return table.tolist()


@functools.cache
def cross_validated(num_classes):
    """Features, labels, options, what the probe finds, and the fold of each row."""
    x, y = problem(num_classes)
    options = {"num_classes": num_classes, "folds": FOLDS, "inner_folds": INNER, "seed": 5}
    return x, y, options, sentence_probe(x, y, **options), stratified_folds(y, FOLDS, 5)


@pytest.fixture(params=[2, 3])
def case(request):
    return cross_validated(request.param)


def test_nested_cross_validation_is_scikit_learns(case):
    x, y, options, result, outer = case
    choices, predicted = [], np.full(N, NONE)
    for k in range(FOLDS):
        fitted = outer != k
        choices.append(chosen_by_hand(x[fitted], y[fitted], 5))
        assert (predicted[~fitted] == NONE).all()  # tested once
        predicted[~fitted] = fit(x[fitted], y[fitted], choices[-1][0]).predict(x[~fitted])

    by_fold = [strength for strength, _ in choices]
    assert len(set(by_fold)) > 1, "a choice that never changes shows little"
    assert result["chosen_by_fold"] == by_fold
    assert result["chosen"] == {"strength": sorted(by_fold, reverse=True)[1]}
    assert [row["strength"] for row in result["grid"]] == list(STRENGTHS)
    for cell, row in enumerate(result["grid"]):
        means = [accuracies[:, cell].mean() for _, accuracies in choices]
        np.testing.assert_allclose(row["fold_top1"], means, rtol=1e-12)
        np.testing.assert_allclose(row["valid_top1"], np.mean(means), rtol=1e-12)
    best = [accuracies[:, STRENGTHS.index(strength)] for strength, accuracies in choices]
    np.testing.assert_allclose(result["valid_top1"], np.mean(best), rtol=1e-12)

    right = predicted == y
    assert 0.5 < right.mean() < 1 and result["top1"] == pytest.approx(100 * right.mean())
    accuracies = [100 * right[outer == k].mean() for k in range(FOLDS)]
    np.testing.assert_allclose(result["top1_by_fold"], accuracies, rtol=1e-12)
    assert result["confusion"] == confusion(y, predicted)
    error = np.std(accuracies, ddof=1) / np.sqrt(FOLDS)
    assert result["top1_standard_error"] == pytest.approx(error)

    assert json.loads(json.dumps(result)) == result
    said = {"protocol": "quick_thought", "n": N, "d": D, "seed": 5, "converged": True}
    said |= options | {"n_train": N - max(np.bincount(outer))}
    assert {key: result[key] for key in said} == said
    low, high = result["top1_interval"]
    assert low < result["top1"] < high


def test_the_protocol_is_that_of_the_papers():
    options = inspect.signature(sentence_probe).parameters
    assert options["folds"].default == options["inner_folds"].default == 10
    assert options["strengths"].default == STRENGTHS == tuple(2.0**-k for k in range(9))


def test_a_split_is_tested_once(rng):
    x, y = problem(3)
    x_test, y_test = x[:50] + rng.normal(size=(50, D)).astype(np.float32) / 4, y[:50]
    options = {"num_classes": 3, "inner_folds": INNER}
    found = sentence_probe(x, y, x_test, y_test, **options)
    strength, accuracies = chosen_by_hand(x, y)
    predicted = fit(x, y, strength).predict(x_test)
    share = np.mean(predicted == y_test)
    assert found["chosen"] == {"strength": strength}
    assert found["chosen_at_edge"] == (strength in (STRENGTHS[0], STRENGTHS[-1]))
    assert found["confusion"] == confusion(y_test, predicted)
    assert found["top1"] == pytest.approx(100 * share)
    error = 100 * np.sqrt(share * (1 - share) / 50)
    assert found["top1_standard_error"] == pytest.approx(error)
    grid = [row["fold_top1"] for row in found["grid"]]
    np.testing.assert_allclose(grid, accuracies.T, rtol=1e-12)
    assert (found["n"], found["n_train"]) == (50, N)
    assert found["folds"] is found["chosen_by_fold"] is found["top1_by_fold"] is None

    other = sentence_probe(x, y, x_test, rng.permutation(y_test), **options)
    assert other["grid"] == found["grid"] and other["chosen"] == found["chosen"]


def test_devices_and_groups_change_nothing(monkeypatch):
    x, y, options, result, _ = cross_validated(2)
    monkeypatch.setattr(sentences, "AT_ONCE", 3 * 2 * D)  # 3 of 18 fits at a time, and then 4
    found = sentence_probe(x, y, devices=jax.devices()[:3], **options)
    for key in ("grid", "chosen_by_fold", "top1_by_fold", "confusion"):
        assert found[key] == result[key]


def test_a_class_that_folds_and_fits_lack():
    """Classes 2 and 4 of 5 have no row, and class 1 has one, which is always wrong."""
    x, y, options, *_ = cross_validated(2)
    y = np.where(y == 1, 3, 0)
    y[2] = 1
    found = sentence_probe(x, y, **options | {"num_classes": 5})
    assert found["per_class"][1] == 0.0 and found["per_class"][2] is found["per_class"][4] is None
    assert min(found["per_class"][0], found["per_class"][3]) > 50 and found["converged"]
    counts = np.array(found["confusion"])
    assert counts.sum() == N and not counts[[2, 4]].any() and not counts[:, [1, 2, 4]].any()


def test_features_that_coincide_give_the_larger_class():
    """All strengths are equally good: the largest is chosen, at the edge, of which one has none."""
    y, x = np.repeat([0, 1], [90, 31]), np.ones((N, D))
    options = {"num_classes": 2, "folds": FOLDS}
    one = sentence_probe(x, y, strengths=[0.5], inner_folds=18, **options)
    assert one["chosen_by_fold"] == [0.5] * FOLDS and not one["chosen_at_edge"]
    found = sentence_probe(x, y, inner_folds=INNER, **options)
    assert found["per_class"] == [100.0, 0.0]
    assert found["chosen"] == {"strength": 1.0} and found["chosen_at_edge"]


def test_errors_are_one_line():
    x, y = np.ones((12, 2)), np.arange(12) % 2
    both = "test features and test labels: give both or neither"
    for message, change in (
        (both, {"test_x": np.ones((3, 2))}),
        (both, {"test_y": np.ones(3, int)}),
        ("test features 4: were they", {"test_x": np.ones((3, 4)), "test_y": np.zeros(3, int)}),
        ("train labels: only class 0, two are needed", {"train_y": 0 * y}),
        (r"train labels: 2 \(row 0\) is not one of the 2 classes", {"train_y": 0 * y + 2}),
        ("train features: 12 of 12 rows hold NaN", {"train_x": np.nan * x}),
        ("folds = 13: must be 2 to 12", {"folds": 13}),
        ("folds = 1: must be 2 to 12", {"folds": 1}),
        ("inner_folds = 1: must be 2 to 10, the samples of a training part", {"inner_folds": 1}),
        ("inner_folds = 11: must be 2 to 10", {"inner_folds": 11}),
        ("strengths: give at least one", {"strengths": []}),
        ("strengths .*: must be positive numbers", {"strengths": [1, 0]}),
        ("strengths .*: must be positive numbers", {"strengths": ["much"]}),
        ("strengths 1.0: must be positive numbers", {"strengths": 1.0}),
    ):
        given = {"train_x": x, "train_y": y, "num_classes": 2, "folds": 6} | change
        with pytest.raises(UserError, match=message) as caught:
            sentence_probe(**given)
        assert "\n" not in str(caught.value)
