"""Images, and the laws of random operations, for the tests of augmentation."""

import math

import jax
import numpy as np
from PIL import Image
from scipy import stats

LEVEL = 1 / 255  # Pillow rounds to 8 bits


def random_image(height, width, channels=3, seed=0):
    """A uint8 image with structure (few, large patches of color) and noise."""
    rng = np.random.default_rng(seed)
    patches, shape = rng.integers(0, 256, (3, 3, channels)), (height, width, channels)
    image = patches[np.arange(height) * 3 // height][:, np.arange(width) * 3 // width]
    return np.clip(image + rng.integers(-40, 40, shape), 0, 255).astype(np.uint8)


def to_float(image):
    return image.astype(np.float32) / 255


def by_planes(image, transform):
    """Apply a function of a float Pillow image to each channel of [h, w, c]."""
    channels = np.moveaxis(image, -1, 0)
    return np.stack([np.asarray(transform(Image.fromarray(c))) for c in channels], axis=-1)


def keys(n):
    return jax.random.split(jax.random.key(0), n)


def draws(operation, image, n=3000, **params):
    """Return the results of an operation with n keys."""
    return np.asarray(jax.jit(jax.vmap(lambda key: operation(key, image, **params)))(keys(n)))


def assert_uniform(sample, low, high):
    assert stats.kstest(sample, stats.uniform(low, high - low).cdf).pvalue > 0.01


def assert_independent(*samples):
    """No correlation beyond four standard errors."""
    correlations = np.corrcoef(samples) - np.eye(len(samples))
    assert np.abs(correlations).max() < 4 / math.sqrt(len(samples[0]))


def assert_probability(happened, p):
    """Booleans that are true with probability p, to four standard errors."""
    assert abs(np.mean(happened) - p) <= 4 * math.sqrt(p * (1 - p) / len(happened))
