"""Labelled sentences in files, and their probe against nested cross-validation by scikit-learn."""

import gzip

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from hypersphere_jax.configs import UserError
from hypersphere_jax.evaluation.knn import knn_probe
from hypersphere_jax.evaluation.scores import validation_folds
from hypersphere_jax.text import labelled
from hypersphere_jax.text.labelled import STRENGTHS, load_labelled, sentence_probe

POSITIVE = ["it 's a gem .", "clichés , but loved ones — all !", "…"]
NEGATIVE = ["don't bother .", "dull"]
VOCABULARY = ("<pad>", "<end>", "<unk>", ".", "'s", "do", "dull", "gem", "it", "n't")


@pytest.mark.parametrize("ending", ["", ".pos", ".neg.gz", None])
def test_pair_of_files(tmp_path, ending, monkeypatch):
    """The files are like MR's: Windows-1252, and a space at the end of lines."""
    monkeypatch.setattr(labelled, "LONGEST", 6)
    positive = " \r\n\r\n".join(POSITIVE) + "\r\n"
    (tmp_path / "rt-polarity.pos").write_bytes(positive.encode("cp1252"))
    (tmp_path / "rt-polarity.neg.gz").write_bytes(gzip.compress("\n".join(NEGATIVE).encode()))
    name, folder = f"{tmp_path}/rt-polarity{ending}", None
    if ending is None:
        name, folder = "mr", tmp_path
    dataset = load_labelled(name, folder, VOCABULARY)
    source = dataset.train
    assert source.class_names == ("neg", "pos") and dataset.test is None
    assert source.tokens[:2].tolist() == [[5, 9, 2, 3, 1, 0], [6, 1, 0, 0, 0, 0]]
    assert source.tokens[2:4].tolist() == [[8, 4, 2, 7, 3, 1], [2, 2, 2, 2, 2, 1]]  # truncated
    assert source.labels.tolist() == [0, 0, 1, 1, 1]


def test_missing_and_empty_files_are_refused(tmp_path):
    (tmp_path / "one.pos").write_text("dull")
    (tmp_path / "empty.pos").write_text("dull")
    (tmp_path / "empty.neg").write_text("\n")
    for name in ("one", "empty"):
        with pytest.raises(UserError, match=f"{name}.neg"):
            load_labelled(str(tmp_path / name), None, VOCABULARY)
    with pytest.raises(UserError, match="data_dir"):
        load_labelled("mr", None, VOCABULARY)


N, D, SEED = 121, 6, 5
FOLDS, INNER = 4, 2  # with two inner folds the number of fitted rows matters


def fit(x, y, strength):
    """Return the minimum of the sum of losses + strength / 2 |w|^2, by Newton's method."""
    model = LogisticRegression(C=1 / strength, solver="newton-cholesky", tol=1e-9)
    return model.fit(np.float64(x), y)


def choose_by_loop(x, y):
    """Return the best strength, and mean accuracies `[strengths]` over inner folds."""
    part = validation_folds(y, INNER, SEED)
    accuracies = np.empty((INNER, len(STRENGTHS)))
    for k, cell in np.ndindex(accuracies.shape):
        model = fit(x[part != k], y[part != k], STRENGTHS[cell])
        accuracies[k, cell] = 100 * model.score(x[part == k], y[part == k])
    means = accuracies.mean(axis=0)
    return STRENGTHS[int(np.argmax(means > means.max() - 1e-9))], means


def points(num_classes):
    """Return overlapping classes, whose mean is not 0 and norm not 1, and their outer folds."""
    rng = np.random.default_rng(num_classes)
    centres = rng.normal(size=(num_classes, D))
    y = rng.integers(num_classes, size=N)
    x = np.float32(0.2 * (centres[y] + 1.5 * rng.normal(size=(N, D))) + 0.5)
    return x, y, validation_folds(y, FOLDS, SEED)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_nested_cross_validation_agrees_with_scikit_learn(num_classes):
    x, y, outer = points(num_classes)
    options = {"folds": FOLDS, "inner_folds": INNER, "seed": SEED}
    result = sentence_probe(x, y, num_classes=num_classes, **options)
    chosen, means = [], []
    predicted = np.full(N, -1)
    for k in range(FOLDS):
        rows = outer != k
        strength, accuracies = choose_by_loop(x[rows], y[rows])
        predicted[~rows] = fit(x[rows], y[rows], strength).predict(x[~rows])
        chosen.append(strength)
        means.append(accuracies)
    assert len(set(chosen)) > 1, "equal choices would show little"
    assert result["chosen_by_fold"] == chosen
    assert [row["strength"] for row in result["grid"]] == list(STRENGTHS)
    grid = [row["fold_top1"] for row in result["grid"]]
    np.testing.assert_allclose(grid, np.transpose(means), rtol=1e-12)
    assert result["predicted"] == predicted.tolist()
    by_fold = [100 * (predicted == y)[outer == k].mean() for k in range(FOLDS)]
    np.testing.assert_allclose(result["top1_by_fold"], by_fold, rtol=1e-12)
    error = np.std(by_fold, ddof=1) / np.sqrt(FOLDS)
    assert result["top1_standard_error"] == pytest.approx(error)


def test_neighbours_are_in_the_other_folds():
    """k-NN uses the folds of the logistic probe; the nearest rows are in the query's fold."""
    x, y, outer = points(2)
    x = np.float32(x + 0.5 * np.random.default_rng(0).normal(size=(FOLDS, D))[outer])
    result = knn_probe(x, y, k=5, metric="euclidean", num_classes=2, folds=FOLDS, seed=SEED)
    predicted = []
    for i in range(N):
        distances = ((np.float64(x) - x[i]) ** 2).sum(axis=1)
        near = sorted(np.flatnonzero(outer != outer[i]), key=lambda j: distances[j])[:5]
        predicted.append(int(sum(y[near]) >= 3))
    assert result["predicted"] == predicted
    assert result["targets"] == y.tolist()
