"""Linear classifiers by minibatches, compared with a loop in NumPy."""

import jax
import numpy as np
import pytest
from points import sphere

from hypersphere_jax.evaluation import sgd
from hypersphere_jax.evaluation.sgd import MINIBATCH_PROTOCOLS

CLASSES, N, D = 5, 60, 8
GRID = [(0.5, 0.0), (2.0, 1e-2), (0.1, 0.1)]
# The rate's factor in each of 10 epochs, as printed: 60 and 80 of 100 epochs; 30, 40, 50 of 60.
STEPS_DOWN = {
    "stl10": [1] * 6 + [0.2] * 2 + [0.04] * 2,
    "moco": [1] * 6 + [0.1] * 2 + [0.01] * 2,
    "moco_imagenet100": [1] * 6 + [0.2] * 2 + [0.04] * 2 + [0.008] * 2,
}


def problem(rng, n=N):
    y = rng.integers(CLASSES, size=n)
    return sphere(rng, n, D) + np.eye(CLASSES, D, dtype=np.float32)[y], y


def short(name, batch_size=16):
    epochs = len(STEPS_DOWN.get(name, range(10)))
    return MINIBATCH_PROTOCOLS[name]._replace(epochs=epochs, batch_size=batch_size)


def fit(protocol, x, y, rows=range(N), grid=GRID, **options):
    return sgd.fit_grid(protocol, x, y, rows, grid, num_classes=CLASSES, seed=3, **options)


def assert_same(found, expected, tolerance=0.0):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(b).max())


def by_hand(name, protocol, features, y, rows, rate, decay):
    """One cell in float64: softmax regression, the rules of the optimizers, the schedules."""
    batches = []
    for epoch in range(protocol.epochs):
        order = np.random.default_rng([3, epoch]).permutation(rows)
        cuts = range(0, len(order), protocol.batch_size)
        batches += [(epoch, order[begin : begin + protocol.batch_size]) for begin in cuts]
    start = 0.01 * jax.random.normal(jax.random.key(3), (CLASSES, D))
    params = [(name != "stl10") * np.float64(start), np.zeros(CLASSES)]
    first, second = [0.0, 0.0], [0.0, 0.0]  # moments
    for step, (epoch, batch) in enumerate(batches, 1):
        x = np.float64(features(epoch)[batch])
        p = np.exp(x @ params[0].T + params[1])
        p = p / p.sum(axis=1, keepdims=True) - np.eye(CLASSES)[y[batch]]
        cosine = (1 + np.cos(np.pi * (step - 1) / len(batches))) / 2
        r = rate * (STEPS_DOWN[name][epoch] if name in STEPS_DOWN else cosine)
        gradients = p.T @ x / len(batch) + decay * params[0], p.mean(axis=0)
        for i, g in enumerate(gradients):
            if name == "stl10":  # Adam
                first[i], second[i] = (first[i] + g) / 2, 0.999 * second[i] + 0.001 * g**2
                root = np.sqrt(second[i] / (1 - 0.999**step))
                update = r * first[i] / (1 - 0.5**step) / (root + 1e-8)
            elif name == "simclr":  # LARS, not of the bias; Nesterov's momentum
                ratio = 0.001 * np.linalg.norm(params[0]) / np.linalg.norm(g) if i == 0 else 1
                first[i] = 0.9 * first[i] + r * ratio * g
                update = 0.9 * first[i] + r * ratio * g
            else:
                first[i] = 0.9 * first[i] + g
                update = r * first[i]
            params[i] = params[i] - update
    return params


@pytest.mark.parametrize("name", MINIBATCH_PROTOCOLS)
def test_training_matches_a_loop(rng, name):
    """Each cell's own, so that no cell depends on the others; nor on rows that are left out."""
    x, y = problem(rng)
    inside = rng.random(N) < 0.8
    x[~inside], y[~inside], rows = np.nan, 0, np.flatnonzero(inside)
    # Adam moves a weight by its rate whatever the gradient; LARS by a thousandth of the weights.
    grid = [({"stl10": 0.1, "simclr": 10}.get(name, 1) * rate, decay) for rate, decay in GRID]
    found, report = fit(short(name), x, y, rows, grid)
    expected = [by_hand(name, short(name), lambda _: x, y, rows, *cell) for cell in grid]
    assert_same(found, expected, 2e-3)  # momentum and high rates magnify rounding
    assert (
        report["finite"] == [True] * 3
        and report["optimizer"] == MINIBATCH_PROTOCOLS[name].optimizer
    )


def test_protocols_have_the_papers_settings():
    # Of eight cells, the first and the last.
    about = {
        k: (p.optimizer, p.epochs, p.batch_size, *p.grid[::7])
        for k, p in MINIBATCH_PROTOCOLS.items()
    }
    assert about == {
        "stl10": ("adam", 100, 128, (1e-3, 0.0), (1e-2, 1e-3)),
        "moco": ("sgd", 100, 256, (30, 0.0), (1, 1e-5)),
        "moco_imagenet100": ("sgd", 60, 256, (10, 0.0), (1, 1e-5)),
        "simclr": ("lars", 90, 4096, (1.6, 0.0), (25.6, 1e-5)),
        "balanced": ("sgd", 90, 256, (30, 0.0), (1, 1e-5)),
    }


def test_devices_chunks_and_types_change_nothing(rng, monkeypatch, tmp_path):
    x, y = problem(rng)
    x, rows = x.astype(np.float16), np.flatnonzero(rng.random(N) < 0.9)
    expected, _ = fit(short("moco"), x.astype(np.float32), y, rows)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert_same(fit(short("moco"), mapped, y, rows, devices=jax.devices()[:3])[0], expected, 1e-3)
    monkeypatch.setattr(sgd, "CHUNK_BYTES", 3 * 4 * 16 * D)  # three batches, and the last one
    assert_same(fit(short("moco"), mapped, y, rows)[0], expected, 1e-3)


def aligned(n, d):
    """Float32 `[n, d]` that begins at a multiple of 64 bytes."""
    raw = np.empty(4 * n * d + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    return raw[begin : begin + 4 * n * d].view(np.float32).reshape(n, d)


def test_features_of_each_epoch(rng):
    """Also in the same memory each time, which JAX does not copy if it is aligned."""
    n = 4000  # the training of an epoch is still running when the next features arrive
    x, y = problem(rng, n)
    shifts = 0.2 * rng.normal(size=(10, 1, D)).astype(np.float32)
    rows, grid = np.arange(10, n), [(0.1, 0.0)]  # high rates would blow up a rounding error
    of_epoch = lambda epoch: x + shifts[epoch]  # noqa: E731
    expected = [by_hand("moco", short("moco"), of_epoch, y, rows, *grid[0])]
    memory = aligned(n, D)
    in_memory = lambda epoch: np.add(x, shifts[epoch], out=memory)  # noqa: E731
    for features in (in_memory, of_epoch):
        found, _ = fit(short("moco"), x, y, rows, grid, epoch_features=features)
        assert_same(found, expected, 1e-3)


def test_batches_larger_than_the_rows_and_cells_that_diverge(rng):
    x, y = problem(rng)
    grid = [GRID[0], (1e4, 10.0), GRID[2]]
    found, report = fit(short("moco", batch_size=4096), x, y, grid=grid)
    assert report["finite"] == [True, False, True]
    whole = "moco", short("moco", batch_size=N), lambda _: x, y, np.arange(N)
    assert_same([found[0], found[2]], [by_hand(*whole, *grid[i]) for i in (0, 2)], 1e-3)
