"""Align + uniform training step of a network, next to PyTorch's and to XLA's CPU kernels."""

from typing import Any

import jax

from benchmarks import roofline
from benchmarks.options import StepOptions
from benchmarks.timing import Stepper, compared, show, take_turns, training_step
from benchmarks.torch_step import torch_step
from hypersphere_jax.configs import PretrainConfig
from hypersphere_jax.utils import xla

OURS, XLA, TORCH = "hypersphere_jax", "hypersphere_jax with lax.conv", "PyTorch"
NOTE = """
relative: time relative to hypersphere_jax without augmentation. lax.conv: XLA's operations instead
of the kernels in models/cpu/.
""".strip()


def run(options: StepOptions) -> list[dict[str, Any]]:
    """Time the step with and without augmentation, and the alternatives without."""
    xla.use_eigen()
    config = PretrainConfig(
        name="unused",
        model=options.model,
        dim=128,
        width=options.width,
        image_size=options.image_size,
        dtype=options.dtype,
        recipe="none",
        batch_size=options.batch_size,
        devices=1,
    )
    channels = 1 if options.recipe == "digits" else 3
    plain = training_step(config, channels)
    augmented = training_step(config.replace(recipe=options.recipe), channels)
    forms = {OURS: Stepper(*plain), f"{OURS}, {options.recipe} views": Stepper(*augmented)}
    if jax.default_backend() == "cpu":
        # Another function, since JAX caches traces by function.
        forms[XLA] = Stepper(*training_step(config, channels))
        with roofline.plain_convolutions():
            jax.block_until_ready(forms[XLA]())  # traces and compiles
    _, _, (images, *_) = plain
    theirs = torch_step(config, images[: 2 * config.batch_size])
    if theirs is not None:
        forms[TORCH] = theirs
    rows = compared(take_turns(forms, options.rounds), OURS)
    for row in rows:
        row["images/s"] = config.batch_size / row["ms"] * 1e3
    title = f"{options.model}, {options.dtype}, {config.batch_size} pairs"
    show(f"{title} of {options.image_size} pixels", rows, NOTE)
    return rows
