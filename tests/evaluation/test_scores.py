"""Held-out rows, folds, the best cell of a grid, and scores."""

import math

import numpy as np
import pytest
from sklearn import metrics

from hypersphere_jax.evaluation import scores
from hypersphere_jax.evaluation.scores import best_cell, held_out_part, validation_folds


def test_held_out_parts_and_folds_have_their_share_of_every_class(rng):
    sizes = np.array([100, 33, 3, 1, 0, 2])
    y = rng.permutation(np.repeat(np.arange(6), sizes))

    def rows(part):
        return np.array([np.bincount(y[part == p], minlength=6) for p in np.unique(part)])

    assert rows(held_out_part(y, 0.2, 0))[0].tolist() == [20, 7, 1, 0, 0, 1]
    assert rows(held_out_part(y, 0.9, 0))[1].tolist() == [10, 3, 1, 1, 0, 1]
    for folds in (2, 5, 7):
        found = rows(validation_folds(y, folds, 1))
        assert found.shape == (folds, 6) and (found.sum(axis=0) == sizes).all()
        assert (found >= sizes // folds).all() and (found <= -(-sizes // folds)).all()


@pytest.mark.parametrize(("part_of", "share"), [(held_out_part, 0.2), (validation_folds, 5)])
def test_held_out_rows_are_random(part_of, share):
    """Labels may be sorted, and so may images within a class."""
    y = np.repeat([0, 1], 10)
    held_out = np.array([part_of(y, share, seed) == 0 for seed in range(1000)])
    np.testing.assert_allclose(held_out.mean(axis=0), 0.2, atol=0.06)


@pytest.mark.parametrize(
    ("fold_top1", "best"),
    [
        ([[50, 60, 70], [90, 70, 59]], 0),
        ([[50, 60, 70], [60, 70, 60]], 1),
        ([[0.1, 0.3], [0.2, 0.2], [0.3, 0.1]], 0),  # equal means, unequal sums in floating point
        ([[0.3, 0.1], [0.2, 0.2], [0.1, 0.3]], 0),
        ([[99, 10, 99], [math.nan, 11, math.nan]], 1),  # some diverged
    ],
)
def test_best_cell_has_the_best_mean_over_folds(fold_top1, best):
    assert best_cell(fold_top1) == best


def test_scores_match_scikit_learn(rng):
    n, classes = 400, 9
    y = rng.choice(classes - 1, size=n)
    ranked = np.argsort(-rng.normal(size=(n, classes)) - 1.5 * np.eye(classes)[y], axis=1)
    found = scores.classification_scores(ranked[:, :5], y, num_classes=classes)
    table = metrics.confusion_matrix(y, ranked[:, 0], labels=range(classes))
    assert found["confusion"] == table.tolist()
    assert found["top1"] == pytest.approx(100 * metrics.accuracy_score(y, ranked[:, 0]))
    assert found["top5"] == pytest.approx(100 * (ranked[:, :5] == y[:, None]).any(1).mean())
    recall = 100 * metrics.recall_score(y, ranked[:, 0], labels=range(8), average=None)
    assert found["per_class"] == [*map(pytest.approx, recall), None]


def test_bootstrap_interval_resamples_rows():
    rng = np.random.default_rng(1)
    correct = rng.random(300) < 0.8
    drawn = [correct[rng.integers(300, size=300)].mean() for _ in range(4000)]
    expected = 100 * np.quantile(drawn, [0.025, 0.975])
    np.testing.assert_allclose(scores.bootstrap_interval(correct, 5), expected, atol=0.5)
