"""Packing of sentences into rows of equal length, with little padding.

A row contains several sentences, one after another. Recurrent encoders reset their state at the end
of each sentence (see `sentence_gru`), so the features of a sentence do not depend on its row.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

# Special token ids. Every sentence ends with END. Words have larger ids than UNKNOWN.
PADDING, END, UNKNOWN = range(3)
SPECIAL = ("<pad>", "<end>", "<unk>")
OTHER_DEVICE = -1  # position of a sentence that another device has


class Packed(NamedTuple):
    """k sentences in r rows of t tokens. Positions are in the flattened rows."""

    words: Any  # token ids [r, t], PADDING elsewhere
    first: Any  # position of the first token of each sentence [k], or OTHER_DEVICE
    last: Any  # position of the END of each sentence [k], or OTHER_DEVICE


def best_fit(lengths: Sequence[int], t: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Assign sentences to rows of t tokens by best-fit decreasing.

    Return row and column `[k]` of the first token of each sentence, and the number of rows.
    """
    rows = np.empty(len(lengths), np.int64)
    columns = np.empty(len(lengths), np.int64)
    rows_by_room: list[list[int]] = [[] for _ in range(t + 1)]
    count = 0
    for sentence in np.argsort(-np.asarray(lengths), kind="stable"):
        length = int(lengths[sentence])
        room = next((room for room in range(length, t) if rows_by_room[room]), t)
        if room < t:
            row = rows_by_room[room].pop()
        else:
            row = count
            count += 1
        rows[sentence] = row
        columns[sentence] = t - room
        rows_by_room[room - length].append(row)
    return rows, columns, count


def padded_count(rows: int) -> int:
    """Round a number of rows up, by at most an eighth, to limit the number of compiled shapes."""
    size = 1
    while size < rows:
        size += max(1, size // 8)
    return size


def pack(sentences: Sequence[np.ndarray], t: int, devices: int = 1) -> list[Packed]:
    """Pack sentences, each of at most t tokens, into rows and deal the rows out to the devices.

    The parts of all devices have the same shapes.
    """
    lengths = np.array([len(sentence) for sentence in sentences], np.int32)
    rows, columns, count = best_fit(lengths, t)
    shape = (padded_count(-(-count // devices)), t)
    parts = []
    for device in range(devices):
        words = np.full(shape, PADDING, np.int32)
        is_mine = rows % devices == device
        first = np.where(is_mine, rows // devices * t + columns, OTHER_DEVICE).astype(np.int32)
        last = np.where(is_mine, first + lengths - 1, OTHER_DEVICE).astype(np.int32)
        for i in np.flatnonzero(is_mine).tolist():
            words.ravel()[first[i] : last[i] + 1] = sentences[i]
        parts.append(Packed(words, first, last))
    return parts
