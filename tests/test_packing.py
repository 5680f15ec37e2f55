"""Sentences in rows: nothing is lost, nothing overlaps, little is padding."""

import numpy as np
import pytest

from hypersphere_jax.packing import END, PADDING, pack, places, some_more


@pytest.mark.parametrize("seed", range(5))
def test_every_sentence_has_a_place_of_its_own(seed):
    rng = np.random.default_rng(seed)
    t = int(rng.integers(2, 40))
    lengths = rng.integers(1, t + 1, rng.integers(1, 200))
    rows, columns, count = places(lengths, t)
    taken = np.zeros((count, t), int)
    for row, column, length in zip(rows, columns, lengths, strict=True):
        assert column + length <= t
        taken[row, column : column + length] += 1
    assert taken.max() == 1 and (taken.sum(1) > 0).all()


def test_packed_sentences_can_be_read_back():
    rng = np.random.default_rng(0)
    given = [np.append(rng.integers(3, 90, n), END) for n in rng.integers(0, 12, 40)]
    rows, columns, count = places([len(sentence) for sentence in given], 12)
    found = pack(given, rows, columns, (count + 1, 12))
    flat = found.words.reshape(-1)
    for sentence, first, last in zip(given, found.first, found.last, strict=True):
        np.testing.assert_array_equal(flat[first : last + 1], sentence)
    assert (flat != PADDING).sum() == sum(map(len, given))


def test_padding_is_less_than_a_fifth():
    """Lengths as in novels: half of the sentences below 19 words, a twentieth above 58."""
    rng = np.random.default_rng(0)
    work = words = 0
    for _ in range(50):
        lengths = np.clip(np.exp(rng.normal(2.9, 0.7, 400)), 2, 64).astype(int)
        work += some_more(places(lengths, 64)[2]) * 64
        words += lengths.sum()
    assert words / work > 0.85


@pytest.mark.parametrize("devices", [2, 8])
def test_also_where_devices_share_a_batch(devices):
    """All have as many rows as the fullest of them."""
    rng = np.random.default_rng(0)
    work = words = 0
    for _ in range(30):
        lengths = np.clip(np.exp(rng.normal(2.9, 0.7, 400)), 2, 64).astype(int)
        rows = max(places(part, 64)[2] for part in np.split(lengths, devices))
        work += devices * some_more(rows) * 64
        words += lengths.sum()
    assert words / work > 0.8


def test_sentences_that_fit_together_share_rows():
    assert places([3, 5, 5, 3, 8], 8)[2] == 3
    assert places([8] * 7, 8)[2] == 7
    assert places([1] * 16, 8)[2] == 2


def test_few_shapes_are_compiled():
    sizes = {some_more(rows) for rows in range(1, 1000)}
    assert len(sizes) < 60
    for rows in range(1, 1000):
        assert rows <= some_more(rows) <= max(rows + 1, rows * 9 / 8)
