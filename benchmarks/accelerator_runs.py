"""The training runs of `bench accelerator`: one that is stopped and goes on, and CIFAR-10's."""

import os
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.accelerator_parts import Record, Settings, random_images
from hypersphere_jax import models
from hypersphere_jax.config import PretrainConfig, ProbeConfig, Stopped, UserError, require
from hypersphere_jax.evaluate import probe_verb
from hypersphere_jax.training import checkpoint, loop, run_folder
from hypersphere_jax.training.metrics_log import read_metrics
from hypersphere_jax.training.optimizers import make_optimizer, make_schedule
from hypersphere_jax.training.recorder import tree_of
from hypersphere_jax.training.step import init_state


def resumption(settings: Settings) -> Iterator[Record]:
    """A run that is stopped and goes on, against one that is left alone: the state, to the bit."""
    images = _write_images(Path(settings.out, "images.npz"), settings.of(4096, 128), 32)
    model = settings.of(
        {"model": "resnet18", "dtype": "bfloat16", "head": "simclr2"},
        {"model": "small_cnn", "width": 0.1},
    )
    base = PretrainConfig(
        runs_dir=f"{settings.out}/runs",
        data=str(images),
        recipe="simclr_cifar_torchvision",
        loss="nt_xent",
        epochs=settings.of(10, 20),
        batch_size=settings.of(128, 16),
        log_every_steps=1,
        steps_per_call=1,
        devices=1,
        **model,
    )
    alone, stopped = (base.replace(name=f"{name}-{os.getpid()}") for name in ("alone", "stopped"))
    folder = loop.train(alone)
    log = Path(stopped.runs_dir, stopped.name, "metrics.jsonl")
    threading.Thread(target=_stop_after, args=(log, 20), daemon=True).start()
    try:
        loop.train(stopped)
    except Stopped as reason:
        at = str(reason)
    else:
        raise UserError("the run was over before it could be stopped")
    other = loop.train(stopped)
    one, two = (jax.tree.leaves(_state(each)) for each in (folder, other))
    differ = sum(a.tobytes() != b.tobytes() for a, b in zip(one, two, strict=True))
    yield {
        "stopped": at.partition(" in ")[0],
        "arrays": len(one),
        "arrays_that_differ": differ,
        "to_the_bit": differ == 0,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def _stop_after(log: Path, lines: int) -> None:
    while not log.is_file() or log.read_bytes().count(b"\n") < lines:
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGTERM)


def _state(folder: Path) -> Any:
    """All arrays of a run's newest checkpoint."""
    config = run_folder.read_config(folder)
    _, params, stats = models.abstract(config.model)
    rule = make_optimizer(config.optimizer, make_schedule(config.optimizer, 1))
    like = jax.eval_shape(lambda *of: init_state(*of, rule), params, stats)
    return checkpoint.restore(folder / "checkpoints", tree_of(like))[1]


def cifar10(settings: Settings) -> Iterator[Record]:
    """ResNet-18 by SimCLR on CIFAR-10: 200 epochs of 512 pairs; then k-NN and a linear probe."""
    began, where, recipe = time.perf_counter(), settings.data_dir, "simclr_cifar_torchvision"
    if settings.toy:
        where = str(_write_images(Path(settings.out, "toy.npz"), 64, 8, classes=2))
    require(
        where is not None,
        "CIFAR-10 is not there: give --data-dir, the folder of train.zip and test.zip, or a file "
        ".npz of train_images, train_labels, test_images and test_labels",
    )
    model = settings.of(
        {"model": "resnet18", "dim": 128, "head": "simclr2", "dtype": "bfloat16"},
        {"model": "small_cnn", "width": 0.1},
    )
    config = PretrainConfig(
        name=f"cifar10-{os.getpid()}",
        runs_dir=f"{settings.out}/runs",
        data="cifar10",
        data_dir=where,
        recipe=recipe,
        loss="nt_xent",
        loss_tau=0.5,
        epochs=settings.of(200, 2),
        batch_size=settings.of(512, 16),
        learning_rate=0.12,  # for 256 pairs: 0.24 at the peak
        schedule="cosine",
        warmup_epochs=settings.of(5, 0),
        weight_decay=5e-4,
        log_every_steps=settings.of(100, 1),
        devices=1,
        **model,
    )
    stopped = None
    folder = Path(config.runs_dir, config.name)
    try:
        loop.train(config)
    except Stopped as reason:  # its share of the time is over: what there is, is evaluated
        stopped = str(reason).partition(" in ")[0]
    log = read_metrics(folder)
    yield {
        "what": "training",
        "epochs": config.optimizer.epochs,
        "pairs": config.optimizer.batch_size,
        "learning_rate": max(line["lr"] for line in log),
        "stopped": stopped,
        "minutes": (time.perf_counter() - began) / 60,
        "images_s": statistics.median(line["images_per_s"] for line in log[len(log) // 2 :]),
        "loss": log[-1]["loss"],
    }
    asked = {"layers": ("backbone",), "protocols": ("knn", "lbfgs"), "devices": 1}
    results = probe_verb.run_probe(ProbeConfig((str(folder),), **asked))
    scores = {result["protocol"]: result["top1"] for result in results}
    minutes = (time.perf_counter() - began) / 60
    yield {
        "what": "with evaluation",
        "minutes": minutes,
        "knn5_top1": scores["knn"],
        "linear_top1": scores["lbfgs"],
        "under_10_minutes": stopped is None and minutes < 10,
        "knn_above_84": scores["knn"] > 84,
    }


def _write_images(file: Path, n: int, side: int, classes: int = 2) -> Path:
    images, labels = random_images(n, side, 3, classes)
    file.parent.mkdir(parents=True, exist_ok=True)
    names = {f"{split}_images": images for split in ("train", "test")}
    np.savez(file, **names, **{f"{split}_labels": labels for split in ("train", "test")})
    return file
