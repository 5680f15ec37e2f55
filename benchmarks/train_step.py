"""Speed of a whole training step, its parts, and PyTorch's plain step where torch is installed."""

import functools
from collections.abc import Callable

import jax
import numpy as np

from benchmarks.timing import device_kind, rows_of, stepping, take_turns
from hypersphere_jax import augment, models
from hypersphere_jax.config import ModelConfig, ObjectiveConfig, OptimizerConfig
from hypersphere_jax.tables import print_table
from hypersphere_jax.training import sharding
from hypersphere_jax.training.optimizers import make_optimizer, make_schedule
from hypersphere_jax.training.step import init_state, make_objective, make_step

BARE = "step, no augmentation"


def step(batch_size: int = 64, image_size: int = 32, width: float = 1.0, rounds: int = 5) -> None:
    """Time the align+uniform step of SmallAlexNet (one device), part by part.

    All forms take turns in every round; the ratios are medians over the rounds. Images are random:
    their values do not matter to speed.

    Args:
        batch_size: Positive pairs in a step.
        image_size: Side of the images, pixels.
        width: Factor on all channel counts.
        rounds: Rounds that count, after one that compiles.
    """
    images = np.random.default_rng(0).integers(
        0, 256, (4 * batch_size, image_size, image_size, 3), dtype=np.uint8
    )
    config = ModelConfig("small_alexnet", dim=128, width=width, image_size=image_size, channels=3)
    views = jax.jit(functools.partial(augment.two_views, augment.make_augment("stl10", image_size)))
    batch = jax.device_put((jax.random.key(0), images[:batch_size], np.arange(batch_size)))
    forms = {
        "step, stl10 recipe": _our_step(config, images, batch_size, "stl10"),
        BARE: _our_step(config, images, batch_size, "none"),
        "augmentation alone": lambda: jax.block_until_ready(views(*batch)),
        **_torch_step(config, images, batch_size),
    }
    rows = rows_of(take_turns(forms, rounds), batch_size, BARE)
    title = f"SmallAlexNet, {batch_size} pairs of {image_size} pixels, {device_kind()}"
    print_table(["form", "ms", "pairs/s", "of the bare step"], rows, title=title)


def _our_step(config: ModelConfig, images: np.ndarray, batch_size: int, recipe: str) -> Callable:
    apply, params, stats = models.create(config, jax.random.key(0))
    optimizer = make_optimizer(OptimizerConfig(), make_schedule(OptimizerConfig(), 1000))
    transform = augment.make_augment(recipe, config.image_size)
    objective = make_objective(ObjectiveConfig())
    step = make_step(apply, objective, optimizer, transform, axis_name=sharding.AXIS)
    labels, indices = np.zeros(len(images), np.int32), np.arange(batch_size, dtype=np.int32)
    fixed = images, labels, indices, jax.random.key(0)
    return stepping(step, init_state(params, stats, optimizer), fixed)


def _torch_step(config: ModelConfig, images: np.ndarray, batch_size: int) -> dict[str, Callable]:
    """The same network, loss and optimizer in PyTorch as its users write them, where it is."""
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed: its step is left out")
        return {}
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    c1, c2, c3, c4, c5, hidden = (round(c * config.width) for c in (96, 192, 384, 384, 192, 4096))

    def conv(inputs, outputs, *pool):
        layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True), *pool)

    def dense(inputs):
        layer = nn.Linear(inputs, hidden, bias=False)
        return nn.Sequential(layer, nn.BatchNorm1d(hidden), nn.ReLU(inplace=True))

    side = config.image_size
    for _ in range(3):
        side = (side - 1) // 2
    network = nn.Sequential(
        *(conv(3, c1, nn.MaxPool2d(3, 2)), conv(c1, c2, nn.MaxPool2d(3, 2)), conv(c2, c3)),
        *(conv(c3, c4), conv(c4, c5, nn.MaxPool2d(3, 2)), nn.Flatten()),
        *(dense(c5 * side * side), dense(hidden), nn.Linear(hidden, config.dim)),
    ).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
    batch = torch.from_numpy(images[: 2 * batch_size]).permute(0, 3, 1, 2).float().to(device) / 255

    def uniform(x):
        return torch.pdist(x).pow(2).mul(-2).exp().mean().log()

    def run():
        x, y = nn.functional.normalize(network(batch)).chunk(2)
        loss = (x - y).norm(dim=1).pow(2).mean() + (uniform(x) + uniform(y)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()

    return {"PyTorch step, no augmentation": run}
