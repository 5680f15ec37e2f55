"""What steps are followed by hand with: images, batches, the views that a step draws, slopes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracles

# Two pixels of three channels an image.
N, BATCH = 40, 8
IMAGES = np.random.default_rng(0).integers(0, 256, (N, 1, 2, 3), dtype=np.uint8)
LABELS, KEY = np.arange(N, dtype=np.int32) % 2, jax.random.key(3)


def noisy(key, image):
    """A view that is a function of its key."""
    return image.astype(jnp.float32) / 255 + jax.random.normal(key, image.shape)


def rows(step):
    """The batch of a step."""
    return np.random.default_rng([7, step]).permutation(N)[:BATCH].astype(np.int32)


@functools.cache
def views_of(step):
    """Both views `[BATCH, 6]`, by the rule of keys: seed, step, place in the batch, view."""
    key = jax.random.fold_in(KEY, step)
    return [
        np.stack(
            [
                np.asarray(noisy(jax.random.fold_in(jax.random.fold_in(key, place), view), image))
                for place, image in enumerate(jnp.asarray(IMAGES[rows(step)]))
            ]
        ).reshape(BATCH, -1)
        for view in (0, 1)
    ]


def unit(z):
    return z / np.linalg.norm(z, axis=1, keepdims=True)


def slope(loss, at):
    """The gradient by difference quotients in float64."""
    basis = np.eye(at.size).reshape(-1, *at.shape)
    return np.array([oracles.numeric_slope(loss, [at], [e]) for e in basis]).reshape(at.shape)


def assert_close(found, expected):
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-5), found, expected
    )
