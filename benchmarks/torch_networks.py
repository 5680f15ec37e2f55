"""Networks of this package in plain PyTorch, and an align + uniform training step of them."""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.loss_forms import torch_uniform
from hypersphere_jax.configs import PretrainConfig


def has(config: PretrainConfig) -> bool:
    """Return whether `make_network` has the network of a config."""
    small_resnet = config.model == "resnet18" and config.image_size < 64
    return small_resnet or config.model in ("small_alexnet", "small_cnn")


def make_step(config: PretrainConfig, images: np.ndarray) -> Callable[[], float]:
    """Return a float32 step on a batch of both views `[2n, h, w, c]`; it waits for its loss."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = make_network(config, images.shape[-1]).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
    batch = torch.from_numpy(images).permute(0, 3, 1, 2).float().to(device) / 255

    def step():
        x, y = functional.normalize(network(batch)).chunk(2)
        align = (x - y).norm(dim=1).pow(2).mean()
        loss = align + (torch_uniform(torch, x) + torch_uniform(torch, y)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def make_network(config: PretrainConfig, channels: int = 3) -> nn.Sequential:
    """Return SmallAlexNet, SmallCNN, or ResNet-18 with the stem for small images.

    The last layer is the linear map to the output.
    """

    def width(channels):
        return max(1, round(channels * config.width))

    side = config.image_size
    if config.model == "small_alexnet":
        for _ in range(3):
            side = (side - 1) // 2
        c1, c2, c3, c4, c5, hidden = map(width, (96, 192, 384, 384, 192, 4096))
        return nn.Sequential(
            conv(channels, c1, nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
            conv(c1, c2, nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
            conv(c2, c3, nn.ReLU(inplace=True)),
            conv(c3, c4, nn.ReLU(inplace=True)),
            conv(c4, c5, nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
            nn.Flatten(),
            dense(c5 * side * side, hidden),
            dense(hidden, hidden),
            nn.Linear(hidden, config.dim),
        )
    if config.model == "small_cnn":
        side = -(-side // 4)
        c1, c2, c3 = map(width, (32, 64, 128))
        return nn.Sequential(
            conv(channels, c1, nn.GELU()),
            conv(c1, c2, nn.GELU(), stride=2),
            conv(c2, c3, nn.GELU(), stride=2),
            nn.Flatten(),
            nn.Linear(c3 * side * side, config.dim),
        )
    inputs = width(64)
    layers = [conv(channels, inputs, nn.ReLU(inplace=True))]
    for stage in range(4):
        outputs = width(64 * 2**stage)
        layers += [Block(inputs, outputs, stride=2 if stage else 1), Block(outputs, outputs)]
        inputs = outputs
    pool = nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(*layers, pool, nn.Flatten(), nn.Linear(inputs, config.dim))


def conv(inputs: int, outputs: int, *after: nn.Module, side: int = 3, stride: int = 1) -> nn.Module:
    """Return a convolution and batch norm, and the layers after them."""
    layer = nn.Conv2d(inputs, outputs, side, stride, side // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), *after)


def dense(inputs: int, outputs: int) -> nn.Module:
    """Return a hidden layer of SmallAlexNet."""
    layer = nn.Linear(inputs, outputs, bias=False)
    return nn.Sequential(layer, nn.BatchNorm1d(outputs), nn.ReLU(inplace=True))


class Block(nn.Module):
    """Residual block of ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1):
        super().__init__()
        first = conv(inputs, outputs, nn.ReLU(inplace=True), stride=stride)
        self.inner = nn.Sequential(first, conv(outputs, outputs))
        self.outer: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.outer = conv(inputs, outputs, side=1, stride=stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.inner(x) + self.outer(x), inplace=True)
