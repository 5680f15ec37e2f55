"""Classification of frozen features by their nearest neighbours."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hypersphere_jax.config import require
from hypersphere_jax.evaluation.checks import check_features, check_labels, check_same_dim

METRICS = ("cosine", "euclidean")


def knn_predict(
    bank,
    bank_labels,
    queries,
    *,
    num_classes: int,
    k: int = 5,
    metric: str = "cosine",
    block_size: int = 2048,
) -> np.ndarray:
    """Majority vote of the k nearest members of a bank.

    Of classes with equally many votes, the one with the nearest member wins; of members that
    coincide, the earlier in the bank counts as nearer. Distances are formed for one block of
    queries and one block of the bank at a time, never all `n x m` of them.

    Args:
      bank: `[m, d]` features to search.
      bank_labels: `[m]` integers below `num_classes`.
      queries: `[n, d]` features to classify.
      num_classes: number of classes.
      k: neighbours that vote, 1 to m.
      metric: "cosine" (a row of zeros has similarity 0 to every other) or "euclidean".
      block_size: rows of a block, of queries and of the bank alike. Changes no prediction.

    Returns:
      int32 `[n]` predicted classes.

    Raises:
      UserError: for features, labels or options that do not fit.
    """
    bank, queries = check_features("bank", bank), check_features("query", queries)
    check_same_dim("bank", bank, "query", queries)
    labels = check_labels("bank", bank_labels, len(bank), num_classes)
    require(1 <= k <= len(bank), f"k = {k}: choose 1 to {len(bank)}, the size of the bank")
    require(metric in METRICS, f"metric {metric!r}: choose one of {', '.join(METRICS)}")
    require(block_size >= 1, f"block_size = {block_size}: must be at least 1")

    bank, queries, penalty = _prepare(bank, queries, metric=metric)
    labels = jnp.asarray(labels)
    predicted = np.empty(len(queries), np.int32)
    for begin in range(0, len(queries), block_size):
        block = slice(begin, begin + block_size)
        nearest = _nearest(queries[block], bank, penalty, k=k, block_size=block_size)
        predicted[block] = _majority(labels[nearest], num_classes=num_classes)
    return predicted


def knn_probe(
    train_x, train_y, test_x, test_y, *, num_classes: int, k: int = 5, metric: str = "cosine"
) -> dict[str, Any]:
    """k-NN accuracy of frozen features: the training split is the bank, the test split asks.

    Wang & Isola (Section 5, Table 1) report it with k = 5.

    Args:
      train_x: `[m, d]` features.
      train_y: `[m]` integers below `num_classes`.
      test_x: `[n, d]` features.
      test_y: `[n]` integers below `num_classes`.
      num_classes: number of classes.
      k: neighbours that vote.
      metric: "cosine" or "euclidean".

    Returns:
      What a JSON file can hold: `top1` in percent, and the protocol that it was measured with.

    Raises:
      UserError: for features, labels or options that do not fit.
    """
    predicted = knn_predict(train_x, train_y, test_x, num_classes=num_classes, k=k, metric=metric)
    test_y = check_labels("test", test_y, len(predicted), num_classes)
    return {
        "protocol": "knn",
        "k": k,
        "metric": metric,
        "top1": 100 * float(np.mean(predicted == test_y)),
        "n": len(predicted),
        "n_train": len(train_x),
        "d": int(np.shape(train_x)[1]),
        "num_classes": num_classes,
    }


@partial(jax.jit, static_argnames="metric")
def _prepare(bank, queries, *, metric: str) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Bank, queries and a penalty `[m]`: the nearest maximize `queries @ bank.T - penalty`."""
    penalty = 0.0
    if metric == "cosine":
        bank, queries = _unit_rows(bank), _unit_rows(queries)
        # On the sphere, |q - b|^2 / 2 = 1 - cosine. It is 1/2 for b = 0, where cosine 0 asks for 1.
        penalty = jnp.where(jnp.any(bank != 0, axis=1), 0.0, 0.5)
    # Distances do not change when the origin moves, but their rounding errors do: from the bank's
    # mean, they are small also where all features lie in one narrow cone.
    centre = jnp.mean(bank, axis=0, keepdims=True)
    bank, queries = bank - centre, queries - centre
    return bank, queries, penalty + jnp.sum(jnp.square(bank), axis=1) / 2


def _unit_rows(x) -> jax.Array:
    """Rows `[n, d]` divided by their norm; a row of zeros stays."""
    norms = jnp.linalg.norm(x, axis=1, keepdims=True)
    return x / jnp.where(norms > 0, norms, 1.0)


@partial(jax.jit, static_argnames=("k", "block_size"))
def _nearest(queries, bank, penalty, *, k: int, block_size: int) -> jax.Array:
    """Positions in the bank `[q, k]` with the largest `queries @ bank.T - penalty`, best first."""
    q, m = len(queries), len(bank)
    rows = min(block_size, m)

    def merge(best, begin):
        # The last block reaches back to keep the shape; what it repeats is masked.
        first = jnp.minimum(begin, m - rows)
        position = first + jnp.arange(rows)
        block = lax.dynamic_slice_in_dim(bank, first, rows)
        products = jnp.matmul(queries, block.T, precision=lax.Precision.HIGHEST)
        scores = products - lax.dynamic_slice_in_dim(penalty, first, rows)[None, :]
        scores = jnp.where((position >= begin)[None, :], scores, -jnp.inf)
        scores, within = lax.top_k(scores, min(k, rows))
        # top_k prefers the earlier of equal entries: the best so far stand first.
        scores = jnp.concatenate([best[0], scores], axis=1)
        positions = jnp.concatenate([best[1], first + within], axis=1)
        scores, chosen = lax.top_k(scores, k)
        return (scores, jnp.take_along_axis(positions, chosen, axis=1)), None

    nothing = jnp.full((q, k), -jnp.inf), jnp.zeros((q, k), jnp.int32)
    (_, positions), _ = lax.scan(merge, nothing, jnp.arange(0, m, rows))
    return positions


@partial(jax.jit, static_argnames="num_classes")
def _majority(labels, *, num_classes: int) -> jax.Array:
    """Vote of each query's neighbours, labels `[q, k]` from the nearest on: classes `[q]`."""
    query = jnp.arange(len(labels))[:, None]
    votes = jnp.zeros((len(labels), num_classes), jnp.int32).at[query, labels].add(1)
    # Asked per neighbour, nearest first, argmax finds the nearest member of the tied classes.
    winner = jnp.argmax(jnp.take_along_axis(votes, labels, axis=1), axis=1)
    return jnp.take_along_axis(labels, winner[:, None], axis=1)[:, 0]
