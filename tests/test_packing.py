"""Sentences in rows: nothing is lost, nothing overlaps, little is padding."""

import numpy as np
import pytest

from hypersphere_jax.packing import ELSEWHERE, END, PADDING, pack, places, some_more


def test_every_sentence_has_a_place_of_its_own():
    for seed in range(5):
        rng = np.random.default_rng(seed)
        t = int(rng.integers(2, 40))
        lengths = rng.integers(1, t + 1, rng.integers(1, 200))
        rows, columns, count = places(lengths, t)
        taken = np.zeros((count, t), int)
        for row, column, length in zip(rows, columns, lengths, strict=True):
            assert column + length <= t
            taken[row, column : column + length] += 1
        assert taken.max() == 1 and (taken.sum(1) > 0).all()


@pytest.mark.parametrize("devices", [1, 3])
def test_packed_sentences_can_be_read_back(rng, devices):
    given = [np.append(rng.integers(3, 90, n), END) for n in rng.integers(0, 12, 40)]
    parts = pack(given, 12, devices)
    assert len({part.words.shape for part in parts}) == 1
    read = {}
    for part in parts:
        for i, (first, last) in enumerate(zip(part.first, part.last, strict=True)):
            assert (first == ELSEWHERE) == (last == ELSEWHERE)
            if first != ELSEWHERE:
                assert i not in read  # one device has it
                read[i] = part.words.reshape(-1)[first : last + 1].tolist()
    assert [read[i] for i in range(40)] == [sentence.tolist() for sentence in given]
    assert sum((part.words != PADDING).sum() for part in parts) == sum(map(len, given))


@pytest.mark.parametrize("devices, share", [(1, 0.85), (2, 0.8), (8, 0.8)])
def test_little_is_padding(rng, devices, share):
    """Lengths as in novels: half of the sentences below 19 words, a twentieth above 58.

    On several devices also where long ones stand together, as in descriptions, and short ones, as
    in talk.
    """
    work = words = 0
    for _ in range(30):
        lengths = np.clip(np.exp(rng.normal(2.9, 0.7, 400)), 2, 64).astype(int)
        count = places(lengths if devices == 1 else np.sort(lengths), 64)[2]
        work += devices * some_more(-(-count // devices)) * 64
        words += lengths.sum()
    assert words / work > share
    for lengths, rows in (([3, 5, 5, 3, 8], 3), ([8] * 7, 7), ([1] * 16, 2)):
        assert places(lengths, 8)[2] == rows


def test_few_shapes_are_compiled():
    sizes = {some_more(rows) for rows in range(1, 1000)}
    assert len(sizes) < 60
    for rows in range(1, 1000):
        assert rows <= some_more(rows) <= max(rows + 1, rows * 9 / 8)
