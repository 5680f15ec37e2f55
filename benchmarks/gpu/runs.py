"""Training runs of GPU checks: data, time limit, one row per epoch, and accuracies."""

import contextlib
import json
import math
import os
import signal
import statistics
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.record import Record
from hypersphere_jax.configs import PretrainConfig, ProbeConfig, Stopped, require
from hypersphere_jax.configs.data import DataConfig
from hypersphere_jax.evaluation.probe_runs import run_probe
from hypersphere_jax.training import train as training

PROTOCOLS = ("knn", "knn_weighted", "lbfgs")
SCORES = ("knn5", "knn200", "linear")
# The last layer before the head, which is evaluated.
LAYERS = {"resnet18": "backbone", "small_alexnet": "fc7", "small_cnn": "backbone"}
EVALUATION_S = 60  # of a run: features, two k-NN protocols and logistic regression
# SimCLR with the options of lightly's CIFAR-10 benchmark. The learning rate is per 256 pairs.
SIMCLR: dict[str, Any] = {
    "recipe": "simclr_cifar_torchvision",
    "loss": "nt_xent",
    "loss_tau": 0.5,
    "head": "simclr2",
    "dim": 128,
    "init": "torch",
    "learning_rate": 0.12,
    "weight_decay": 5e-4,
    "schedule": "cosine",
}
CIFAR10_IMAGES, TOY_IMAGES = 50_000, 256


def load_data(data_dir: Path, images: int, toy: bool, out: Path) -> DataConfig:
    """Return CIFAR-10, or for toy runs random images whose brightness is their class."""
    if not toy:
        folder = data_dir.expanduser().resolve()
        require(folder.is_dir(), f"data_dir={data_dir}: no such folder; it contains train.zip")
        fraction = images / CIFAR10_IMAGES
        return DataConfig(data="cifar10", data_dir=str(folder), fraction=fraction)
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for split in ("train", "test"):
        labels = np.arange(TOY_IMAGES) % 2
        noise = rng.integers(0, 128, (TOY_IMAGES, 8, 8, 3))
        arrays[f"{split}_images"] = np.uint8(noise + 128 * labels[:, None, None, None])
        arrays[f"{split}_labels"] = labels
    out.mkdir(parents=True, exist_ok=True)
    file = out / "toy.npz"
    np.savez(file, **arrays)
    return DataConfig(data=str(file))


def make_config(record: Record, source: DataConfig, toy: bool, **options: Any) -> PretrainConfig:
    """Return the config of a run that logs about ten times per epoch."""
    images = TOY_IMAGES if toy else round(source.fraction * CIFAR10_IMAGES)
    steps_per_epoch = images // options["batch_size"]
    return PretrainConfig(
        runs_dir=record.runs_dir,
        data=source.data,
        data_dir=source.data_dir,
        fraction=source.fraction,
        log_every_steps=max(1, steps_per_epoch // 10),
        devices=1,
        **options,
    )


def train(record: Record, config: PretrainConfig, seconds: float, **labels: Any) -> None:
    """Train an encoder for at most so many seconds, and add a row per epoch."""
    log = Path(config.runs_dir, config.name, "metrics.jsonl")
    with stopped_after(seconds), _followed(record, log, labels):
        training.train(config)


@contextlib.contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    """Stop a run after so many seconds; a run that has begun saves its state."""

    def stop(*_: object) -> None:
        raise Stopped("stopped at the time limit")

    before = signal.signal(signal.SIGTERM, stop)
    timer = threading.Timer(max(0.0, seconds), os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()
    try:
        yield
    except Stopped:
        print("stopped at the time limit", flush=True)
    finally:
        timer.cancel()
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _followed(record: Record, log: Path, labels: dict[str, Any]) -> Iterator[None]:
    """Add a row with mean loss and images/s for each epoch of a run while it writes its log."""
    finished = threading.Event()
    thread = threading.Thread(target=_follow, args=(record, log, labels, finished), daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def _follow(record: Record, log: Path, labels: dict, finished: threading.Event) -> None:
    added = 0
    is_last = False
    while not is_last:
        is_last = finished.wait(1)
        rows = epoch_rows(log, complete_only=not is_last)
        for row in rows[added:]:
            record.add(**labels, **row)
        added = len(rows)


def epoch_rows(log: Path, complete_only: bool) -> list[dict[str, Any]]:
    """Return mean loss and median images/s of each epoch in a metrics.jsonl.

    An epoch is complete once the log has a line of a later one.
    """
    lines = log.read_text().split("\n")[:-1] if log.is_file() else []
    epochs: dict[int, list[dict]] = {}
    for line in map(json.loads, lines):
        epochs.setdefault(math.ceil(line["epoch"]), []).append(line)
    rows = []
    for number in sorted(epochs):
        if complete_only and number == max(epochs):
            break
        of_epoch = epochs[number]
        row = {"epoch": number, "loss": round(statistics.mean(x["loss"] for x in of_epoch), 4)}
        # The first line of a session has no throughput: it contains the compilation.
        rates = [x["images_per_s"] for x in of_epoch if "images_per_s" in x]
        if rates:
            row["epoch_images_per_s"] = round(statistics.median(rates))
        rows.append(row)
    return rows


def epochs_done(config: PretrainConfig) -> float:
    """Return the epochs that a run has trained, 0 without a log."""
    log = Path(config.runs_dir, config.name, "metrics.jsonl")
    lines = log.read_text().split("\n")[:-1] if log.is_file() else []
    return json.loads(lines[-1])["epoch"] if lines else 0.0


def accuracies(target: str, **options: Any) -> dict[str, float]:
    """Return the test accuracies of a run or of a file of features, in percent.

    `valid` is the accuracy of logistic regression on held-out training images.
    """
    config = ProbeConfig((target,), protocols=PROTOCOLS, standardize=True, **options)
    results = run_probe(config)
    scores = {name: result["top1"] for name, result in zip(SCORES, results, strict=True)}
    return scores | {"valid": results[-1]["valid_top1"]}


def images_per_s(record: Record, **labels: Any) -> float | None:
    """Return the median images/s of a run's epochs after the first."""
    speeds = [
        row["epoch_images_per_s"]
        for row in record.rows
        if "epoch_images_per_s" in row and labels.items() <= row.items()
    ]
    return statistics.median(speeds[1:] or speeds) if speeds else None
