"""k-NN: votes against float64 loops, scores, dtypes, files; mistakes.

The neighbours themselves are in test_neighbours.py.
"""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from overlapping import splits
from points import sphere

import run as command_line
from hypersphere_jax.config import UserError
from hypersphere_jax.evaluation.knn import knn_predict, knn_probe


def euclidean(a, b):
    return float(np.linalg.norm(a - b))


def cosine(a, b):
    return 1 - float(a @ b) / (np.linalg.norm(a) * np.linalg.norm(b))


DISTANCES = {"cosine": cosine, "euclidean": euclidean}


def problem(rng, m=97, n=53, d=6, num_classes=4):
    """Overlapping classes, so that votes are split and often tied."""
    return splits(rng, d, num_classes, spread=1.0, sizes=(m, n), unit=False)


def oracle(bank, labels, queries, k, metric):
    """Vote by sorting; of equal counts, the class met first on the way out."""
    predicted = []
    bank, queries = np.float64(bank), np.float64(queries)
    for query in queries:
        distances = [DISTANCES[metric](query, member) for member in bank]
        neighbours = [labels[i] for i in sorted(range(len(bank)), key=distances.__getitem__)[:k]]
        most = max(neighbours.count(label) for label in neighbours)
        predicted.append(next(label for label in neighbours if neighbours.count(label) == most))
    return predicted


@pytest.mark.parametrize("metric", DISTANCES)
def test_prediction_is_that_of_the_loop(rng, metric):
    """Of any number of neighbours and classes, blocks and devices, more than members too."""
    bank, labels, queries, _ = problem(rng)
    for k, block_size in (1, None), (4, 10), (6, 97), (97, 40):
        predicted = knn_predict(
            bank, labels, queries, num_classes=4, k=k, metric=metric, block_size=block_size
        )
        assert predicted.dtype == np.int32
        assert predicted.tolist() == oracle(bank, labels, queries, k, metric), (k, block_size)
    few = bank[:5], np.array([0, 1, 1, 3, 0]), queries
    predicted = knn_predict(*few, num_classes=4, k=5, metric=metric, devices=jax.devices())
    assert predicted.tolist() == oracle(*few, 5, metric)
    many = problem(rng, m=300, n=20, num_classes=120)[:3]
    predicted = knn_predict(*many, num_classes=120, k=150, metric=metric)
    assert predicted.tolist() == oracle(*many, 150, metric)


def test_ties(rng):
    """Of classes the one with the nearest member, of coinciding members the earlier counts."""
    bank = np.array([[4.0], [1.0], [-2.0], [-3.0], [9.0]])
    labels = np.array([0, 2, 1, 1, 0])
    for block_size in (2, None):
        for query, k, expected in (
            (0.0, 2, 2),  # 1.0 and -2.0: one vote each
            (-0.8, 2, 1),  # the same two, the other nearer
            (0.0, 3, 1),  # and -3.0: two votes of three
            (0.0, 5, 1),  # two votes each for 1 and 0
            (5.0, 5, 0),
        ):
            options = {"num_classes": 3, "metric": "euclidean", "block_size": block_size}
            found = knn_predict(bank, labels, np.array([[query]]), k=k, **options)
            assert found.tolist() == [expected], (query, k)
        same = np.repeat(sphere(rng, 7, 3), 3, axis=0)
        found = knn_predict(
            same, np.tile([2, 0, 1], 7), same, num_classes=3, k=1, block_size=block_size
        )
        assert (found == 2).all()


def test_votes_by_similarity_are_the_formula(rng):
    bank, labels, queries, _ = problem(rng, m=301, n=80, d=5, num_classes=7)

    def predict(**options):
        return knn_predict(bank, labels, queries, num_classes=7, **options).tolist()

    for metric, temperature in [("cosine", 0.1), ("cosine", 0.01), ("euclidean", 0.5)]:
        expected = []
        for query in np.float64(queries):
            distances = [DISTANCES[metric](query, member) for member in np.float64(bank)]
            votes = dict.fromkeys(range(7), 0.0)
            for i in np.argsort(distances)[:50]:
                far = distances[i] if metric == "cosine" else distances[i] ** 2 / 2
                votes[labels[i]] += math.exp(-far / temperature)
            expected.append(max(votes, key=votes.get))
        options = {"k": 50, "metric": metric, "temperature": temperature}
        assert predict(vote="similarity", **options) == expected
    assert predict(k=20, vote="similarity", temperature=1e-300) == predict(k=1)
    assert predict(k=20, vote="similarity", temperature=1e300) == predict(k=20)


def test_top5_is_of_the_classes_with_most_votes():
    """By hand: a query at 0, members at 1, 2, 3, … with these labels."""
    labels = np.array([7, 3, 3, 1, 0, 2, 5, 5, 5, 6])
    bank = np.arange(1.0, 11)[:, None]

    def top5(true, k, labels=labels, num_classes=9):
        options = {"num_classes": num_classes, "k": k, "metric": "euclidean"}
        return knn_probe(bank, labels, np.zeros((1, 1)), np.array([true]), **options)["top5"]

    # Of ten votes: three for 5, two for 3, then of those with one each the nearest, 7, 1 and 0.
    assert [top5(true, 10) for true in range(9)] == [100, 100, 0, 100, 0, 100, 0, 100, 0]
    # Of six: two for 3, and one each for the others. 4 and 8 have none.
    assert [top5(true, 6) for true in range(9)] == [100, 100, 100, 100, 0, 0, 0, 100, 0]
    assert top5(0, 5, labels + 1, 10) == 0 < top5(1, 5, labels + 1, 10)  # of four classes
    assert top5(7, 4) is None
    assert top5(1, 5, labels % 5, 5) is None


