"""The nearest members of a bank: recall 1 and exact ties by index, whatever blocks and devices.

Order is held to what float32 tells apart; what is promised beyond that is below its own heading.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from overlapping import Watched

from hypersphere_jax.evaluation import neighbours, rows, screening
from hypersphere_jax.evaluation.neighbours import nearest

METRICS = ("cosine", "euclidean")


def distances(bank, queries, metric):
    """float64 `[n, m]`: one minus the cosine, or half the squared distance."""
    bank, queries = np.float64(bank), np.float64(queries)
    if metric == "euclidean":
        return np.stack([((bank - query) ** 2).sum(axis=1) for query in queries]) / 2
    bank, queries = (
        x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300) for x in (bank, queries)
    )
    return 1 - queries @ bank.T


def assert_nearest(found, bank, queries, metric):
    """Found are the nearest, in their order and with their similarity, up to float32's rounding."""
    every = distances(bank, queries, metric)
    k = found.positions.shape[1]
    expected = np.sort(every, axis=1)[:, :k]
    rounding = 1e-5 * np.maximum(1, np.abs(expected).max())
    there = np.take_along_axis(every, found.positions, axis=1)
    np.testing.assert_allclose(there, expected, rtol=0, atol=rounding)
    assert all(len(set(row)) == k for row in found.positions.tolist())
    similarity = 1 - expected if metric == "cosine" else -expected
    np.testing.assert_allclose(found.similarity, similarity, rtol=0, atol=rounding)


def in_order(bank, queries, k, metric):
    """Positions of the k nearest, by a stable sort of float64 distances."""
    return np.argsort(distances(bank, queries, metric), axis=1, kind="stable")[:, :k]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("devices", [1, 3])
def test_the_nearest_are_found_in_any_blocks(rng, metric, devices):
    """Of whole numbers, whose distances are exact: so are ties, which go to the earlier."""
    if metric == "euclidean":
        bank, queries = (rng.integers(-3, 4, (n, 5)) for n in (203, 41))
    else:  # of one length, and so far apart that rounding is nothing
        bank, queries = (
            rng.permuted(np.tile([-2, -1, 0, 1, 2], (n, 1)), axis=1) for n in (203, 41)
        )
    every = np.round(distances(bank, queries, metric), 9)
    expected = np.argsort(every, axis=1, kind="stable")[:, :20]
    for block_size in (None, 16, 101):
        found = nearest(
            bank,
            queries,
            20,
            metric=metric,
            block_size=block_size,
            devices=jax.devices()[:devices],
        )
        np.testing.assert_array_equal(found.positions, expected, err_msg=str(block_size))
        assert_nearest(found, bank, queries, metric)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("d", [2, 64, 1024])
def test_recall_is_1_on_random_features(rng, metric, d):
    bank = rng.normal(size=(701, d)).astype(np.float32)
    queries = rng.normal(size=(61, d)).astype(np.float32)
    assert_nearest(nearest(bank, queries, 200, metric=metric), bank, queries, metric)


@pytest.mark.parametrize("metric", METRICS)
def test_wide_blocks_are_narrowed_without_loss(rng, metric):
    """Blocks so wide that only groups with large maxima are sorted; the bank is in order."""
    bank = np.sort(rng.normal(size=(6144, 3)), axis=0).astype(np.float32)
    queries = rng.normal(size=(40, 3)).astype(np.float32)
    for block_size in (None, 2048):
        found = nearest(bank, queries, 4, metric=metric, block_size=block_size)
        assert_nearest(found, bank, queries, metric)


@pytest.mark.parametrize("block_size", [None, 64])
def test_hundreds_of_equal_members_are_taken_in_order(rng, block_size):
    """More than screening keeps; and in another order than that of the bank's blocks."""
    places = np.sort(rng.permutation(700)[:300])
    bank = 2 + np.abs(rng.normal(size=(700, 5)).astype(np.float32))
    bank[places] = 1
    queries = np.ones((3, 5), np.float32) * [[1], [0.5], [0]]
    found = nearest(bank, queries, 150, metric="euclidean", block_size=block_size)
    assert (found.positions == places[:150]).all()


