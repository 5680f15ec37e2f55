"""The nearest neighbours against a stable sort in float64: any blocks, devices, ties and scales."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from knn_cases import DISTANCES, problem

from hypersphere_jax.evaluation import neighbours, rows, screening
from hypersphere_jax.evaluation.neighbours import nearest


def order_of(bank, queries, k, metric):
    """Positions of the k nearest, by a stable sort of float64 distances."""
    bank, queries = bank.astype(np.float64), queries.astype(np.float64)
    if metric == "euclidean":
        distances = np.stack([((bank - query) ** 2).sum(axis=1) for query in queries])
    else:
        bank, queries = (x / np.maximum(norm(x), 1e-300) for x in (bank, queries))
        distances = 1 - queries @ bank.T
    return np.argsort(distances, axis=1, kind="stable")[:, :k]


def norm(x):
    return np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("metric", DISTANCES)
@pytest.mark.parametrize("d", [2, 3, 64, 4096])
def test_neighbours_are_the_nearest_in_their_order(rng, metric, d):
    bank = rng.normal(size=(701, d)).astype(np.float32)
    queries = rng.normal(size=(61, d)).astype(np.float32)
    found = nearest(bank, queries, 200, metric=metric)
    np.testing.assert_array_equal(found.positions, order_of(bank, queries, 200, metric))
    pairs = bank[found.positions[:, 7]].astype(np.float64), queries.astype(np.float64)
    expected = {
        "cosine": (pairs[0] * pairs[1]).sum(axis=1) / (norm(pairs[0]) * norm(pairs[1]))[:, 0],
        "euclidean": -((pairs[0] - pairs[1]) ** 2).sum(axis=1) / 2,
    }
    np.testing.assert_allclose(found.similarity[:, 7], expected[metric], rtol=1e-12)


@pytest.mark.parametrize("metric", DISTANCES)
@pytest.mark.parametrize("devices", [2, 8])
def test_devices_and_blocks_change_nothing(rng, metric, devices):
    bank, _, queries, _ = problem(rng, m=203, n=41)
    bank[50:60], bank[190], bank[100] = bank[3], bank[7], 0
    queries[5], queries[6] = 0, bank[3]
    expected = nearest(bank, queries, 20, metric=metric)
    for block_size in (None, 1, 16, 101):
        found = nearest(
            bank,
            queries,
            20,
            metric=metric,
            block_size=block_size,
            devices=jax.local_devices()[:devices],
        )
        np.testing.assert_array_equal(found.positions, expected.positions)
        np.testing.assert_array_equal(found.similarity, expected.similarity)


@pytest.mark.parametrize("metric", DISTANCES)
def test_wide_blocks_are_narrowed_without_loss(rng, metric):
    """Blocks so wide that only groups with large maxima are sorted; the bank is in order."""
    bank = np.sort(rng.normal(size=(6144, 3)), axis=0).astype(np.float32)
    queries = rng.normal(size=(40, 3)).astype(np.float32)
    for block_size in (None, 2048):
        found = nearest(bank, queries, 4, metric=metric, block_size=block_size)
        np.testing.assert_array_equal(found.positions, order_of(bank, queries, 4, metric))


@pytest.mark.parametrize("block_size", [None, 64])
def test_hundreds_of_equal_members_are_taken_in_order(rng, block_size):
    """More than screening keeps; and in another order than that of the bank's blocks."""
    places = np.sort(rng.permutation(700)[:300])
    bank = 2 + np.abs(rng.normal(size=(700, 5)).astype(np.float32))
    bank[places] = 1
    queries = np.ones((3, 5), np.float32) * [[1], [0.5], [0]]
    found = nearest(bank, queries, 150, metric="euclidean", block_size=block_size)
    assert (found.positions == places[:150]).all()


def test_a_query_without_direction_is_equally_near_to_all(rng):
    bank = problem(rng)[0]
    found = nearest(bank, np.zeros((2, 6)), 30)
    assert (found.positions == np.arange(30)).all() and (found.similarity == 0).all()


