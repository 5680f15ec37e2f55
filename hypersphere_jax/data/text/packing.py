"""Sentences of many lengths in rows of one length, so that little of a batch is padding.

A row holds several sentences, one after the other. Recurrent encoders reset their state at each
border (see `models.sentence_gru`), so a sentence's features do not depend on its neighbours.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import jax

# Numbers of words that are none. Every sentence ends with END; all other words come after UNKNOWN.
PADDING, END, UNKNOWN = range(3)
SPECIAL = ("<pad>", "<end>", "<unk>")
OTHER_DEVICE = -1  # as the position of a sentence: another device has it


class Packed(NamedTuple):
    """k sentences in r rows of t words.

    Attributes:
      words: integers `[r, t]`, with PADDING where no sentence is.
      first: integers `[k]`, the position of each sentence's first word in the flattened rows; or
        OTHER_DEVICE.
      last: integers `[k]`, that of its END; or OTHER_DEVICE.
    """

    words: "np.ndarray | jax.Array"
    first: "np.ndarray | jax.Array"
    last: "np.ndarray | jax.Array"


def one_per_row(words: "jax.Array") -> Packed:
    """Sentences that have a row `[k, t]` each, with PADDING after their END."""
    import jax.numpy as jnp

    k, t = words.shape
    first = jnp.arange(k) * t
    return Packed(words, first, first + jnp.argmax(words == END, axis=1))


def best_fit(lengths: Sequence[int], t: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Row and column `[k]` of each sentence's first word, and the number of rows of t words.

    By best-fit decreasing.
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


def padded_count(rows: int) -> int:
    """The next of few numbers, as a program is compiled for each: 1 to 16, then an eighth more."""
    size = 1
    while size < rows:
        size += max(1, size // 8)
    return size


def pack(sentences: Sequence[np.ndarray], t: int, devices: int = 1) -> list[Packed]:
    """Sentences (END at last) in rows of t words, dealt out in turn: the part of each device.

    Each device has positions for all k sentences, OTHER_DEVICE for those of the others.
    """
    lengths = np.array([len(sentence) for sentence in sentences], np.int32)
    rows, columns, count = best_fit(lengths, t)
    shape = padded_count(-(-count // devices)), t
    packed = []
    for device in range(devices):
        words = np.full(shape, PADDING, np.int32)
        mine = rows % devices == device
        for i in np.flatnonzero(mine).tolist():
            row, column = rows[i] // devices, columns[i]
            words[row, column : column + lengths[i]] = sentences[i]
        first = np.where(mine, rows // devices * t + columns, OTHER_DEVICE).astype(np.int32)
        last = np.where(mine, first + lengths - 1, OTHER_DEVICE).astype(np.int32)
        packed.append(Packed(words, first, last))
    return packed
