"""Classification of frozen features by their nearest neighbours, in float32 on the devices."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hypersphere_jax.configs import require
from hypersphere_jax.evaluate.checks import as_float32, check_splits, classes_entry
from hypersphere_jax.evaluate.metrics import SelectedRows
from hypersphere_jax.evaluate.scores import scores
from hypersphere_jax.evaluate.selection import validation_folds
from hypersphere_jax.training import distributed
from hypersphere_jax.utils.terminal import track

# The two protocols of the literature: Wang & Isola Table 1, and Wu et al. 2018, Section 3.4.
PROTOCOLS: dict[str, dict[str, Any]] = {
    "knn": {"k": 5},
    "knn_weighted": {"k": 200, "vote": "similarity", "temperature": 0.1},
}
METRICS = ("cosine", "euclidean")
VOTES = ("majority", "similarity")
# Most rows of a block, and most numbers of a block of the bank and of a block of queries.
ROWS, BANK, QUERIES = 16384, 2**24, 2**26
TILE, TILES = 512, 4  # queries of one product, and products in memory at once
SAMPLE = 101  # rows that say where the features lie


class Neighbours(NamedTuple):
    """The k nearest members of a bank, nearest first."""

    positions: np.ndarray  # [n, k] rows of the bank
    similarity: np.ndarray  # [n, k] the cosine, or minus half of the squared Euclidean distance


@distributed.isolated()
def knn_probe(
    train_x: Any,
    train_y: Any,
    test_x: Any = None,
    test_y: Any = None,
    *,
    num_classes: int | None = None,
    k: int | Sequence[int] = 5,
    metric: str = "cosine",
    vote: str = "majority",
    temperature: float = 0.1,
    seed: int = 0,
    folds: int = 10,
    devices: Sequence[jax.Device] | None = None,
) -> Any:
    """k-NN accuracy of frozen features: neighbours in the training split, or in other folds of it.

    Args:
      train_x: `[m, d]` features: an array, a memory map, a tensor or a data frame.
      train_y: `[m]` labels, integers or strings, of at least two classes.
      test_x: `[n, d]` features. None: the training rows are cut into folds, and the neighbours of
        each row are among those of the other folds.
      test_y: `[n]` labels, or None.
      num_classes: number of classes, where labels are integers below it; defaults to the classes
        that occur in either split.
      k: neighbours that vote, 1 to m; or several such numbers, for one search.
      metric: "cosine" or "euclidean".
      vote: "majority", or "similarity": votes of exp(similarity / temperature) (Wu et al. 2018,
        Section 3.4) of the cosine, or minus half of the squared distance.
      temperature: of votes by similarity.
      seed: of the folds and of the bootstrap.
      folds: stratified, those of `sentence_probe`; without `test_x` only.
      devices: of this process, which share the bank; None: the first one.

    Returns:
      What a JSON file can hold: that of `scores.scores`, and the protocol; `top5` is None up to 5
      classes, and for k < 5. With folds `n_train` is the smallest training part. `classes` lists
      the labels where they are not 0, 1, 2, …; class numbers are places in it. For several k, a
      list of such results in the order of k.

    Raises:
      UserError: for features, labels or options that do not fit.
    """
    require((test_x is None) == (test_y is None), "test features and test labels: both or neither")
    require(vote in VOTES, f"vote {vote!r}: choose one of {', '.join(VOTES)}")
    require(0 < temperature < math.inf, f"temperature = {temperature}: must be finite and positive")
    train_x, train_y, test_x, test_y, classes = check_splits(
        train_x, train_y, test_x, test_y, num_classes
    )
    temperature = temperature if vote == "similarity" else None
    counts = np.atleast_1d(k)
    whole = counts.ndim == 1 and counts.size > 0 and counts.dtype.kind in "iu"
    require(whole and counts.min() > 0, f"k={k}: must be an integer of 1 or more, or several")

    searches, of_folds = [(train_x, train_y, test_x, slice(None))], {}
    n_train = len(train_y)
    if test_x is None:
        outer, test_y = validation_folds(train_y, folds, seed), train_y
        searches, of_folds = [], {"folds": folds, "seed": seed}
        for fold in range(folds):
            others, tested = np.flatnonzero(outer != fold), np.flatnonzero(outer == fold)
            bank, queries = (SelectedRows(train_x, rows) for rows in (others, tested))
            searches.append((bank, train_y[others], queries, tested))
        n_train -= int(np.bincount(outer).max())
    ranked = np.empty((len(counts), len(test_y), 5), np.int64)
    for bank, labels, queries, rows in searches:
        neighbours = nearest(bank, queries, int(counts.max()), metric=metric, devices=devices)
        for number, count in enumerate(counts):
            first = Neighbours(*(part[:, :count] for part in neighbours))
            ranked[number, rows] = ranked_classes(first, labels, len(classes), temperature)
    results = []
    for number, count in enumerate(counts):
        result = scores(ranked[number], test_y, num_classes=len(classes), seed=seed)
        result["top5"] = result["top5"] if count >= 5 else None
        options = {"k": int(count), "metric": metric, "vote": vote, "temperature": temperature}
        sizes = {"n": len(test_y), "n_train": n_train, "d": int(train_x.shape[1])}
        result = {"protocol": "knn", **options, **result, **sizes, "num_classes": len(classes)}
        results.append(result | classes_entry(classes) | of_folds)
    return results[0] if np.ndim(k) == 0 else results


def ranked_classes(
    neighbours: Neighbours, labels: np.ndarray, num_classes: int, temperature: float | None = None
) -> np.ndarray:
    """The five classes with the most votes `[n, 5]`, best first; -1 where no more have a vote.

    Of equals, that of the nearest member. With a temperature votes are exp(similarity /
    temperature), else each neighbour counts 1. Labels are those `[m]` of the bank.
    """
    n, k = neighbours.positions.shape
    ranked = np.full((n, 5), -1, np.int32)
    each = max(1, 2**22 // max(num_classes, k))
    for begin in range(0, n, each):
        rows = slice(begin, begin + each)
        members, similarity = labels[neighbours.positions[rows]], neighbours.similarity[rows]
        weights = np.ones(members.shape)
        if temperature is not None:  # of the nearest 1, as exp(1 / 0.001) is no number
            with np.errstate(over="ignore"):
                weights = np.exp((similarity - similarity[:, :1]) / temperature)
        cells = np.arange(len(members))[:, None] * num_classes + members
        votes = np.bincount(cells.ravel(), weights.ravel(), len(members) * num_classes)
        nearest_of = np.full(len(votes), k)
        np.minimum.at(nearest_of, cells, np.broadcast_to(np.arange(k), cells.shape))
        # Each class at its nearest member's place, where a stable sort leaves it in a tie.
        order = np.where(nearest_of[cells] == np.arange(k), -votes[cells], np.inf)
        best = np.argsort(order, axis=1, kind="stable")[:, :5]
        voted = np.take_along_axis(order, best, axis=1) < np.inf
        classes = np.where(voted, np.take_along_axis(members, best, axis=1), -1)
        ranked[rows, : classes.shape[1]] = classes
    return ranked


def nearest(
    bank, queries, k: int, *, metric: str = "cosine", devices: Sequence[jax.Device] | None = None
) -> Neighbours:
    """The k nearest members of a bank `[m, d]` for each query `[n, d]`, by products in float32.

    Of equally near members the first is taken. One block of queries and two blocks of the bank a
    device are in memory at a time. By the cosine, a row of zeros has similarity 0 to every other.

    Raises:
      UserError: for options that do not fit, and features of too unlike magnitude for float32.
    """
    require(metric in METRICS, f"metric {metric!r}: choose one of {', '.join(METRICS)}")
    (m, d), n = bank.shape, queries.shape[0]
    require(isinstance(k, int | np.integer), f"k = {k}: must be an integer")
    require(1 <= k <= m, f"k = {k}: choose 1 to {m}, the size of the bank")
    devices = distributed.local_devices(1, devices)
    unit = np.bool_(metric == "cosine")
    centre, scale = _frame(as_float32(bank[:SAMPLE]), unit)
    frame = distributed.replicate((centre, np.float32(scale), unit), devices)
    neighbours = Neighbours(np.empty((n, k), np.int64), np.empty((n, k)))
    size = TILE * TILES * max(1, min(ROWS, QUERIES // d) // (TILE * TILES))
    for begin in range(0, n, size):
        block = slice(begin, begin + size)
        positions, similarity = _search_bank(bank, as_float32(queries[block]), k, frame, devices)
        neighbours.positions[block] = positions
        neighbours.similarity[block] = similarity / scale**2 + unit
    finite = bool(np.isfinite(neighbours.similarity).all())
    require(finite, f"{metric} neighbours: magnitudes of the features are too unlike for float32")
    return neighbours


def _search_bank(bank, queries: np.ndarray, k: int, frame, devices) -> Neighbours:
    """The nearest of a block of queries by distance, in the units of a frame."""
    (m, d), count = bank.shape, len(devices)
    rows = max(1, min(ROWS, BANK // d, -(-m // count)))
    prepare, search = (distributed.pmap(function, devices) for function in (_prepare, _search))
    tiles, best = [], []
    for begin in range(0, len(queries), TILE * TILES):
        part = queries[begin : begin + TILE * TILES]
        none = np.full((len(part), k), -np.inf, np.float32), np.zeros((len(part), k), np.int32)
        tiles.append(prepare(*distributed.replicate((part, np.int32(len(part))), devices), *frame))
        best.append(distributed.replicate(none, devices))
    for begin in track(range(0, m, rows * count), "neighbours"):
        # Read while the devices are at the block before, and only that one.
        block = np.zeros((count, rows, d), np.float32)
        values = as_float32(bank[begin : begin + count * rows])
        block.reshape(-1, d)[: len(values)] = values
        firsts = begin + rows * np.arange(count, dtype=np.int32)
        real = np.clip(m - firsts, 0, rows).astype(np.int32)
        jax.block_until_ready(best)
        block, real, firsts = distributed.split((block, real, firsts), devices)
        members = prepare(block, real, *frame)
        best = [search(*pair, members, firsts) for pair in zip(tiles, best, strict=True)]
    nearness, positions = (
        np.concatenate([np.concatenate(np.asarray(part), axis=1) for part in parts])
        for parts in zip(*best, strict=True)
    )
    order = np.lexsort((positions, -nearness), axis=1)[:, :k]  # of all devices
    nearness, positions = (np.take_along_axis(x, order, axis=1) for x in (nearness, positions))
    halves = np.concatenate([np.asarray(lengths[0]) for _, lengths in tiles])
    return Neighbours(positions, nearness - halves.astype(np.float64)[:, None])


def _frame(sample: np.ndarray, unit: bool) -> tuple[np.ndarray, float]:
    """An origin and a scale, a power of 2, by which float32 distinguishes nearly equal features."""
    sample = np.asarray(_unit(sample)) if unit else sample
    centre = np.median(sample, axis=0)
    exponent = np.frexp(np.median(np.abs(sample - centre).max(axis=1)))[1]
    return centre, 2.0 ** -np.clip(float(exponent), -126, 126)


def _unit(x) -> jax.Array:
    """Rows `[n, d]` divided by their norm; zeros stay zeros."""
    x = x / jnp.maximum(jnp.abs(x).max(axis=1, keepdims=True), 1e-37)  # squares may not fit
    return x / jnp.maximum(jnp.linalg.norm(x, axis=1, keepdims=True), 0.5)


def _prepare(x, real, centre, scale, unit) -> tuple[jax.Array, jax.Array]:
    """Rows `[n, d]` in the frame, and half of their squared norms `[n]`, infinite from `real` on.

    For the cosine, a row of zeros counts as at right angles to all others.
    """
    moved = scale * (jnp.where(unit, _unit(x), x) - centre[None])
    halves = jnp.sum(moved**2, axis=1) / 2
    halves += jnp.where(unit & (jnp.abs(x).max(axis=1) == 0), scale**2 / 2, 0)
    return moved, jnp.where(jnp.arange(len(x)) < real, halves, jnp.inf)


def _search(queries, best, members, first) -> tuple[jax.Array, jax.Array]:
    """The k largest products less halves `[q, k]` so far and of members from `first` on."""
    k, tiles = best[0].shape[1], []
    for begin in range(0, len(queries[0]), TILE):
        tile = slice(begin, begin + TILE)
        products = jnp.matmul(queries[0][tile], members[0].T, precision=lax.Precision.HIGHEST)
        both = jnp.concatenate([best[0][tile], products - members[1][None]], axis=1)
        nearness, chosen = lax.top_k(both, k)  # the first of equals
        old = jnp.take_along_axis(best[1][tile], jnp.minimum(chosen, k - 1), axis=1)
        tiles.append((nearness, jnp.where(chosen < k, old, first + chosen - k)))
    nearness, places = (jnp.concatenate(parts) for parts in zip(*tiles, strict=True))
    return nearness, places
