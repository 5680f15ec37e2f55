"""The probe of sentence encoders: nested cross-validation by hand, with scikit-learn."""

import functools
import json
from typing import NamedTuple

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


def problem(rng, num_classes, n=N):
    """Features whose mean is not 0 and whose norm is not 1, of classes that overlap."""
    centres = rng.normal(size=(num_classes, D))
    labels = rng.integers(num_classes, size=n)
    x = 0.2 * (centres[labels] + 1.5 * rng.normal(size=(n, D))) + 0.5
    return x.astype(np.float32), labels


def fit(x, y, strength):
    # Second-order steps, of which a few reach the minimum to the last digits.
    model = LogisticRegression(C=1 / strength, solver="newton-cholesky", tol=1e-9)
    return model.fit(x.astype(float), y)


def chosen_by_hand(x, y, seed=0):
    """The best strength, of equals the largest, and the accuracies `[inner folds, strengths]`."""
    part = stratified_folds(y, INNER, seed)
    accuracies = np.array(
        [
            [
                100 * fit(x[part != k], y[part != k], s).score(x[part == k], y[part == k])
                for s in STRENGTHS
            ]
            for k in range(INNER)
        ]
    )
    means = accuracies.mean(axis=0)
    return STRENGTHS[int(np.argmax(means > means.max() - 1e-9))], accuracies


def confusion(y, predicted, num_classes):
    table = np.zeros((num_classes, num_classes), int)
    np.add.at(table, (y, predicted), 1)
    return table.tolist()


class Case(NamedTuple):
    x: np.ndarray
    y: np.ndarray
    options: dict
    result: dict
    outer: np.ndarray
    choices: list  # by hand, of each fold
    predicted: np.ndarray  # by hand


@functools.cache
def cross_validated(num_classes):
    x, y = problem(np.random.default_rng(num_classes), num_classes)
    options = {"num_classes": num_classes, "folds": FOLDS, "inner_folds": INNER, "seed": 5}
    result = sentence_probe(x, y, **options)
    outer = stratified_folds(y, FOLDS, 5)
    choices, predicted = [], np.full(N, NONE)
    for k in range(FOLDS):
        fitted = outer != k
        choices.append(chosen_by_hand(x[fitted], y[fitted], 5))
        assert (predicted[~fitted] == NONE).all()  # tested once
        predicted[~fitted] = fit(x[fitted], y[fitted], choices[-1][0]).predict(x[~fitted])
    return Case(x, y, options, result, outer, choices, predicted)


two_and_three = pytest.mark.parametrize("case", [2, 3], indirect=True)


@pytest.fixture
def case(request):
    return cross_validated(getattr(request, "param", 2))


@two_and_three
def test_nested_choices_are_scikit_learns(case):
    result, choices = case.result, case.choices
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


@two_and_three
def test_nested_predictions_are_scikit_learns(case):
    y, result, outer, predicted = case.y, case.result, case.outer, case.predicted
    right = predicted == y
    assert 0.5 < right.mean() < 1
    assert result["top1"] == pytest.approx(100 * right.mean())
    by_fold = [100 * right[outer == k].mean() for k in range(FOLDS)]
    np.testing.assert_allclose(result["top1_by_fold"], by_fold, rtol=1e-12)
    assert result["confusion"] == confusion(y, predicted, len(result["confusion"]))
    spread = np.sqrt(np.sum((by_fold - np.mean(by_fold)) ** 2) / (FOLDS - 1) / FOLDS)
    assert result["top1_standard_error"] == pytest.approx(spread)


def test_what_the_result_says_of_itself(case):
    y, result = case.y, case.result
    assert json.loads(json.dumps(result)) == result
    said = {
        "protocol": "quick_thought",
        "n": N,
        "n_train": N - 31,
        "d": D,
        "num_classes": len(np.unique(y)),
        "seed": 5,
        "folds": FOLDS,
        "inner_folds": INNER,
        "converged": True,
    }
    assert {key: result[key] for key in said} == said
    low, high = result["top1_interval"]
    assert low < result["top1"] < high


