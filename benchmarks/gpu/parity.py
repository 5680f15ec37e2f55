"""The check `parity`: SimCLR here and in plain PyTorch, on the same images and the same card."""

import dataclasses
import functools
import importlib.util
from typing import Any

import numpy as np

from benchmarks.gpu import runs
from benchmarks.gpu.record import Record
from hypersphere_jax import data
from hypersphere_jax.configs import PretrainConfig, require

SHORTEST_TRAINING_S = 30  # a shorter run would end while its step compiles


@dataclasses.dataclass
class Parity(runs.TrainingCheck):
    """Train SimCLR here and in plain PyTorch, and compare speed and accuracy.

    bfloat16 is autocast in PyTorch.
    """

    seeds: tuple[int, ...] = (0,)
    """One run of each framework per seed."""

    def run(self) -> None:
        has_torch = importlib.util.find_spec("torch") is not None
        require(has_torch, "parity needs PyTorch, which is not installed: pip install torch")
        record = Record("parity", self)
        frameworks = {"hypersphere_jax": runs.train, "PyTorch": train_torch}
        todo = [(seed, framework) for seed in self.seeds for framework in frameworks]
        for number, (seed, framework) in enumerate(todo):
            labels = {"framework": framework, "seed": seed}
            seconds = record.seconds_left / (len(todo) - number) - runs.EVALUATION_S
            if seconds < SHORTEST_TRAINING_S and not self.toy:
                record.add(**labels, skipped="no time left")
                continue
            config = self.config(record, f"parity-seed{seed}", seed=seed, **runs.SIMCLR)
            config = config.replace(recipe=runs.SIMCLR["recipe"])  # PyTorch's, also at toy size
            train = functools.partial(frameworks[framework], record, config, seconds, **labels)
            record.measure(labels, train)
        columns = ("framework", "seed", "epochs", "images_per_s", *runs.SCORES)
        record.finish("SimCLR", *columns)


def train_torch(record: Record, config: PretrainConfig, seconds: float, **labels: Any) -> dict:
    """Train the PyTorch baseline, and evaluate its features with the same probes."""
    from benchmarks import torch_simclr

    same = ("model", "width", "dtype", "epochs", "batch_size", "log_every_steps", "seed")
    options = torch_simclr.TorchConfig(
        **{name: getattr(config, name) for name in same},
        peak_rate=config.learning_rate * config.batch_size / 256,
        seconds=seconds,
    )
    arrays = load_arrays(config)
    on_epoch = functools.partial(record.add, **labels)
    model, epochs = torch_simclr.train(arrays["train_x"], options, on_epoch)
    for split in ("train_x", "test_x"):
        arrays[split] = torch_simclr.features(model, arrays[split], options.dtype)
    file = f"{record.runs_dir}/torch-seed{config.seed}.npz"
    np.savez(file, **arrays)
    speed = runs.images_per_s(record, **labels)
    return {"epochs": float(epochs), "images_per_s": speed, **runs.accuracies(file)}


def load_arrays(config: PretrainConfig) -> dict[str, Any]:
    """Return uint8 images and labels of both splits, by the names of a features file."""
    dataset = data.load(config)
    arrays: dict[str, Any] = {}
    for split, source in (("train", dataset.train), ("test", dataset.test)):
        arrays[f"{split}_x"] = np.stack([source[i]["image"] for i in range(len(source))])
        arrays[f"{split}_y"] = np.asarray(source.labels)
    return arrays
