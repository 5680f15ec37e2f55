"""Scores against scikit-learn, and the bootstrap against rows drawn one by one."""

import numpy as np
import pytest
from sklearn import metrics

from hypersphere_jax.evaluation.scores import bootstrap_interval, scores


def test_scores_are_those_of_scikit_learn(rng):
    n, classes = 400, 9
    y = rng.choice(classes, size=n, p=[0.4, 0.2, 0.1, 0.1, 0.1, 0.05, 0.03, 0.02, 0.0])
    logits = rng.normal(size=(n, classes)) + 1.5 * np.eye(classes)[y]
    ranked = np.argsort(-logits, axis=1)
    found = scores(ranked[:, :5], y, num_classes=classes)
    table = metrics.confusion_matrix(y, ranked[:, 0], labels=range(classes))
    assert found["confusion"] == table.tolist()
    top1, top5 = metrics.accuracy_score(y, ranked[:, 0]), (ranked[:, :5] == y[:, None]).any(1)
    assert (found["top1"], found["top5"]) == pytest.approx((100 * top1, 100 * top5.mean()))
    recall = metrics.recall_score(y, ranked[:, 0], labels=range(8), average=None)
    assert found["per_class"] == [*(pytest.approx(100 * share) for share in recall), None]
    assert scores(ranked[:, :5] % 5, y % 5, num_classes=5)["top5"] is None  # always right
    # With many classes, of pairs that occur: a table of a million classes would take terabytes.
    ranked, y = [[999_999], [3], [3], [3]], [999_999, 999_998, 3, 3]
    few = scores(np.array(ranked), np.array(y), num_classes=10**6)
    assert few["confusion"] == [[3, 3, 2], [999_998, 3, 1], [999_999, 999_999, 1]]
    assert few["per_class"][-2:] == [0.0, 100.0] and few["per_class"][3:5] == [100.0, None]


def test_interval_is_that_of_rows_drawn_with_replacement():
    rng = np.random.default_rng(1)
    right = rng.random(300) < 0.8
    drawn = [right[rng.integers(300, size=300)].mean() for _ in range(4000)]
    expected = 100 * np.quantile(drawn, [0.025, 0.975])
    np.testing.assert_allclose(bootstrap_interval(right, 5), expected, atol=0.5)
    assert bootstrap_interval(right, 5) == bootstrap_interval(right, 5)
    assert bootstrap_interval(np.ones(7, bool)) == [100.0, 100.0]
