"""A few candidates for the nearest neighbours of each query, by matrix products on the devices.

Products are in float32, of blocks of queries and of the bank. They are ranked by similarity plus a
bound of their rounding error, so that it is known how near a member may be that is no candidate.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hypersphere_jax.evaluate.rows import Rows, chunks, in_threads
from hypersphere_jax.train import sharding
from hypersphere_jax.train.progress import track

# Most elements of a block of the bank, and of a block of queries; and most rows of either.
BANK, QUERIES, ROWS = 2**24, 2**26, 16384
# Queries of one product with a block of the bank, and how many products are in memory at once: the
# next can be computed while one is sorted.
TILE, TILES = 512, 4
UNDERFLOW = 2.0**-100  # what products too small for float32 add up to at most


class Frame(NamedTuple):
    """Where screening has its origin and unit, in which float32 is most exact.

    Distances do not change when the origin moves, but their rounding errors do: from the bank's
    mean, they are small also where all features lie in one narrow cone.
    """

    unit: bool  # rows are divided by their norm first
    centre: np.ndarray
    scale: float

    def read(self, rows: Rows, where: slice, x: np.ndarray) -> np.ndarray:
        """Writes float32 `[b, d]` into x; half of the squared norms `[b]` in float64."""
        halves = np.empty(where.stop - where.start)

        def fill(part: slice) -> None:
            there = slice(where.start + part.start, where.start + part.stop)
            values = rows.read(there)
            if self.unit:
                values /= rows.norms(there)[:, None]
            values -= self.centre
            values *= self.scale
            x[part], halves[part] = values, np.vecdot(values, values) / 2

        list(in_threads(fill, chunks(len(halves), len(self.centre))))
        return halves


class Candidates(NamedTuple):
    """Candidates for the neighbours of a block of q queries, the nearest first.

    Attributes:
      block: the queries.
      positions: `[q, kept]` rows of the bank.
      farther: float64 `[q, kept]`: half of their squared distance is at least this, ascending. No
        member that is not a candidate is nearer than the last one says.
    """

    block: slice
    positions: np.ndarray
    farther: np.ndarray


def screen(
    bank: Rows,
    queries: Rows,
    frame: Frame,
    kept: int,
    block_size: int | None,
    devices: Sequence[jax.Device],
) -> Iterator[Candidates]:
    """Candidates of one block of queries after the other, `kept` of each query.

    Each device searches its shard of the bank. One block of queries and one block of the bank a
    device are in memory at a time.
    """
    (m, d), n = bank.x.shape, queries.x.shape[0]
    # Of a float32 product of d terms: the probabilistic bound of Higham & Mary (2019), with a
    # factor of 8, and some roundings more for what surrounds the product.
    error = 2.0**-24 * (8 * math.sqrt(d) + 16)
    shard = -(-m // len(devices))
    rows = min(block_size or max(1, min(ROWS, BANK // d)), shard)
    shards = _Shards(bank, frame, len(devices), shard, rows, error)
    search = sharding.pmap(_search, devices)
    size = block_size or _even(n, max(1, min(ROWS, QUERIES // d)))

    def of_block(block: slice) -> Candidates:
        x = np.zeros((size, d), np.float32)  # the last block is filled up: one program for all
        halves = frame.read(queries, block, x)
        parts = [x[first : first + TILES * TILE] for first in range(0, size, TILES * TILE)]
        placed = [sharding.replicate(part, devices) for part in parts]
        best = [sharding.replicate(_none(len(part), kept), devices) for part in parts]
        del x, parts  # the devices have copies
        for first in track(range(0, shard, rows), "neighbours"):
            # Read while the devices are at the block before, and only that one.
            given = shards.read(first)
            jax.block_until_ready(best)
            given = sharding.split(given, devices)
            best = [search(*asking, *given) for asking in zip(placed, best, strict=True)]
        scores, positions = _merged(best, len(halves), kept)
        farther = ((1 - error) * halves[:, None] - scores - UNDERFLOW) / frame.scale**2
        return Candidates(block, positions, farther)

    for begin in range(0, n, size):
        yield of_block(slice(begin, min(begin + size, n)))


class _Shards(NamedTuple):
    """The bank in as many parts as there are devices, of which each is read in blocks."""

    bank: Rows
    frame: Frame
    count: int
    size: int
    rows: int  # of a block
    error: float

    def read(self, begin: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """From each shard: rows from `begin` on, what their products lose, the first position."""
        m, d = self.bank.x.shape
        x = np.zeros((self.count, self.rows, d), np.float32)
        losses = np.full((self.count, self.rows), np.inf, np.float32)
        firsts = np.arange(self.count, dtype=np.int32) * self.size + begin
        for number, first in enumerate(firsts.tolist()):
            last = min(first + self.rows, (number + 1) * self.size, m)
            if last > first:
                part = slice(first, last)
                halves = self.frame.read(self.bank, part, x[number])
                losses[number, : last - first] = (1 - self.error) * halves
                if self.frame.unit:  # cosine 0, as of a vector at right angles to every query
                    losses[number, : last - first] += np.where(self.bank.squares[part] > 0, 0, 0.5)
        return x, losses, firsts


def _none(q: int, kept: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores and positions `[q, kept]` before the first block."""
    return np.full((q, kept), -np.inf, np.float32), np.zeros((q, kept), np.int32)


