"""k-NN: the nearest (recall 1, exact ties, any blocks and devices), and votes by float64 loops."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from overlapping import Watched, splits

from hypersphere_jax.config import UserError
from hypersphere_jax.evaluate import neighbours, screening
from hypersphere_jax.evaluate.knn import knn_predict, knn_probe
from hypersphere_jax.evaluate.neighbours import nearest

METRICS = ("cosine", "euclidean")


def distances(bank, queries, metric):
    bank, queries = np.float64(bank), np.float64(queries)
    if metric == "euclidean":
        return np.stack([((bank - query) ** 2).sum(axis=1) for query in queries]) / 2
    norms = (np.maximum(np.linalg.norm(x, axis=1), 1e-300) for x in (queries, bank))
    return 1 - queries @ bank.T / np.outer(*norms)


def assert_nearest(found, bank, queries, metric):
    """Found are the nearest, in their order and with their similarity, up to float32's rounding."""
    every = distances(bank, queries, metric)
    expected = np.sort(every, axis=1)[:, : found.positions.shape[1]]
    rounding = {"rtol": 0, "atol": 1e-5 * max(1, np.abs(expected).max())}
    there = np.take_along_axis(every, found.positions, axis=1)
    np.testing.assert_allclose(there, expected, **rounding)
    similarity = 1 - expected if metric == "cosine" else -expected
    np.testing.assert_allclose(found.similarity, similarity, **rounding)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("devices", [1, 3])
def test_the_nearest_are_found_in_any_blocks(rng, metric, devices):
    """Of whole numbers, whose distances are exact: so are ties, which go to the earlier."""
    bank, queries = (rng.integers(-3, 4, (n, 5)) for n in (203, 41))
    if metric == "cosine":  # of one length, and so far apart that rounding is nothing
        bank, queries = (rng.permuted(np.tile(np.arange(-2, 3), (n, 1)), axis=1) for n in (203, 41))
    every = np.round(distances(bank, queries, metric), 9)
    expected = np.argsort(every, axis=1, kind="stable")[:, :20]
    options = {"metric": metric, "devices": jax.devices()[:devices]}
    for block_size in (None, 16, 101):
        found = nearest(bank, queries, 20, block_size=block_size, **options)
        np.testing.assert_array_equal(found.positions, expected, err_msg=str(block_size))
        assert_nearest(found, bank, queries, metric)


@pytest.mark.parametrize("metric", METRICS)
def test_recall_is_1_of_random_features_in_order(rng, metric):
    for m, d, k, block_size in (701, 1024, 200, None), (6144, 3, 4, None), (6144, 3, 4, 2048):
        bank = np.sort(rng.normal(size=(m, d)), axis=0).astype(np.float32)
        queries = rng.normal(size=(40, d)).astype(np.float32)
        watched = Watched(bank), Watched(queries)
        found = nearest(*watched, k, metric=metric, block_size=block_size)
        assert_nearest(found, bank, queries, metric)
        # As of a file larger than memory: never all rows at once.
        assert all(0 < max(x.reads) * d <= neighbours.PAIRS for x in watched)


def test_hundreds_of_equal_members_are_taken_in_order(rng):
    places = np.sort(rng.permutation(700)[:300])
    bank = 2 + np.abs(rng.normal(size=(700, 5)).astype(np.float32))
    bank[places] = 1
    queries = np.float32([[1] * 5, [0.5] * 5, [0] * 5])
    found = nearest(bank, queries, 150, metric="euclidean", block_size=64)
    assert (found.positions == places[:150]).all()
    # Multiples, which are equally near whatever float32 makes of them.
    bank = (1 + rng.permutation(60))[:, None] * rng.integers(1, 10, size=(1, 64))
    found = nearest(bank, rng.integers(1, 10, size=(20, 64)), 50)
    assert (found.positions == np.arange(50)).all()


def test_rows_without_direction_are_at_right_angles_to_all(rng):
    bank = rng.normal(size=(97, 6)).astype(np.float32)
    found = nearest(bank, np.zeros((2, 6)), 30)
    assert (found.positions == np.arange(30)).all() and (found.similarity == 0).all()
    bank[::2] = 0
    assert_nearest(nearest(bank, bank[1:9:2], 90), bank, bank[1:9:2], "cosine")


