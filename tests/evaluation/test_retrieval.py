"""Recall@k and MAP@R against loops over all samples."""

import numpy as np
import pytest
from points import sphere

import hypersphere_jax as hj


def scores_by_loop(x, labels, ks):
    """Sort all other samples by similarity; leave out queries without another of their class."""
    hits, precisions = [], []
    for i, query in enumerate(np.float64(x)):
        order = np.argsort(-(np.float64(x) @ query), kind="stable")
        order = order[order != i]
        is_relevant = labels[order] == labels[i]
        r = is_relevant.sum()
        if r:
            hits.append([is_relevant[:k].any() for k in ks])
            at_hits = [is_relevant[: j + 1].mean() for j in range(r) if is_relevant[j]]
            precisions.append(sum(at_hits) / r)
    names = [f"recall_at_{k}" for k in ks]
    recalls = dict(zip(names, 100 * np.mean(hits, axis=0), strict=True))
    return recalls | {"map_at_r": 100 * np.mean(precisions), "retrieval_queries": len(hits)}


@pytest.fixture
def labelled(rng):
    """Return points of classes of 1 to 60 samples, partly separated, some of them equal."""
    labels = rng.permutation(np.repeat(np.arange(5), [60, 20, 9, 3, 1]))
    x = sphere(rng, len(labels), 4) + 0.7 * np.eye(5, 4)[labels]
    x = np.float32(x / np.linalg.norm(x, axis=1, keepdims=True))
    x[5:9] = x[4]
    return x, labels


@pytest.mark.parametrize("entries", [2**22, 1000])
@pytest.mark.parametrize("ks", [(1, 5, 10), (2, 200)])
def test_scores_match_a_loop(labelled, ks, entries, monkeypatch):
    """Also if the queries are in several blocks."""
    monkeypatch.setattr("hypersphere_jax.evaluation.knn.RANKED_ENTRIES", entries)
    x, labels = labelled
    expected = scores_by_loop(x, labels, ks)
    found = hj.retrieval_scores(x, labels, ks)
    assert found == pytest.approx(expected, rel=1e-9)
    assert 0 < found["map_at_r"] < found[f"recall_at_{ks[0]}"]


def test_equal_samples_do_not_replace_the_query():
    """The nearest neighbours of a sample are itself and equals, of which some are not found."""
    labels = np.repeat([0, 1], [1, 5])
    found = hj.retrieval_scores(np.ones((6, 3)), labels, ks=[1])
    # The first of equal samples is the nearest, and the first sample is the only one of class 0.
    assert found["recall_at_1"] == 0 and found["retrieval_queries"] == 5


def test_labels_may_be_strings_and_missing(labelled):
    x, labels = labelled
    named = np.array(["a", "b", "c", "d", "e"], object)[labels]
    expected = hj.retrieval_scores(x, labels)
    assert hj.retrieval_scores(x, named) == expected
    more = np.concatenate([x, x[:7]])
    assert hj.retrieval_scores(more, [*named, *[None] * 7]) == expected


@pytest.mark.parametrize("ks", [[], [0], [1.5]])
def test_invalid_ks_are_refused(labelled, ks):
    with pytest.raises(hj.UserError, match="ks"):
        hj.retrieval_scores(*labelled, ks)
