"""Nearest neighbours of frozen features: search, classification, and retrieval."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hypersphere_jax.configs import require
from hypersphere_jax.evaluation import checks
from hypersphere_jax.evaluation.checks import SelectedRows, as_float32, row_blocks
from hypersphere_jax.evaluation.geometry import class_rows
from hypersphere_jax.evaluation.scores import classification_scores, validation_folds
from hypersphere_jax.training import distributed
from hypersphere_jax.utils.terminal import track

WEIGHTED_KNN: dict[str, Any] = {  # protocol `knn_weighted`, from Wu et al. 2018, Section 3.4
    "k": 200,
    "vote": "similarity",
    "temperature": 0.1,
}
KNN_METRICS = ("cosine", "euclidean")
VOTES = ("majority", "similarity")
BLOCK_ROWS = 16384  # rows of a block of the bank or of queries
BANK_ENTRIES = 2**24  # numbers in a block of the bank
QUERY_ENTRIES = 2**26  # numbers in a block of queries
RANKED_ENTRIES = 2**22  # neighbours in a block of queries of retrieval
QUERY_TILE = 512  # queries of one matrix product
TILES_AT_ONCE = 4  # matrix products in memory at once
SAMPLE_ROWS = 101  # rows whose median is the origin
VOTE_ENTRIES = 2**22  # votes or neighbours in a block of queries


class Neighbours(NamedTuple):
    """The k nearest members of a bank, nearest first."""

    positions: np.ndarray  # [n, k] rows of the bank
    similarity: np.ndarray  # [n, k] cosine, or minus half of the squared Euclidean distance


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
    ignore_label: int | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> Any:
    """Return the k-NN accuracy of frozen features.

    For the forms of features and labels see `linear_probe`.

    Args:
      train_x: `[m, d]` features.
      train_y: `[m]` labels.
      test_x: `[n, d]` features, whose neighbours are training rows. By default the training rows
        are cut into folds, and the neighbours of each row are rows of the other folds.
      test_y: `[n]` labels.
      num_classes: number of classes.
      k: number of neighbours that vote, 1 to m, or several such numbers for one search.
      metric: "cosine" or "euclidean".
      vote: "majority", or "similarity" for votes of exp(similarity / temperature) (Wu et al. 2018,
        Section 3.4) with the cosine, or minus half of the squared Euclidean distance.
      temperature: temperature of votes by similarity.
      seed: seed of the folds and of the bootstrap.
      folds: number of stratified folds without a test split.
      ignore_label: label of rows to leave out, such as -1.
      devices: local devices, of which the first computes. Defaults to JAX's first.

    Returns:
      A dict that JSON can contain: `scores.classification_scores`, the options, `n`, `n_train` (the
      smallest training part of the folds), `d` and `num_classes`. `top5` is None up to 5 classes,
      and for k < 5. `classes` lists the labels unless they are 0, 1, 2, …; class numbers are
      positions in this list. For several k, a list of such dicts in the order of k.

    Raises:
      UserError: for features, labels or options that do not fit.
    """
    require(vote in VOTES, f"vote {vote!r} is unknown; use one of {', '.join(VOTES)}")
    is_positive = 0 < temperature < math.inf
    require(is_positive, f"temperature={temperature} must be finite and positive")
    splits = checks.check_splits(train_x, train_y, test_x, test_y, num_classes, ignore_label)
    counts = np.atleast_1d(k)
    is_valid = counts.ndim == 1 and counts.size > 0 and counts.dtype.kind in "iu"
    require(is_valid and counts.min() > 0, f"k={k} must be an integer of 1 or more, or several")
    options: dict[str, Any] = {"metric": metric, "vote": vote, "temperature": None}
    if vote == "similarity":
        options["temperature"] = temperature
    data = splits.describe()
    num_classes = len(splits.classes)
    y = splits.tested_y
    ranked = np.empty((len(counts), len(y), 5), np.int64)
    searches = [(splits.train_x, splits.train_y, splits.test_x, slice(None))]
    if test_x is None:
        searches = _fold_searches(splits.train_x, y, folds, seed)
        data |= {"folds": folds, "seed": seed}
    for bank, labels, queries, rows in searches:
        data["n_train"] = min(data["n_train"], len(labels))
        found = nearest(bank, queries, int(counts.max()), metric=metric, devices=devices)
        for index, count in enumerate(counts):
            first = Neighbours(found.positions[:, :count], found.similarity[:, :count])
            votes = (first, labels, num_classes, options["temperature"])
            ranked[index, rows] = ranked_classes(*votes)
    results = []
    for count, classes in zip(counts, ranked, strict=True):
        scores = classification_scores(classes, y, num_classes=num_classes, seed=seed)
        if count < 5:
            scores["top5"] = None
        results.append({"protocol": "knn", "k": int(count)} | options | scores | data)
    return results[0] if np.ndim(k) == 0 else results


def _fold_searches(x: Any, y: np.ndarray, folds: int, seed: int) -> list[tuple]:
    """Return bank, its labels, queries, and their rows, for each fold."""
    fold_of = validation_folds(y, folds, seed)
    searches = []
    for fold in range(folds):
        others = np.flatnonzero(fold_of != fold)
        rows = np.flatnonzero(fold_of == fold)
        searches.append((SelectedRows(x, others), y[others], SelectedRows(x, rows), rows))
    return searches


def ranked_classes(
    neighbours: Neighbours, labels: np.ndarray, num_classes: int, temperature: float | None = None
) -> np.ndarray:
    """Return the five classes `[n, 5]` with the most votes, best first; -1 for none.

    A neighbour has one vote, or exp(similarity / temperature). Ties are resolved in favour of the
    class of the nearest member. `labels` are the classes of all members `[m]`.
    """
    n, k = neighbours.positions.shape
    ranked = np.full((n, 5), -1, np.int32)
    for rows in row_blocks(n, max(num_classes, k), VOTE_ENTRIES):
        members = labels[neighbours.positions[rows]]
        similarity = neighbours.similarity[rows]
        weights = np.ones(members.shape)
        if temperature is not None:  # relative to the nearest, since exp(1 / 0.001) overflows
            with np.errstate(over="ignore"):
                weights = np.exp((similarity - similarity[:, :1]) / temperature)
        # The class of each neighbour as a cell of a table [rows, num_classes].
        cells = np.arange(len(members))[:, None] * num_classes + members
        votes = np.bincount(cells.ravel(), weights.ravel(), len(members) * num_classes)
        nearest_rank = np.full(len(votes), k)
        np.minimum.at(nearest_rank, cells, np.broadcast_to(np.arange(k), cells.shape))
        # Each class counts at its nearest member, so that a stable sort resolves ties by nearness.
        is_first = nearest_rank[cells] == np.arange(k)
        keys = np.where(is_first, -votes[cells], np.inf)
        best = np.argsort(keys, axis=1, kind="stable")[:, :5]
        has_votes = np.take_along_axis(keys, best, axis=1) < np.inf
        classes = np.where(has_votes, np.take_along_axis(members, best, axis=1), -1)
        ranked[rows, : classes.shape[1]] = classes
    return ranked


def nearest(
    bank: Any,
    queries: Any,
    k: int,
    *,
    metric: str = "cosine",
    devices: Sequence[jax.Device] | None = None,
) -> Neighbours:
    """Return the k nearest members of a bank for each query, by exhaustive search in float32.

    Ties are resolved in favour of the first member. Rows of zeros have cosine 0 to all others.
    One block of queries `[n, d]` and two blocks of the bank `[m, d]` are in memory.

    Raises:
      UserError: for options that do not fit, and magnitudes that overflow float32 when squared.
    """
    require(metric in KNN_METRICS, f"metric {metric!r} is unknown; use {' or '.join(KNN_METRICS)}")
    m, d = bank.shape
    n = len(queries)
    is_valid = isinstance(k, int | np.integer) and 1 <= k <= m
    require(is_valid, f"k={k} must be an integer from 1 to {m}, the size of the bank")
    device = distributed.local_devices(1, devices)[0]
    is_cosine = metric == "cosine"
    # Distances around the median of some rows also distinguish features that hardly differ.
    sample = as_float32(bank[:SAMPLE_ROWS])
    if is_cosine:
        sample = np.asarray(_unit(jnp.asarray(sample)))
    origin = np.median(sample, axis=0)
    # A power of two, which is exact, keeps the squares of tiny features above zero.
    exponent = np.clip(np.frexp(np.abs(sample - origin).max())[1], -100, 100)
    scale = 1.0 if is_cosine else 2.0**-exponent
    prepare = partial(_prepare, origin=origin, scale=np.float32(scale), is_cosine=is_cosine)
    neighbours = Neighbours(np.empty((n, k), np.int64), np.empty((n, k)))
    tiles = QUERY_TILE * TILES_AT_ONCE
    size = tiles * max(1, min(BLOCK_ROWS, QUERY_ENTRIES // d) // tiles)
    for rows in row_blocks(n, 1, size):
        positions, nearness = _search_bank(bank, as_float32(queries[rows]), k, prepare, device)
        neighbours.positions[rows] = positions
        neighbours.similarity[rows] = nearness / scale**2 + is_cosine
    is_finite = bool(np.isfinite(neighbours.similarity).all())
    require(is_finite, f"{metric} neighbours: squared features overflow float32; rescale them")
    return neighbours


def _search_bank(bank, queries: np.ndarray, k: int, prepare: Callable, device) -> tuple:
    """Return positions and nearness `[q, k]`, minus half of the squared distance."""
    m, d = bank.shape
    size = max(1, min(m, BLOCK_ROWS, BANK_ENTRIES // d))
    tiles = []
    best = []
    for rows in row_blocks(len(queries), 1, QUERY_TILE * TILES_AT_ONCE):
        tile = jax.device_put(queries[rows], device)
        nothing = (np.full((len(tile), k), -np.inf, np.float32), np.zeros((len(tile), k), np.int32))
        tiles.append(prepare(tile, len(tile)))
        best.append(jax.device_put(nothing, device))
    for rows in track(row_blocks(m, 1, size), "neighbours"):
        count = rows.stop - rows.start
        block = np.zeros((size, d), np.float32)
        block[:count] = bank[rows]
        jax.block_until_ready(best)  # one block is read ahead
        members = prepare(jax.device_put(block, device), count)
        best = [_update(*pair, members, rows.start) for pair in zip(tiles, best, strict=True)]
    halves = np.concatenate([np.asarray(halves) for _, halves in tiles], dtype=np.float64)
    nearness = np.concatenate([np.asarray(nearness) for nearness, _ in best])
    positions = np.concatenate([np.asarray(positions) for _, positions in best])
    return positions, nearness - halves[:, None]


def _unit(x: jax.Array) -> jax.Array:
    """Return rows `[n, d]` divided by their norm; zeros stay zeros."""
    x = x / jnp.maximum(jnp.abs(x).max(axis=1, keepdims=True), 1e-37)  # squares may overflow
    return x / jnp.maximum(jnp.linalg.norm(x, axis=1, keepdims=True), 0.5)


@partial(jax.jit, static_argnames="is_cosine")
def _prepare(x, count, origin, scale, is_cosine: bool) -> tuple[jax.Array, jax.Array]:
    """Return scaled rows `[n, d]` around the origin, and half of their squared norms `[n]`.

    The squared norm is infinite from row `count` on. For the cosine, rows of zeros count as
    orthogonal to all others.
    """
    is_zero = is_cosine & (jnp.abs(x).max(axis=1) == 0)
    if is_cosine:
        x = _unit(x)
    x = (x - origin[None]) * scale
    halves = jnp.sum(x**2, axis=1) / 2 + jnp.where(is_zero, 0.5, 0)
    return x, jnp.where(jnp.arange(len(x)) < count, halves, jnp.inf)


@jax.jit
def _update(queries, best, members, first) -> tuple[jax.Array, jax.Array]:
    """Return the k nearest members `[q, k]` among the best so far and members from `first` on."""
    k = best[0].shape[1]
    parts = []
    for start in range(0, len(queries[0]), QUERY_TILE):
        tile = slice(start, start + QUERY_TILE)
        products = jnp.matmul(queries[0][tile], members[0].T, precision=lax.Precision.HIGHEST)
        both = jnp.concatenate([best[0][tile], products - members[1][None]], axis=1)
        nearness, chosen = lax.top_k(both, k)  # the first of equal values
        old = jnp.take_along_axis(best[1][tile], jnp.minimum(chosen, k - 1), axis=1)
        parts.append((nearness, jnp.where(chosen < k, old, first + chosen - k)))
    nearness, positions = (jnp.concatenate(side) for side in zip(*parts, strict=True))
    return nearness, positions


@distributed.isolated()
def retrieval_scores(
    x: Any,
    labels: Any,
    ks: Sequence[int] = (1, 5, 10),
    *,
    metric: str = "cosine",
    ignore_label: int = -1,
    devices: Sequence[jax.Device] | None = None,
) -> dict[str, float]:
    r"""Return recall@k and MAP@R: each sample is a query, and all other samples are the gallery.

    Recall@k is the share of queries with a sample of their class among their k nearest samples.
    MAP@R is the mean over the queries of

    .. math:: \frac{1}{R} \sum_{i=1}^{R} P(i) \, [\text{the i-th nearest is of the class}]

    with the precision P(i) among the i nearest, and R other samples of the query's class (Musgrave
    et al. 2020, "A metric learning reality check", Section 3.2). Queries whose class has no other
    sample are left out; they stay in the gallery. Time grows with n^2, memory with n.

    Args:
      x: `[n, d]` features, an array, a tensor, or a memory map.
      labels: `[n]`, integers or strings.
      ks: values of k.
      metric: "cosine" or "euclidean".
      ignore_label: label of samples that are left out as queries and in the gallery.
      devices: local devices, of which the first computes. Defaults to JAX's first.

    Returns:
      `recall_at_1`, …, and `map_at_r` in percent, and `retrieval_queries`, the number of queries.

    Raises:
      UserError: for features, labels or options that do not fit, or no class with two samples.

    >>> x = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> scores = retrieval_scores(x, ["a", "a", "b", "a"], ks=[1, 2])
    >>> {name: round(value, 1) for name, value in scores.items()}
    {'recall_at_1': 66.7, 'recall_at_2': 100.0, 'map_at_r': 75.0, 'retrieval_queries': 3}
    """
    are_valid = len(ks) > 0 and all(isinstance(k, int | np.integer) and k > 0 for k in ks)
    require(are_valid, f"ks={ks} must be one or more integers of 1 or more")
    x = checks.check_features("x", x)
    groups = class_rows(labels, len(x), ignore_label=ignore_label)
    class_of_row = np.full(len(x), -1)
    for number, members in enumerate(groups.values()):
        class_of_row[members] = number
    labelled = np.flatnonzero(class_of_row >= 0)
    gallery = SelectedRows(x, labelled)
    y = class_of_row[labelled]
    others = np.bincount(y)[y] - 1  # R of each sample
    queries = np.flatnonzero(others > 0)
    depth = min(len(y) - 1, max(*ks, others.max()))
    totals = dict.fromkeys([*(f"recall_at_{k}" for k in ks), "map_at_r"], 0.0)
    for block in row_blocks(len(queries), depth, RANKED_ENTRIES):
        rows = queries[block]
        options = {"metric": metric, "devices": devices}
        found = nearest(gallery, SelectedRows(gallery, rows), depth + 1, **options).positions
        is_relevant = y[_without_self(found, rows)] == y[rows, None]
        for k in ks:
            totals[f"recall_at_{k}"] += float(is_relevant[:, :k].any(axis=1).sum())
        totals["map_at_r"] += float(_average_precisions(is_relevant, others[rows]).sum())
    means = {name: 100 * total / len(queries) for name, total in totals.items()}
    return means | {"retrieval_queries": len(queries)}


def _without_self(found: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Remove each query's own row from its neighbours `[b, k + 1]`: `[b, k]`."""
    is_removed = found == rows[:, None]
    # The query is not among its neighbours if more than k others are equal to it.
    is_removed[~is_removed.any(axis=1), -1] = True
    return found[~is_removed].reshape(len(found), -1)


def _average_precisions(is_relevant: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the average precision of each query `[b]` at R `others`, at most k.

    `is_relevant` `[b, k]`: whether each neighbour is of the query's class.
    """
    ranks = np.arange(1, is_relevant.shape[1] + 1)
    precisions = np.cumsum(is_relevant, axis=1) / ranks
    is_counted = is_relevant & (ranks <= others[:, None])
    return np.sum(precisions, axis=1, where=is_counted) / others
