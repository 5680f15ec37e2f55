"""Retrieval of samples of the same class by their features: recall@k and MAP@R."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from hypersphere_jax.configs import require
from hypersphere_jax.evaluation.checks import SelectedRows, check_features, row_blocks
from hypersphere_jax.evaluation.geometry import class_rows
from hypersphere_jax.evaluation.knn import nearest
from hypersphere_jax.training import distributed

RANKED_ENTRIES = 2**22  # neighbours in a block of queries


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
      devices: local devices, which share the gallery. Defaults to JAX's first.

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
    x = check_features("x", x)
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
    """Return the average precision at R of each query `[b]`.

    Args:
      is_relevant: booleans `[b, k]`, whether each neighbour is of the query's class.
      others: R of each query `[b]`, at most k.
    """
    ranks = np.arange(1, is_relevant.shape[1] + 1)
    precisions = np.cumsum(is_relevant, axis=1) / ranks
    is_counted = is_relevant & (ranks <= others[:, None])
    return np.sum(precisions, axis=1, where=is_counted) / others
