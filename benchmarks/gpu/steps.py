"""The check `resnet50`: training steps at 224 pixels, and hours of 200 epochs of ImageNet."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import roofline
from benchmarks.gpu.record import Record
from benchmarks.timing import Stepper, pace
from hypersphere_jax import data
from hypersphere_jax.configs import PretrainConfig
from hypersphere_jax.training import distributed
from hypersphere_jax.training.setup import initial_state, set_up
from hypersphere_jax.training.step import make_step_of, scalars_of

IMAGENET_IMAGES, EPOCHS, CARDS = 1_281_167, 200, 8
MOCO: dict[str, Any] = {
    "head": "moco_v2",
    "contrastive_weight": 1.0,
    "align_weight": 0.0,
    "uniform_weight": 0.0,
    "contrastive_tau": 0.2,
}
SIMCLR: dict[str, Any] = {
    "head": "simclr2",
    "loss": "nt_xent",
    "loss_tau": 0.1,
}


def resnet50(
    batch_size: int = 256, minutes: float = 3, out: Path = Path("runs/gpu"), toy: bool = False
) -> None:
    """Time training steps of ResNet-50 on synthetic images of 224 pixels, in bfloat16.

    Args:
        batch_size: positive pairs in a batch.
        minutes: time limit; a method that has no time left is left out.
        out: folder of the results.
        toy: run a small network on images of 8 pixels, in float32.
    """
    size: dict[str, Any] = {"model": "resnet50", "dtype": "bfloat16", "image_size": 224}
    recipes = {"SimCLR": "simclr_imagenet", "MoCo v2": "moco_v2"}
    queue = 65_536
    if toy:
        size = {"model": "small_cnn", "width": 0.2, "image_size": 8}
        recipes = dict.fromkeys(recipes, "simclr_cifar_torchvision")
        queue, batch_size = 64, 8
    record = Record("resnet50", out, minutes, batch_size=batch_size)
    shape = (64, 1) if toy else roofline.sizes()
    peaks = roofline.measure(*shape, products=("bfloat16", "tf32", "float32"))
    for method, options in {"SimCLR": SIMCLR, "MoCo v2": MOCO | {"queue_size": queue}}.items():
        if record.seconds_left < 80 and not toy:
            record.add(method=method, skipped="no time left")
            continue
        config = PretrainConfig(
            name="unused",
            runs_dir=record.runs_dir,
            dim=128,
            batch_size=batch_size,
            devices=1,
            recipe=recipes[method],
            **size,
            **options,
        )
        record.add(method=method, batch_size=batch_size, **measure(config, peaks))
    columns = ("method", "batch_size", "ms", "images_per_s", "share", "compile_s", "imagenet_hours")
    record.finish("Training steps", columns)


def measure(config: PretrainConfig, peaks: roofline.Peaks) -> dict[str, Any]:
    """Return time, images/s and share of the peak of a step, augmentation included."""
    parts = make_step(config)
    flops = roofline.step_flops(*parts)
    step = Stepper(*parts)
    started = time.perf_counter()
    jax.block_until_ready(step())
    compile_s = time.perf_counter() - started
    seconds = pace(step).in_flight
    images_per_s = config.batch_size / seconds
    hours = IMAGENET_IMAGES * EPOCHS / images_per_s / CARDS / 3600
    return {
        "ms": round(1e3 * seconds, 2),
        "images_per_s": round(images_per_s),
        "share": round(flops / peaks.of_dtype(config.dtype) / seconds, 3),
        "compile_s": round(compile_s, 1),
        "imagenet_hours": round(hours, 1),
    }


def make_step(config: PretrainConfig) -> tuple[Callable, Any, tuple]:
    """Return the training step of a config, its state, and its further arguments."""
    side, n = config.image_size, 4 * config.batch_size
    images = np.random.default_rng(0).integers(0, 256, (n, side, side, 3), dtype=np.uint8)
    source = data.Arrays(images, np.zeros(n, np.int32), ("any",), "random images")
    dataset = data.Dataset(source, source, source, config.recipe)
    setup = set_up(config, lambda _: dataset)
    apply, state, key = initial_state(setup)
    step = make_step_of(setup.config, apply, setup.total_steps, axis_name=distributed.AXIS)
    fixed = images, source.labels, setup.sampler(0), key, scalars_of(setup.config)
    return step, state, fixed
