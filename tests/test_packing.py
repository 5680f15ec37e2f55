"""Sentences in rows: nothing is lost, nothing overlaps, little is padding."""

import numpy as np
import pytest

from hypersphere_jax.packing import ELSEWHERE, END, PADDING, pack, places, some_more


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
    for devices in (1, 3):
        parts = pack(given, 12, devices)
        assert len({part.words.shape for part in parts}) == 1
        read = {}
        for part in parts:
            flat = part.words.reshape(-1)
            for i, (first, last) in enumerate(zip(part.first, part.last, strict=True)):
                assert (first == ELSEWHERE) == (last == ELSEWHERE)
                if first != ELSEWHERE:
                    assert i not in read
                    read[i] = flat[first : last + 1]
        assert sorted(read) == list(range(40))
        for i, sentence in enumerate(given):
            np.testing.assert_array_equal(read[i], sentence)
        assert sum((part.words != PADDING).sum() for part in parts) == sum(map(len, given))


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
    """Also where long sentences stand together, as in descriptions, and short ones, as in talk."""
    rng = np.random.default_rng(0)
    work = words = 0
    for _ in range(30):
        lengths = np.clip(np.exp(rng.normal(2.9, 0.7, 400)), 2, 64).astype(int)
        work += devices * some_more(-(-places(np.sort(lengths), 64)[2] // devices)) * 64
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
