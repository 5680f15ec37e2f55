"""Classification of frozen features by their nearest neighbours."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from hypersphere_jax.config import require
from hypersphere_jax.evaluate.checks import check_labels
from hypersphere_jax.evaluate.neighbours import Neighbours, nearest
from hypersphere_jax.evaluate.rows import rows_of
from hypersphere_jax.evaluate.scores import scores

VOTES = ("majority", "similarity")


def knn_predict(
    bank,
    bank_labels,
    queries,
    *,
    num_classes: int,
    k: int = 5,
    metric: str = "cosine",
    vote: str = "majority",
    temperature: float = 0.1,
    block_size: int | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> np.ndarray:
    """Vote of the k nearest members of a bank, which `nearest` finds exactly.

    A neighbour's vote counts 1, or exp(similarity / temperature) (Wu et al. 2018, Section 3.4).
    Of classes with equal votes, the one with the nearest member wins; of members that are equally
    near, the earlier in the bank counts as nearer.

    Args:
      bank: `[m, d]` features to search; an array, or a memory map that may be larger than memory.
      bank_labels: `[m]` integers below `num_classes`, of at least two classes.
      queries: `[n, d]` features to classify.
      num_classes: number of classes, of which the bank may lack some.
      k: neighbours that vote, 1 to m.
      metric: "cosine" (a row of zeros has similarity 0 to every other) or "euclidean".
      vote: "majority", or "similarity" for exp(similarity / temperature), where the similarity is
        the cosine, or minus half of the squared Euclidean distance.
      temperature: of votes by similarity.
      block_size: rows of a block, of queries and of the bank alike. Changes no prediction. None: as
        many as are fast.
      devices: of this host, each of which searches a part of the bank; None: the first one.

    Returns:
      int32 `[n]` predicted classes.

    Raises:
      UserError: for features, labels or options that do not fit, a bank of one class only, and
        features with NaN or infinity.
    """
    check_vote(vote, temperature)
    labels = _bank_labels("bank", bank_labels, rows_of(bank), num_classes)
    found = nearest(bank, queries, k, metric=metric, block_size=block_size, devices=devices)
    return ranked_classes(found, labels, num_classes, vote, temperature, 1)[:, 0]


def knn_probe(
    train_x,
    train_y,
    test_x,
    test_y,
    *,
    num_classes: int,
    k: int = 5,
    metric: str = "cosine",
    vote: str = "majority",
    temperature: float = 0.1,
    devices: Sequence[jax.Device] | None = None,
) -> dict[str, Any]:
    """k-NN accuracy of frozen features: the training split is the bank, the test split asks.

    Wang & Isola (Section 5, Table 1) report it with k = 5, the balanced paper (Table 3) with
    k = 200 on ImageNet and k = 1 on CIFAR-10, all by majority.

    Args:
      train_x: `[m, d]` features, an array or a memory map.
      train_y: `[m]` integers below `num_classes`, of at least two classes.
      test_x: `[n, d]` features, an array or a memory map.
      test_y: `[n]` integers below `num_classes`.
      num_classes: number of classes, of which either split may lack some.
      k: neighbours that vote.
      metric: "cosine" or "euclidean".
      vote: "majority" or "similarity"; see `knn_predict`.
      temperature: of votes by similarity.
      devices: of this host; None: the first one.

    Returns:
      What a JSON file can hold: that of `scores.scores`, and the protocol that it was measured
      with. `top5` asks for the five classes with the most votes, ties as for the first,
      and never for a class without a vote; it is None up to 5 classes, and for k < 5.

    Raises:
      UserError: for features, labels or options that do not fit.
    """
    check_vote(vote, temperature)
    train_y = _bank_labels("train", train_y, rows_of(train_x), num_classes)
    test_y = check_labels("test", test_y, rows_of(test_x), num_classes)
    found = nearest(train_x, test_x, k, metric=metric, devices=devices, names=("train", "test"))
    ranked = ranked_classes(found, train_y, num_classes, vote, temperature, 5)
    found = scores(ranked, test_y, num_classes=num_classes)
    return {
        "protocol": "knn",
        "k": k,
        "metric": metric,
        "vote": vote,
        "temperature": temperature if vote == "similarity" else None,
        **found,
        "top5": found["top5"] if k >= 5 else None,
        "n": len(test_y),
        "n_train": len(train_y),
        "d": int(np.shape(train_x)[1]),
        "num_classes": num_classes,
    }


def check_vote(vote: str, temperature: float) -> None:
    """Raises `UserError` for a vote that there is not, or a temperature that is not positive."""
    require(vote in VOTES, f"vote {vote!r}: choose one of {', '.join(VOTES)}")
    usable = 0 < temperature < math.inf
    require(usable, f"temperature = {temperature}: must be finite and positive")


def ranked_classes(
    found: Neighbours,
    labels: np.ndarray,
    num_classes: int,
    vote: str,
    temperature: float,
    top: int,
) -> np.ndarray:
    """Classes int32 `[n, top]` with the most votes, best first; -1 where no more have a vote.

    Args:
      found: the neighbours of n queries.
      labels: `[m]` of the bank.
      num_classes: number of classes.
      vote: "majority" or "similarity".
      temperature: of votes by similarity.
      top: how many classes.
    """
    n, k = found.positions.shape
    ranked = np.full((n, top), -1, np.int32)
    each = max(1, 2**22 // max(num_classes, k))
    for begin in range(0, n, each):
        block = slice(begin, begin + each)
        members, similarity = labels[found.positions[block]], found.similarity[block]
        weights = np.ones(members.shape)
        if vote == "similarity":  # of the nearest 1, as exp(1 / 0.001) is no number
            with np.errstate(over="ignore"):
                weights = np.exp((similarity - similarity[:, :1]) / temperature)
        rows = np.arange(len(members))[:, None]
        cells = rows * num_classes + members
        votes = np.bincount(cells.ravel(), weights.ravel(), len(members) * num_classes)
        speaker = np.full(len(votes), k)
        np.minimum.at(speaker, cells, np.broadcast_to(np.arange(k), cells.shape))
        # Each class stands where its nearest member does; a stable sort leaves it there in a tie.
        order = np.where(speaker[cells] == np.arange(k), -votes[cells], np.inf)
        best = np.argsort(order, axis=1, kind="stable")[:, :top]
        has_votes = np.take_along_axis(order, best, axis=1) < np.inf
        classes = np.where(has_votes, np.take_along_axis(members, best, axis=1), -1)
        ranked[block, : classes.shape[1]] = classes
    return ranked


def _bank_labels(name: str, y, n: int, num_classes: int) -> np.ndarray:
    labels = check_labels(name, y, n, num_classes)
    require(np.unique(labels).size > 1, f"{name} labels: only class {labels[0]}, two are needed")
    return labels
