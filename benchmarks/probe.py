"""Linear probe: time of the whole, and of one fit next to scikit-learn's at the same penalty."""

import time
import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from benchmarks.timing import ratio, show, take_turns
from hypersphere_jax.evaluation.linear import linear_probe

CLASSES = 10
TEST_ROWS = 10_000
PENALTIES = [1e-1, 1e-2, 1e-3, 1e-4, 1e-5]
COMPARED = 5000  # training rows of the comparison with scikit-learn
OURS, SKLEARN = "hypersphere_jax", "scikit-learn"


def run(
    n: int = 50_000, dim: int = 4096, folds: int | None = None, rounds: int = 2
) -> list[dict[str, Any]]:
    """Linear probe `lbfgs`: time of the whole, and of one fit compared with scikit-learn.

    Args:
      n: Training rows.
      dim: Dimension of the features.
      folds: Cross-validation folds. Defaults to one held-out part.
      rounds: Rounds of the comparison, after one that compiles.
    """
    arrays = random_features(n, TEST_ROWS, dim)
    processor = time.process_time()
    started = time.perf_counter()
    result = linear_probe(*arrays, num_classes=CLASSES, grid=PENALTIES, folds=folds)
    seconds = time.perf_counter() - started
    processor = time.process_time() - processor
    title = f"{n:,} x {dim:,} features, {len(PENALTIES)} penalties: seconds"
    show(title, [{"all": seconds, "processor": processor}])
    l2 = result["chosen"]["l2"]
    print(f"chosen: l2 = {l2:g}; test accuracy {result['top1']:.2f}%")
    return compare(arrays, l2, rounds)


def compare(arrays: list[np.ndarray], l2: float, rounds: int) -> list[dict[str, Any]]:
    """Fit the first rows and score with both libraries at the same minimum."""
    train_x, train_y = (array[:COMPARED] for array in arrays[:2])
    test_x, test_y = arrays[2:]
    scores = {}

    def ours() -> float:
        result = linear_probe(train_x, train_y, test_x, test_y, num_classes=CLASSES, grid=[l2])
        scores[OURS] = result["top1"]
        return result["C"]

    model = LogisticRegression(C=ours(), max_iter=1000)

    def scikit_learn() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            scores[SKLEARN] = 100 * model.fit(train_x, train_y).score(test_x, test_y)

    times = take_turns({OURS: ours, SKLEARN: scikit_learn}, rounds)
    rows = [
        {
            "form": form,
            "s": np.median(times[form]),
            "relative": ratio(times, form, OURS),
            "test accuracy": scores[form],
        }
        for form in times
    ]
    show(f"fit and test at l2 = {l2:g} on {len(train_x):,} rows", rows)
    return rows


def random_features(n: int, n_test: int, dim: int) -> list[np.ndarray]:
    """Return train and test features and labels: class means, and noise of decaying variance."""
    rng = np.random.default_rng(0)
    deviations = np.arange(1, dim + 1, dtype=np.float32) ** -0.5
    means = rng.standard_normal((CLASSES, dim), dtype=np.float32)
    means *= 0.4 * deviations * min(1.0, (64 / dim) ** 0.5)
    arrays = []
    for rows in (n, n_test):
        y = rng.integers(CLASSES, size=rows)
        x = rng.standard_normal((rows, dim), dtype=np.float32)
        x *= deviations
        x += means[y]
        arrays += [x, y]
    return arrays
