"""The check `parity`: SimCLR here and in plain PyTorch, on the same images and the same card."""

import dataclasses
import functools
from typing import Any

import numpy as np

from benchmarks.gpu import runs
from benchmarks.gpu.record import Record
from benchmarks.timing import HAS_TORCH
from hypersphere_jax import data
from hypersphere_jax.configs import PretrainConfig, require


@dataclasses.dataclass
class Parity(runs.TrainingCheck):
    """Train SimCLR here and in plain PyTorch, and compare speed and accuracy.

    bfloat16 is autocast in PyTorch.
    """

    seeds: tuple[int, ...] = (0,)  # One run of each framework per seed

    def run(self) -> None:
        require(HAS_TORCH, "parity needs PyTorch, which is not installed: pip install torch")
        record = Record("parity", self)
        frameworks = {"hypersphere_jax": runs.train, "PyTorch": train_torch}
        todo = [(seed, framework) for seed in self.seeds for framework in frameworks]
        for number, (seed, framework) in enumerate(todo):
            labels = {"framework": framework, "seed": seed}
            seconds = record.seconds_left / (len(todo) - number) - runs.EVALUATION_S
            config = self.config(record, f"parity-seed{seed}", seed=seed, **runs.SIMCLR)
            record.measure(labels, frameworks[framework], record, config, seconds, labels)
        columns = ("framework", "seed", "epochs", "images_per_s", *runs.SCORES)
        record.finish("SimCLR", *columns)


def train_torch(
    record: Record, config: PretrainConfig, seconds: float, labels: dict[str, Any]
) -> dict[str, Any]:
    """Train the PyTorch baseline, and evaluate its features with the same probes."""
    from benchmarks import torch_simclr

    arrays = load_arrays(config)
    on_epoch = functools.partial(record.add, **labels)
    model = torch_simclr.train(arrays["train_x"], config, seconds, on_epoch)
    speed = runs.images_per_s(record, labels)
    for split in ("train_x", "test_x"):
        arrays[split] = torch_simclr.features(model, arrays[split], config.dtype)
    file = f"{record.runs_dir}/torch-seed{config.seed}.npz"
    np.savez(file, **arrays)
    epochs = float(record.rows[-1]["epoch"])
    return {"epochs": epochs, "images_per_s": speed, **runs.accuracies(file)}


def load_arrays(config: PretrainConfig) -> dict[str, Any]:
    """Return uint8 images and labels of both splits, by the names of a features file."""
    dataset = data.load(config)
    arrays: dict[str, Any] = {}
    for split, source in (("train", dataset.train), ("test", dataset.test)):
        arrays[f"{split}_x"] = np.stack([source[i]["image"] for i in range(len(source))])
        arrays[f"{split}_y"] = np.asarray(source.labels)
    return arrays
