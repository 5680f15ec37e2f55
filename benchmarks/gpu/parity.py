"""The check `parity`: SimCLR here and in plain PyTorch, on the same images and the same card."""

import dataclasses
import importlib.util
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.gpu.record import Record
from benchmarks.gpu.runs import (
    LAYERS,
    SCORES,
    SIMCLR,
    accuracies,
    arrays_of,
    images_per_s,
    load_data,
    make_config,
    train,
)
from hypersphere_jax.configs import require

EVALUATION_S = 45  # time left for the accuracies of the last run
OURS, TORCH = "hypersphere_jax", "PyTorch"


def parity(
    data_dir: Path = Path(".data/cifar10"),
    model: Literal["resnet18", "small_alexnet", "small_cnn"] = "resnet18",
    width: float = 1.0,
    images: int = 50_000,
    epochs: int = 40,
    batch_size: int = 512,
    dtype: Literal["float32", "bfloat16"] = "bfloat16",
    seeds: tuple[int, ...] = (0,),
    augment: Literal["workers", "device"] = "workers",
    workers: int = 15,
    minutes: float = 8,
    out: Path = Path("runs/gpu"),
    toy: bool = False,
) -> None:
    """Train SimCLR here and in plain PyTorch, on the same images, and compare speed and accuracy.

    Args:
        data_dir: folder with CIFAR-10's train.zip and test.zip.
        model: the network.
        width: factor on its channel counts.
        images: number of training images, the same share of each class.
        epochs: passes over them.
        batch_size: positive pairs in a batch.
        dtype: type of the network's products; bfloat16 is autocast in PyTorch.
        seeds: one run of each framework per seed.
        augment: PyTorch's augmentation: torchvision in worker processes, or batches on the device.
        workers: number of these processes.
        minutes: time limit; later runs are left out.
        out: folder of the results.
        toy: run at toy size, on random images.
    """
    require(
        importlib.util.find_spec("torch") is not None,
        "parity compares with PyTorch, which is not installed: pip install torch",
    )
    from benchmarks import torch_simclr

    if toy:
        model, width, dtype, augment = "small_cnn", 0.2, "float32", "device"
        images, epochs, batch_size = 256, 2, 32
    record = Record("parity", out, minutes, width=width, images=images, epochs=epochs)
    source = load_data(data_dir, images, toy, out)
    arrays = arrays_of(source)
    peak_rate = SIMCLR["learning_rate"] * batch_size / 256
    of_torch = torch_simclr.TorchConfig(
        model=model,
        width=width,
        dtype=dtype,
        epochs=epochs,
        batch_size=batch_size,
        peak_rate=peak_rate,
        augment=augment,
        workers=workers,
    )
    for seed in seeds:
        if record.seconds_left < 60 and not toy:
            record.add(seed=seed, skipped="no time left")
            continue
        config = make_config(
            record,
            source,
            toy,
            name=f"parity-seed{seed}",
            model=model,
            width=width,
            dtype=dtype,
            epochs=epochs,
            batch_size=batch_size,
            seed=seed,
            **SIMCLR,
        )
        train(record, config, reserve=record.seconds_left / 2, framework=OURS, seed=seed)
        run = str(record.path.parent / "runs" / config.name)
        scores = accuracies(run, layers=(LAYERS[model],))
        record.add(
            framework=OURS,
            seed=seed,
            images_per_s=images_per_s(record, framework=OURS, seed=seed),
            **scores,
        )
        seconds = record.seconds_left - EVALUATION_S
        _train_torch(record, dataclasses.replace(of_torch, seed=seed, seconds=seconds), arrays)
    _print_curves(record)
    runs = [row for row in record.rows if "knn5" in row]
    record.print_table("SimCLR", ("framework", "seed", "images_per_s", *SCORES), runs)


def _train_torch(record: Record, config: Any, arrays: dict[str, np.ndarray]) -> None:
    """Train the PyTorch baseline, evaluate its features with our probes, and add the rows."""
    from benchmarks import torch_simclr

    def on_epoch(epoch: int, loss: float, images_per_s: float) -> None:
        speed = round(images_per_s)
        record.add(
            framework=TORCH,
            seed=config.seed,
            epoch=epoch,
            loss=round(loss, 4),
            epoch_images_per_s=speed,
        )

    model = torch_simclr.train(arrays["train_x"], config, on_epoch)
    features = dict(arrays)
    for split in ("train_x", "test_x"):
        features[split] = torch_simclr.features(model, arrays[split])
    file = record.path.parent / "runs" / f"torch-seed{config.seed}.npz"
    np.savez(file, **features)
    speed = images_per_s(record, framework=TORCH, seed=config.seed)
    record.add(framework=TORCH, seed=config.seed, images_per_s=speed, **accuracies(str(file)))


def _print_curves(record: Record) -> None:
    """Print mean and deviation over the seeds of each epoch's loss, and of the accuracies."""
    table: list[dict[str, Any]] = []
    epochs = sorted({row["epoch"] for row in record.rows if "epoch" in row})
    for name in (*epochs, *SCORES):
        row: dict[str, Any] = {"": name if isinstance(name, str) else f"loss, epoch {name}"}
        for framework in (OURS, TORCH):
            found = [r for r in record.rows if r.get("framework") == framework]
            if isinstance(name, str):
                values = [r[name] for r in found if name in r]
            else:
                values = [r["loss"] for r in found if r.get("epoch") == name]
            row[framework] = _mean_and_deviation(values)
        table.append(row)
    record.print_table("Mean and standard deviation over seeds", ("", OURS, TORCH), table)


def _mean_and_deviation(values: Sequence[float]) -> str:
    if not values:
        return ""
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"
