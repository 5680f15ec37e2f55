"""Gaussian blur, as Pillow has it and as torchvision has it."""

import math

import jax.numpy as jnp
import numpy as np

from hypersphere_jax.augment.common import between, pixels, planes, units, weigh


def box_kernel(sigma, largest):
    """Weights [taps] of Pillow's `GaussianBlur(sigma)`: three equal box means, one after another.

    A box of radius r (not a whole number) weighs the pixels up to floor(r) fully and the next ones
    by the rest of r. Variances add, so that each box has sigma^2 / 3.

    Args:
      sigma: standard deviation, pixels; may be traced.
      largest: the largest sigma that may come, a Python number: it sets the number of taps.
    """
    variance = sigma**2 / 3
    # A box of whole radius k has variance k (k + 1) / 3; the largest with less is the full part.
    full = jnp.floor((jnp.sqrt(12 * variance + 1) - 1) / 2)
    missing = (2 * full + 1) * (variance - full * (full + 1) / 3)
    radius = full + missing / (2 * ((full + 1) ** 2 - variance))
    reach = math.floor((math.sqrt(4 * largest**2 + 1) - 1) / 2) + 1
    tap = np.arange(-3 * reach, 3 * reach + 1)

    def box(distance):
        return jnp.clip(radius + 1 - np.abs(distance), 0.0, 1.0) / (2 * radius + 1)

    twice = box(tap[:, None] - tap)
    return twice @ (twice @ box(tap))


def sampled_kernel(sigma, reach):
    """Weights [2 reach + 1] of torchvision's `GaussianBlur`: the density at whole pixels."""
    tap = np.arange(-reach, reach + 1)
    weights = jnp.exp(-0.5 * (tap / sigma) ** 2)
    return weights / jnp.sum(weights)


def _convolve(image, kernel, edge):
    """Weigh the neighbourhood of each pixel of [h, w, c] with the kernel along both axes."""
    reach = kernel.shape[0] // 2

    def band(extent):
        tap = np.arange(extent + 2 * reach) - np.arange(extent)[:, None]
        inside = (tap >= 0) & (tap <= 2 * reach)
        return jnp.where(inside, kernel[np.clip(tap, 0, 2 * reach)], 0.0)

    height, width, _ = image.shape
    around = ((0, 0), (reach, reach), (reach, reach))
    padded = pixels(jnp.pad(planes(image), around, mode=edge))
    return weigh(padded, band(height), band(width))


def gaussian_blur(key, image, *, size, sigma=(0.1, 2.0), p=0.5, kernel=None):
    """With probability p, blur with a standard deviation (pixels) uniform in `sigma`.

    Without `kernel` it is Pillow's `GaussianBlur`, whose "radius" is the standard deviation, with
    repeated edges: that of MoCo v2. With `kernel`, a fraction of the shorter side, it is
    torchvision's: a Gaussian cut off at that many pixels (an odd number, at least 3), with
    reflected edges: SimCLR's takes 0.1.
    """
    numbers = units(key, 2)
    drawn = between(numbers[0], *sigma)
    if kernel is None:
        blurred = _convolve(image, box_kernel(drawn, sigma[1]), "edge")
    else:
        reach = max(1, math.floor(kernel * min(image.shape[:2]) + 1e-6) // 2)
        blurred = _convolve(image, sampled_kernel(drawn, reach), "reflect")
    return pixels(jnp.where(numbers[1] < p, planes(blurred), planes(image)))
