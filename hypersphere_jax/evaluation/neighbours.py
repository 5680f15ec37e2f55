"""The nearest members of a bank of features, exactly, at the speed of matrix products.

The devices screen: float32 products of blocks of queries and of the bank leave each query a few
candidates more than the k it asks for. The host decides: it computes the candidates' similarities
in float64, each pair by itself, and sorts. Screening ranks by similarity plus a bound of its
rounding error, so that the host can tell whether a neighbour may be missing; then it looks at the
whole bank. So nothing in a result depends on how the work was cut into blocks and shards.
"""

import functools
import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hypersphere_jax import sharding
from hypersphere_jax.config import UserError, require
from hypersphere_jax.evaluation.checks import check_same_dim
from hypersphere_jax.progress import track

METRICS = ("cosine", "euclidean")
# Most elements of a block of the bank, and of a block of queries.
BANK, QUERIES = 2**24, 2**26
# Queries of one product with a block of the bank, and how many products are in memory at once: the
# next can be computed while one is sorted.
TILE, TILES = 512, 4
CHUNK = 2**15  # elements in float64 at once: larger arrays do not stay in a core's cache
UNDERFLOW = 2.0**-100  # what products too small for float32 add up to at most


class Neighbours(NamedTuple):
    """The k nearest members of a bank, nearest first.

    Attributes:
      positions: `[n, k]` rows of the bank.
      similarity: float64 `[n, k]`: the cosine, or minus half of the squared Euclidean distance,
        which between unit vectors is the cosine less one.
    """

    positions: np.ndarray
    similarity: np.ndarray


class _Rows(NamedTuple):
    """Features `[n, d]` that are read when they are needed, and squared norms `[n]` of rows."""

    x: Any
    squares: np.ndarray

    def read(self, rows) -> np.ndarray:
        """float64 `[b, d]`, or `[d]` of one row, of features as they are in float32."""
        with np.errstate(over="ignore"):  # what float32 cannot hold is an infinity, to be reported
            return np.asarray(self.x[rows]).astype(np.float32, copy=False).astype(np.float64)


class _Frame(NamedTuple):
    """Where screening has its origin and unit, in which float32 is most exact.

    Distances do not change when the origin moves, but their rounding errors do: from the bank's
    mean, they are small also where all features lie in one narrow cone.
    """

    unit: bool  # rows are divided by their norm first
    centre: np.ndarray
    scale: float

    def read(self, rows: _Rows, where: slice, x: np.ndarray) -> np.ndarray:
        """Writes float32 `[b, d]` into x; half of the squared norms `[b]` in float64."""
        halves = np.empty(where.stop - where.start)

        def fill(part: slice) -> None:
            there = slice(where.start + part.start, where.start + part.stop)
            values = rows.read(there)
            if self.unit:
                values /= np.sqrt(_or_one(rows.squares[there]))[:, None]
            values -= self.centre
            values *= self.scale
            x[part], halves[part] = values, np.vecdot(values, values) / 2

        _in_threads(fill, _chunks(len(halves), len(self.centre)))
        return halves


