"""The linear probe: seconds of its parts, against scikit-learn at the same L2."""

import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import device_kind, median, ratio, resident_peak, take_turns
from hypersphere_jax.configs import UserError
from hypersphere_jax.evaluation.linear import linear_probe
from hypersphere_jax.reporting.tables import print_table


def probe(
    n: int,
    n_test: int,
    dim: int,
    classes: int,
    l2: tuple[float, ...],
    folds: int | None,
    signal: float,
    sklearn_rows: int,
    rounds: int,
) -> None:
    """Time the "lbfgs" probe on features with class means and noise of a decaying spectrum."""
    if min(n, n_test, dim, rounds) < 1 or classes < 2 or sklearn_rows > n:
        raise UserError(
            "--n, --n-test, --dim and --rounds must be at least 1, --classes at least 2, "
            "--sklearn-rows at most --n"
        )
    with tempfile.TemporaryDirectory() as folder:
        # From files, as the verb `probe` has them: mapped pages count as memory of this process.
        arrays = features(n, n_test, dim, classes, signal)
        for number in range(len(arrays)):
            np.save(Path(folder, f"{number}.npy"), arrays[number])
            arrays[number] = np.load(Path(folder, f"{number}.npy"), mmap_mode="r")
        base = resident_peak()
        _report(arrays, base, classes, l2, folds, sklearn_rows, rounds)


def _report(arrays, base: float, classes: int, l2, folds, sklearn_rows: int, rounds: int) -> None:
    train_x, train_y, test_x, test_y = arrays
    (n, dim), used = train_x.shape, time.process_time()
    result = linear_probe(*arrays, num_classes=classes, grid=l2, folds=folds)
    peak, used = resident_peak(), time.process_time() - used
    seconds = result["seconds"] | {"all": sum(result["seconds"].values()), "processor": used}
    title = f"{n:,} x {dim:,} features, {classes} classes, {len(l2)} values of L2, {device_kind()}"
    print_table(list(seconds), [list(seconds.values())], title=f"{title}: seconds")
    print_table(
        ["l2", "valid top-1"], [[f"{cell['l2']:g}", cell["valid_top1"]] for cell in result["grid"]]
    )
    low, high = result["top1_interval"]
    print(
        f"chosen: {result['chosen']['l2']:g}; test top-1 {result['top1']:.2f}% ({low:.2f} to "
        f"{high:.2f}); {result['steps']} steps of the last fit, gradient "
        f"{result['gradient_norm']:.2g}; peak {peak / 1e3:.2f} GB, features that are mapped from "
        f"files included, and {base / 1e3:.2f} GB while they were made"
    )
    if sklearn_rows:
        some = train_x[:sklearn_rows], train_y[:sklearn_rows], test_x, test_y
        _compare(*some, classes, result["chosen"]["l2"], rounds)


def features(n: int, n_test: int, dim: int, classes: int, signal: float):
    """Training and test features and labels; the i-th dimension's variance falls as 1 / i."""
    rng = np.random.default_rng(0)
    deviations = np.arange(1, dim + 1, dtype=np.float32) ** -0.5
    means = rng.standard_normal((classes, dim), dtype=np.float32)
    means *= signal * deviations * min(1.0, (64 / dim) ** 0.5)
    sides = []
    for rows in (n, n_test):
        y = rng.integers(classes, size=rows)
        x = rng.standard_normal((rows, dim), dtype=np.float32)
        x *= deviations
        for begin in range(0, rows, 4096):
            x[begin : begin + 4096] += means[y[begin : begin + 4096]]
        sides += [x, y]
    return sides


def _compare(train_x, train_y, test_x, test_y, classes: int, l2: float, rounds: int) -> None:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    scores = {}

    def ours() -> dict[str, Any]:
        arrays = train_x, train_y, test_x, test_y
        result = linear_probe(*arrays, num_classes=classes, grid=[l2])
        scores["ours"] = result["top1"]
        return result

    model = LogisticRegression(C=ours()["C"], max_iter=1000)

    def scikit_learn():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            scores["scikit-learn"] = 100 * model.fit(train_x, train_y).score(test_x, test_y)

    times = take_turns({"ours": ours, "scikit-learn": scikit_learn}, rounds)
    rows = [[form, median(seconds), scores[form]] for form, seconds in times.items()]
    title = f"fit and test at L2 = {l2:g} on {len(train_x):,} rows"
    print()
    print_table(["form", "s", "test top-1"], rows, title=title)
    slower = ratio(times, "scikit-learn", "ours")
    print(f"scikit-learn takes {slower:.2f} times our time, {model.n_iter_.max()} steps")
