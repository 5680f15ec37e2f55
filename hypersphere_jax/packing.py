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

Array = np.ndarray | jax.Array


class Packed(NamedTuple):
    """k sentences in r rows of t words.

    Attributes:
      words: integers `[r, t]`, with PADDING where no sentence is.
      first: integers `[k]`, where the first word of each sentence is in the flattened rows.
      last: integers `[k]`, where its END is.
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


def pack(sentences: Sequence[np.ndarray], rows: np.ndarray, columns: np.ndarray, shape) -> Packed:
    """The sentences in their places, in an array of rows `shape` = (r, t)."""
    words = np.full(shape, PADDING, np.int32)
    for sentence, row, column in zip(sentences, rows, columns, strict=True):
        words[row, column : column + len(sentence)] = sentence
    first = (rows * shape[1] + columns).astype(np.int32)
    lengths = np.array([len(sentence) for sentence in sentences], np.int32)
    return Packed(words, first, first + lengths - 1)


def _sizes() -> Iterator[int]:
    """1, 2, 3, …, and from 16 on each an eighth larger than the one before."""
    size = 1
    while True:
        yield size
        size += max(1, size // 8)
