"""Training runs of GPU checks: options, time limit, a row per epoch, and accuracies."""

import contextlib
import dataclasses
import json
import math
import os
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from benchmarks.gpu.record import Check, Record
from hypersphere_jax.configs import PretrainConfig, ProbeConfig, require
from hypersphere_jax.evaluation.probe_runs import run_probe
from hypersphere_jax.training import train as training

SCORES = ("knn5", "knn200", "linear")
# The last layer before the head, which is evaluated.
LAYERS = {"resnet18": "backbone", "small_alexnet": "fc7", "small_cnn": "backbone"}
EVALUATION_S = 60  # of a run: features, two k-NN protocols and logistic regression
# Options of lightly's CIFAR-10 benchmark. The learning rate is per 256 pairs.
RECIPE: dict[str, Any] = {
    "recipe": "simclr_cifar_torchvision",
    "dim": 128,
    "init": "torch",
    "learning_rate": 0.12,
    "weight_decay": 5e-4,
    "schedule": "cosine",
}
SIMCLR = RECIPE | {"loss": "nt_xent", "loss_tau": 0.5, "head": "simclr2"}
CONTRASTIVE = {"contrastive_weight": 1.0, "align_weight": 0.0, "uniform_weight": 0.0}
CIFAR10_IMAGES = 50_000
TOY: dict[str, Any] = {"model": "small_cnn", "width": 0.2, "dtype": "float32"}
TOY |= {"images": 280, "epochs": 2, "batch_size": 32}


@dataclasses.dataclass
class TrainingCheck(Check):
    """Options of the checks that train on CIFAR-10. A run that does not finish is evaluated."""

    data_dir: Path = Path(".data/cifar10")  # Folder with CIFAR-10's train.zip and test.zip
    model: Literal["resnet18", "small_alexnet", "small_cnn"] = "resnet18"  # Network
    width: float = 1.0  # Factor of the number of channels
    dtype: Literal["float32", "bfloat16"] = "bfloat16"  # Type of convolutions and linear maps
    images: int = CIFAR10_IMAGES  # Number of training images, the same share of each class
    epochs: int = 40  # Passes over the training images
    batch_size: int = 512  # Positive pairs in a batch

    def __post_init__(self) -> None:
        if self.toy:
            vars(self).update(TOY)

    def config(self, record: Record, name: str, **options: Any) -> PretrainConfig:
        """Return the config of a run that logs about ten times per epoch.

        It trains on CIFAR-10, at toy size on a fifth of the digits.
        """
        for field in ("model", "width", "dtype", "epochs", "batch_size"):
            options[field] = getattr(self, field)
        if self.toy:
            options |= {"channels": 3, "fraction": 0.2}
        else:
            folder = self.data_dir.expanduser().resolve()
            require(folder.is_dir(), f"data_dir={folder}: no such folder; it contains train.zip")
            options |= {"data": "cifar10", "data_dir": str(folder)}
            options["fraction"] = self.images / CIFAR10_IMAGES
        options["log_every_steps"] = max(1, self.images // self.batch_size // 10)
        return PretrainConfig(name=name, runs_dir=record.runs_dir, devices=1, **options)


def train(
    record: Record, config: PretrainConfig, seconds: float, labels: dict[str, Any]
) -> dict[str, Any]:
    """Train an encoder within a time limit in seconds, and add a row per epoch.

    Returns:
      Epochs, images/s, minutes with the evaluation, and test accuracies of the encoder.
    """
    started = time.monotonic()
    finished = threading.Event()
    follower = threading.Thread(target=follow, args=(record, config, labels, finished), daemon=True)
    follower.start()
    try:
        with stopped_after(seconds):
            training.train(config)
    finally:
        finished.set()
        follower.join()
    speed = images_per_s(record, labels)
    scores = accuracies(f"{config.runs_dir}/{config.name}", layers=(LAYERS[config.model],))
    minutes = round((time.monotonic() - started) / 60, 2)
    return {"epochs": epochs_done(config), "images_per_s": speed, "minutes": minutes, **scores}


@contextlib.contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    """Stop a run after this time; it saves its state if it has taken a step."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    # `signal.raise_signal` would not interrupt the main thread.
    timer = threading.Timer(max(0.0, seconds), os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()
    try:
        yield
    except KeyboardInterrupt:  # `Stopped` after the first step
        print("stopped at the time limit", flush=True)
    finally:
        timer.cancel()
        signal.signal(signal.SIGTERM, before)


def follow(record: Record, config: PretrainConfig, labels: dict, finished: threading.Event) -> None:
    """Add a row for each epoch of a run while it writes its log."""
    added = 0
    is_last = False
    while not is_last:
        is_last = finished.wait(1)
        rows = epoch_rows(log_lines(config))
        if not is_last:
            rows = rows[:-1]  # may be incomplete
        for row in rows[added:]:
            record.add(**labels, **row)
            added += 1


def log_lines(config: PretrainConfig) -> list[dict[str, Any]]:
    """Return the complete lines of a run's metrics.jsonl."""
    log = Path(config.runs_dir, config.name, "metrics.jsonl")
    lines = log.read_text().split("\n")[:-1] if log.is_file() else []
    return [json.loads(line) for line in lines]


def epoch_rows(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return mean loss and median images/s of each epoch of a log."""
    epochs: dict[int, list[dict]] = {}
    for line in lines:
        epochs.setdefault(math.ceil(line["epoch"]), []).append(line)
    rows = []
    for epoch, logged in sorted(epochs.items()):
        row = {"epoch": epoch, "loss": round(statistics.mean(x["loss"] for x in logged), 4)}
        # The first line of a session has no throughput: it contains the compilation.
        rates = [line["images_per_s"] for line in logged if "images_per_s" in line]
        if rates:
            row["epoch_images_per_s"] = round(statistics.median(rates))
        rows.append(row)
    return rows


def epochs_done(config: PretrainConfig) -> float:
    """Return the epochs that a run has trained."""
    return max(line["epoch"] for line in log_lines(config))


def images_per_s(record: Record, labels: dict[str, Any]) -> float:
    """Return the median images/s of a run's epochs after the first."""
    rows = [row for row in record.rows if labels.items() <= row.items()]
    speeds = [row["epoch_images_per_s"] for row in rows if "epoch_images_per_s" in row]
    require(bool(speeds), "no time left to train an epoch")
    return statistics.median(speeds[1:] or speeds)


def accuracies(target: str, **options: Any) -> dict[str, float]:
    """Return the test accuracies of a run or of a file of features, in percent.

    `valid` is the accuracy of logistic regression on held-out training images.
    """
    protocols = ("knn", "knn_weighted", "lbfgs")
    results = run_probe(ProbeConfig((target,), protocols=protocols, standardize=True, **options))
    scores = {name: result["top1"] for name, result in zip(SCORES, results, strict=True)}
    return scores | {"valid": results[-1]["valid_top1"]}