def nearest(
    bank,
    queries,
    k: int,
    *,
    metric: str = "cosine",
    block_size: int | None = None,
    devices: Sequence[jax.Device] | None = None,
    names: tuple[str, str] = ("bank", "query"),
) -> Neighbours:
    """The k nearest members of a bank for each query.

    Neighbours are those of float64 arithmetic on features in float32. Of members that are equally
    near, the earlier in the bank counts as nearer. One block of queries and one block of the bank a
    device are in memory at a time, whatever n and m.

    Args:
      bank: `[m, d]` features to search: an array, or a memory map that may be larger than memory,
        of any real dtype.
      queries: `[n, d]` features.
      k: neighbours, 1 to m.
      metric: "cosine" (a row of zeros has similarity 0 to every other) or "euclidean".
      block_size: rows of a block, of queries and of the bank alike. Changes no result. None: as
        many as are fast.
      devices: of this host, each of which searches a part of the bank; None: the first one.
      names: of bank and queries in messages.

    Raises:
      UserError: for features or options that do not fit, and for rows with NaN or infinity.
    """
    require(metric in METRICS, f"metric {metric!r}: choose one of {', '.join(METRICS)}")
    require(block_size is None or block_size >= 1, f"block_size = {block_size}: must be at least 1")
    bank, queries = _features(names[0], bank), _features(names[1], queries)
    check_same_dim(names[0], bank, names[1], queries)
    (m, d), n = bank.shape, len(queries)
    require(1 <= k <= m, f"k = {k}: choose 1 to {m}, the size of the bank")
    devices = sharding.local_devices(1) if devices is None else list(devices)

    bank, centre = _scan(names[0], bank, metric)
    queries, _ = _scan(names[1], queries, metric)
    # A power of two, which rounds nothing.
    largest = math.sqrt(max(bank.squares.max(), queries.squares.max()))
    scale = 1.0 if metric == "cosine" else 2.0 ** -math.frexp(largest)[1]
    frame = _Frame(metric == "cosine", centre, scale)
    screen = _Screen(bank, frame, min(k + max(16, k // 8), m), block_size, devices)
    rows = block_size or _even(n, max(1, min(16384, QUERIES // d)))
    found = Neighbours(np.empty((n, k), np.int64), np.empty((n, k)))
    blocks = [slice(begin, min(begin + rows, n)) for begin in range(0, n, rows)]
    for block in blocks:
        candidates, farther = screen(queries, block, rows)
        near, doubtful = _decide(bank, queries, block.start, candidates, farther, k, frame.unit)
        found.positions[block], found.similarity[block] = near
        for asking, exact in _in_whole_bank(bank, queries, block.start + doubtful, k, frame.unit):
            found.positions[asking], found.similarity[asking] = exact
    return found


def rows_of(x) -> int:
    """How many rows features have, of whatever shape they are: 0 for a number."""
    shape = np.shape(x)
    return shape[0] if shape else 0


class _Screen:
    """Candidates for the neighbours of a block of queries, from products on the devices."""

    def __init__(self, bank: _Rows, frame: _Frame, kept: int, block_size: int | None, devices):
        m, d = bank.x.shape
        self._bank, self._frame, self._kept, self._devices = bank, frame, kept, devices
        self._shard = -(-m // len(devices))
        rows = block_size or max(1, min(16384, BANK // d))
        self._rows = min(rows, self._shard)
        # Of a float32 product of d terms: the probabilistic bound of Higham & Mary (2019), with a
        # factor of 8, and some roundings more for what surrounds the product.
        self._error = 2.0**-24 * (8 * math.sqrt(d) + 16)
        self._step = sharding.pmap(_search, devices)

    def __call__(self, queries: _Rows, block: slice, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions `[q, kept]`, and what their halved squared distances are at least, ascending.

        No member that is not a candidate is nearer than the last bound says.
        """
        x = np.zeros((rows, self._bank.x.shape[1]), np.float32)
        halves = self._frame.read(queries, block, x)
        parts = [x[first : first + TILES * TILE] for first in range(0, rows, TILES * TILE)]
        placed = [sharding.replicate(part, self._devices) for part in parts]
        best = [
            sharding.replicate(
                (
                    np.full((len(part), self._kept), -np.inf, np.float32),
                    np.zeros((len(part), self._kept), np.int32),
                ),
                self._devices,
            )
            for part in parts
        ]
        del x, parts  # the devices have copies
        for begin in track(range(0, self._shard, self._rows), "neighbours"):
            # Read while the devices are at the block before, and only that one.
            block_of_bank = self._read(begin)
            jax.block_until_ready(best)
            given = sharding.split(block_of_bank, self._devices)
            best = [self._step(*asking, *given) for asking in zip(placed, best, strict=True)]
        scores, positions = (
            np.concatenate([np.concatenate(np.asarray(part), axis=1) for part in parts])
            for parts in zip(*best, strict=True)
        )
        scores, positions = scores[: len(halves)], positions[: len(halves)]
        if len(self._devices) > 1:
            order = np.argsort(-scores, axis=1, kind="stable")[:, : self._kept]
            scores = np.take_along_axis(scores, order, axis=1)
            positions = np.take_along_axis(positions, order, axis=1)
        farther = (1 - self._error) * halves[:, None] - scores - UNDERFLOW
        return positions, farther / self._frame.scale**2

    def _read(self, begin: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The next rows of each device's shard, what their products lose, their first position."""
        m, d = self._bank.x.shape
        count = len(self._devices)
        x = np.zeros((count, self._rows, d), np.float32)
        losses = np.full((count, self._rows), np.inf, np.float32)
        firsts = np.arange(count, dtype=np.int32) * self._shard + begin
        for device, first in enumerate(firsts.tolist()):
            last = min(first + self._rows, (device + 1) * self._shard, m)
            if last > first:
                part = slice(first, last)
                halves = self._frame.read(self._bank, part, x[device])
                losses[device, : last - first] = (1 - self._error) * halves
                if self._frame.unit:  # cosine 0, as of a vector at right angles to every query
                    losses[device, : last - first] += np.where(self._bank.squares[part] > 0, 0, 0.5)
        return x, losses, firsts


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


def _decide(
    bank: _Rows,
    queries: _Rows,
    start: int,
    candidates: np.ndarray,
    farther: np.ndarray,
    k: int,
    unit: bool,
) -> tuple[Neighbours, np.ndarray]:
    """The k nearest candidates, and which queries may have nearer ones elsewhere."""
    similarity = np.full(candidates.shape, -np.inf)

    def compute(chosen: np.ndarray) -> None:
        def fill(rows: np.ndarray) -> None:
            for row in rows:
                query, columns = queries.read(start + row), np.flatnonzero(chosen[row])
                members = candidates[row, columns]
                similarity[row, columns] = _similarity(query, bank, members, unit)

        rows = np.flatnonzero(chosen.any(axis=1))
        _in_threads(fill, np.array_split(rows, 1 + len(rows) // 64))

    columns = np.arange(candidates.shape[1])[None, :]
    compute(np.broadcast_to(columns < k, candidates.shape))
    # Half of the squared distance of the k-th so far, with what float64 may have rounded off it.
    reach = unit - similarity[:, :k].min(axis=1)
    reach = reach * (1 + 1e-12) + (1e-14 if unit else 0)
    hopeful = farther <= reach[:, None]
    compute(hopeful & (columns >= k))
    order = np.lexsort((candidates, -similarity), axis=1)[:, :k]
    near = (np.take_along_axis(part, order, axis=1) for part in (candidates, similarity))
    all_are_candidates = candidates.shape[1] == len(bank.squares)
    return Neighbours(*near), np.flatnonzero(hopeful[:, -1] & (not all_are_candidates))


def _in_whole_bank(
    bank: _Rows, queries: _Rows, asking: np.ndarray, k: int, unit: bool
) -> Iterator[tuple[list[int], Neighbours]]:
    """Pairs of the positions of equal queries and their k nearest of the whole bank, in float64."""
    equal: dict[bytes, list[int]] = {}
    for position in asking.tolist():
        digest = hashlib.sha256(queries.read(position).tobytes()).digest()
        equal.setdefault(digest, []).append(position)

    def search(positions: list[int]) -> tuple[list[int], Neighbours]:
        similarity = _similarity(queries.read(positions[0]), bank, None, unit)
        order = np.argsort(-similarity, kind="stable")[:k]
        return positions, Neighbours(order, similarity[order])

    yield from track(_threads().map(search, equal.values()), "near ties", len(equal))


def _similarity(
    query: np.ndarray, bank: _Rows, members: np.ndarray | None, unit: bool
) -> np.ndarray:
    """float64 `[p]` of one query `[d]` and members, or all of them, of each pair by itself."""
    similarity = np.empty(len(bank.squares if members is None else members))
    square = np.vecdot(query, query)
    for part in _chunks(len(similarity), len(query)):
        which = part if members is None else members[part]
        b = bank.read(which)
        if unit:
            products = np.vecdot(query, b)
            # Squares are divided: small whole numbers of one direction are equally near, exactly.
            squares = products**2 / _or_one(bank.squares[which]) / _or_one(square)
            similarity[part] = np.copysign(np.sqrt(squares), products)
        else:
            b -= query
            similarity[part] = np.vecdot(b, b) / -2
    return similarity


def _features(name: str, x) -> Any:
    """What has rows to be read, after the checks that need none of them."""
    if not hasattr(x, "shape") or isinstance(x, jax.Array):
        x = np.asarray(x)
    shaped = len(x.shape) == 2 and math.prod(x.shape) > 0
    require(shaped, f"{name} features: expected [n, d], got shape {x.shape}")
    dtype = np.asarray(x[:1]).dtype
    real = jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)
    require(real, f"{name} features: expected real numbers, got {dtype}")
    return x


def _scan(name: str, x: Any, metric: str) -> tuple[_Rows, np.ndarray]:
    """Squared norms of all rows, and the mean row `[d]`, of unit rows for cosine."""
    n, d = x.shape
    rows = _Rows(x, np.empty(n))

    def scan(part: slice) -> np.ndarray:
        values = rows.read(part)
        rows.squares[part] = squares = np.vecdot(values, values)
        weights = 1 / np.sqrt(_or_one(squares)) if metric == "cosine" else np.ones(len(values))
        with np.errstate(invalid="ignore"):  # infinities are reported below
            return weights @ values

    total = np.zeros(d)
    for part in _threads().map(scan, _chunks(n, d)):
        total += part
    bad = np.flatnonzero(~np.isfinite(rows.squares))
    if bad.size:
        first = ", ".join(str(row) for row in bad[:5])
        raise UserError(
            f"{name} features: {bad.size} of {n} rows hold NaN or infinity (rows {first}"
            f"{', ...' if bad.size > 5 else ''}); did the training diverge?"
        )
    return rows, total / n


def _or_one(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, 1.0)


def _even(n: int, most: int) -> int:
    """Rows of blocks that are as equal as can be."""
    return -(-n // -(-n // most))


def _chunks(n: int, d: int) -> list[slice]:
    """Slices of n rows of d elements: small enough for the caches of a core."""
    size = max(1, CHUNK // d)
    return [slice(begin, min(begin + size, n)) for begin in range(0, n, size)]


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count())


def _in_threads(function: Callable, items: Iterable) -> None:
    for _ in _threads().map(function, items):  # raises what a call raised
        pass
