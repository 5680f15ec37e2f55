"""SimCLR on small images in plain PyTorch, the baseline of `python -m benchmarks.gpu parity`.

It follows lightly's CIFAR-10 benchmark: a ResNet-18 with a 3x3 stem, a two-layer head with batch
norm, NT-Xent at temperature 0.5, SGD with momentum 0.9, weight decay 5e-4 and a cosine schedule.
These choices are those of hypersphere_jax instead, so that both sides train with the same recipe:
a ReLU after the stem, torchvision's initialization of ResNets, no normalization of the pixels, a
cosine by steps, and both views in one forward pass, so that they share batch statistics. The last
batch norm has a bias here and none there.
"""

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.torch_augment import augment
from benchmarks.torch_networks import make_network
from hypersphere_jax.configs import PretrainConfig


class SimCLR(nn.Module):
    """A backbone and SimCLR's two-layer projection head; the output `[n, dim]` has unit norm."""

    def __init__(self, config: PretrainConfig):
        super().__init__()
        network = make_network(config)
        self.backbone = network[:-1]
        features = network[-1].in_features
        self.head = nn.Sequential(
            nn.Linear(features, features, bias=False),
            nn.BatchNorm1d(features),
            nn.ReLU(inplace=True),
            nn.Linear(features, config.dim, bias=False),
            nn.BatchNorm1d(config.dim),
        )
        if config.model == "resnet18":
            for module in self.backbone.modules():
                if isinstance(module, nn.Conv2d):  # as in torchvision's ResNets
                    nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return functional.normalize(self.head(self.backbone(images)).float())


def nt_xent(z1: torch.Tensor, z2: torch.Tensor, temperature: float) -> torch.Tensor:
    """NT-Xent (Chen et al. 2020) of unit vectors `[n, d]`."""
    z = torch.cat([z1, z2])
    logits = z @ z.T / temperature
    logits.fill_diagonal_(-torch.inf)
    positives = torch.arange(len(z), device=z.device).roll(len(z1))
    return functional.cross_entropy(logits, positives)


def train(
    images: np.ndarray, config: PretrainConfig, seconds: float, on_epoch: Callable[..., None]
) -> SimCLR:
    """Train an encoder on uint8 images `[n, h, w, 3]`, which stay on the device.

    No epoch starts after the time limit. `on_epoch` receives the number of finished epochs, the
    mean loss of every `log_every_steps`-th step, and the images per second, augmentation included.
    """
    torch.manual_seed(config.seed)
    config = config.replace(image_size=images.shape[1])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    model = SimCLR(config).to(device, memory_format=torch.channels_last)
    steps = len(images) // config.batch_size
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=config.learning_rate * config.batch_size / 256,
        momentum=0.9,
        weight_decay=config.weight_decay,
        fused=True,
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps * config.epochs)
    resident = torch.from_numpy(images).to(device).permute(0, 3, 1, 2)
    until = time.perf_counter() + seconds
    for epoch in range(config.epochs):
        started = time.perf_counter()
        if started > until:
            break
        order = torch.randperm(len(images), device=device)
        logged = []
        for step in range(steps):
            rows = order[step * config.batch_size : (step + 1) * config.batch_size]
            pixels = resident[rows].float() / 255
            views = torch.cat([augment(pixels), augment(pixels)])
            views = views.contiguous(memory_format=torch.channels_last)
            with torch.autocast(device, torch.bfloat16, enabled=config.dtype == "bfloat16"):
                z1, z2 = model(views).chunk(2)
            loss = nt_xent(z1, z2, config.loss_tau)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if (epoch * steps + step + 1) % config.log_every_steps == 0:
                logged.append(loss.detach())
        mean = float(torch.stack(logged).mean())
        speed = steps * config.batch_size / (time.perf_counter() - started)
        on_epoch(epoch=epoch + 1, loss=round(mean, 4), epoch_images_per_s=round(speed))
    return model


@torch.no_grad()
def features(model: SimCLR, images: np.ndarray, dtype: str) -> np.ndarray:
    """Return the backbone's features `[n, d]` of uint8 images `[n, h, w, 3]`, in evaluation."""
    model.eval()
    device = next(model.parameters()).device
    outputs = []
    with torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
        for batch in torch.from_numpy(images).split(1000):
            pixels = batch.to(device).permute(0, 3, 1, 2).float() / 255
            outputs.append(model.backbone(pixels).float())
    return torch.cat(outputs).cpu().numpy()
