"""k-NN: exhaustive search and votes, compared with NumPy loops in float64."""

import math

import jax
import numpy as np
import pytest
from overlapping import Watched, splits
from points import sphere

from hypersphere_jax.configs import UserError
from hypersphere_jax.evaluation import knn
from hypersphere_jax.evaluation.knn import knn_probe, nearest, ranked_classes

METRICS = ("cosine", "euclidean")


def distances(bank, queries, metric):
    bank, queries = np.float64(bank), np.float64(queries)
    if metric == "euclidean":
        return np.stack([((bank - query) ** 2).sum(axis=1) for query in queries]) / 2
    norms = (np.maximum(np.linalg.norm(x, axis=1), 1e-100) for x in (queries, bank))
    return 1 - queries @ bank.T / np.outer(*norms)


def assert_nearest(found, bank, queries, metric):
    """They are the nearest, in their order and with their similarity, up to float32's rounding."""
    every = distances(bank, queries, metric)
    expected = np.sort(every, axis=1)[:, : found.positions.shape[1]]
    # Sums of d products in any order, of vectors of these lengths, and a few operations more.
    lengths = [np.linalg.norm(np.float64(x), axis=1).max() for x in (queries, bank)]
    size = 2 if metric == "cosine" else sum(lengths) ** 2
    rounding = {"rtol": 0, "atol": 2.0**-24 * (bank.shape[1] + 8) * size}
    there = np.take_along_axis(every, found.positions, axis=1)
    np.testing.assert_allclose(there, expected, **rounding)
    similarity = 1 - expected if metric == "cosine" else -expected
    np.testing.assert_allclose(found.similarity, similarity, **rounding)


@pytest.mark.slow
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("devices", [1, 3])
def test_nearest_resolves_ties_by_index_for_any_blocks(rng, metric, devices, monkeypatch):
    """Of unit features, of which some occur hundreds of times."""
    bank, queries = sphere(rng, 60, 37)[rng.integers(60, size=703)], sphere(rng, 41, 37)
    every = np.round(distances(bank, queries, metric), 6)
    expected = np.argsort(every, axis=1, kind="stable")[:, :150]
    for rows, tile in (16384, 512), (16, 512), (101, 5):
        monkeypatch.setattr(knn, "BLOCK_ROWS", rows)
        monkeypatch.setattr(knn, "QUERY_TILE", tile)  # parts of 20 queries
        found = nearest(bank, queries, 150, metric=metric, devices=jax.devices()[:devices])
        np.testing.assert_array_equal(found.positions, expected, err_msg=str(rows))
        assert_nearest(found, bank, queries, metric)


def test_nearest_is_exact_for_whole_numbers(rng):
    bank, queries = (rng.integers(10**6, 10**6 + 7, (n, 5)) for n in (203, 41))
    expected = np.argsort(distances(bank, queries, "euclidean"), axis=1, kind="stable")[:, :20]
    np.testing.assert_array_equal(
        nearest(bank, queries, 20, metric="euclidean").positions, expected
    )


