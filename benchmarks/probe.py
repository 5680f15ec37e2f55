"""Linear probe: time of the whole, and of one fit next to scikit-learn's at the same penalty."""

import time
import warnings
from typing import Any

import numpy as np

from benchmarks.options import ProbeOptions
from benchmarks.timing import median, ratio, show, take_turns
from hypersphere_jax.evaluation.linear import linear_probe

CLASSES = 10
TEST_ROWS = 10_000
PENALTIES = [1e-1, 1e-2, 1e-3, 1e-4, 1e-5]
COMPARED = 5000  # training rows of the comparison with scikit-learn
OURS, SKLEARN = "hypersphere_jax", "scikit-learn"


def run(options: ProbeOptions) -> list[dict[str, Any]]:
    """Choose a penalty on held-out rows, then time fits at this penalty."""
    arrays = random_features(options.n, TEST_ROWS, options.dim)
    processor = time.process_time()
    started = time.perf_counter()
    result = linear_probe(*arrays, num_classes=CLASSES, grid=PENALTIES, folds=options.folds)
    seconds = time.perf_counter() - started
    processor = time.process_time() - processor
    title = f"{options.n:,} x {options.dim:,} features, {len(PENALTIES)} penalties"
    show(f"{title}: seconds", [{"all": seconds, "processor": processor}])
    print(f"chosen: l2 = {result['chosen']['l2']:g}; test accuracy {result['top1']:.2f}%")
    train_x, train_y, test_x, test_y = arrays
    rows = slice(COMPARED)
    return compare(train_x[rows], train_y[rows], test_x, test_y, result["chosen"]["l2"], options)


def compare(
    train_x: Any, train_y: Any, test_x: Any, test_y: Any, l2: float, options: ProbeOptions
) -> list[dict[str, Any]]:
    """Fit and score with both libraries at the same minimum."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

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

    times = take_turns({OURS: ours, SKLEARN: scikit_learn}, options.rounds)
    rows = [
        {
            "form": form,
            "s": median(times[form]),
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
        for start in range(0, rows, 4096):  # without a second array of this size
            x[start : start + 4096] += means[y[start : start + 4096]]
        arrays += [x, y]
    return arrays
