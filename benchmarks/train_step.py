"""Speed of a whole training step, beside its roofline, its parts, and PyTorch's plain step."""

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from benchmarks import roofline
from benchmarks.timing import Stepper, device_kind, pace, rows_of, take_turns
from benchmarks.torch_step import torch_step
from hypersphere_jax import augment, models
from hypersphere_jax.configs import ModelConfig, ObjectiveConfig, OptimizerConfig, require
from hypersphere_jax.reporting.tables import print_table
from hypersphere_jax.training import distributed
from hypersphere_jax.training.optimizers import make_optimizer, make_schedule
from hypersphere_jax.training.step import init_state, make_objective, make_step

BARE, TORCH = "step, no augmentation", "PyTorch step, no augmentation"
NOTE = """
images/s: of the data set; of each, two views are computed.
alone: a step that is waited for; the steps before are many in flight, as in training: the device's
time, or the host's where that is longer. host: until a step has begun.
roofline: the FLOP at the measured speed of a matrix product of that type, or the bytes at that of a
copy, whichever takes longer; % of peak: of that product's speed.
""".strip()
# Columns of a step: its record's key, and how the table says it.
COLUMNS = {
    "ms": "ms",
    "images_s": "images/s",
    "alone_ms": "alone ms",
    "host_ms": "host ms",
    "gflop": "GFLOP",
    "gbytes": "GB",
    "share": "% of peak",
    "roofline_ms": "roofline ms",
}


def step(
    model: str, dtype: str, batch_size: int, image_size: int, recipe: str, width: float, rounds: int
) -> None:
    """Time the align+uniform step of a network (one device), part by part, beside its roofline."""
    require(recipe in augment.RECIPES, f"--recipe {recipe}: one of {', '.join(augment.RECIPES)}")
    require(batch_size >= 2 and rounds >= 1, "--batch-size must be at least 2, --rounds 1")
    channels = 1 if recipe == "digits" else 3
    of = {"image_size": image_size, "in_channels": channels, "dtype": dtype}
    config = ModelConfig(model, dim=128, width=width, **of)  # type: ignore[arg-type]
    images = images_of(config, batch_size)
    views = jax.jit(functools.partial(augment.two_views, augment.make_augment(recipe, image_size)))
    batch = jax.device_put((jax.random.key(0), images[:batch_size], np.arange(batch_size)))
    ours = stepper(config, images, batch_size, recipe)
    forms = {
        f"step, {recipe} recipe": ours,
        BARE: stepper(config, images, batch_size, "none"),
        "augmentation alone": lambda: views(*batch),
    }
    forms = {form: functools.partial(_waited, begin) for form, begin in forms.items()}
    if theirs := torch_step(config, images, batch_size):
        forms[TORCH] = theirs
    rows = rows_of(take_turns(forms, rounds), batch_size, BARE)
    title = f"{model}, {dtype}, {batch_size} pairs of {image_size} pixels, {device_kind()}"
    print_table(["form", "ms", "images/s", "of the bare step"], rows, title=title)
    peaks = roofline.measure(*roofline.sizes())
    flops = flops_of(config, images, batch_size, recipe)
    record = measured(ours, dtype, batch_size, flops, peaks, rounds)
    print()
    print_table(list(COLUMNS.values()), [list(map(record.get, COLUMNS))], f"step, {recipe} recipe")
    print(NOTE)


def _waited(begin: Callable[[], Any]) -> None:
    jax.block_until_ready(begin())


def flops_of(config: ModelConfig, images: np.ndarray, batch_size: int, recipe: str) -> float:
    """FLOP of a step by XLA's count before compiling, which hides arithmetic in libraries."""
    with roofline.plain_convolutions():
        lowered = stepper(config, images, batch_size, recipe).lower()
    return lowered.cost_analysis()["flops"]


def measured(
    begin: Stepper,
    dtype: str,
    batch_size: int,
    flops: float,
    peaks: roofline.Peaks,
    rounds: int = 3,
) -> dict[str, float]:
    """What a step takes, and what it would at the roofline; `compile_s` if it is compiled here."""
    began = time.perf_counter()
    compiled = begin.compile()
    compile_s = time.perf_counter() - began
    nbytes, speed = roofline.moved(compiled), peaks.of_dtype(dtype)
    took = pace(begin, rounds)
    return {
        "ms": 1e3 * took.in_flight,
        "images_s": batch_size / took.in_flight,
        "alone_ms": 1e3 * took.alone,
        "host_ms": 1e3 * took.host,
        "gflop": flops / 1e9,
        "gbytes": nbytes / 1e9,
        "share": 100 * flops / speed / took.in_flight,
        "roofline_ms": 1e3 * peaks.seconds(flops, nbytes, speed),
        "temporary_mb": compiled.memory_analysis().temp_size_in_bytes / 1e6,
        "compile_s": compile_s,
    }


def record_of(
    settings: Mapping[str, Any], batch_size: int, recipe: str, peaks: roofline.Peaks
) -> dict[str, Any]:
    """`measured` of the step of the network with these settings, see `ModelConfig`."""
    config = ModelConfig(dim=128, in_channels=3, **settings)
    images = images_of(config, batch_size)
    begin = stepper(config, images, batch_size, recipe)
    flops = flops_of(config, images, batch_size, recipe)
    named = {"model": config.model, "dtype": config.dtype, "image_size": config.image_size}
    named |= {"batch_size": batch_size, "recipe": recipe}
    return named | measured(begin, config.dtype, batch_size, flops, peaks)


def images_of(config: ModelConfig, batch_size: int) -> np.ndarray:
    shape = 4 * batch_size, config.image_size, config.image_size, config.in_channels
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def stepper(config: ModelConfig, images: np.ndarray, batch_size: int, recipe: str) -> Stepper:
    """The step of a network on the first of these images."""
    apply, params, stats = models.create(config, jax.random.key(0))
    optimizer = make_optimizer(OptimizerConfig(), make_schedule(OptimizerConfig(), 1000))
    transform = augment.make_augment(recipe, config.image_size)
    objective = make_objective(ObjectiveConfig())
    step = make_step(apply, objective, optimizer, transform, axis_name=distributed.AXIS)
    labels, indices = np.zeros(len(images), np.int32), np.arange(batch_size, dtype=np.int32)
    fixed = images, labels, indices, jax.random.key(0)
    return Stepper(step, init_state(params, stats, optimizer), fixed)
