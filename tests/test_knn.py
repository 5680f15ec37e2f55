"""k-NN against float64 loops and scikit-learn: prediction, votes, the probe, from files."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import sphere
from knn_cases import DISTANCES, problem
from sklearn.neighbors import KNeighborsClassifier
from test_cli import run_py

from hypersphere_jax.config import UserError
from hypersphere_jax.evaluation.knn import knn_predict, knn_probe


def oracle(bank, labels, queries, k, metric):
    """Vote by sorting; of equal counts, the class met first on the way out."""
    predicted = []
    bank, queries = bank.astype(np.float64), queries.astype(np.float64)
    for query in queries:
        distances = [DISTANCES[metric](query, member) for member in bank]
        neighbours = [labels[i] for i in sorted(range(len(bank)), key=distances.__getitem__)[:k]]
        most = max(neighbours.count(label) for label in neighbours)
        predicted.append(next(label for label in neighbours if neighbours.count(label) == most))
    return predicted


@pytest.mark.parametrize("metric", DISTANCES)
@pytest.mark.parametrize(
    ("k", "block_size"), [(1, 2048), (4, 10), (5, 1), (6, 97), (20, 7), (97, 40)]
)
def test_prediction_equals_the_loop_for_every_block_size(rng, metric, k, block_size):
    bank, labels, queries, _ = problem(rng)
    predicted = knn_predict(
        bank, labels, queries, num_classes=4, k=k, metric=metric, block_size=block_size
    )
    assert predicted.dtype == np.int32
    assert predicted.tolist() == oracle(bank, labels, queries, k, metric)


@pytest.mark.parametrize("metric", DISTANCES)
@pytest.mark.parametrize("d", [2, 512])
def test_prediction_equals_scikit_learn_where_the_vote_is_not_tied(rng, metric, d):
    bank, labels, queries, _ = problem(rng, m=400, n=150, d=d)
    if metric == "cosine":
        bank[::50] = 0  # no direction: similarity 0 to every query, there as here
    reference = KNeighborsClassifier(5, metric=metric).fit(bank, labels)
    top = np.sort(reference.predict_proba(queries), axis=1)
    clear = top[:, -1] > top[:, -2]
    predicted = knn_predict(bank, labels, queries, num_classes=4, k=5, metric=metric)
    assert clear.mean() > 0.5
    np.testing.assert_array_equal(predicted[clear], reference.predict(queries)[clear])


@pytest.mark.parametrize("block_size", [1, 2, 2048])
def test_ties_go_to_the_class_of_the_nearest_member(block_size):
    bank = np.array([[4.0], [1.0], [-2.0], [-3.0], [9.0]])
    labels = np.array([0, 2, 1, 1, 0])

    def predict(query, k):
        options = {"num_classes": 3, "metric": "euclidean", "block_size": block_size}
        return int(knn_predict(bank, labels, np.array([[query]]), k=k, **options)[0])

    assert predict(0.0, 2) == 2  # 1.0 and -2.0: one vote each
    assert predict(-0.8, 2) == 1  # the same two, the other nearer
    assert predict(0.0, 3) == 1  # and -3.0: two votes of three
    assert predict(0.0, 5) == 1  # two votes each for 1 and 0
    assert predict(5.0, 5) == 0


def test_of_coinciding_members_the_earlier_counts(rng):
    bank = np.repeat(sphere(rng, 7, 3), 3, axis=0)
    labels = np.tile([2, 0, 1], 7)
    for block_size in (4, 2048):
        predicted = knn_predict(bank, labels, bank, num_classes=3, k=1, block_size=block_size)
        assert (predicted == 2).all()


def test_many_classes_and_many_neighbours(rng):
    bank, labels, queries, _ = problem(rng, m=300, n=20, num_classes=120)
    predicted = knn_predict(bank, labels, queries, num_classes=120, k=150, metric="euclidean")
    assert predicted.tolist() == oracle(bank, labels, queries, 150, "euclidean")


def test_neighbours_are_told_apart_in_a_narrow_cone(rng):
    """Cosines that differ by 1e-7 and less, as of an encoder that collapses."""
    features = (np.eye(16)[0] + 3e-4 * rng.normal(size=(220, 16))).astype(np.float32)
    labels = np.arange(200)
    predicted = knn_predict(features[:200], labels, features[200:], num_classes=200, k=1)
    assert predicted.tolist() == oracle(features[:200], labels, features[200:], 1, "cosine")


def test_cosine_ignores_length_and_euclidean_the_origin(rng):
    bank, labels, queries, _ = problem(rng)
    lengths = rng.uniform(0.1, 10, size=(97, 1)).astype(np.float32)

    def predict(bank, queries, metric):
        return knn_predict(bank, labels, queries, num_classes=4, metric=metric).tolist()

    assert predict(bank * lengths, queries, "cosine") == predict(bank, queries, "cosine")
    assert predict(bank * lengths, queries, "euclidean") != predict(bank, queries, "euclidean")
    moved = predict(bank + 100, queries + 100, "euclidean")
    assert moved == predict(bank, queries, "euclidean")


def test_more_devices_than_members(rng):
    bank, labels, queries, _ = problem(rng, m=5)
    labels[:2] = 0, 1
    predicted = knn_predict(
        bank, labels, queries, num_classes=4, k=5, devices=jax.local_devices()[:8]
    )
    assert predicted.tolist() == oracle(bank, labels, queries, 5, "cosine")


def test_votes_by_similarity_are_the_formula(rng):
    bank, labels, queries, _ = problem(rng, m=301, n=80, d=5, num_classes=7)
    for metric, temperature in [("cosine", 0.1), ("cosine", 0.01), ("euclidean", 0.5)]:
        predicted = knn_predict(
            bank,
            labels,
            queries,
            num_classes=7,
            k=50,
            metric=metric,
            vote="similarity",
            temperature=temperature,
        )
        for query, got in zip(queries.astype(np.float64), predicted, strict=True):
            distances = [DISTANCES[metric](query, b) for b in bank.astype(np.float64)]
            nearest50 = np.argsort(distances)[:50]
            votes = dict.fromkeys(range(7), 0.0)
            for i in nearest50:
                far = distances[i] if metric == "cosine" else distances[i] ** 2 / 2
                votes[labels[i]] += math.exp(-far / temperature)
            assert got == max(votes, key=votes.get)


def test_votes_by_similarity_at_extreme_temperatures(rng):
    bank, labels, queries, _ = problem(rng)

    def predict(**options):
        return knn_predict(bank, labels, queries, num_classes=4, **options).tolist()

    assert predict(k=20, vote="similarity", temperature=1e-300) == predict(k=1)
    assert predict(k=20, vote="similarity", temperature=1e9) == predict(k=20)


def test_top5_is_of_the_classes_with_most_votes(rng):
    """By hand: a query at 0, members at 1, 2, 3, … with these labels."""
    labels = np.array([7, 3, 3, 1, 0, 2, 5, 5, 5, 6])
    bank = np.arange(1.0, 11)[:, None]

    def top5(true, k):
        options = {"num_classes": 9, "k": k, "metric": "euclidean"}
        return knn_probe(bank, labels, np.zeros((1, 1)), np.array([true]), **options)["top5"]

    # Of ten votes: three for 5, two for 3, then of those with one each the nearest, 7, 1 and 0.
    assert [top5(true, 10) for true in range(9)] == [100, 100, 0, 100, 0, 100, 0, 100, 0]
    # Of six: two for 3, and one each for the others. 4 and 8 have none.
    assert [top5(true, 6) for true in range(9)] == [100, 100, 100, 100, 0, 0, 0, 100, 0]
    assert top5(7, 4) is None
    few = knn_probe(
        bank, labels % 5, np.zeros((1, 1)), np.array([1]), num_classes=5, metric="euclidean"
    )
    assert few["top5"] is None


def test_features_from_files_are_those_of_memory(rng, tmp_path):
    train_x, train_y, test_x, test_y = problem(rng, m=400, n=90)
    np.save(tmp_path / "train.npy", train_x)
    np.save(tmp_path / "test.npy", test_x)
    train, test = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("train", "test"))
    for vote in ("majority", "similarity"):
        mapped = knn_probe(train, train_y, test, test_y, num_classes=4, vote=vote)
        assert mapped == knn_probe(train_x, train_y, test_x, test_y, num_classes=4, vote=vote)


def test_classes_may_be_missing(rng):
    train_x, train_y, test_x, test_y = problem(rng, num_classes=6)
    kept, asked = train_y != 2, test_y != 4
    result = knn_probe(train_x[kept], train_y[kept], test_x[asked], test_y[asked], num_classes=6)
    expected = oracle(train_x[kept], train_y[kept], test_x[asked], 5, "cosine")
    assert result["top1"] == pytest.approx(100 * np.mean(np.array(expected) == test_y[asked]))
    assert 0 < result["top1"] < result["top5"] < 100


def test_probe_carries_its_protocol(rng):
    train_x, train_y, test_x, test_y = problem(rng)
    result = knn_probe(train_x, train_y, test_x, test_y, num_classes=9, k=3, metric="euclidean")
    right = np.sum(np.array(oracle(train_x, train_y, test_x, 3, "euclidean")) == test_y)
    assert json.loads(json.dumps(result)) == result
    scored = {key: result.pop(key) for key in ("top1_interval", "per_class", "confusion")}
    assert np.trace(scored["confusion"]) == right and len(scored["per_class"]) == 9
    assert scored["top1_interval"][0] < result["top1"] < scored["top1_interval"][1]
    assert result == {
        "protocol": "knn",
        "k": 3,
        "metric": "euclidean",
        "vote": "majority",
        "temperature": None,
        "top1": pytest.approx(100 * right / 53),
        "top5": None,
        "n": 53,
        "n_train": 97,
        "d": 6,
        "num_classes": 9,
    }


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16, np.float64])
def test_other_dtypes_count_as_float32(rng, dtype):
    bank, labels, queries, _ = problem(rng)
    bank, queries = bank.astype(dtype), queries.astype(dtype)
    as_float32 = bank.astype(np.float32), labels, queries.astype(np.float32)
    predicted = knn_predict(bank, labels, queries, num_classes=4)
    np.testing.assert_array_equal(predicted, knn_predict(*as_float32, num_classes=4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 98}, "k = 98: choose 1 to 97, the size of the bank"),
        ({"k": 0}, "k = 0: choose 1 to 97"),
        ({"metric": "manhattan"}, "'manhattan': choose one of cosine, euclidean"),
        ({"block_size": 0}, "block_size = 0"),
        ({"vote": "unanimous"}, "vote 'unanimous': choose one of majority, similarity"),
        ({"temperature": 0.0}, "temperature = 0.0: must be finite and positive"),
        ({"bank_labels": np.full(97, 3)}, "bank labels: only class 3, two are needed"),
        ({"num_classes": 2}, "bank labels: . .row [0-9]+. is not one of the 2 classes 0 to 1"),
        ({"queries": np.zeros((3, 5))}, "bank features have 6 dimensions, query features 5"),
        ({"queries": np.zeros((0, 6))}, r"query features: .* got shape \(0, 6\)"),
        ({"queries": np.full((2, 6), np.nan)}, "query features: 2 of 2 rows .* .rows 0, 1."),
        (
            {"queries": np.full((9, 6), np.inf)},
            "query features: 9 of 9 rows .* .rows 0, 1, 2, 3, 4, ",
        ),
        ({"queries": np.full((1, 6), 1e300)}, "query features: 1 of 1 rows hold NaN or infinity"),
        ({"bank_labels": np.zeros(96, int)}, r"bank labels: expected shape \(97,\), got \(96,\)"),
    ],
)
def test_mistakes_are_named(rng, change, message):
    bank, labels, queries, _ = problem(rng)
    arguments = {"bank": bank, "bank_labels": labels, "queries": queries, "num_classes": 4}
    with pytest.raises(UserError, match=message) as error:
        knn_predict(**(arguments | change))
    assert "\n" not in str(error.value)


def test_benchmark_prints_a_row_for_each_k(capsys):
    options = ["--queries", "40", "--bank", "90", "--dim", "8", "--k", "1", "7", "--compare", "9"]
    assert run_py.main(["bench", "knn", *options, "--no-memory"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    found = [row for row in rows if row and row[0] in ("1", "7")]
    assert len(found) == 2
    for row in found:
        _, seconds, limit, share, ratio, peak, base = row
        assert float(seconds) > float(limit) > 0 and float(ratio) > 0
        assert 0 <= float(share) < 100 and peak == base == "-"
