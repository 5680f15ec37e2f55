"""Scores against scikit-learn, and the bootstrap against rows drawn one by one."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics

from hypersphere_jax.evaluation.classifier import Classifier
from hypersphere_jax.evaluation.scores import bootstrap_interval, confusion, scores, top_classes


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_those_of_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    n, classes = 400, 9
    y = rng.choice(classes, size=n, p=[0.4, 0.2, 0.1, 0.1, 0.1, 0.05, 0.03, 0.02, 0.0])
    logits = rng.normal(size=(n, classes)) + 1.5 * np.eye(classes)[y]
    ranked = np.argsort(-logits, axis=1)
    found = scores(ranked[:, :5], y, num_classes=classes)

    labels = np.arange(classes)
    table = metrics.confusion_matrix(y, ranked[:, 0], labels=labels)
    assert found["confusion"] == table.tolist()
    assert found["top1"] == pytest.approx(100 * metrics.accuracy_score(y, ranked[:, 0]))
    top5 = metrics.top_k_accuracy_score(y, logits, k=5, labels=labels)
    assert found["top5"] == pytest.approx(100 * top5)
    recall = metrics.recall_score(y, ranked[:, 0], labels=labels[:8], average=None)
    assert found["per_class"][:8] == pytest.approx((100 * recall).tolist())
    assert found["per_class"][8] is None  # no row of that class
    assert json.loads(json.dumps(found)) == found


def test_confusion_of_many_classes_is_of_pairs_that_occur(rng):
    y, predicted = rng.integers(90, 101, size=(2, 200))
    assert np.shape(confusion(predicted % 100, y % 100, 100)) == (100, 100)
    found = confusion(predicted, y, 101)
    table = metrics.confusion_matrix(y, predicted, labels=np.arange(101))
    expected = [[int(i), int(j), int(table[i, j])] for i, j in np.argwhere(table)]
    assert found == expected and max(count for *_, count in found) > 1
    # A table of a million classes would take terabytes.
    few = scores(
        np.array([[999_999], [3], [3]]), np.array([999_999, 999_998, 3]), num_classes=10**6
    )
    assert few["confusion"] == [[3, 3, 1], [999_998, 3, 1], [999_999, 999_999, 1]]
    assert few["per_class"][-2:] == [0.0, 100.0] and few["per_class"][3:5] == [100.0, None]
    assert json.loads(json.dumps(few)) == few


def test_top5_is_left_out_where_it_is_always_right():
    ranked, y = np.array([[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]]), np.array([0, 0])
    assert scores(ranked, y, num_classes=5)["top5"] is None
    assert scores(ranked, y, num_classes=6)["top5"] == 100.0


def test_interval_is_that_of_rows_drawn_with_replacement():
    rng = np.random.default_rng(1)
    right = rng.random(300) < 0.8
    drawn = [right[rng.integers(300, size=300)].mean() for _ in range(4000)]
    expected = 100 * np.quantile(drawn, [0.025, 0.975])
    np.testing.assert_allclose(bootstrap_interval(right, 5), expected, atol=0.5)
    assert bootstrap_interval(right, 5) == bootstrap_interval(right, 5)
    assert bootstrap_interval(np.ones(7, bool)) == [100.0, 100.0]
    assert bootstrap_interval(np.zeros(7, bool)) == [0.0, 0.0]


def test_top_classes_in_blocks(monkeypatch):
    rng = np.random.default_rng(0)
    weights, bias = rng.normal(size=(7, 3)).astype(np.float32), np.arange(7, dtype=np.float32) / 7
    x = rng.normal(size=(50, 3)).astype(np.float32)
    expected = np.argsort(-((2 * x) @ weights.T + bias), axis=1)[:, :5]
    classifier = Classifier(jnp.asarray(weights), jnp.asarray(bias))
    for block in (2**24, 7 * 8):
        monkeypatch.setattr("hypersphere_jax.evaluation.scores.BLOCK", block)
        found = top_classes(classifier, x, 5, lambda rows: 2 * rows)
        np.testing.assert_array_equal(found, expected)
    same = Classifier(jnp.zeros((7, 3)), jnp.zeros(7))
    np.testing.assert_array_equal(top_classes(same, x[:2]), [[0], [0]])
