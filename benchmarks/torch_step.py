"""Align + uniform training step of a network in plain PyTorch."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hypersphere_jax.configs import ModelConfig


def torch_step(config: ModelConfig, images: np.ndarray) -> Callable | None:
    """Return a float32 step on a batch of both views, which waits for its result.

    The networks are SmallAlexNet, SmallCNN, and ResNet-18 and -34 with the stem for small images.
    Return None for other networks, or if PyTorch is not installed.
    """
    small = config.model in ("resnet18", "resnet34") and config.image_size < 64
    if config.dtype != "float32" or not (small or config.model in ("small_alexnet", "small_cnn")):
        return None
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed: its step is left out")
        return None
    from torch.nn import functional

    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = make_network(config, images.shape[-1]).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
    batch = torch.from_numpy(images).permute(0, 3, 1, 2).float().to(device) / 255

    def uniform(x):
        return torch.pdist(x).pow(2).mul(-2).exp().mean().log()

    def run():
        x, y = functional.normalize(network(batch)).chunk(2)
        loss = (x - y).norm(dim=1).pow(2).mean() + (uniform(x) + uniform(y)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()

    return run


def make_network(config: ModelConfig, channels: int = 3) -> Any:
    """Return the network as a `Sequential` that ends with the linear map to the output."""
    from torch import nn

    def width(channels):
        return max(1, round(channels * config.width))

    def conv(inputs, outputs, *after, side=3, stride=1):
        layer = nn.Conv2d(inputs, outputs, side, stride, side // 2, bias=False)
        return nn.Sequential(layer, nn.BatchNorm2d(outputs), *after)

    def relu():
        return nn.ReLU(inplace=True)

    def dense(inputs, outputs):
        return nn.Sequential(
            nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs), relu()
        )

    class Block(nn.Module):
        def __init__(self, inputs, outputs, stride):
            super().__init__()
            first = conv(inputs, outputs, relu(), stride=stride)
            self.inner = nn.Sequential(first, conv(outputs, outputs))
            same = stride == 1 and inputs == outputs
            self.outer = nn.Identity() if same else conv(inputs, outputs, side=1, stride=stride)

        def forward(self, x):
            return nn.functional.relu(self.inner(x) + self.outer(x), inplace=True)

    side = config.image_size
    if config.model == "small_alexnet":
        for _ in range(3):
            side = (side - 1) // 2
        c1, c2, c3, c4, c5, hidden = map(width, (96, 192, 384, 384, 192, 4096))
        return nn.Sequential(
            conv(channels, c1, relu(), nn.MaxPool2d(3, 2)),
            conv(c1, c2, relu(), nn.MaxPool2d(3, 2)),
            conv(c2, c3, relu()),
            conv(c3, c4, relu()),
            conv(c4, c5, relu(), nn.MaxPool2d(3, 2)),
            nn.Flatten(),
            dense(c5 * side * side, hidden),
            dense(hidden, hidden),
            nn.Linear(hidden, config.dim),
        )
    if config.model == "small_cnn":
        side, (c1, c2, c3) = -(-side // 4), map(width, (32, 64, 128))
        return nn.Sequential(
            conv(channels, c1, nn.GELU()),
            conv(c1, c2, nn.GELU(), stride=2),
            conv(c2, c3, nn.GELU(), stride=2),
            nn.Flatten(),
            nn.Linear(c3 * side * side, config.dim),
        )
    inputs = width(64)
    layers = [conv(channels, inputs, relu())]
    depths = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}[config.model]
    for stage, depth in enumerate(depths):
        outputs = width(64 * 2**stage)
        for number in range(depth):
            layers.append(Block(inputs, outputs, 2 if stage and number == 0 else 1))
            inputs = outputs
    pool = nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(*layers, pool, nn.Flatten(), nn.Linear(inputs, config.dim))
