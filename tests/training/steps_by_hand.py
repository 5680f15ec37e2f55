"""Images, batches, views and gradients of steps that tests compute by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles

# 40 images of two pixels with three channels.
IMAGES = np.random.default_rng(0).integers(0, 256, (40, 1, 2, 3), dtype=np.uint8)
LABELS = np.arange(40, dtype=np.int32) % 2
KEY = jax.random.key(3)
RATE, BETA = 0.5, 0.9
OPTIMIZER = optax.sgd(RATE, BETA)


def noisy(key, image):
    """Return a view that depends on its key."""
    return image.astype(jnp.float32) / 255 + jax.random.normal(key, image.shape)


def rows(step):
    """Return the batch of a step, 8 images."""
    return np.random.default_rng([7, step]).permutation(40)[:8].astype(np.int32)


@functools.cache
def views_of(step):
    """Return both views `[2, 8, 6]`; keys derive from seed, step, position in the batch, view."""
    views = np.zeros((2, 8, 6), np.float32)
    key = jax.random.fold_in(KEY, step)
    for position, image in enumerate(IMAGES[rows(step)]):
        for view in (0, 1):
            view_key = jax.random.fold_in(jax.random.fold_in(key, position), view)
            views[view, position] = np.ravel(noisy(view_key, image))
    return views


def on_one_device(step, state, count):
    """Return the initial state; then state and metrics of each step."""
    step = jax.jit(step)
    path = [(state, None)]
    for number in range(count):
        path.append(step(path[-1][0], IMAGES, LABELS, rows(number), KEY))
    return path


def unit(z):
    return z / np.linalg.norm(z, axis=1, keepdims=True)


def slope(loss, at):
    """Return the gradient by difference quotients in float64."""
    basis = np.eye(at.size).reshape(-1, *at.shape)
    return np.array([oracles.numeric_slope(loss, [at], [e]) for e in basis]).reshape(at.shape)


def assert_close(found, expected):
    jax.tree.map(lambda *x: np.testing.assert_allclose(*x, rtol=2e-4, atol=2e-5), found, expected)
