"""Nearest neighbours: time, next to scikit-learn's brute force and to the matrix product."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.neighbors import KNeighborsClassifier

from benchmarks.probe import CLASSES, random_features
from benchmarks.timing import matrix_product, ratio, show, take_turns
from hypersphere_jax.evaluation.knn import knn_probe

PRODUCT = "product"
COMPARED = 500  # queries of the comparison with scikit-learn
NOTE = """
limit: the products of queries and bank at the speed of a matrix product. % of peak: share of that
speed. scikit-learn: time of KNeighborsClassifier relative to ours, for the first queries.
""".strip()


def run(
    queries: int = 10_000,
    bank: int = 50_000,
    dim: int = 4096,
    k: tuple[int, ...] = (5, 200),
    rounds: int = 1,
) -> list[dict[str, Any]]:
    """Nearest neighbours: time, compared with scikit-learn and with the matrix product.

    Args:
      queries: Number of queries.
      bank: Number of features that are searched.
      dim: Dimension of the features.
      k: Numbers of neighbours.
      rounds: Rounds to measure, after one that compiles.
    """
    arrays = random_features(bank, queries, dim)
    train_x, train_y, test_x, test_y = arrays
    few = (train_x, train_y, test_x[:COMPARED], test_y[:COMPARED])
    multiply, product_flops = matrix_product()
    forms: dict[str, Callable[[], object]] = {PRODUCT: multiply}
    for count in k:
        search = functools.partial(knn_probe, k=count, num_classes=CLASSES)
        forms[f"all, {count}"] = functools.partial(search, *arrays)
        forms[f"few, {count}"] = functools.partial(search, *few)
        brute = KNeighborsClassifier(count, algorithm="brute", metric="cosine", n_jobs=-1)
        brute.fit(train_x, train_y)
        forms[f"scikit-learn, {count}"] = functools.partial(brute.predict, test_x[:COMPARED])
    times = take_turns(forms, rounds)
    products = 2 * queries * bank * dim / product_flops
    rows = [
        {
            "k": count,
            "s": np.median(times[f"all, {count}"]),
            "limit s": products * np.median(times[PRODUCT]),
            "% of peak": 100 * products * ratio(times, PRODUCT, f"all, {count}"),
            "scikit-learn": ratio(times, f"scikit-learn, {count}", f"few, {count}"),
        }
        for count in k
    ]
    show(f"{queries:,} queries, {bank:,} x {dim:,}", rows, NOTE)
    return rows