@pytest.mark.slow
@pytest.mark.parametrize("metric", METRICS)
def test_nearest_finds_all_neighbours(rng, metric, monkeypatch):
    monkeypatch.setattr(knn, "BANK_ENTRIES", 2**16)
    monkeypatch.setattr(knn, "QUERY_ENTRIES", 1)
    for m, d, n, k in (701, 1024, 40, 200), (6144, 3, 3000, 4):
        bank = np.sort(rng.normal(size=(m, d)), axis=0).astype(np.float32)
        queries = rng.normal(size=(n, d)).astype(np.float32)
        watched = Watched(bank), Watched(queries)
        assert_nearest(nearest(*watched, k, metric=metric), bank, queries, metric)
        # Features may be larger than memory.
        assert max(watched[0].reads) <= max(101, 2**16 // d) and max(watched[1].reads) <= 2048


def test_rows_of_zeros_have_cosine_zero(rng):
    bank = rng.normal(size=(97, 6)).astype(np.float32)
    bank[::2] = 0
    queries = np.append(bank[1:9:2], np.zeros((1, 6), np.float32), axis=0)
    assert_nearest(nearest(bank, queries, 90), bank, queries, "cosine")


def test_nearest_of_features_that_hardly_differ(rng):
    noise, asked = rng.normal(size=(400, 16)), rng.normal(size=(40, 16))
    cases = [("cosine", np.eye(16)[0], 3e-4), ("euclidean", 1e6, 1e2)]
    cases += [(metric, 0.0, scale) for metric in METRICS for scale in (1e-12, 1e12)]
    for metric, offset, scale in cases:
        bank, queries = ((offset + scale * x).astype(np.float32) for x in (noise, asked))
        found = nearest(bank, queries, 9, metric=metric)
        every = distances(bank, queries, metric)
        there, expected = np.take_along_axis(every, found.positions, axis=1), np.sort(every)[:, :9]
        np.testing.assert_allclose(there, expected, rtol=1e-4, err_msg=f"{metric} {scale}")


def problem(rng, m=97, n=53, d=6, num_classes=4):
    return splits(rng, d, num_classes, spread=1.0, sizes=(m, n), unit=False)  # often tied


def oracle(bank, labels, queries, k, metric, temperature=math.inf):
    """Vote by sorting; of equal votes, the class met first on the way out."""
    predicted = []
    for far in distances(bank, queries, metric):
        votes = {}
        for i in np.argsort(far, kind="stable")[:k]:
            votes[labels[i]] = votes.get(labels[i], 0) + math.exp(-far[i] / temperature)
        predicted.append(max(votes, key=votes.get))
    return predicted


def predict(bank, labels, queries, num_classes, k, temperature=None, **options):
    near = nearest(bank, queries, k, **options)
    return ranked_classes(near, labels, num_classes, temperature)[:, 0].tolist()


@pytest.mark.parametrize("metric", METRICS)
def test_majority_vote_matches_a_loop(rng, metric):
    bank, labels, queries, _ = problem(rng)
    for k in (1, 4, 6, 97):
        expected = oracle(bank, labels, queries, k, metric)
        assert predict(bank, labels, queries, 4, k, metric=metric) == expected, k
    few = bank[:5], np.array([0, 1, 1, 3, 0]), queries
    predicted = predict(*few, 4, 5, metric=metric, devices=jax.devices())
    assert predicted == oracle(*few, 5, metric)


def test_similarity_vote_matches_a_loop(rng):
    given = problem(rng, m=301, n=80, d=5, num_classes=7)[:3]
    for metric, temperature in [("cosine", 0.1), ("cosine", 0.01), ("euclidean", 0.5)]:
        found = predict(*given, 7, 50, temperature, metric=metric)
        assert found == oracle(*given, 50, metric, temperature)
    assert predict(*given, 7, 20, 1e-300) == predict(*given, 7, 1)
    assert predict(*given, 7, 20, 1e300) == predict(*given, 7, 20)


def test_top5_ranks_classes_by_votes():
    """By hand: a query at 0, members at 1, 2, 3, … with these labels."""
    labels, bank = np.array([7, 3, 3, 1, 0, 2, 5, 5, 5, 6]), np.arange(1.0, 11)[:, None]

    def top5(true, k, labels=labels, num_classes=9):
        options = {"num_classes": num_classes, "k": k, "metric": "euclidean"}
        return knn_probe(bank, labels, np.zeros((1, 1)), np.array([true]), **options)["top5"]

    # Of ten votes: three for 5, two for 3, then of those with one each the nearest, 7, 1 and 0.
    assert [top5(true, 10) for true in range(9)] == [100, 100, 0, 100, 0, 100, 0, 100, 0]
    assert top5(0, 5, labels + 1, 10) == 0  # four classes have a vote
    assert top5(7, 4) is top5(1, 5, labels % 5, 5) is None


def test_probe_reports_its_options(rng):
    train_x, train_y, test_x, test_y = problem(rng, num_classes=6)
    train_x, train_y = train_x[train_y != 2], train_y[train_y != 2]
    options = {"num_classes": 9, "k": 5, "metric": "euclidean"}
    result = knn_probe(train_x, train_y, test_x, test_y, **options)
    right = np.sum(np.array(oracle(train_x, train_y, test_x, 5, "euclidean")) == test_y)
    about = {"protocol": "knn", "vote": "majority", "temperature": None, **options}
    about |= {"n": 53, "n_train": len(train_y), "d": 6, "top1": pytest.approx(100 * right / 53)}
    assert {key: result[key] for key in about} == about
    assert np.trace(result["confusion"]) == right and result["top1"] < result["top5"] < 100


@pytest.mark.parametrize("folds", [None, 4])
def test_several_k_equal_single_probes(rng, folds):
    train_x, train_y, test_x, test_y = problem(rng, num_classes=6)
    arrays = (train_x, train_y) if folds else (train_x, train_y, test_x, test_y)
    options = {"folds": folds} if folds else {}
    assert knn_probe(*arrays, k=np.array(5), **options) == knn_probe(*arrays, k=5, **options)
    for several in ([5, 1, 20], (3,), np.array([1, 5]), range(1, 4)):
        found = knn_probe(*arrays, k=several, **options)
        assert found == [knn_probe(*arrays, k=int(k), **options) for k in several]


@pytest.mark.parametrize("folds", [None, 3])
def test_ignored_rows_do_not_count(rng, folds):
    train_x, train_y, test_x, test_y = problem(rng)
    arrays = (train_x, train_y) if folds else (train_x, train_y, test_x, test_y)
    options = {"folds": folds} if folds else {}
    expected = knn_probe(*arrays, **options)
    more = [np.insert(x, 7, x[0] if x.ndim > 1 else -1, axis=0) for x in arrays]
    assert knn_probe(*more, ignore_label=-1, **options) == expected
    with pytest.raises(UserError, match="ignore_label"):
        knn_probe(*more, **options)


def test_refusals(rng):
    arrays = problem(rng)
    for wrong in (2.5, True, [], [1, 0], 98, [1, 98], [1, 2.5], "5"):
        with pytest.raises(UserError, match=r"^k="):
            knn_probe(*arrays, k=wrong)
    for wrong in (5.0, 1, 0, "5"):
        with pytest.raises(UserError, match="num_classes"):
            knn_probe(*arrays, num_classes=wrong)
    with pytest.raises(UserError, match="devices is empty"):
        knn_probe(*arrays, devices=[])
    arrays[0][-1] = 1e30
    with pytest.raises(UserError, match="overflow float32"):
        knn_probe(*arrays, num_classes=4, metric="euclidean", k=97)
