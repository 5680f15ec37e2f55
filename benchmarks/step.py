"""Align + uniform training step of a network, next to PyTorch's and to XLA's CPU kernels."""

import functools
from typing import Any

import jax

from benchmarks import roofline
from benchmarks.timing import HAS_TORCH, Stepper, compared, random_run, show, take_turns
from hypersphere_jax.configs import PretrainConfig
from hypersphere_jax.utils import xla

OURS, XLA, TORCH = "hypersphere_jax", "hypersphere_jax with lax.conv", "PyTorch"
NOTE = """
relative: time relative to hypersphere_jax without augmentation. lax.conv: XLA's operations instead
of the kernels in models/cpu/.
""".strip()


def run(
    model: str = "small_alexnet",
    dtype: str = "float32",
    batch_size: int = 64,
    image_size: int = 32,
    recipe: str = "stl10",
    width: float = 1.0,
    rounds: int = 5,
) -> list[dict[str, Any]]:
    """Align + uniform training step: time, compared with PyTorch and with XLA's CPU kernels.

    Args:
      model: Network, e.g. small_alexnet, small_cnn, resnet18.
      dtype: Type of convolutions and linear maps, float32 or bfloat16.
      batch_size: Positive pairs in a batch.
      image_size: Side of the images, in pixels.
      recipe: Augmentation recipe; `digits` has gray images.
      width: Factor of the number of channels.
      rounds: Rounds to measure, after one that compiles.
    """
    xla.use_eigen()
    config = PretrainConfig(
        name="unused",
        model=model,
        dim=128,
        width=width,
        image_size=image_size,
        dtype=dtype,
        recipe="none",
        batch_size=batch_size,
        devices=1,
    )
    channels = 1 if recipe == "digits" else 3
    plain, batch = random_run(config, channels)
    augmented, _ = random_run(config.replace(recipe=recipe), channels)
    forms = {
        OURS: functools.partial(Stepper(plain), *batch),
        f"{OURS}, {recipe} views": functools.partial(Stepper(augmented), *batch),
    }
    if jax.default_backend() == "cpu":
        forms[XLA] = functools.partial(Stepper(plain), *batch)
        with roofline.plain_convolutions():
            jax.block_until_ready(forms[XLA]())  # traces and compiles
    if HAS_TORCH and dtype == "float32":
        from benchmarks import torch_networks

        if torch_networks.has(plain.config):
            images = plain.dataset.pretrain.images[: 2 * batch_size]
            forms[TORCH] = torch_networks.make_step(plain.config, images)
    rows = compared(take_turns(forms, rounds), OURS)
    for row in rows:
        row["images/s"] = batch_size / row["ms"] * 1e3
    show(f"{model}, {dtype}, {batch_size} pairs of {image_size} pixels", rows, NOTE)
    return rows