def test_probe_carries_its_protocol(rng, tmp_path):
    """The bank lacks a class, and the test another; from files, it is the same."""
    train_x, train_y, test_x, test_y = problem(rng, num_classes=6)
    train_x, train_y = train_x[train_y != 2], train_y[train_y != 2]
    test_x, test_y = test_x[test_y != 4], test_y[test_y != 4]
    options = {"num_classes": 9, "k": 5, "metric": "euclidean"}
    result = knn_probe(train_x, train_y, test_x, test_y, **options)
    for name, x in (("train", train_x), ("test", test_x)):
        np.save(tmp_path / f"{name}.npy", x)
    train, test = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("train", "test"))
    assert knn_probe(train, train_y, test, test_y, **options) == result
    right = np.sum(np.array(oracle(train_x, train_y, test_x, 5, "euclidean")) == test_y)
    assert json.loads(json.dumps(result)) == result
    scored = {key: result.pop(key) for key in ("top1_interval", "per_class", "confusion", "top5")}
    assert np.trace(scored["confusion"]) == right and len(scored["per_class"]) == 9
    assert scored["top1_interval"][0] < result["top1"] < scored["top1_interval"][1]
    assert result["top1"] < scored["top5"] < 100
    assert result == {
        "protocol": "knn",
        "k": 5,
        "metric": "euclidean",
        "vote": "majority",
        "temperature": None,
        "top1": pytest.approx(100 * right / len(test_y)),
        "n": len(test_y),
        "n_train": len(train_y),
        "d": 6,
        "num_classes": 9,
    }


def test_other_dtypes_count_as_float32(rng):
    for dtype in (np.float16, jnp.bfloat16, np.float64):
        bank, labels, queries, _ = problem(rng)
        bank, queries = bank.astype(dtype), queries.astype(dtype)
        if dtype is np.float64:  # float32 makes one point of them
            bank[1::2], labels[1::2] = bank[:-1:2] * (1 + 1e-12), 3 - labels[:-1:2]
            queries = bank[1::2]
        predicted = knn_predict(bank, labels, queries, num_classes=4, k=1, metric="euclidean")
        rounded = bank.astype(np.float32), labels, queries.astype(np.float32)
        expected = knn_predict(*rounded, num_classes=4, k=1, metric="euclidean")
        np.testing.assert_array_equal(predicted, expected, err_msg=str(dtype))


MISTAKES = (
    ({"k": 98}, "k = 98: choose 1 to 97, the size of the bank"),
    ({"metric": "manhattan"}, "'manhattan': choose one of cosine, euclidean"),
    ({"block_size": 0}, "block_size = 0"),
    ({"vote": "unanimous"}, "vote 'unanimous': choose one of majority, similarity"),
    ({"temperature": 0.0}, "temperature = 0.0: must be finite and positive"),
    ({"bank_labels": np.full(97, 3)}, "bank labels: only class 3, two are needed"),
    ({"num_classes": 3}, "bank labels: 3 .row [0-9]+. is not one of the 3 classes 0 to 2"),
    ({"queries": np.zeros((3, 5))}, "bank features have 6 dimensions, query features 5"),
    ({"queries": np.zeros((0, 6))}, r"query features: .* got shape \(0, 6\)"),
    ({"queries": np.full((9, 6), np.inf)}, "query features: 9 of 9 rows .* .rows 0, 1, 2, 3, 4, "),
    ({"queries": np.full((1, 6), 1e300)}, "query features: 1 of 1 rows hold NaN or infinity"),
    ({"bank_labels": np.zeros(96, int)}, r"bank labels: expected shape \(97,\), got \(96,\)"),
)


def test_mistakes_are_named_in_one_line(rng):
    bank, labels, queries, _ = problem(rng)
    arguments = {"bank": bank, "bank_labels": labels, "queries": queries, "num_classes": 4}
    for change, message in MISTAKES:
        with pytest.raises(UserError, match=message) as error:
            knn_predict(**(arguments | change))
        assert "\n" not in str(error.value), message


def test_benchmark_prints_a_row_for_each_k(capsys):
    options = ["--queries", "40", "--bank", "90", "--dim", "8", "--k", "1", "7", "--compare", "9"]
    assert command_line.main(["bench", "knn", *options, "--no-memory"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    found = [row for row in rows if row and row[0] in ("1", "7")]
    assert [row[0] for row in found] == ["1", "7"]
    for _, seconds, limit, _, ratio, peak, base in found:
        assert float(seconds) > 0 and float(limit) >= 0 and float(ratio) > 0
        assert peak == base == "-"
