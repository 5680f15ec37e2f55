"""The nearest members of a bank of features, exactly, at the speed of matrix products.

The devices screen: they leave each query a few candidates more than the k it asks for. The host
decides: it computes the candidates' similarities in float64, each pair by itself, and sorts. Where
screening says that a neighbour may be missing, the host looks at the whole bank. So nothing in a
result depends on how the work was cut into blocks and shards.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from hypersphere_jax.config import require
from hypersphere_jax.evaluate.checks import check_same_dim
from hypersphere_jax.evaluate.rows import Rows, chunks, features, in_threads, or_one, scan
from hypersphere_jax.evaluate.screening import Candidates, Frame, screen
from hypersphere_jax.train import sharding
from hypersphere_jax.train.progress import track

METRICS = ("cosine", "euclidean")
# Elements of candidates at once. More than of whole blocks: here each call has its cost in Python,
# during which the other threads wait.
PAIRS = 2**18


class Neighbours(NamedTuple):
    """The k nearest members of a bank, nearest first.

    Attributes:
      positions: `[n, k]` rows of the bank.
      similarity: float64 `[n, k]`: the cosine, or minus half of the squared Euclidean distance,
        which between unit vectors is the cosine less one.
    """

    positions: np.ndarray
    similarity: np.ndarray


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
    bank, queries = features(names[0], bank), features(names[1], queries)
    check_same_dim(names[0], bank, names[1], queries)
    m, n = bank.shape[0], queries.shape[0]
    require(1 <= k <= m, f"k = {k}: choose 1 to {m}, the size of the bank")
    devices = sharding.local_devices(1) if devices is None else list(devices)

    unit = metric == "cosine"
    bank, centre = scan(names[0], bank, unit)
    queries, _ = scan(names[1], queries, unit)
    # A power of two, which rounds nothing.
    largest = math.sqrt(max(bank.squares.max(), queries.squares.max()))
    frame = Frame(unit, centre, 1.0 if unit else 2.0 ** -math.frexp(largest)[1])
    kept = min(k + max(16, k // 8), m)
    found = Neighbours(np.empty((n, k), np.int64), np.empty((n, k)))
    for candidates in screen(bank, queries, frame, kept, block_size, devices):
        near, doubtful = _decide(bank, queries, candidates, k, unit)
        found.positions[candidates.block], found.similarity[candidates.block] = near
        for equal, exact in _in_whole_bank(bank, queries, doubtful, k, unit):
            found.positions[equal], found.similarity[equal] = exact
    return found


def _decide(
    bank: Rows, queries: Rows, candidates: Candidates, k: int, unit: bool
) -> tuple[Neighbours, np.ndarray]:
    """The k nearest candidates, and positions of queries that may have nearer members elsewhere."""
    block, positions, farther = candidates
    similarity = np.full(positions.shape, -np.inf)

    def compute(chosen: np.ndarray) -> None:
        def fill(rows: np.ndarray) -> None:
            for row in rows:
                query, columns = queries.read(block.start + row), np.flatnonzero(chosen[row])
                members = positions[row, columns]
                similarity[row, columns] = _similarity(query, bank, members, unit)

        rows = np.flatnonzero(chosen.any(axis=1))
        list(in_threads(fill, np.array_split(rows, 1 + len(rows) // 64)))

    kept = positions.shape[1]
    first = np.broadcast_to(np.arange(kept) < k, positions.shape)
    compute(first)
    # Half of the squared distance of the k-th so far, with what float64 may have rounded off it.
    reach = (1.0 if unit else 0.0) - similarity[:, :k].min(axis=1)
    reach = reach * (1 + 1e-12) + (1e-14 if unit else 0.0)
    hopeful = farther <= reach[:, None]
    compute(hopeful & ~first)
    order = np.lexsort((positions, -similarity), axis=1)[:, :k]
    near = (np.take_along_axis(part, order, axis=1) for part in (positions, similarity))
    doubtful = np.flatnonzero(hopeful[:, -1]) if kept < len(bank.squares) else np.empty(0, int)
    return Neighbours(*near), block.start + doubtful


def _in_whole_bank(
    bank: Rows, queries: Rows, doubtful: np.ndarray, k: int, unit: bool
) -> Iterator[tuple[list[int], Neighbours]]:
    """Pairs of the positions of equal queries and their k nearest of the whole bank, in float64."""
    equal: dict[bytes, list[int]] = {}
    for position in doubtful.tolist():
        digest = hashlib.sha256(queries.read(position).tobytes()).digest()
        equal.setdefault(digest, []).append(position)

    def search(positions: list[int]) -> tuple[list[int], Neighbours]:
        similarity = _similarity(queries.read(positions[0]), bank, None, unit)
        order = np.argsort(-similarity, kind="stable")[:k]
        return positions, Neighbours(order, similarity[order])

    yield from track(in_threads(search, equal.values()), "near ties", len(equal))


def _similarity(
    query: np.ndarray, bank: Rows, members: np.ndarray | None, unit: bool
) -> np.ndarray:
    """float64 `[p]` of one query `[d]` and members, or all of them, of each pair by itself."""
    similarity = np.empty(len(bank.squares if members is None else members))
    square = np.vecdot(query, query)
    for part in chunks(len(similarity), len(query), PAIRS):
        which = part if members is None else members[part]
        b = bank.read(which)
        if unit:
            products = np.vecdot(query, b)
            # Squares are divided: small whole numbers of one direction are equally near, exactly.
            squares = products**2 / or_one(bank.squares[which]) / or_one(square)
            similarity[part] = np.copysign(np.sqrt(squares), products)
        else:
            b -= query
            similarity[part] = np.vecdot(b, b) / -2
    return similarity