@pytest.mark.parametrize("case", [3], indirect=True)
def test_a_split_is_tested_once(case, rng):
    x, y = case.x, case.y
    num_classes, train, test = len(np.unique(y)), slice(80), slice(80, N)
    options = {"num_classes": num_classes, "inner_folds": INNER}
    found = sentence_probe(x[train], y[train], x[test], y[test], **options)
    strength, accuracies = chosen_by_hand(x[train], y[train])
    predicted = fit(x[train], y[train], strength).predict(x[test])
    share = np.mean(predicted == y[test])
    assert found["chosen"] == {"strength": strength}
    assert found["chosen_at_edge"] == (strength in (STRENGTHS[0], STRENGTHS[-1]))
    assert found["confusion"] == confusion(y[test], predicted, num_classes)
    assert found["top1"] == pytest.approx(100 * share)
    error = 100 * np.sqrt(share * (1 - share) / (N - 80))
    assert found["top1_standard_error"] == pytest.approx(error)
    grid = [row["fold_top1"] for row in found["grid"]]
    np.testing.assert_allclose(grid, accuracies.T, rtol=1e-12)
    assert (found["n"], found["n_train"]) == (N - 80, 80)
    assert found["folds"] is found["chosen_by_fold"] is found["top1_by_fold"] is None

    other = sentence_probe(x[train], y[train], x[test], rng.permutation(y[test]), **options)
    assert other["grid"] == found["grid"] and other["chosen"] == found["chosen"]


@two_and_three
def test_held_out_labels_do_not_leak_into_their_fold(case, monkeypatch):
    x, y, result, outer = case.x, case.y, case.result, case.outer
    num_classes = len(np.unique(y))

    def folds_as_before(labels, folds, seed):
        return outer if len(labels) == N else stratified_folds(labels, folds, seed)

    monkeypatch.setattr(sentences, "stratified_folds", folds_as_before)
    for k in (0, 2):
        wrong = np.where(outer == k, (y + 1) % num_classes, y)
        found = sentence_probe(x, wrong, **case.options)
        assert found["chosen_by_fold"][k] == result["chosen_by_fold"][k]
        for row, before in zip(found["grid"], result["grid"], strict=True):
            assert row["fold_top1"][k] == before["fold_top1"][k]
        assert found["grid"] != result["grid"]  # of the folds that fit these rows
        if num_classes == 2:
            assert found["top1_by_fold"][k] == pytest.approx(100 - result["top1_by_fold"][k])


def test_devices_and_groups_change_nothing(case, monkeypatch):
    x, y, result = case.x, case.y, case.result
    num_classes = len(np.unique(y))
    monkeypatch.setattr(sentences, "AT_ONCE", 7 * num_classes * D)  # 7 of 18 fits at a time
    monkeypatch.setattr(sentences, "SMALL", 0)  # fewer are not filled up
    found = sentence_probe(x, y, devices=jax.devices()[:3], **case.options)
    for key in ("grid", "chosen_by_fold", "top1_by_fold", "confusion"):
        assert found[key] == result[key]


@two_and_three
def test_units_of_the_features_are_units_of_the_strength(case):
    """The penalty is of features as they are: twice as long, they bear four times the strength."""
    x, y, result = case.x, case.y, case.result
    found = sentence_probe(2 * x, y, strengths=[4 * s for s in STRENGTHS], **case.options)
    assert found["chosen_by_fold"] == [4 * s for s in result["chosen_by_fold"]]
    assert found["confusion"] == result["confusion"]


def test_a_memory_map_in_half_precision(case, tmp_path):
    x, y = case.x, case.y
    half = x.astype(np.float16)
    np.save(tmp_path / "x.npy", half)
    found = sentence_probe(np.load(tmp_path / "x.npy", mmap_mode="r"), y, **case.options)
    whole = sentence_probe(half.astype(np.float32), y, **case.options)
    assert found["grid"] == whole["grid"] and found["confusion"] == whole["confusion"]


