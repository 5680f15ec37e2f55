"""Sentences of many lengths in rows of one length, so that little of a batch is padding.

A row holds several sentences, one after the other. Recurrent encoders forget at each border (see
`models.sentence_gru`), so a sentence's features do not depend on what stands beside it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# Numbers of words that are none. Every sentence ends with END; all other words come after UNKNOWN.
PADDING, END, UNKNOWN = range(3)
SPECIAL = ("<pad>", "<end>", "<unk>")
ELSEWHERE = -1  # in the place of a sentence that another device has

Array = np.ndarray | jax.Array


class Packed(NamedTuple):
    """k sentences in r rows of t words.

    Attributes:
      words: integers `[r, t]`, with PADDING where no sentence is.
      first: integers `[k]`, where the first word of each sentence is in the flattened rows; or
        ELSEWHERE.
      last: integers `[k]`, where its END is; or ELSEWHERE.
    """

    words: Array
    first: Array
    last: Array


def one_a_row(words: jax.Array) -> Packed:
    """Sentences that have a row `[k, t]` each, with PADDING after their END."""
    k, t = words.shape
    first = jnp.arange(k) * t
    return Packed(words, first, first + jnp.argmax(words == END, axis=1))


def places(lengths: Sequence[int], t: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Puts sentences into as few rows as best-fit decreasing finds.

    Args:
      lengths: words of each sentence with its END, at most t.
      t: words in a row.

    Returns:
      Row and column `[k]` of the first word of each sentence, and the number of rows.
    """
    rows, columns = np.empty((2, len(lengths)), np.int64)
    rows_with: list[list[int]] = [[] for _ in range(t + 1)]  # by the room that is left in them
    count = 0
    for sentence in np.argsort(-np.asarray(lengths), kind="stable"):
        length = int(lengths[sentence])
        room = next((room for room in range(length, t) if rows_with[room]), t)
        if room < t:
            row = rows_with[room].pop()
        else:
            row, count = count, count + 1
        rows[sentence], columns[sentence] = row, t - room
        rows_with[room - length].append(row)
    return rows, columns, count


def some_more(rows: int) -> int:
    """At least so many rows, of few numbers: a program is compiled for each one that comes up."""
    return next(size for size in _sizes() if size >= rows)


def pack(sentences: Sequence[np.ndarray], t: int, devices: int = 1) -> list[Packed]:
    """Sentences in rows of t words, as many rows on each device.

    Any device may have any sentence: dealt out by rows, all have the same work, however the lengths
    lie in the batch. So each has a place for all k, which is ELSEWHERE for those of the others.

    Args:
      sentences: the numbers of their words, END at last.
      t: words in a row.
      devices: how many share the rows.

    Returns:
      For each device its part.
    """
    lengths = np.array([len(sentence) for sentence in sentences], np.int32)
    rows, columns, count = places(lengths, t)
    shape = some_more(-(-count // devices)), t
    packed = []
    for device in range(devices):
        words = np.full(shape, PADDING, np.int32)
        mine = rows % devices == device
        for i in np.flatnonzero(mine):
            row, column = rows[i] // devices, columns[i]
            words[row, column : column + lengths[i]] = sentences[i]
        first = np.where(mine, rows // devices * t + columns, ELSEWHERE).astype(np.int32)
        last = np.where(mine, first + lengths - 1, ELSEWHERE).astype(np.int32)
        packed.append(Packed(words, first, last))
    return packed


def _sizes() -> Iterator[int]:
    """1, 2, 3, …, and from 16 on each an eighth larger than the one before."""
    size = 1
    while True:
        yield size
        size += max(1, size // 8)
