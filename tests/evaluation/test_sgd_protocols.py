"""Linear classifiers by minibatches: each step of each protocol is that of a NumPy loop."""

import json
import typing

import jax
import numpy as np
import pytest
from points import sphere

from hypersphere_jax.config import UserError
from hypersphere_jax.config.evaluation import Protocol
from hypersphere_jax.evaluation import sgd
from hypersphere_jax.evaluation.classifier import logits
from hypersphere_jax.evaluation.sgd import PROTOCOLS, fit_grid

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


def short(name):
    """The protocol in a few epochs of small batches, the last of them short."""
    epochs = 12 if name == "moco_imagenet100" else 10
    return PROTOCOLS[name]._replace(epochs=epochs, batch_size=16)


def fit(protocol, x, y, rows=None, grid=GRID, seed=3, **options):
    rows = np.arange(len(x)) if rows is None else rows
    return fit_grid(protocol, x, y, rows, grid, num_classes=CLASSES, seed=seed, **options)


def assert_same(found, expected, tolerance=0.0):
    """Up to a share of the largest weight."""
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        for leaf, other in zip(a, b, strict=True):
            np.testing.assert_allclose(leaf, other, rtol=0, atol=tolerance * np.abs(other).max())


def by_hand(name, protocol, features, y, rows, rate, decay, seed):
    """One cell in float64: softmax regression, the rules of the optimizers, the schedules."""
    w = np.zeros((CLASSES, D))
    if name != "stl10":
        w = 0.01 * np.float64(jax.random.normal(jax.random.key(seed), w.shape))
    params, memory = [w, np.zeros(CLASSES)], [[0.0, 0.0], [0.0, 0.0]]
    per_epoch = -(-len(rows) // protocol.batch_size)
    step = 0
    for epoch in range(protocol.epochs):
        order = np.random.default_rng([seed, epoch]).permutation(rows)
        x = np.float64(features(epoch))
        for begin in range(0, len(order), protocol.batch_size):
            batch = order[begin : begin + protocol.batch_size]
            outputs = x[batch] @ params[0].T + params[1]
            p = np.exp(outputs - outputs.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            p[np.arange(len(batch)), y[batch]] -= 1
            gradients = [p.T @ x[batch] / len(batch) + decay * params[0], p.mean(axis=0)]
            if name in STEPS_DOWN:
                r = rate * STEPS_DOWN[name][epoch]
            else:
                r = rate * (1 + np.cos(np.pi * step / (protocol.epochs * per_epoch))) / 2
            step += 1
            for i, g in enumerate(gradients):
                m = memory[i]
                if name == "stl10":
                    m[0] = 0.5 * m[0] + 0.5 * g
                    m[1] = 0.999 * m[1] + 0.001 * g**2
                    first, second = m[0] / (1 - 0.5**step), m[1] / (1 - 0.999**step)
                    update = r * first / (np.sqrt(second) + 1e-8)
                elif name == "simclr":
                    ratio = 0.001 * np.linalg.norm(params[0]) / np.linalg.norm(g) if i == 0 else 1
                    g = r * ratio * g
                    m[0] = 0.9 * m[0] + g
                    update = 0.9 * m[0] + g
                else:
                    m[0] = 0.9 * m[0] + g
                    update = r * m[0]
                params[i] = params[i] - update
    return params


@pytest.mark.parametrize("name", PROTOCOLS)
def test_steps_are_those_of_a_loop(rng, name):
    """Each cell's own, so that no cell depends on the others; nor on rows that are left out."""
    x, y = problem(rng)
    rows = np.flatnonzero(rng.random(N) < 0.8)
    outside = np.setdiff1d(np.arange(N), rows)
    x[outside], y[outside] = np.nan, 0
    assert len(rows) % 16
    # Adam moves a weight by its rate whatever the gradient; LARS by a thousandth of the weights.
    factor = {"stl10": 0.1, "simclr": 10}.get(name, 1)
    grid = [(factor * rate, decay) for rate, decay in GRID]
    found, report = fit(short(name), x, y, rows, grid)
    expected = [by_hand(name, short(name), lambda _: x, y, rows, *cell, 3) for cell in grid]
    assert_same(found, expected, 1e-4)
    assert report["finite"] == [True] * 3 and report["optimizer"] == PROTOCOLS[name].optimizer
    assert ("adam_betas" in report) == (name == "stl10")
    assert ("decay_at" in report) == (name in STEPS_DOWN)
    json.dumps(report)


def test_protocols_are_those_of_the_papers():
    printed = {
        name: (p.optimizer, p.epochs, p.batch_size, p.grid[0]) for name, p in PROTOCOLS.items()
    }
    assert printed == {
        "stl10": ("adam", 100, 128, (1e-3, 0.0)),
        "moco": ("sgd", 100, 256, (30, 0.0)),
        "moco_imagenet100": ("sgd", 60, 256, (10, 0.0)),
        "simclr": ("lars", 90, 4096, (1.6, 0.0)),
        "balanced": ("sgd", 90, 256, (30, 0.0)),
    }
    assert all(len(set(p.grid)) == len(p.grid) == 8 for p in PROTOCOLS.values())
    offered = set(typing.get_args(Protocol))
    assert offered == {"lbfgs", "knn", "quick_thought", *PROTOCOLS}


def test_where_features_lie_and_who_computes_change_nothing(rng, monkeypatch, tmp_path):
    """Cells over devices, of which one trains the last again; features gathered on the host."""
    x, y = problem(rng)
    x = x.astype(np.float16)
    rows = np.flatnonzero(rng.random(N) < 0.9)
    expected, _ = fit(short("moco"), x.astype(np.float32), y, rows)
    assert_same(fit(short("moco"), x, y, rows)[0], expected)
    several, report = fit(short("moco"), x, y, rows, devices=jax.devices()[:2])
    assert_same(several, expected, 1e-5)
    assert report["finite"] == [True] * 3
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    monkeypatch.setattr(sgd, "RESIDENT_SHARE", 0)
    for batches, per_epoch in ((1, [1, 1, 1, 1]), (3, [3, 1]), (99, [4])):
        sizes, gathered = [], sgd._gathered
        with monkeypatch.context() as patch:
            patch.setattr(sgd, "CHUNK_BYTES", batches * 4 * 16 * D)
            patch.setattr(
                sgd,
                "_gathered",
                lambda *all, s=sizes, g=gathered: (s.append(len(p[2][0])) or p for p in g(*all)),
            )
            assert_same(fit(short("moco"), mapped, y, rows)[0], expected)
        assert sizes == 10 * per_epoch


@pytest.mark.parametrize(("share", "same"), [(0, True), (0.25, True), (0.25, False)])
def test_features_of_each_epoch(rng, monkeypatch, share, same):
    """Also where they come in the same memory each time, which JAX does not copy if aligned."""
    monkeypatch.setattr(sgd, "RESIDENT_SHARE", share)
    n = 4000  # for a training that is still going on when the next features come
    x, y = problem(rng, n)
    shifts = 0.2 * rng.normal(size=(10, 1, D)).astype(np.float32)
    memory, epochs = np.empty(n * D + 16, np.float32), []
    memory = memory[-memory.ctypes.data % 64 // 4 :][: n * D].reshape(n, D)

    def epoch_features(epoch):
        epochs.append(epoch)
        memory[:] = x + shifts[epoch]
        return memory if same else memory.copy()

    rows, protocol = np.arange(10, n), short("moco")
    grid = [(0.1, 0.0), (0.02, 1e-2)]  # at high rates so many steps blow up a rounding error
    found, _ = fit(protocol, x, y, rows, grid, epoch_features=epoch_features)
    assert epochs == list(range(10))
    expected = [
        by_hand("moco", protocol, lambda epoch: x + shifts[epoch], y, rows, *cell, 3)
        for cell in grid
    ]
    assert_same(found, expected, 1e-4)


def test_batches_larger_than_the_rows_and_cells_that_diverge(rng):
    x, y = problem(rng)
    one_batch = short("moco")._replace(batch_size=4096)
    grid = [GRID[0], (1e4, 10.0), GRID[2]]
    found, report = fit(one_batch, x, y, grid=grid)
    assert report["finite"] == [True, False, True]
    assert not np.isfinite(logits(found[1], x)).all()
    whole = one_batch._replace(batch_size=N)
    expected = [by_hand("moco", whole, lambda _: x, y, np.arange(N), *grid[i], 3) for i in (0, 2)]
    assert_same([found[0], found[2]], expected, 1e-4)


def test_mistakes_are_one_line(rng):
    x, y = problem(rng)
    for options, message in (
        ({"grid": []}, "grid: give at least one"),
        *(
            ({"grid": [cell]}, r"grid: learning rate .* weight decay")
            for cell in [(0.0, 0.0), (np.nan, 0.0), (1.0, -1.0), (1.0, np.inf)]
        ),
        ({"rows": []}, "no rows"),
        ({"epoch_features": lambda epoch: x[:, 1:]},
         r"epoch 0 features: expected shape \(60, 8\), got \(60, 7"),
        ({"epoch_features": lambda epoch: x * np.nan}, "epoch 0 features: 60 of 60 rows hold NaN"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=message):
            fit(short("moco"), x, y, **options)
