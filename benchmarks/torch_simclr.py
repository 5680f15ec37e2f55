"""SimCLR on small images in plain PyTorch, the baseline of `python -m benchmarks.gpu parity`.

The recipe is that of lightly's CIFAR-10 benchmark: a ResNet-18 with a 3x3 stem, a two-layer head
with batch norm, NT-Xent at temperature 0.5, and SGD with momentum 0.9, weight decay 5e-4 and a
cosine schedule. Each view passes through the network by itself.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.torch_augment import two_views
from benchmarks.torch_step import make_network
from hypersphere_jax.configs import ModelConfig


@dataclasses.dataclass(frozen=True)
class TorchConfig:
    """Options of a run; `augment` is torchvision in worker processes, or the batch at once."""

    model: Literal["resnet18", "small_alexnet", "small_cnn"] = "resnet18"
    width: float = 1.0
    dim: int = 128
    dtype: Literal["float32", "bfloat16"] = "float32"
    epochs: int = 40
    batch_size: int = 512
    peak_rate: float = 0.24
    temperature: float = 0.5
    augment: Literal["workers", "device"] = "device"
    workers: int = 15
    seed: int = 0
    seconds: float = float("inf")
    """Time limit; no epoch starts after it."""


class SimCLR(nn.Module):
    """A backbone and SimCLR's two-layer projection head; the output `[n, dim]` has unit norm."""

    def __init__(self, config: TorchConfig, image_size: int):
        super().__init__()
        network = make_network(
            ModelConfig(config.model, width=config.width, image_size=image_size, in_channels=3)
        )
        self.backbone = network[:-1]
        features = network[-1].in_features
        self.head = nn.Sequential(
            nn.Linear(features, features, bias=False),
            nn.BatchNorm1d(features),
            nn.ReLU(inplace=True),
            nn.Linear(features, config.dim, bias=False),
            nn.BatchNorm1d(config.dim),
        )
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
    images: np.ndarray, config: TorchConfig, on_epoch: Callable[[int, float, float], None]
) -> SimCLR:
    """Train an encoder on uint8 images `[n, h, w, 3]`.

    `on_epoch` receives the number of finished epochs, the mean loss and the images per second,
    augmentation included.
    """
    torch.manual_seed(config.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = SimCLR(config, images.shape[1]).to(device, memory_format=torch.channels_last)
    steps = len(images) // config.batch_size
    optimizer = torch.optim.SGD(
        model.parameters(), lr=config.peak_rate, momentum=0.9, weight_decay=5e-4
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps * config.epochs)
    batches = worker_batches if config.augment == "workers" else device_batches
    views = batches(images, config, device)
    until = time.perf_counter() + config.seconds
    for epoch in range(1, config.epochs + 1):
        started = time.perf_counter()
        if started > until:
            break
        total = torch.zeros((), device=device)
        for _ in range(steps):
            view1, view2 = next(views)
            with torch.autocast(device, torch.bfloat16, enabled=config.dtype == "bfloat16"):
                z1, z2 = model(view1), model(view2)
            loss = nt_xent(z1, z2, config.temperature)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.detach()
        mean = float(total) / steps
        on_epoch(epoch, mean, steps * config.batch_size / (time.perf_counter() - started))
    return model


def device_batches(
    images: np.ndarray, config: TorchConfig, device: str
) -> Iterator[list[torch.Tensor]]:
    """Yield both views of shuffled batches, augmented together on the device."""
    resident = torch.from_numpy(images).to(device).permute(0, 3, 1, 2)
    while True:
        order = torch.randperm(len(images), device=device)
        for step in range(len(images) // config.batch_size):
            rows = order[step * config.batch_size : (step + 1) * config.batch_size]
            views = two_views(resident[rows])
            yield [view.contiguous(memory_format=torch.channels_last) for view in views]


def worker_batches(
    images: np.ndarray, config: TorchConfig, device: str
) -> Iterator[list[torch.Tensor]]:
    """Yield both views of shuffled batches, augmented by torchvision in worker processes."""
    loader = torch.utils.data.DataLoader(
        TwoViews(images),
        config.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=config.workers,
        pin_memory=device == "cuda",
        persistent_workers=True,
        multiprocessing_context="spawn",  # JAX's threads do not survive a fork
    )
    while True:
        for views in loader:
            yield [
                view.to(device, non_blocking=True, memory_format=torch.channels_last)
                for view in views
            ]


class TwoViews(torch.utils.data.Dataset):
    """Two random views of each image, by torchvision."""

    def __init__(self, images: np.ndarray):
        from torchvision import transforms

        self.images = images
        self.transform = transforms.Compose(
            [
                transforms.ToPILImage(),
                transforms.RandomResizedCrop(images.shape[1], scale=(0.08, 1.0)),
                transforms.RandomHorizontalFlip(),
                transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
                transforms.RandomGrayscale(0.2),
                transforms.ToTensor(),
            ]
        )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.images[i]
        return self.transform(image), self.transform(image)


@torch.no_grad()
def features(model: SimCLR, images: np.ndarray, batch_size: int = 1000) -> np.ndarray:
    """Return the backbone's features `[n, d]` of uint8 images `[n, h, w, 3]`."""
    model.eval()
    device = next(model.parameters()).device
    batches = torch.from_numpy(images).split(batch_size)
    outputs = [
        model.backbone(batch.to(device).permute(0, 3, 1, 2).float() / 255) for batch in batches
    ]
    return torch.cat(outputs).cpu().numpy()
