"""k-NN search and votes against NumPy loops in float64."""

import math

import numpy as np
import pytest
from overlapping import insert_rows, splits

from hypersphere_jax.configs import UserError
from hypersphere_jax.evaluation.knn import knn_probe, nearest, ranked_classes

METRICS = ("cosine", "euclidean")


def distances(bank, queries, metric):
    bank = np.float64(bank)
    queries = np.float64(queries)
    if metric == "euclidean":
        return np.stack([((bank - query) ** 2).sum(axis=1) for query in queries]) / 2
    norms = [np.maximum(np.linalg.norm(x, axis=1), 1e-100) for x in (queries, bank)]
    return 1 - queries @ bank.T / np.outer(*norms)


@pytest.mark.parametrize("n", [520, 40])
def test_nearest_is_exact_for_integers_in_blocks(rng, n):
    """Ties go to the first member, also across blocks of the bank and of the queries."""
    bank, queries = (rng.integers(10**6, 10**6 + 9, (rows, 5)) for rows in (17_000, n))
    expected = np.argsort(distances(bank, queries, "euclidean"), axis=1, kind="stable")[:, :20]
    found = nearest(bank, queries, 20, metric="euclidean")
    np.testing.assert_array_equal(found.positions, expected)


def test_rows_of_padding_are_no_neighbours(rng, monkeypatch):
    """Zeros pad the last block, and are nearer to the query than all members."""
    monkeypatch.setattr("hypersphere_jax.evaluation.knn.BLOCK_ROWS", 8)
    bank = rng.normal(size=(10, 3))
    found = nearest(bank, np.zeros((1, 3)), 10, metric="euclidean")
    assert sorted(found.positions[0]) == list(range(10))


@pytest.mark.parametrize("metric", METRICS)
def test_nearest_matches_brute_force(rng, metric):
    """Rows of zeros have cosine 0 to all others."""
    bank = rng.normal(size=(301, 64)).astype(np.float32)
    bank[::2] = 0
    queries = np.append(bank[:9], rng.normal(size=(40, 64)), axis=0).astype(np.float32)
    found = nearest(bank, queries, 200, metric=metric)
    every = distances(bank, queries, metric)
    expected = np.sort(every, axis=1)[:, :200]
    # A bound on the rounding of a sum of d products, and of a few more operations.
    lengths = [np.linalg.norm(x, axis=1).max() for x in (queries, bank)]
    size = 2 if metric == "cosine" else sum(lengths) ** 2
    atol = 2.0**-24 * (bank.shape[1] + 8) * size
    at_found = np.take_along_axis(every, found.positions, axis=1)
    np.testing.assert_allclose(at_found, expected, rtol=0, atol=atol)
    similarity = 1 - expected if metric == "cosine" else -expected
    np.testing.assert_allclose(found.similarity, similarity, rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("metric", "offset", "scale"),
    [("cosine", np.eye(16)[0], 3e-4), ("euclidean", 1e6, 1e2), ("cosine", 0, 1e12)],
)
def test_nearest_of_features_that_hardly_differ(rng, metric, offset, scale):
    bank, queries = (np.float32(offset + scale * rng.normal(size=(n, 16))) for n in (400, 40))
    found = nearest(bank, queries, 9, metric=metric)
    every = distances(bank, queries, metric)
    at_found = np.take_along_axis(every, found.positions, axis=1)
    np.testing.assert_allclose(at_found, np.sort(every)[:, :9], rtol=1e-4)


@pytest.mark.parametrize("scale", [1e-23, 1e16])
def test_euclidean_neighbours_do_not_depend_on_the_scale(rng, scale):
    bank, queries = (np.float32(rng.normal(size=(n, 6))) for n in (200, 30))
    found = nearest(np.float32(scale * bank), np.float32(scale * queries), 3, metric="euclidean")
    expected = nearest(bank, queries, 3, metric="euclidean")
    np.testing.assert_array_equal(found.positions, expected.positions)
    np.testing.assert_allclose(found.similarity / scale**2, expected.similarity, rtol=1e-4)


