"""Linear classifiers by minibatches against a loop in NumPy."""

import jax
import numpy as np
import pytest
from points import sphere

from hypersphere_jax.evaluation.sgd import MINIBATCH_PROTOCOLS, fit_grid

CLASSES, N, D = 5, 60, 8
GRID = [(0.5, 0.0), (2.0, 1e-2), (0.1, 0.1)]
# Factors of the rate in each tenth of training: at 60 and 80 of 100 epochs; 30, 40, 50 of 60.
STEPS_DOWN = {
    "stl10": [1] * 6 + [0.2] * 2 + [0.04] * 2,
    "moco": [1] * 6 + [0.1] * 2 + [0.01] * 2,
    "moco_imagenet100": [1] * 6 + [0.2] * 2 + [0.04] * 2 + [0.008] * 2,
}
# Adam moves a weight by its rate whatever the gradient; LARS by a thousandth of the weights.
RATE_FACTORS = {"stl10": 0.1, "simclr": 10}


def problem(rng, n=N, d=D):
    y = rng.integers(CLASSES, size=n)
    return sphere(rng, n, d) + np.eye(CLASSES, d, dtype=np.float32)[y], y


def short(name, batch_size=16):
    epochs = len(STEPS_DOWN.get(name, range(10)))
    return MINIBATCH_PROTOCOLS[name]._replace(epochs=epochs, batch_size=batch_size)


def fit(protocol, x, y, rows=range(N), grid=GRID, **options):
    return fit_grid(protocol, x, y, rows, grid, num_classes=CLASSES, seed=3, **options)


def assert_same(found, expected, tolerance):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(b).max())


def adam(gradient, moments, param, rate, step):
    first = (moments[0] + gradient) / 2
    second = 0.999 * moments[1] + 0.001 * gradient**2
    root = np.sqrt(second / (1 - 0.999**step))
    return rate * first / (1 - 0.5**step) / (root + 1e-8), (first, second)


def sgd(gradient, moments, param, rate, step):
    velocity = 0.9 * moments[0] + gradient
    return rate * velocity, (velocity, 0)


def lars(gradient, moments, param, rate, step):
    """Nesterov's momentum, and a trust ratio of the weights only."""
    scaled = rate * gradient
    if gradient.ndim > 1:
        scaled *= 0.001 * np.linalg.norm(param) / np.linalg.norm(gradient)
    velocity = 0.9 * moments[0] + scaled
    return 0.9 * velocity + scaled, (velocity, 0)


def train_by_loop(name, protocol, features, y, rows, rate, decay):
    """Return weights and bias of one cell in float64."""
    update = {"stl10": adam, "simclr": lars}.get(name, sgd)
    size = protocol.batch_size
    per_epoch = -(-len(rows) // size)
    steps = protocol.epochs * per_epoch
    factors = (1 + np.cos(np.pi * np.arange(steps) / steps)) / 2
    if name in STEPS_DOWN:
        factors = np.repeat(STEPS_DOWN[name], per_epoch)
    std = 0.0 if name == "stl10" else 0.01
    d = features(0).shape[1]
    params = [std * np.float64(jax.random.normal(jax.random.key(3), (CLASSES, d))), 0]
    moments = [(0, 0), (0, 0)]
    step = 0
    for epoch in range(protocol.epochs):
        epoch_x = np.float64(features(epoch))
        order = np.random.default_rng([3, epoch]).permutation(rows)
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            x = epoch_x[batch]
            p = np.exp(x @ params[0].T + params[1])
            p = p / p.sum(axis=1, keepdims=True) - np.eye(CLASSES)[y[batch]]
            gradients = (p.T @ x / len(batch) + decay * params[0], p.mean(axis=0))
            for i, gradient in enumerate(gradients):
                now = rate * factors[step]
                change, moments[i] = update(gradient, moments[i], params[i], now, step + 1)
                params[i] = params[i] - change
            step += 1
    return params


@pytest.mark.parametrize("name", MINIBATCH_PROTOCOLS)
def test_training_matches_a_loop(rng, name):
    """Cells do not depend on each other, nor on rows that are left out."""
    x, y = problem(rng)
    inside = rng.random(N) < 0.8
    x[~inside] = np.nan
    rows = np.flatnonzero(inside)
    grid = [(RATE_FACTORS.get(name, 1) * rate, decay) for rate, decay in GRID]
    found, report = fit(short(name), x, y, rows, grid)
    expected = [train_by_loop(name, short(name), lambda _: x, y, rows, *cell) for cell in grid]
    assert_same(found, expected, 2e-3)  # momentum and high rates magnify rounding
    assert report["finite"] == [True] * 3


def test_protocols_have_the_papers_settings():
    settings = {  # with the first and the last of eight cells
        name: (p.optimizer, p.epochs, p.batch_size, *p.grid[::7])
        for name, p in MINIBATCH_PROTOCOLS.items()
    }
    assert settings == {
        "stl10": ("adam", 100, 128, (1e-3, 0.0), (1e-2, 1e-3)),
        "moco": ("sgd", 100, 256, (30, 0.0), (1, 1e-5)),
        "moco_imagenet100": ("sgd", 60, 256, (10, 0.0), (1, 1e-5)),
        "simclr": ("lars", 90, 4096, (1.6, 0.0), (25.6, 1e-5)),
        "balanced": ("sgd", 90, 256, (30, 0.0), (1, 1e-5)),
    }


def test_features_of_each_epoch_in_the_same_memory(rng):
    """An epoch has two chunks of batches, and may still run when the next features arrive."""
    n, d = 4500, 1024
    x, y = problem(rng, n, d)
    shifts = 0.02 * rng.normal(size=(10, 1, d)).astype(np.float32)
    rows, cell = np.arange(10, n), (0.1, 0.0)
    protocol = short("moco", batch_size=256)
    raw = np.empty(4 * n * d + 64, np.uint8)
    begin = -raw.ctypes.data % 64  # JAX does not copy an array at a multiple of 64 bytes
    memory = raw[begin : begin + 4 * n * d].view(np.float32).reshape(n, d)
    options = {"epoch_features": lambda epoch: np.add(x, shifts[epoch], out=memory)}
    found, _ = fit(protocol, x, y, rows, [cell], **options)
    expected = train_by_loop("moco", protocol, lambda epoch: x + shifts[epoch], y, rows, *cell)
    assert_same(found, [expected], 1e-3)


def test_batches_larger_than_the_rows_and_cells_that_diverge(rng):
    x, y = problem(rng)
    grid = [GRID[0], (1e4, 10.0), GRID[2]]
    found, report = fit(short("moco", batch_size=4096), x, y, grid=grid)
    assert report["finite"] == [True, False, True]
    whole = ("moco", short("moco", batch_size=N), lambda _: x, y, np.arange(N))
    expected = [train_by_loop(*whole, *grid[i]) for i in (0, 2)]
    assert_same([found[0], found[2]], expected, 1e-3)
