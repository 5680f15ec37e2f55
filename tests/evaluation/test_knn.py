"""k-NN: votes against float64 loops, scores, dtypes. Neighbours: test_neighbours.py."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from overlapping import splits

import run as command_line
from hypersphere_jax.config import UserError
from hypersphere_jax.evaluation.knn import knn_predict, knn_probe

DISTANCES = {
    "cosine": lambda a, b: 1 - float(a @ b) / (np.linalg.norm(a) * np.linalg.norm(b)),
    "euclidean": lambda a, b: float((a - b) @ (a - b)) / 2,
}


def problem(rng, m=97, n=53, d=6, num_classes=4):
    """Overlapping classes, so that votes are split and often tied."""
    return splits(rng, d, num_classes, spread=1.0, sizes=(m, n), unit=False)


def oracle(bank, labels, queries, k, metric, temperature=math.inf):
    """Vote by sorting; of equal votes, the class met first on the way out."""
    predicted = []
    for query in np.float64(queries):
        far = [DISTANCES[metric](query, member) for member in np.float64(bank)]
        votes = {}
        for i in sorted(range(len(bank)), key=far.__getitem__)[:k]:
            votes[labels[i]] = votes.get(labels[i], 0) + math.exp(-far[i] / temperature)
        predicted.append(max(votes, key=votes.get))
    return predicted


@pytest.mark.parametrize("metric", DISTANCES)
def test_prediction_is_that_of_the_loop(rng, metric):
    """Of any number of neighbours, blocks and devices, more than members too."""
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
    """Of more classes than the bank has."""
    train_x, train_y, test_x, test_y = problem(rng, num_classes=6)
    train_x, train_y = train_x[train_y != 2], train_y[train_y != 2]
    options = {"num_classes": 9, "k": 5, "metric": "euclidean"}
    result = knn_probe(train_x, train_y, test_x, test_y, **options)
    right = np.sum(np.array(oracle(train_x, train_y, test_x, 5, "euclidean")) == test_y)
    about = {"protocol": "knn", "vote": "majority", "temperature": None, **options}
    about |= {"n": 53, "n_train": len(train_y), "d": 6, "top1": pytest.approx(100 * right / 53)}
    assert {key: result[key] for key in about} == about
    assert np.trace(result["confusion"]) == right and result["top1"] < result["top5"] < 100


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float64])
def test_other_dtypes_count_as_float32(rng, dtype):
    bank, labels, queries, _ = problem(rng)
    bank, queries = bank.astype(dtype), queries.astype(dtype)
    if dtype is np.float64:  # float32 makes one point of them
        bank[1::2], labels[1::2] = bank[:-1:2] * (1 + 1e-12), 3 - labels[:-1:2]
        queries = bank[1::2]
    options = {"num_classes": 4, "k": 1, "metric": "euclidean"}
    expected = knn_predict(np.float32(bank), labels, np.float32(queries), **options)
    assert (knn_predict(bank, labels, queries, **options) == expected).all()


def test_mistakes(rng):
    bank, labels, queries, _ = problem(rng)
    arguments = {"bank": bank, "bank_labels": labels, "queries": queries, "num_classes": 4}
    for change, message in (
        ({"k": 98}, "k = 98: choose 1 to 97, the size of the bank"),
        ({"num_classes": 3}, "bank labels: 3 .row [0-9]+. is not one of the 3 classes 0 to 2"),
        ({"queries": np.zeros((3, 5))}, "bank features have 6 dimensions, query features 5"),
        ({"queries": np.full((1, 6), 1e300)}, "query features: 1 of 1 rows hold NaN or infinity"),
    ):
        with pytest.raises(UserError, match=message):
            knn_predict(**(arguments | change))


def test_benchmark_prints_a_row_for_each_k(capsys):
    options = "--queries 40 --bank 90 --dim 8 --k 1 7 --compare 9 --no-memory"
    assert command_line.main(["bench", "knn", *options.split()]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.split()]
    for _, seconds, limit, _, ratio, peak, base in (row for row in rows if row[0] in ("1", "7")):
        assert float(seconds) > 0 and float(limit) >= 0 and float(ratio) > 0
        assert peak == base == "-"
