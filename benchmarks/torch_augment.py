"""SimCLR's augmentation of a batch in PyTorch: torchvision's operations for all images at once.

Each image has its own random crop, flip, color jitter and grayscale, with the ranges of the recipe
`simclr_cifar_torchvision`. The order of the jitter's four operations is drawn once for a batch.
"""

import math

import torch
from torch.nn import functional

LUMA = (0.2989, 0.587, 0.114)  # as in torchvision
CROP_TRIES = 10


def augment(images: torch.Tensor) -> torch.Tensor:
    """Return one random view of each square image `[n, 3, s, s]` with values from 0 to 1."""
    images = random_resized_crop(images)
    images = torch.where(_chance(images, 0.5), images.flip(3), images)
    images = torch.where(_chance(images, 0.8), color_jitter(images), images)
    return torch.where(_chance(images, 0.2), grayscale(images), images)


def random_resized_crop(images: torch.Tensor) -> torch.Tensor:
    """Crop a random rectangle of each image and resize it bilinearly to the image's size.

    It has 8 to 100% of the area, and an aspect ratio from 3/4 to 4/3.
    """
    n, _, _, side = images.shape
    area = side**2 * _uniform(images, 0.08, 1, CROP_TRIES)
    aspect = _uniform(images, math.log(3 / 4), math.log(4 / 3), CROP_TRIES).exp()
    sizes = torch.stack([area * aspect, area / aspect]).sqrt().round()  # width, height
    # The first try that fits; the whole image if none does.
    fits = ((sizes >= 1) & (sizes <= side)).all(0)
    first = fits.int().argmax(1, keepdim=True)
    size = sizes.gather(2, first.expand(2, n, 1))
    size = torch.where(fits.gather(1, first), size, side)
    start = (torch.rand_like(size) * (side - size + 1)).floor()
    centers = (torch.arange(side, device=images.device) + 0.5) / side
    # Positions between the first and the last pixel of the crop, from -1 to 1 over the image.
    positions = (start + size * centers - 0.5).clamp(start, start + size - 1)
    x, y = (2 * positions + 1) / side - 1
    grid = [x[:, None, :].expand(n, side, side), y[:, :, None].expand(n, side, side)]
    return functional.grid_sample(images, torch.stack(grid, dim=3), align_corners=False)


def color_jitter(images: torch.Tensor) -> torch.Tensor:
    """Change brightness, contrast, saturation and hue, in random order, differently per image."""
    for operation in torch.randperm(4).tolist():
        if operation == 0:
            images = _blend(images, torch.zeros_like(images))
        elif operation == 1:
            images = _blend(images, grayscale(images).mean(dim=(1, 2, 3), keepdim=True))
        elif operation == 2:
            images = _blend(images, grayscale(images))
        else:
            images = shift_hue(images, _uniform(images, -0.1, 0.1)[:, :, None])
    return images


def grayscale(images: torch.Tensor) -> torch.Tensor:
    """Return the luma in all three channels."""
    red, green, blue = images.unbind(1)
    luma = LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue
    return luma[:, None].expand_as(images)


def shift_hue(images: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Add `shift` `[n, 1, 1]`, in turns, to the hue of RGB images."""
    red, green, blue = images.unbind(1)
    value = images.amax(1)
    chroma = value - images.amin(1)
    safe = torch.where(chroma == 0, 1, chroma)
    hue = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    hue = (hue / 6 + shift) % 1
    # HSV to RGB: channel = value - chroma * clamp(min(k, 4 - k), 0, 1), k = (offset + 6 hue) mod 6.
    channels = []
    for offset in (5, 3, 1):
        k = (offset + 6 * hue) % 6
        channels.append(value - chroma * torch.minimum(k, 4 - k).clamp(0, 1))
    return torch.stack(channels, dim=1)


def _blend(images: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    factor = _uniform(images, 0.6, 1.4)[:, :, None, None]
    return (factor * images + (1 - factor) * other).clamp(0, 1)


def _uniform(images: torch.Tensor, low: float, high: float, count: int = 1) -> torch.Tensor:
    return low + (high - low) * torch.rand(len(images), count, device=images.device)


def _chance(images: torch.Tensor, p: float) -> torch.Tensor:
    return torch.rand(len(images), 1, 1, 1, device=images.device) < p
