"""The check `parity`: SimCLR here and in plain PyTorch, on the same images and the same card."""

import importlib.util
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from benchmarks.gpu.record import Record
from benchmarks.gpu.runs import (
    EVALUATION_S,
    LAYERS,
    SCORES,
    SIMCLR,
    accuracies,
    epochs_done,
    images_per_s,
    load_data,
    make_config,
    train,
)
from hypersphere_jax import data
from hypersphere_jax.configs import PretrainConfig, require
from hypersphere_jax.configs.data import DataConfig

OURS, TORCH = "hypersphere_jax", "PyTorch"
SHORTEST_TRAINING_S = 30  # a shorter run would end while its step compiles
COLUMNS = ("framework", "seed", "epochs", "images_per_s", *SCORES)


def parity(
    data_dir: Path = Path(".data/cifar10"),
    model: Literal["resnet18", "small_alexnet", "small_cnn"] = "resnet18",
    width: float = 1.0,
    images: int = 50_000,
    epochs: int = 40,
    batch_size: int = 512,
    dtype: Literal["float32", "bfloat16"] = "bfloat16",
    seeds: tuple[int, ...] = (0,),
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
        minutes: time limit; a run that does not finish is evaluated as it is.
        out: folder of the results.
        toy: run at toy size, on random images.
    """
    has_torch = importlib.util.find_spec("torch") is not None
    require(has_torch, "parity compares with PyTorch, which is not installed: pip install torch")
    if toy:
        model, width, dtype = "small_cnn", 0.2, "float32"
        images, epochs, batch_size = 256, 2, 32
    size = {"model": model, "width": width, "dtype": dtype}
    size |= {"epochs": epochs, "batch_size": batch_size}
    record = Record("parity", out, minutes, images=images, seeds=seeds, **size)
    source = load_data(data_dir, images, toy, out)
    configs = [
        make_config(record, source, toy, name=f"parity-seed{seed}", seed=seed, **size, **SIMCLR)
        for seed in seeds
    ]
    arrays = arrays_of(source)
    runs = [(run, config) for config in configs for run in (_train_ours, _train_torch)]
    for number, (run, config) in enumerate(runs):
        seconds = record.seconds_left / (len(runs) - number) - EVALUATION_S
        if seconds < SHORTEST_TRAINING_S and not toy:
            record.add(seed=config.seed, skipped=f"{run.__name__}: no time left")
            continue
        try:
            run(record, config, seconds, arrays)
        except Exception as error:  # the other framework's result is worth having
            record.add(seed=config.seed, failure=f"{type(error).__name__}: {error}"[:300])
    _print_curves(record)
    record.finish("SimCLR", COLUMNS, [row for row in record.rows if "knn5" in row])


def arrays_of(config: DataConfig) -> dict[str, np.ndarray]:
    """Return uint8 images and labels of both splits, by the names of a features file."""
    dataset = data.load(config)
    arrays: dict[str, np.ndarray] = {}
    for split, source in (("train", dataset.train), ("test", dataset.test)):
        arrays[f"{split}_x"] = np.stack([source[i]["image"] for i in range(len(source))])
        arrays[f"{split}_y"] = np.asarray(source.labels)
    return arrays


def _train_ours(
    record: Record, config: PretrainConfig, seconds: float, arrays: dict[str, np.ndarray]
) -> None:
    labels = {"framework": OURS, "seed": config.seed}
    train(record, config, seconds, **labels)
    scores = accuracies(f"{config.runs_dir}/{config.name}", layers=(LAYERS[config.model],))
    speed = images_per_s(record, **labels)
    record.add(**labels, epochs=epochs_done(config), images_per_s=speed, **scores)


def _train_torch(
    record: Record, config: PretrainConfig, seconds: float, arrays: dict[str, np.ndarray]
) -> None:
    """Train the PyTorch baseline and evaluate its features with the same probes."""
    from benchmarks import torch_simclr

    labels = {"framework": TORCH, "seed": config.seed}
    done = 0

    def on_epoch(epoch: int, loss: float, speed: float) -> None:
        nonlocal done
        done = epoch
        row = {"epoch": epoch, "loss": round(loss, 4), "epoch_images_per_s": round(speed)}
        record.add(**labels, **row)

    options = torch_simclr.TorchConfig(
        model=config.model,
        width=config.width,
        dtype=config.dtype,
        epochs=config.epochs,
        batch_size=config.batch_size,
        peak_rate=config.learning_rate * config.batch_size / 256,
        log_every_steps=config.log_every_steps,
        seed=config.seed,
        seconds=seconds,
    )
    model = torch_simclr.train(arrays["train_x"], options, on_epoch)
    features = dict(arrays)
    for split in ("train_x", "test_x"):
        features[split] = torch_simclr.features(model, arrays[split], options.dtype)
    file = f"{record.runs_dir}/torch-seed{config.seed}.npz"
    np.savez(file, **features)
    speed = images_per_s(record, **labels)
    record.add(**labels, epochs=float(done), images_per_s=speed, **accuracies(file))


def _print_curves(record: Record) -> None:
    """Print mean and deviation over the seeds of each epoch's loss, and of the accuracies."""
    epochs = sorted({row["epoch"] for row in record.rows if "epoch" in row})
    print(f"\n{'':>12}{OURS:>20}{TORCH:>20}   (mean and standard deviation over seeds)")
    for epoch in epochs:
        rows = [row for row in record.rows if row.get("epoch") == epoch]
        print(_line(f"loss, {epoch}", "loss", rows))
    for name in SCORES:
        print(_line(name, name, [row for row in record.rows if name in row]))


def _line(title: str, name: str, rows: Sequence[dict]) -> str:
    cells = []
    for framework in (OURS, TORCH):
        values = [row[name] for row in rows if row["framework"] == framework]
        cells.append(_mean_and_deviation(values))
    return f"{title:>12}{cells[0]:>20}{cells[1]:>20}"


def _mean_and_deviation(values: Sequence[float]) -> str:
    if not values:
        return ""
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"
