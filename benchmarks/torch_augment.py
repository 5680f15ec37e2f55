"""SimCLR's augmentation of a batch in PyTorch: torchvision's operations for all images at once.

Each image has its own random crop, flip, color jitter and grayscale, with the ranges of the recipe
`simclr_cifar_torchvision`. The order of the jitter's four operations is drawn once for a batch.
"""

import math

import torch
from torch.nn import functional

LUMA = (0.2989, 0.587, 0.114)  # as in torchvision
CROP_TRIES = 10


def two_views(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two random views, floats from 0 to 1, of uint8 images `[n, 3, h, w]`."""
    images = images.float() / 255
    return augment(images), augment(images)


def augment(images: torch.Tensor) -> torch.Tensor:
    """Return one random view of each image `[n, 3, h, w]` with values from 0 to 1."""
    images = random_resized_crop(images)
    images = torch.where(_chance(images, 0.5), images.flip(3), images)
    images = torch.where(_chance(images, 0.8), color_jitter(images), images)
    return torch.where(_chance(images, 0.2), grayscale(images), images)


def random_resized_crop(
    images: torch.Tensor, scale: tuple = (0.08, 1.0), ratio: tuple = (3 / 4, 4 / 3)
) -> torch.Tensor:
    """Crop a random rectangle of each image and resize it bilinearly to the image's size."""
    n, _, height, width = images.shape
    area = height * width * _uniform(images, n, CROP_TRIES, *scale)
    aspect = _uniform(images, n, CROP_TRIES, *map(math.log, ratio)).exp()
    crop_w = (area * aspect).sqrt().round()
    crop_h = (area / aspect).sqrt().round()
    # The first try that fits; the whole image if none does.
    fits = (crop_w >= 1) & (crop_w <= width) & (crop_h >= 1) & (crop_h <= height)
    first = fits.int().argmax(1, keepdim=True)
    found = fits.gather(1, first)
    crop_w = torch.where(found, crop_w.gather(1, first), width)
    crop_h = torch.where(found, crop_h.gather(1, first), height)
    left = (torch.rand_like(crop_w) * (width - crop_w + 1)).floor()
    top = (torch.rand_like(crop_h) * (height - crop_h + 1)).floor()
    columns = _source_positions(left, crop_w, width)[:, None, :].expand(n, height, width)
    rows = _source_positions(top, crop_h, height)[:, :, None].expand(n, height, width)
    grid = torch.stack([(2 * columns + 1) / width - 1, (2 * rows + 1) / height - 1], dim=3)
    return functional.grid_sample(images, grid, align_corners=False)


def _source_positions(start: torch.Tensor, length: torch.Tensor, size: int) -> torch.Tensor:
    """Return `[n, size]` positions in the image, between the first and the last pixel of a crop."""
    centers = (torch.arange(size, device=start.device) + 0.5) / size
    positions = start + length * centers - 0.5
    return positions.clamp(start, start + length - 1)


def color_jitter(
    images: torch.Tensor,
    brightness: float = 0.4,
    contrast: float = 0.4,
    saturation: float = 0.4,
    hue: float = 0.1,
) -> torch.Tensor:
    """Change brightness, contrast, saturation and hue, in random order, differently per image."""
    for operation in torch.randperm(4).tolist():
        if operation == 0:
            images = _blend(images, torch.zeros_like(images), brightness)
        elif operation == 1:
            mean = grayscale(images).mean(dim=(1, 2, 3), keepdim=True)
            images = _blend(images, mean, contrast)
        elif operation == 2:
            images = _blend(images, grayscale(images), saturation)
        else:
            shift = _uniform(images, len(images), 1, -hue, hue)[:, :, None]
            images = shift_hue(images, shift)
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


def _blend(images: torch.Tensor, other: torch.Tensor, strength: float) -> torch.Tensor:
    factor = _uniform(images, len(images), 1, 1 - strength, 1 + strength)[:, :, None, None]
    return (factor * images + (1 - factor) * other).clamp(0, 1)


def _uniform(images: torch.Tensor, n: int, count: int, low: float, high: float) -> torch.Tensor:
    return low + (high - low) * torch.rand(n, count, device=images.device)


def _chance(images: torch.Tensor, p: float) -> torch.Tensor:
    return torch.rand(len(images), 1, 1, 1, device=images.device) < p