def test_a_class_that_folds_and_fits_lack(rng):
    """Class 4 of 5 has no row, class 3 two and class 1 one, which is always wrong."""
    x, y = problem(rng, 2, n=40)
    y = 2 * y
    y[:2], y[2] = 3, 1
    x[:2] = 9.0  # far away: right from one sample
    found = sentence_probe(x, y, num_classes=5, folds=4, inner_folds=3, strengths=[1, 0.01])
    assert found["per_class"][3] == 100.0
    assert found["per_class"][1] == 0.0 and found["per_class"][4] is None
    assert np.sum(found["confusion"]) == 40 and np.sum(found["confusion"], axis=0)[4] == 0
    assert found["converged"]


def test_more_folds_than_strengths(case):
    """Fewer fits choose than are tested: nothing is left out. One strength is no edge."""
    options = {**case.options, "strengths": [0.125]}
    found = sentence_probe(case.x, case.y, **options)
    predicted = np.full(N, NONE)
    for k in range(FOLDS):
        fitted = case.outer != k
        predicted[~fitted] = fit(case.x[fitted], case.y[fitted], 0.125).predict(case.x[~fitted])
    assert found["confusion"] == confusion(case.y, predicted, 2)
    assert found["chosen_by_fold"] == [0.125] * FOLDS and not found["chosen_at_edge"]


def test_two_rows_a_class():
    """Each fit that chooses has one class alone; nothing is right, and the largest is chosen."""
    x, y = np.array([[-1.0], [-1.1], [1.0], [1.1]], np.float32), np.array([0, 0, 1, 1])
    found = sentence_probe(x, y, num_classes=2, folds=2, inner_folds=2)
    assert found["chosen_by_fold"] == [1.0, 1.0] and found["valid_top1"] == 0.0
    assert found["chosen_at_edge"] and found["converged"]
    assert found["top1"] == 100.0 and found["n_train"] == 2


def test_features_that_coincide_give_the_larger_class():
    y, x = np.repeat([0, 1], [90, 31]), np.ones((N, D))
    found = sentence_probe(x, y, num_classes=2, folds=FOLDS, inner_folds=INNER)
    assert found["per_class"] == [100.0, 0.0] and found["chosen"] == {"strength": 1.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test_x": np.ones((3, 2))}, "test features and test labels: give both or neither"),
        ({"test_y": np.ones(3, int)}, "test features and test labels: give both or neither"),
        ({"test_x": np.ones((3, 4)), "test_y": np.zeros(3, int)}, "test features 4: were they"),
        ({"train_y": np.zeros(12, int)}, "train labels: only class 0, two are needed"),
        ({"train_y": np.full(12, 2)}, r"train labels: 2 \(row 0\) is not one of the 2 classes"),
        ({"train_x": np.full((12, 2), np.nan)}, "train features: 12 of 12 rows hold NaN"),
        ({"folds": 13}, "folds = 13: must be 2 to 12"),
        ({"folds": 1}, "folds = 1: must be 2 to 12"),
        ({"inner_folds": 1}, "inner_folds = 1: must be 2 to 10, the samples of a training part"),
        ({"inner_folds": 11}, "inner_folds = 11: must be 2 to 10"),
        ({"strengths": []}, "strengths: give at least one"),
        ({"strengths": [1, 0]}, "strengths .*: must be positive numbers"),
        ({"strengths": ["much"]}, "strengths .*: must be positive numbers"),
        ({"strengths": 1.0}, "strengths 1.0: must be positive numbers"),
    ],
)
def test_errors_are_one_line(change, message):
    options = {"train_x": np.ones((12, 2)), "train_y": np.arange(12) % 2, "folds": 6}
    with pytest.raises(UserError, match=message) as caught:
        sentence_probe(**{**options, "num_classes": 2, **change})
    assert "\n" not in str(caught.value)