def test_rows_without_direction_are_at_right_angles_to_all(rng):
    bank = rng.normal(size=(97, 6)).astype(np.float32)
    found = nearest(bank, np.zeros((2, 6)), 30)
    assert (found.positions == np.arange(30)).all() and (found.similarity == 0).all()
    bank[::2] = 0
    assert_nearest(nearest(bank, bank[1:9:2], 90), bank, bank[1:9:2], "cosine")


def test_features_are_read_in_blocks(rng):
    """As of a file larger than memory: never more rows at once than fit the caches."""
    bank, queries = (Watched(rng.normal(size=(n, 512)).astype(np.float32)) for n in (900, 300))
    found = nearest(bank, queries, 5)
    assert all(0 < max(x.reads) * 512 <= rows.CHUNK for x in (bank, queries))
    assert_nearest(found, bank.x, queries.x, "cosine")


# Beyond float32's rounding: neighbours are those of float64 arithmetic.


def test_multiples_are_equally_near_whatever_float32_makes_of_them(rng):
    """Whole numbers, for which float64 is exact; as unit vectors in float32 they differ."""
    bank = (1 + rng.permutation(60))[:, None] * rng.integers(1, 10, size=(1, 64))
    queries = rng.integers(1, 10, size=(20, 64))
    for devices in (1, 3):
        found = nearest(bank, queries, 50, devices=jax.local_devices()[:devices])
        assert (found.positions == np.arange(50)).all()
    bank = np.array([[0, 1], [9, 12], [3, 4], [21, 28], [1, 0]])
    found = nearest(bank, np.array([[2, 3], [6, 8]]), 5)
    assert found.positions.tolist() == [[1, 2, 3, 0, 4]] * 2


def test_order_where_features_hardly_differ(rng):
    """In a narrow cone, far from the origin, and beyond the squares of float32."""
    noise, asked = rng.normal(size=(400, 16)), rng.normal(size=(40, 16))
    cases = [("cosine", np.eye(16)[0], 3e-4)]
    cases += [("euclidean", offset, offset / 1e4) for offset in (1e3, 1e6)]
    cases += [(metric, 0.0, scale) for metric in METRICS for scale in (1e-25, 1e25)]
    for metric, offset, scale in cases:
        bank, queries = ((offset + scale * x).astype(np.float32) for x in (noise, asked))
        if scale in (1e-25, 1e25):
            bank[3] /= 1e10  # one row beside which another is nothing
        found = nearest(bank, queries, 9, metric=metric)
        expected = in_order(bank, queries, 9, metric)
        np.testing.assert_array_equal(found.positions, expected, err_msg=f"{metric} {scale}")


def test_screening_hides_no_mistake(rng, monkeypatch):
    """Where screening keeps the wrong candidates, its bounds say so."""
    bank, queries = (rng.normal(size=(n, 6)).astype(np.float32) for n in (400, 53))
    expected = nearest(bank, queries, 5, metric="euclidean")
    searched, in_whole_bank = [], neighbours._in_whole_bank

    def counted(bank, queries, doubtful, k, unit):
        searched.append(len(doubtful))
        return in_whole_bank(bank, queries, doubtful, k, unit)

    monkeypatch.setattr(neighbours, "_in_whole_bank", counted)
    nearest(bank, queries, 5, metric="euclidean")
    assert sum(searched) == 0
    # Six digits less than float32 has, in products of which each is wrong.
    step = screening._search
    monkeypatch.setattr(screening, "UNDERFLOW", 1.0)
    monkeypatch.setattr(
        screening, "_search", lambda q, *rest: step(q + 0.01 * jnp.sin(1e4 * q), *rest)
    )
    found = nearest(bank, queries, 5, metric="euclidean")
    np.testing.assert_array_equal(found.positions, expected.positions)
    assert sum(searched) > 0
