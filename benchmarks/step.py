"""Align + uniform training step of a network, next to PyTorch's and to XLA's CPU kernels."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks import roofline
from benchmarks.options import StepOptions
from benchmarks.timing import Stepper, compared, pace, show, take_turns
from benchmarks.torch_step import torch_step
from hypersphere_jax import augment, models
from hypersphere_jax.configs import ModelConfig, ObjectiveConfig, OptimizerConfig
from hypersphere_jax.training import distributed
from hypersphere_jax.training.optimizers import make_optimizer, make_schedule
from hypersphere_jax.training.step import init_state, make_objective, make_step
from hypersphere_jax.utils import xla

OURS, XLA, TORCH = "hypersphere_jax", "hypersphere_jax with lax.conv", "PyTorch"
NOTE = """
relative: time relative to hypersphere_jax without augmentation. lax.conv: XLA's operations instead
of the kernels in models/cpu/. in flight: a step with others queued, as in training. host: until the
call of a step returns. % of peak: share of the speed of a matrix product.
""".strip()


def run(options: StepOptions) -> list[dict[str, Any]]:
    """Time the step with and without augmentation, and the alternatives without."""
    xla.use_eigen()
    config = ModelConfig(
        options.model,
        dim=128,
        width=options.width,
        image_size=options.image_size,
        in_channels=1 if options.recipe == "digits" else 3,
        dtype=options.dtype,
    )
    batch_size = options.batch_size
    shape = (2 * batch_size, config.image_size, config.image_size, config.in_channels)
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    steppers = {
        OURS: make_stepper(config, images, "none"),
        f"{OURS}, {options.recipe} views": make_stepper(config, images, options.recipe),
    }
    if jax.default_backend() == "cpu":
        steppers[XLA] = make_stepper(config, images, "none")
        with roofline.plain_convolutions():
            jax.block_until_ready(steppers[XLA]())  # traces and compiles
    forms = {name: functools.partial(_wait, stepper) for name, stepper in steppers.items()}
    theirs = torch_step(config, images, batch_size)
    if theirs is not None:
        forms[TORCH] = theirs
    rows = compared(take_turns(forms, options.rounds), OURS)
    for row in rows:
        row["images/s"] = batch_size / row["ms"] * 1e3
    title = f"{options.model}, {options.dtype}, {batch_size} pairs of {options.image_size} pixels"
    show(title, rows)
    show(title, [measure(config, images, steppers[OURS])], NOTE)
    return rows


def _wait(stepper: Stepper) -> None:
    jax.block_until_ready(stepper())


def make_stepper(config: ModelConfig, images: np.ndarray, recipe: str) -> Stepper:
    """Return the training step on the first half of the images."""
    return Stepper(*make_parts(config, images, recipe))


def make_parts(config: ModelConfig, images: np.ndarray, recipe: str) -> tuple[Callable, Any, tuple]:
    """Return the function of a training step, its state, and its further arguments."""
    apply, params, stats = models.create(config, jax.random.key(0))
    optimizer = make_optimizer(OptimizerConfig(), make_schedule(OptimizerConfig(), 1000))
    transform = augment.make_augment(recipe, config.image_size)
    objective = make_objective(ObjectiveConfig())
    step = make_step(apply, objective, optimizer, transform, axis_name=distributed.AXIS)
    labels = np.zeros(len(images), np.int32)
    indices = np.arange(len(images) // 2, dtype=np.int32)
    batch = (images, labels, indices, jax.random.key(0))
    return step, init_state(params, stats, optimizer), batch


def measure(config: ModelConfig, images: np.ndarray, stepper: Stepper) -> dict[str, float]:
    """Return the pace of a step, and its share of the device's peak."""
    peaks = roofline.measure(*roofline.sizes(), products=("bfloat16", "tf32", "float32"))
    flops = roofline.step_flops(*make_parts(config, images, "none"))
    peak = peaks.of_dtype(config.dtype)
    seconds = pace(stepper)
    return {
        "in flight ms": 1e3 * seconds.in_flight,
        "host ms": 1e3 * seconds.host,
        "GFLOP": flops / 1e9,
        "% of peak": 100 * flops / peak / seconds.in_flight,
        "product GFLOP/s": peak / 1e9,
        "copy GB/s": peaks.bytes_s / 1e9,
    }
