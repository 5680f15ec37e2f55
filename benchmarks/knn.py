"""The nearest neighbours: time, share of the matrix product's speed, and peak memory.

`python -m benchmarks.knn FOLDER K METRIC` prints the peaks of its own memory before and after.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from benchmarks.probe import features
from benchmarks.timing import child, device_kind, median, ratio, resident_peak, take_turns
from hypersphere_jax.configs import UserError
from hypersphere_jax.evaluation.knn import knn_probe
from hypersphere_jax.reporting.tables import print_table

PRODUCT, SCIKIT_LEARN = "product", "scikit-learn"
NAMES, CLASSES = ("train_x", "train_y", "test_x", "test_y"), 10  # of what `knn_probe` takes
LIMIT = """
limit: 2 n m d flops, at the measured speed of the matrix product of blocks [b, d] x [d, b].
share: of that speed. All else (reading, scaling, sorting, votes) comes on top.
peak, base: memory of a process that maps the features from files, the mapped pages included.
""".strip()


def neighbours(
    queries: int,
    bank: int,
    dim: int,
    k: tuple[int, ...],
    metric: str,
    rounds: int,
    block: int,
    compare: int,
    memory: bool,
) -> None:
    """Time k-NN, and measure its share of the matrix product's speed and its peak memory."""
    if min(queries, bank, dim, block, rounds, *k) < 1 or compare < 0:
        raise UserError("--queries, --bank, --dim, --k, --rounds and --block must be at least 1")
    compare = min(compare, queries)
    with tempfile.TemporaryDirectory() as folder:
        arrays = dict(zip(NAMES, features(bank, queries, dim, CLASSES, signal=0.4), strict=True))
        for name, array in arrays.items():
            np.save(Path(folder, f"{name}.npy"), array)
        # Memory before anything is timed: the machine is to itself then.
        peaks = [child("benchmarks.knn", folder, one, metric) if memory else {} for one in k]
    for peak in peaks:
        if "failure" in peak:
            raise UserError(f"the process that measures memory failed: {peak['failure']}")
    multiply, product_flops = _product(arrays, block)
    few = arrays | {name: arrays[name][:compare] for name in ("test_x", "test_y")}
    forms = {PRODUCT: multiply}
    for one in k:
        forms[f"k = {one}"] = _search(arrays, one, metric)
        if compare:
            forms[f"few, k = {one}"] = _search(few, one, metric)
            forms[f"{SCIKIT_LEARN}, k = {one}"] = _scikit_learn(few, one, metric)
    times = take_turns(forms, rounds)
    speed = product_flops / median(times[PRODUCT])
    work = 2 * queries * bank * dim / product_flops  # products of blocks
    rows = []
    for one, peak in zip(k, peaks, strict=True):
        ours, theirs = f"few, k = {one}", f"{SCIKIT_LEARN}, k = {one}"
        share = round(100 * work * ratio(times, PRODUCT, f"k = {one}"))
        slower = ratio(times, theirs, ours) if compare else None
        seconds = median(times[f"k = {one}"]), work * median(times[PRODUCT])
        rows.append([one, *seconds, share, slower, peak.get("peak_mb"), peak.get("base_mb")])
    columns = ["k", "s", "limit s", "share (%)", "scikit-learn takes ×", "peak MB", "base MB"]
    title = f"{metric}, n = {queries:,}, m = {bank:,}, d = {dim}, {device_kind()}"
    print_table(columns, rows, title=f"{title}, {speed / 1e9:.0f} GFLOP/s")
    print(LIMIT)
    if compare:
        print(f"scikit-learn takes: KNeighborsClassifier, brute force, for {compare} queries.")


def _search(arrays: dict[str, np.ndarray], k: int, metric: str) -> Callable[[], dict]:
    return lambda: knn_probe(**arrays, num_classes=CLASSES, k=k, metric=metric)


def _scikit_learn(arrays: dict[str, np.ndarray], k: int, metric: str) -> Callable[[], object]:
    from sklearn.neighbors import KNeighborsClassifier

    model = KNeighborsClassifier(k, algorithm="brute", metric=metric, n_jobs=-1)
    model.fit(arrays["train_x"], arrays["train_y"])
    return lambda: model.predict(arrays["test_x"])


def _product(arrays: dict[str, np.ndarray], rows: int) -> tuple[Callable[[], None], int]:
    """A few products of blocks, long enough to tell the speed, and their flops."""
    a, b = jax.device_put((arrays["test_x"][:rows], arrays["train_x"][:rows]))
    multiply = jax.jit(lambda a, b: jax.numpy.matmul(a, b.T, precision="highest"))
    flops = 2 * len(a) * len(b) * a.shape[1]
    times = min(max(1, round(4e11 / flops)), 20)

    def run() -> None:
        for _ in range(times):
            jax.block_until_ready(multiply(a, b))

    return run, times * flops


def _work(folder: str, k: str, metric: str) -> None:
    arrays = {name: np.load(Path(folder, f"{name}.npy"), mmap_mode="r") for name in NAMES}
    jax.block_until_ready(jax.numpy.zeros(1))
    base = resident_peak()
    _search(arrays, int(k), metric)()
    print(json.dumps({"peak_mb": resident_peak(), "base_mb": base}))


if __name__ == "__main__":
    _work(*sys.argv[1:])