def problem(rng, m=97, n=53, d=6, num_classes=4):
    return splits(rng, d, num_classes, spread=1.0, sizes=(m, n), unit=False)  # often tied


def vote_by_loop(bank, labels, queries, k, metric, temperature=math.inf):
    """Return the class with the most votes, the class of the nearest member of equal votes."""
    predicted = []
    for far in distances(bank, queries, metric):
        votes = {}
        for i in np.argsort(far, kind="stable")[:k]:
            votes[labels[i]] = votes.get(labels[i], 0) + math.exp(-far[i] / temperature)
        predicted.append(max(votes, key=votes.get))
    return predicted


@pytest.mark.parametrize(
    ("metric", "temperature"),
    [("cosine", None), ("euclidean", None), ("cosine", 0.01), ("euclidean", 0.5)],
)
def test_votes_match_a_loop(rng, metric, temperature):
    bank, labels, queries, _ = problem(rng)
    for k in (1, 6, 97):
        neighbours = nearest(bank, queries, k, metric=metric)
        found = ranked_classes(neighbours, labels, 4, temperature)[:, 0].tolist()
        expected = vote_by_loop(bank, labels, queries, k, metric, temperature or math.inf)
        assert found == expected, k


def test_top5_ranks_classes_by_votes():
    """A query at 0 has members at 1, 2, 3, … with these labels."""
    labels = np.array([7, 3, 3, 1, 0, 2, 5, 5, 5, 6])

    def top5(true, labels=labels, k=10, num_classes=9):
        bank = np.arange(1.0, 11)[:, None]
        options = {"num_classes": num_classes, "k": k, "metric": "euclidean"}
        return knn_probe(bank, labels, np.zeros((1, 1)), np.array([true]), **options)["top5"]

    # Three votes for 5, two for 3, then the nearest classes with one vote: 7, 1 and 0.
    assert [top5(true) for true in range(9)] == [100, 100, 0, 100, 0, 100, 0, 100, 0]
    assert top5(0, labels + 1, k=5, num_classes=10) == 0  # a class without votes
    assert top5(7, k=4) is top5(1, labels % 5, k=5, num_classes=5) is None


def test_probe_reports_scores_and_options(rng):
    train_x, train_y, test_x, test_y = problem(rng, num_classes=6)
    options = {"num_classes": 9, "k": 5, "metric": "euclidean"}
    result = knn_probe(train_x, train_y, test_x, test_y, **options)
    predicted = vote_by_loop(train_x, train_y, test_x, 5, "euclidean")
    correct = np.sum(np.array(predicted) == test_y)
    expected = {"protocol": "knn", "vote": "majority", "n": 53, "n_train": 97, "d": 6, **options}
    assert result | expected == result
    assert result["predicted"] == predicted
    assert result["top1"] == pytest.approx(100 * correct / 53)
    assert np.trace(result["confusion"]) == correct


def test_several_k_equal_single_probes(rng):
    arrays = problem(rng, num_classes=6)
    singles = [knn_probe(*arrays, k=k) for k in (5, 1, 20)]
    assert knn_probe(*arrays, k=[5, 1, 20]) == singles


@pytest.mark.parametrize("options", [{}, {"folds": 3}])
def test_ignored_rows_do_not_count(rng, options):
    arrays = problem(rng)
    if options:  # folds of the training rows
        arrays = arrays[:2]
    more = insert_rows(arrays, -1)
    assert knn_probe(*more, ignore_label=-1, **options) == knn_probe(*arrays, **options)
    with pytest.raises(UserError, match="ignore_label"):
        knn_probe(*more, **options)


@pytest.mark.parametrize(
    "options",
    [{"k": 2.5}, {"k": []}, {"k": [1, 98]}, {"num_classes": 1}, {"devices": []}, {"metric": "l1"}],
)
def test_invalid_options_are_refused(rng, options):
    with pytest.raises(UserError, match=next(iter(options))):
        knn_probe(*problem(rng), **options)
