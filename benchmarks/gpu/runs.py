"""Training runs of GPU checks: data, time limit, one row per epoch, and accuracies."""

import contextlib
import json
import os
import shutil
import signal
import statistics
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.record import Record
from hypersphere_jax import data
from hypersphere_jax.configs import PretrainConfig, ProbeConfig, Stopped, require
from hypersphere_jax.configs.data import DataConfig
from hypersphere_jax.evaluate.probe_verb import run_probe
from hypersphere_jax.training import loop

PROTOCOLS = ("knn", "knn_weighted", "lbfgs")
# The last layer before the head, which is evaluated.
LAYERS = {"resnet18": "backbone", "small_alexnet": "fc7", "small_cnn": "backbone"}
SCORES = ("knn5", "knn200", "linear")
# Common options of SimCLR runs: lightly's CIFAR-10 recipe. The rate is per 256 pairs.
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
    "devices": 1,
}


def load_data(data_dir: Path, images: int, toy: bool, out: Path) -> DataConfig:
    """Return CIFAR-10, or for toy runs random images whose brightness is their class."""
    if not toy:
        require(
            data_dir.expanduser().is_dir(),
            f"data_dir={data_dir}: there is no such folder; give the one with CIFAR-10's train.zip",
        )
        where = str(data_dir.expanduser().resolve())
        return DataConfig(data="cifar10", data_dir=where, fraction=images / 50_000)
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for split in ("train", "test"):
        labels = np.arange(256) % 2
        noise = rng.integers(0, 128, (256, 8, 8, 3))
        arrays[f"{split}_images"] = np.uint8(noise + 128 * labels[:, None, None, None])
        arrays[f"{split}_labels"] = labels
    out.mkdir(parents=True, exist_ok=True)
    file = out / "toy.npz"
    np.savez(file, **arrays)
    return DataConfig(data=str(file))


def arrays_of(config: DataConfig) -> dict[str, np.ndarray]:
    """Return uint8 images and labels of both splits, by the names of a features file."""
    dataset = data.load(config)
    arrays: dict[str, np.ndarray] = {}
    for split, source in (("train", dataset.train), ("test", dataset.test)):
        arrays[f"{split}_x"] = np.stack([source[i]["image"] for i in range(len(source))])
        arrays[f"{split}_y"] = np.asarray(source.labels)
    return arrays


def make_config(record: Record, source: DataConfig, toy: bool, **options: Any) -> PretrainConfig:
    """Return the config of a run in `OUT/runs`, whose folder is emptied first."""
    runs_dir = record.path.parent / "runs"
    shutil.rmtree(runs_dir / options["name"], ignore_errors=True)
    steps_per_epoch = (256 if toy else source.fraction * 50_000) // options["batch_size"]
    return PretrainConfig(
        runs_dir=str(runs_dir),
        data=source.name,
        data_dir=source.data_dir,
        fraction=source.fraction,
        log_every_steps=max(1, min(10, int(steps_per_epoch) // 4)),
        **options,
    )


def train(record: Record, config: PretrainConfig, reserve: float, **labels: Any) -> None:
    """Train an encoder and add a row per epoch; stop `reserve` seconds before the time limit."""
    log = Path(config.runs_dir, config.name, "metrics.jsonl")
    with stopped_in_time(record, reserve), _followed(record, log, labels):
        loop.train(config)


@contextlib.contextmanager
def stopped_in_time(record: Record, reserve: float) -> Iterator[None]:
    """Stop a run `reserve` seconds before the time limit; the run saves its state."""
    seconds = max(1.0, record.seconds_left - reserve)
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()
    try:
        yield
    except Stopped:
        print("stopped at the time limit", flush=True)
    finally:
        timer.cancel()


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
    last_read = False
    while not last_read:
        last_read = finished.wait(1)
        lines = log.read_text().split("\n")[:-1] if log.is_file() else []
        epochs: dict[int, list[dict]] = {}
        for line in map(json.loads, lines):
            epochs.setdefault(int(np.ceil(line["epoch"])), []).append(line)
        for epoch in sorted(epochs)[added:]:
            if epochs[epoch][-1]["epoch"] < epoch and not last_read:
                break
            added += 1
            loss = statistics.mean(line["loss"] for line in epochs[epoch])
            speed = statistics.median(line["images_per_s"] for line in epochs[epoch])
            record.add(**labels, epoch=epoch, loss=round(loss, 4), epoch_images_per_s=round(speed))


def accuracies(target: str, **options: Any) -> dict[str, float]:
    """Return the test accuracies of a run or of a file of features, in percent.

    `valid` is that of logistic regression on held-out training images.
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
