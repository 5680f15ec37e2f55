"""Operations on the values of pixels: colours, intensity, normalization."""

import jax
import jax.numpy as jnp
import numpy as np

from hypersphere_jax.augment.common import between, pixels, planes, units


def rgb(key, image, *, size):
    """Repeat a single channel three times; three channels pass."""
    if image.shape[-1] not in (1, 3):
        raise ValueError(f"rgb needs 1 or 3 channels, got an image of shape {image.shape}")
    return jnp.broadcast_to(image, (*image.shape[:2], 3))


def _channels(image):
    """The three planes [1, h, w] of an RGB image."""
    if image.shape[-1] != 3:
        raise ValueError(f"colours need 3 channels (put 'rgb' first), got shape {image.shape}")
    image = planes(image)
    return image[0:1], image[1:2], image[2:3]


def grayscale(image):
    """Return the ITU-R 601 luma of an RGB image [h, w, 3], as [h, w, 1]."""
    red, green, blue = _channels(image)
    return pixels(0.299 * red + 0.587 * green + 0.114 * blue)


def _blend(image, base, factor):
    # Not `factor * image + (1 - factor) * base`: on CPU that takes a jitter five times as long.
    return jnp.clip(base + factor * (image - base), 0.0, 1.0)


def adjust_brightness(image, factor):
    """Blend with black; a factor of 1 changes nothing, here and in the two that follow."""
    return pixels(_blend(planes(image), 0.0, factor))


def adjust_contrast(image, factor):
    """Blend with the mean of the grayscale image."""
    return pixels(_blend(planes(image), jnp.mean(grayscale(image)), factor))


def adjust_saturation(image, factor):
    """Blend each pixel with its own gray."""
    return pixels(_blend(planes(image), planes(grayscale(image)), factor))


def adjust_hue(image, shift):
    """Shift the hue by a fraction of a full turn at the same HSV saturation and value."""
    red, green, blue = _channels(image)
    low = jnp.minimum(jnp.minimum(red, green), blue)
    chroma = jnp.maximum(jnp.maximum(red, green), blue) - low
    inverse = 1.0 / jnp.maximum(chroma, 1e-6)  # finite for grays, whose hue does not show
    # Not `red == max`: a compiler may round the two sides differently, and none would be equal.
    hue = jnp.where(
        (red >= green) & (red >= blue),
        (green - blue) * inverse,
        jnp.where(green >= blue, 2.0 + (blue - red) * inverse, 4.0 + (red - green) * inverse),
    )
    # In sixths of a turn red, green and blue peak at 0, 2 and 4. A channel is full up to 1 from
    # its peak and gone at 2: back to RGB without branches, and without `mod`, which is slow on CPU.
    peaks = np.array([0.0, 2.0, 4.0], np.float32)[:, None, None]
    turn = (hue + 6.0 * shift - peaks) / 6.0
    distance = 6.0 * jnp.abs(turn - jnp.round(turn))
    return pixels(low + chroma * jnp.clip(2.0 - distance, 0.0, 1.0))


def color_jitter(key, image, *, size, brightness, contrast, saturation, hue, p=1.0):
    """With probability p, adjust brightness, contrast, saturation and hue in random order.

    Strength b of the first three draws a factor from [max(0, 1 - b), 1 + b]; the hue shifts by up
    to +-hue, a fraction of a full turn.
    """
    numbers = units(key, 9)
    spread = jnp.array([brightness, contrast, saturation], jnp.float32)
    factors = between(numbers[:3], jnp.maximum(0.0, 1.0 - spread), 1.0 + spread)
    shift = between(numbers[3], -hue, hue)
    adjustments = (
        lambda image: adjust_brightness(image, factors[0]),
        lambda image: adjust_contrast(image, factors[1]),
        lambda image: adjust_saturation(image, factors[2]),
        lambda image: adjust_hue(image, shift),
    )
    order = jnp.argsort(numbers[4:8])

    def adjust(turn, jittered):
        # Under vmap each turn computes all four and selects. They fuse, so that it takes half the
        # time of computing the hue once and the others, masked, before and after it.
        return planes(jax.lax.switch(order[turn], adjustments, pixels(jittered)))

    # A loop, whose result stands in memory: unrolled, the last turns would be computed again for
    # every use of a pixel in what follows, which makes blur and rotation several times slower.
    jittered = jax.lax.fori_loop(0, 4, adjust, planes(image))
    return pixels(jnp.where(numbers[8] < p, jittered, planes(image)))


def random_grayscale(key, image, *, size, p):
    """Replace the three channels by their luma with probability p."""
    gray = planes(grayscale(image))
    return pixels(jnp.where(units(key) < p, gray, planes(image)))


def random_intensity(key, image, *, size, scale):
    """Multiply all values by one factor from the range, then clip: black stays black."""
    return jnp.clip(image * between(units(key), *scale), 0.0, 1.0)


def normalize(key, image, *, size, mean, std):
    """Subtract the mean and divide by the standard deviation of each channel."""
    if not len(mean) == len(std) == image.shape[-1]:
        raise ValueError(f"normalize got mean {mean}, std {std} for an image of {image.shape}")
    mean, std = (np.array(values, np.float32)[:, None, None] for values in (mean, std))
    return pixels((planes(image) - mean) / std)
