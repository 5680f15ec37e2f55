"""Operations of recipes that change the values of pixels: colors and blur; see `operations`."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from hypersphere_jax.augment.operations import between, pixels, planes, units, weigh


def rgb(key, image, *, size):
    """Repeat a single channel three times; keep three channels."""
    if image.shape[-1] not in (1, 3):
        raise ValueError(f"rgb needs 1 or 3 channels, got an image of shape {image.shape}")
    return jnp.broadcast_to(image, (*image.shape[:2], 3))


def _channels(image):
    """Return the three planes [1, h, w] of an RGB image."""
    if image.shape[-1] != 3:
        raise ValueError(f"colors need 1 or 3 channels, got an image of shape {image.shape}")
    image = planes(image)
    return image[0:1], image[1:2], image[2:3]


def grayscale(image):
    """Return the ITU-R 601 luma of an RGB image [h, w, 3], as [h, w, 1]; keep a gray image."""
    if image.shape[-1] == 1:
        return image
    red, green, blue = _channels(image)
    return pixels(0.299 * red + 0.587 * green + 0.114 * blue)


def _blend(image, base, factor):
    """Blend with a base, a number or planes; a factor of 1 changes nothing."""
    # `factor * image + (1 - factor) * base` makes a jitter five times slower on CPU.
    image = planes(image)
    return pixels(jnp.clip(base + factor * (image - base), 0.0, 1.0))


def adjust_hue(image, shift):
    """Shift the hue by a fraction of a turn at the same HSV saturation and value.

    A gray image stays the same.
    """
    if image.shape[-1] == 1:
        return image
    red, green, blue = _channels(image)
    low = jnp.minimum(jnp.minimum(red, green), blue)
    chroma = jnp.maximum(jnp.maximum(red, green), blue) - low
    inverse = 1.0 / jnp.maximum(chroma, 1e-6)  # finite for grays, whose hue does not matter
    # Not `red == max`: a compiler may round the two sides differently, and none would be equal.
    hue = jnp.where(
        (red >= green) & (red >= blue),
        (green - blue) * inverse,
        jnp.where(green >= blue, 2.0 + (blue - red) * inverse, 4.0 + (red - green) * inverse),
    )
    # In sixths of a turn red, green and blue peak at 0, 2 and 4. A channel is full up to 1 from its
    # peak and zero from 2 on: RGB without branches, and without `mod`, which is slow on CPU.
    peaks = np.array([0.0, 2.0, 4.0], np.float32)[:, None, None]
    turn = (hue + 6.0 * shift - peaks) / 6.0
    distance = 6.0 * jnp.abs(turn - jnp.round(turn))
    return pixels(low + chroma * jnp.clip(2.0 - distance, 0.0, 1.0))


def color_jitter(key, image, *, size, brightness, contrast, saturation, hue, p=1.0):
    """Adjust brightness, contrast, saturation and hue in random order with probability p.

    Images are blended with black, with their mean gray value and with their gray values. Strength b
    draws the factor from [max(0, 1 - b), 1 + b]. The hue shifts by up to +-hue, in full turns.
    """
    numbers = units(key, 9)
    spread = jnp.array([brightness, contrast, saturation], jnp.float32)
    factors = between(numbers[:3], jnp.maximum(0.0, 1.0 - spread), 1.0 + spread)
    shift = between(numbers[3], -hue, hue)
    adjustments = (
        lambda image: _blend(image, 0.0, factors[0]),
        lambda image: _blend(image, jnp.mean(grayscale(image)), factors[1]),
        lambda image: _blend(image, planes(grayscale(image)), factors[2]),
        lambda image: adjust_hue(image, shift),
    )
    order = jnp.argsort(numbers[4:8])

    def adjust(turn, jittered):
        # Under vmap each turn computes all four, fused, and selects.
        return planes(jax.lax.switch(order[turn], adjustments, pixels(jittered)))

    # The result of a loop is written to memory: unrolled, the last turns would be computed again
    # for every use of a pixel in the next operation.
    jittered = jax.lax.fori_loop(0, 4, adjust, planes(image))
    return pixels(jnp.where(numbers[8] < p, jittered, planes(image)))


def random_grayscale(key, image, *, size, p):
    """Replace the three channels by their luma with probability p."""
    gray = planes(grayscale(image))
    return pixels(jnp.where(units(key) < p, gray, planes(image)))


def random_intensity(key, image, *, size, scale):
    """Multiply all values by one factor from the range, then clip."""
    return jnp.clip(image * between(units(key), *scale), 0.0, 1.0)


def normalize(key, image, *, size, mean, std):
    """Subtract the mean and divide by the standard deviation of each channel."""
    if not len(mean) == len(std) == image.shape[-1]:
        raise ValueError(f"normalize got mean {mean}, std {std} for an image of {image.shape}")
    mean = np.array(mean, np.float32)[:, None, None]
    std = np.array(std, np.float32)[:, None, None]
    return pixels((planes(image) - mean) / std)


# Blur


def box_kernel(sigma, largest):
    """Return weights [taps] of Pillow's `GaussianBlur(sigma)`: three equal box means in a row.

    A box of fractional radius r weighs the pixels up to floor(r) fully and the next ones by the
    rest of r. Variances add, so each box has sigma^2 / 3. The largest sigma determines the taps.
    """
    variance = sigma**2 / 3
    # A box of whole radius k has variance k (k + 1) / 3. The largest with less is the full part.
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
    """Return weights [2 reach + 1] of torchvision's `GaussianBlur`: the density at whole pixels."""
    tap = np.arange(-reach, reach + 1)
    weights = jnp.exp(-0.5 * (tap / sigma) ** 2)
    return weights / jnp.sum(weights)


def _convolve(image, kernel, edge):
    """Convolve [h, w, c] with the kernel along both axes; `edge` is the mode of the padding."""
    reach = kernel.shape[0] // 2
    height, width, _ = image.shape
    around = ((0, 0), (reach, reach), (reach, reach))
    padded = pixels(jnp.pad(planes(image), around, mode=edge))
    return weigh(padded, _band(kernel, height), _band(kernel, width))


def _band(kernel, extent):
    """Return the matrix [extent, extent + 2 reach] that convolves an axis with the kernel."""
    reach = kernel.shape[0] // 2
    tap = np.arange(extent + 2 * reach) - np.arange(extent)[:, None]
    is_inside = (tap >= 0) & (tap <= 2 * reach)
    return jnp.where(is_inside, kernel[np.clip(tap, 0, 2 * reach)], 0.0)


def gaussian_blur(key, image, *, size, sigma=(0.1, 2.0), p=0.5, kernel=None):
    """Blur with a standard deviation (pixels) uniform in `sigma`, with probability p.

    Without `kernel` this is Pillow's `GaussianBlur`, whose "radius" is the standard deviation, with
    repeated edges, as in MoCo v2. With `kernel`, a fraction of the shorter side, it is
    torchvision's: a Gaussian cut off at that number of pixels (odd, at least 3), with reflected
    edges; SimCLR uses 0.1.
    """
    numbers = units(key, 2)
    drawn = between(numbers[0], *sigma)
    if kernel is None:
        blurred = _convolve(image, box_kernel(drawn, sigma[1]), "edge")
    else:
        reach = max(1, math.floor(kernel * min(image.shape[:2]) + 1e-6) // 2)
        blurred = _convolve(image, sampled_kernel(drawn, reach), "reflect")
    return pixels(jnp.where(numbers[1] < p, planes(blurred), planes(image)))