def test_order_where_features_hardly_differ(rng):
    noise, asked = rng.normal(size=(400, 16)), rng.normal(size=(40, 16))
    cases = [("cosine", np.eye(16)[0], 3e-4), ("euclidean", 1e6, 1e2)]
    cases += [(metric, 0.0, scale) for metric in METRICS for scale in (1e-25, 1e25)]
    for metric, offset, scale in cases:
        bank, queries = ((offset + scale * x).astype(np.float32) for x in (noise, asked))
        if scale in (1e-25, 1e25):
            bank[3] /= 1e10  # one row beside which another is nothing
        found = nearest(bank, queries, 9, metric=metric)
        expected = np.argsort(distances(bank, queries, metric), axis=1, kind="stable")[:, :9]
        np.testing.assert_array_equal(found.positions, expected, err_msg=f"{metric} {scale}")


def test_screening_hides_no_mistake(rng, monkeypatch):
    """Where screening keeps the wrong candidates, its bounds say so."""
    bank, queries = (rng.normal(size=(n, 6)).astype(np.float32) for n in (400, 53))
    expected, step = nearest(bank, queries, 5, metric="euclidean"), screening._search
    wrong = lambda q, *rest: step(q + 0.2 * jnp.sin(1e4 * q), *rest)  # noqa: E731
    monkeypatch.setattr(screening, "UNDERFLOW", 1.0)
    monkeypatch.setattr(screening, "_search", wrong)
    found = nearest(bank, queries, 5, metric="euclidean")
    np.testing.assert_array_equal(found.positions, expected.positions)


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


@pytest.mark.parametrize("metric", METRICS)
def test_prediction_is_that_of_the_loop(rng, metric):
    bank, labels, queries, _ = problem(rng)
    options = {"num_classes": 4, "metric": metric}
    for k, block_size in (1, None), (4, 10), (6, 97), (97, 40):
        predicted = knn_predict(bank, labels, queries, k=k, block_size=block_size, **options)
        assert predicted.tolist() == oracle(bank, labels, queries, k, metric), (k, block_size)
    few = bank[:5], np.array([0, 1, 1, 3, 0]), queries
    predicted = knn_predict(*few, k=5, devices=jax.devices(), **options)
    assert predicted.tolist() == oracle(*few, 5, metric)


def test_votes_by_similarity_are_the_formula(rng):
    given = problem(rng, m=301, n=80, d=5, num_classes=7)[:3]

    def predict(temperature, k=50, **options):
        options |= {"num_classes": 7, "vote": "similarity"}
        return knn_predict(*given, k=k, temperature=temperature, **options).tolist()

    for metric, temperature in [("cosine", 0.1), ("cosine", 0.01), ("euclidean", 0.5)]:
        assert predict(temperature, metric=metric) == oracle(*given, 50, metric, temperature)
    assert predict(1e-300, 20) == knn_predict(*given, num_classes=7, k=1).tolist()
    assert predict(1e300, 20) == knn_predict(*given, num_classes=7, k=20).tolist()


def test_top5_is_of_the_classes_with_most_votes():
    """By hand: a query at 0, members at 1, 2, 3, … with these labels."""
    labels, bank = np.array([7, 3, 3, 1, 0, 2, 5, 5, 5, 6]), np.arange(1.0, 11)[:, None]

    def top5(true, k, labels=labels, num_classes=9):
        options = {"num_classes": num_classes, "k": k, "metric": "euclidean"}
        return knn_probe(bank, labels, np.zeros((1, 1)), np.array([true]), **options)["top5"]

    # Of ten votes: three for 5, two for 3, then of those with one each the nearest, 7, 1 and 0.
    assert [top5(true, 10) for true in range(9)] == [100, 100, 0, 100, 0, 100, 0, 100, 0]
    assert top5(0, 5, labels + 1, 10) == 0  # four classes have a vote
    assert top5(7, 4) is top5(1, 5, labels % 5, 5) is None


def test_probe_carries_its_protocol(rng):
    train_x, train_y, test_x, test_y = problem(rng, num_classes=6)
    train_x, train_y = train_x[train_y != 2], train_y[train_y != 2]
    options = {"num_classes": 9, "k": 5, "metric": "euclidean"}
    result = knn_probe(train_x, train_y, test_x, test_y, **options)
    right = np.sum(np.array(oracle(train_x, train_y, test_x, 5, "euclidean")) == test_y)
    about = {"protocol": "knn", "vote": "majority", "temperature": None, **options}
    about |= {"n": 53, "n_train": len(train_y), "d": 6, "top1": pytest.approx(100 * right / 53)}
    assert {key: result[key] for key in about} == about
    assert np.trace(result["confusion"]) == right and result["top1"] < result["top5"] < 100


def test_mistakes(rng):
    bank, labels, queries, _ = problem(rng)
    with pytest.raises(UserError, match="k = 98: choose 1 to 97, the size of the bank"):
        knn_predict(bank, labels, queries, num_classes=4, k=98)
