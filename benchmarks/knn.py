"""The nearest neighbours: time, share of the matrix product's speed, and peak memory.

`python -m benchmarks.knn FOLDER K METRIC` prints the peaks of its own memory before and after.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from benchmarks.loss_forms import dot, resident_peak
from benchmarks.timing import take_turns
from hypersphere_jax.config import UserError
from hypersphere_jax.evaluate.knn import knn_probe
from hypersphere_jax.report import print_table

ROOT = Path(__file__).parent.parent
PRODUCT, SCIKIT_LEARN = "product", "scikit-learn"
CLASSES = 10
LIMIT = """
limit: 2 n m d flops, at the measured speed of the matrix product of blocks [b, d] x [d, b].
share: of that speed. All else (reading, scaling, sorting, votes) comes on top.
peak, base: memory of a process that maps the features from files, the mapped pages included.
""".strip()


def neighbours(
    queries: int = 10_000,
    bank: int = 50_000,
    dim: int = 4096,
    k: tuple[int, ...] = (5, 200),
    metric: str = "cosine",
    rounds: int = 1,
    block: int = 4096,
    compare: int = 500,
    memory: bool = True,
) -> None:
    """Time k-NN, and measure its share of the matrix product's speed and its peak memory.

    A product of blocks takes turns with each search, so that ratios hold on a busy machine too. The
    features are random, around the centres of ten classes.

    Args:
        queries: Rows that ask, n.
        bank: Rows that are searched, m.
        dim: Dimension d of the features.
        k: Neighbours that vote; a row of the table for each.
        metric: cosine or euclidean.
        rounds: Rounds that count, after one that compiles.
        block: Rows b of both sides of the plain product.
        compare: Queries for scikit-learn's brute force, which the same ones of ours stand against;
            0 leaves it out.
        memory: Measure the peak memory of each k, alone in a process of its own.
    """
    if min(queries, bank, dim, block, rounds, *k) < 1 or compare < 0:
        raise UserError("--queries, --bank, --dim, --k, --rounds and --block must be at least 1")
    compare = min(compare, queries)
    with tempfile.TemporaryDirectory() as folder:
        arrays = features(bank, queries, dim)
        for name, array in arrays.items():
            np.save(Path(folder, f"{name}.npy"), array)
        # Memory before anything is timed: the machine is to itself then.
        peaks = [peak_memory(folder, one, metric) if memory else {} for one in k]
    multiply, product_flops = _product(arrays, block)
    forms = {PRODUCT: multiply} | {f"k = {one}": _search(arrays, one, metric) for one in k}
    if compare:
        few = arrays | {name: arrays[name][:compare] for name in ("test_x", "test_y")}
        forms |= {f"few, k = {one}": _search(few, one, metric) for one in k}
        forms |= {f"{SCIKIT_LEARN}, k = {one}": _scikit_learn(few, one, metric) for one in k}
    times = take_turns(forms, rounds)
    speed = product_flops / times[PRODUCT]
    rows = []
    for one, peak in zip(k, peaks, strict=True):
        seconds = times[f"k = {one}"]
        limit = 2 * queries * bank * dim / speed
        ratio = None
        if compare:
            ratio = np.median(times[f"{SCIKIT_LEARN}, k = {one}"] / times[f"few, k = {one}"])
        rows.append(
            [
                *(one, float(np.median(seconds)), float(np.median(limit))),
                round(100 * float(np.median(limit / seconds))),
                None if ratio is None else float(ratio),
                *(peak.get("peak_mb"), peak.get("base_mb")),
            ]
        )
    columns = ["k", "s", "limit s", "share (%)", "scikit-learn takes ×", "peak MB", "base MB"]
    kind = jax.devices()[0].device_kind
    title = f"{metric}, n = {queries:,}, m = {bank:,}, d = {dim}, {kind}"
    print_table(columns, rows, title=f"{title}, {np.median(speed) / 1e9:.0f} GFLOP/s")
    print(LIMIT)
    if compare:
        print(
            f"scikit-learn takes: KNeighborsClassifier, brute force, for {compare} of the queries."
        )


def features(bank: int, queries: int, dim: int) -> dict[str, np.ndarray]:
    """Arguments of `knn_probe`: classes that overlap, float32."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLASSES, dim), dtype=np.float32) / 8
    arrays = {}
    for name, n in (("train", bank), ("test", queries)):
        labels = rng.integers(CLASSES, size=n)
        x = rng.standard_normal((n, dim), dtype=np.float32)
        for begin in range(0, n, 1000):  # in place: a second array of this size counts as memory
            x[begin : begin + 1000] += centres[labels[begin : begin + 1000]]
        arrays |= {f"{name}_x": x, f"{name}_y": labels}
    return arrays


def peak_memory(folder: str, k: int, metric: str) -> dict[str, float]:
    """Peak of a process that searches once, and of the same process before; MB of 10^6 bytes."""
    command = [sys.executable, "-m", "benchmarks.knn", folder, str(k), metric]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
        raise UserError(f"the process that measures memory failed: {lines[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


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
    multiply = jax.jit(lambda a, b: dot(a, b.T))
    flops = 2 * len(a) * len(b) * a.shape[1]
    times = min(max(1, round(4e11 / flops)), 20)

    def run() -> None:
        for _ in range(times):
            jax.block_until_ready(multiply(a, b))

    return run, times * flops


def _work(folder: str, k: str, metric: str) -> None:
    names = ("train_x", "train_y", "test_x", "test_y")
    arrays = {name: np.load(Path(folder, f"{name}.npy"), mmap_mode="r") for name in names}
    jax.block_until_ready(jax.numpy.zeros(1))
    base = resident_peak()
    _search(arrays, int(k), metric)()
    print(json.dumps({"peak_mb": resident_peak() / 1e6, "base_mb": base / 1e6}))


if __name__ == "__main__":
    _work(*sys.argv[1:])
