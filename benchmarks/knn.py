"""Nearest neighbours: time, next to scikit-learn's brute force and to the matrix product."""

import functools
from collections.abc import Callable
from typing import Any

from benchmarks.options import KnnOptions
from benchmarks.probe import CLASSES, random_features
from benchmarks.timing import matrix_product, median, ratio, show, take_turns
from hypersphere_jax.evaluation.knn import knn_probe

PRODUCT = "product"
COMPARED = 500  # queries of the comparison with scikit-learn
NOTE = """
limit: the products of queries and bank at the speed of a matrix product. % of peak: share of that
speed. scikit-learn: time of KNeighborsClassifier relative to ours, for the first queries.
""".strip()


def run(options: KnnOptions) -> list[dict[str, Any]]:
    """Search for each number of neighbours."""
    arrays = random_features(options.bank, options.queries, options.dim)
    train_x, train_y, test_x, test_y = arrays
    few = (train_x, train_y, test_x[:COMPARED], test_y[:COMPARED])
    multiply, product_flops = matrix_product()
    forms: dict[str, Callable[[], object]] = {PRODUCT: multiply}
    for k in options.k:
        search = functools.partial(knn_probe, k=k, num_classes=CLASSES)
        forms[f"all, {k}"] = functools.partial(search, *arrays)
        forms[f"few, {k}"] = functools.partial(search, *few)
        forms[f"scikit-learn, {k}"] = scikit_learn(few, k)
    times = take_turns(forms, options.rounds)
    products = 2 * options.queries * options.bank * options.dim / product_flops
    rows = []
    for k in options.k:
        row = {
            "k": k,
            "s": median(times[f"all, {k}"]),
            "limit s": products * median(times[PRODUCT]),
            "% of peak": 100 * products * ratio(times, PRODUCT, f"all, {k}"),
            "scikit-learn": ratio(times, f"scikit-learn, {k}", f"few, {k}"),
        }
        rows.append(row)
    sizes = f"{options.queries:,} queries, {options.bank:,} x {options.dim:,}"
    show(sizes, rows, NOTE)
    return rows


def scikit_learn(arrays: tuple, k: int) -> Callable[[], object]:
    """Return the search by scikit-learn's brute force on all cores."""
    from sklearn.neighbors import KNeighborsClassifier

    train_x, train_y, test_x, _ = arrays
    model = KNeighborsClassifier(k, algorithm="brute", metric="cosine", n_jobs=-1)
    model.fit(train_x, train_y)
    return functools.partial(model.predict, test_x)