def test_members_of_one_direction_are_equally_near():
    bank = np.array([[0, 1], [9, 12], [3, 4], [21, 28], [1, 0]])
    found = nearest(bank, np.array([[2, 3], [6, 8]]), 5)
    assert found.positions.tolist() == [[1, 2, 3, 0, 4]] * 2


@pytest.mark.parametrize("devices", [1, 3])
def test_multiples_are_equally_near_whatever_float32_makes_of_them(rng, devices):
    """Whole numbers, for which float64 is exact; as unit vectors in float32 they differ."""
    bank = (1 + rng.permutation(60))[:, None] * rng.integers(1, 10, size=(1, 64))
    queries = rng.integers(1, 10, size=(20, 64))
    found = nearest(bank, queries, 50, devices=jax.local_devices()[:devices])
    assert (found.positions == np.arange(50)).all()


@pytest.mark.parametrize("offset", [1e3, 1e6])
@pytest.mark.parametrize("d", [2, 300])
def test_euclidean_far_from_the_origin(rng, offset, d):
    bank = (offset + rng.normal(size=(500, d)) * offset / 1e4).astype(np.float32)
    queries = (offset + rng.normal(size=(50, d)) * offset / 1e4).astype(np.float32)
    found = nearest(bank, queries, 9, metric="euclidean")
    np.testing.assert_array_equal(found.positions, order_of(bank, queries, 9, "euclidean"))


@pytest.mark.parametrize("metric", DISTANCES)
@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_scales_beyond_the_squares_of_float32(rng, metric, scale):
    bank, _, queries, _ = problem(rng)
    bank, queries = (bank * scale).astype(np.float32), (queries * scale).astype(np.float32)
    bank[3] /= 1e10  # one row beside which another is nothing
    found = nearest(bank, queries, 9, metric=metric)
    np.testing.assert_array_equal(found.positions, order_of(bank, queries, 9, metric))


def test_screening_hides_no_mistake(rng, monkeypatch):
    """Where screening keeps the wrong candidates, its bounds say so."""
    bank, _, queries, _ = problem(rng, m=400)
    expected = nearest(bank, queries, 5, metric="euclidean")
    search = []
    in_whole_bank = neighbours._in_whole_bank

    def counted(bank, queries, doubtful, k, unit):
        search.append(len(doubtful))
        return in_whole_bank(bank, queries, doubtful, k, unit)

    monkeypatch.setattr(neighbours, "_in_whole_bank", counted)
    nearest(bank, queries, 5, metric="euclidean")
    assert sum(search) == 0
    # Six digits less than float32 has, in products of which each is wrong.
    step = screening._search
    monkeypatch.setattr(screening, "UNDERFLOW", 1.0)
    monkeypatch.setattr(
        screening, "_search", lambda q, *rest: step(q + 0.01 * jnp.sin(1e4 * q), *rest)
    )
    found = nearest(bank, queries, 5, metric="euclidean")
    np.testing.assert_array_equal(found.positions, expected.positions)
    assert sum(search) > 0


def test_features_are_read_in_blocks(rng):
    """As of a file larger than memory: never more rows at once than fit the caches."""

    class Spy:
        def __init__(self, x):
            self.x, self.shape, self.largest = x, x.shape, 0

        def __len__(self):
            return len(self.x)

        def __getitem__(self, rows):
            found = self.x[rows]
            self.largest = max(self.largest, found.size)
            return found

    bank, queries = (Spy(rng.normal(size=(n, 512)).astype(np.float32)) for n in (3000, 700))
    found = nearest(bank, queries, 5)
    assert 0 < bank.largest <= rows.CHUNK and 0 < queries.largest <= rows.CHUNK
    np.testing.assert_array_equal(found.positions, order_of(bank.x, queries.x, 5, "cosine"))