def _search(queries, best, block, losses, first):
    """The best scores and positions `[q, kept]` so far, and those of a block of the bank."""
    kept = best[0].shape[1]
    tiles = []
    for begin in range(0, len(queries), TILE):
        tile = slice(begin, begin + TILE)
        products = jnp.matmul(queries[tile], block.T, precision=lax.Precision.HIGHEST)
        scores, rows = _fewer(products - losses[None, :], kept)
        scores, chosen = lax.top_k(jnp.concatenate([best[0][tile], scores], axis=1), kept)
        new = jnp.maximum(chosen - kept, 0)
        new = new if rows is None else jnp.take_along_axis(rows, new, axis=1)
        old = jnp.take_along_axis(best[1][tile], jnp.minimum(chosen, kept - 1), axis=1)
        tiles.append((scores, jnp.where(chosen < kept, old, first + new)))
    return tuple(jnp.concatenate(parts) for parts in zip(*tiles, strict=True))


def _fewer(scores: jax.Array, k: int) -> tuple[jax.Array, jax.Array | None]:
    """Some of the scores `[q, b]`, among them the k largest of each row, and where they stand.

    `top_k` is slow on CPU where rows are wide, and maxima are fast. The k largest scores are in the
    k groups with the largest maxima. Where groups would be too small, all scores, and None.
    """
    q, n = scores.shape
    size = 2 ** round(math.log2(max(1.0, math.sqrt(n / k))))
    if size < 4 or n % size:
        return scores, None
    count = n // size  # of groups, whose members stand this far apart
    _, groups = lax.top_k(jnp.max(scores.reshape(q, size, count), axis=1), k)
    members = groups[:, None, :] + count * jnp.arange(size)[None, :, None]
    members = members.reshape(q, size * k)
    return jnp.take_along_axis(scores, members, axis=1), members


def _merged(best: list, q: int, kept: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores and positions `[q, kept]`, the best first, of parts `[devices, b, kept]` each."""
    scores, positions = (
        np.concatenate([np.concatenate(np.asarray(part), axis=1) for part in parts])[:q]
        for parts in zip(*best, strict=True)
    )
    if scores.shape[1] == kept:  # one device, which has them in order
        return scores, positions
    order = np.argsort(-scores, axis=1, kind="stable")[:, :kept]
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(positions, order, axis=1)


def _even(n: int, most: int) -> int:
    """Rows of blocks that are as equal as can be."""
    return -(-n // -(-n // most))
