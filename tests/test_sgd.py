"""Classifiers trained by minibatches: against NumPy loops in float64, and scikit-learn."""

import json
import typing

import jax
import numpy as np
import pytest
from conftest import sphere
from sklearn.linear_model import LogisticRegression

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


def problem(rng, n=N, d=D):
    y = rng.integers(CLASSES, size=n)
    return sphere(rng, n, d) + np.eye(CLASSES, d, dtype=np.float32)[y], y


def short(name):
    """The protocol in a few epochs of small batches, the last of them short."""
    epochs = 12 if name == "moco_imagenet100" else 10
    return PROTOCOLS[name]._replace(epochs=epochs, batch_size=16)


def fit(protocol, x, y, rows=None, grid=GRID, seed=3, **options):
    rows = np.arange(len(x)) if rows is None else rows
    return fit_grid(protocol, x, y, rows, grid, num_classes=CLASSES, seed=seed, **options)


def assert_same(found, expected, rtol=0.0):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        for leaf, other in zip(a, b, strict=True):
            scale = np.abs(other).max()
            np.testing.assert_allclose(leaf, other, rtol=0, atol=rtol * scale)


def by_hand(name, protocol, features, y, rows, rate, decay, seed):
    """One cell in float64: softmax regression, the rules of the optimizers, the schedules."""
    w = np.zeros((CLASSES, features(0).shape[1]))
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
    x, y = problem(rng)
    rows = np.flatnonzero(rng.random(N) < 0.8)
    assert len(rows) % 16
    # Adam moves a weight by its rate whatever the gradient; LARS by a thousandth of the weights.
    factor = {"stl10": 0.1, "simclr": 10}.get(name, 1)
    grid = [(factor * rate, decay) for rate, decay in GRID]
    protocol = short(name)
    found, _ = fit(protocol, x, y, rows, grid)
    expected = [by_hand(name, protocol, lambda _: x, y, rows, *cell, 3) for cell in grid]
    assert_same(found, expected, rtol=1e-4)


def test_protocols_are_those_of_the_papers():
    printed = {name: (p.optimizer, p.epochs, p.batch_size) for name, p in PROTOCOLS.items()}
    assert printed == {
        "stl10": ("adam", 100, 128),
        "moco": ("sgd", 100, 256),
        "moco_imagenet100": ("sgd", 60, 256),
        "simclr": ("lars", 90, 4096),
        "balanced": ("sgd", 90, 256),
    }
    first = {name: p.grid[0] for name, p in PROTOCOLS.items()}
    rates = {"stl10": 1e-3, "moco": 30, "moco_imagenet100": 10, "simclr": 1.6, "balanced": 30}
    assert first == {name: (rate, 0.0) for name, rate in rates.items()}
    assert all(len(set(p.grid)) == len(p.grid) == 8 for p in PROTOCOLS.values())


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_cell_does_not_depend_on_the_others(rng, name):
    x, y = problem(rng)
    together, _ = fit(short(name), x, y)
    backwards, _ = fit(short(name), x, y, grid=GRID[::-1])
    assert_same(backwards[::-1], together, rtol=1e-5)
    alone = [fit(short(name), x, y, grid=[cell])[0][0] for cell in GRID]
    assert_same(alone, together, rtol=1e-5)
    assert np.abs(together[0].weights - together[1].weights).max() > 1e-3


@pytest.mark.parametrize("count", [2, 8])
def test_devices_share_the_cells(rng, count):
    x, y = problem(rng)
    one, _ = fit(short("moco"), x, y)
    several, report = fit(short("moco"), x, y, devices=jax.devices()[:count])
    assert_same(several, one, rtol=1e-5)
    assert report["finite"] == [True] * 3


@pytest.mark.parametrize("chunk_bytes", [1, 4 * 16 * D * 3, 2**20])
def test_features_on_the_host_give_the_same_numbers(rng, monkeypatch, tmp_path, chunk_bytes):
    x, y = problem(rng)
    rows = np.flatnonzero(rng.random(N) < 0.9)
    resident, _ = fit(short("moco"), x, y, rows)
    np.save(tmp_path / "x.npy", x)
    monkeypatch.setattr(sgd, "RESIDENT_SHARE", 0)
    monkeypatch.setattr(sgd, "CHUNK_BYTES", chunk_bytes)
    sizes = []
    gathered = sgd._gathered
    monkeypatch.setattr(
        sgd, "_gathered", lambda *all: (sizes.append(len(p[2][0])) or p for p in gathered(*all))
    )
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert_same(fit(short("moco"), mapped, y, rows)[0], resident)
    per_epoch = {1: [1, 1, 1, 1], 4 * 16 * D * 3: [3, 1], 2**20: [4]}[chunk_bytes]
    assert sizes == 10 * per_epoch


def test_half_precision_features(rng, monkeypatch):
    x, y = problem(rng)
    x = x.astype(np.float16)
    expected, _ = fit(short("moco"), x.astype(np.float32), y)
    assert_same(fit(short("moco"), x, y)[0], expected)
    monkeypatch.setattr(sgd, "RESIDENT_SHARE", 0)
    assert_same(fit(short("moco"), x, y)[0], expected)


@pytest.mark.parametrize("share", [0, 0.25])
def test_features_of_each_epoch(rng, monkeypatch, share):
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
        return memory

    rows, protocol = np.arange(10, n), short("moco")
    grid = [(0.1, 0.0), (0.02, 1e-2)]  # at high rates so many steps blow up a rounding error
    found, report = fit(protocol, x, y, rows, grid, epoch_features=epoch_features)
    assert epochs == list(range(10)) and "augmented" not in report
    expected = [
        by_hand("moco", protocol, lambda epoch: x + shifts[epoch], y, rows, *cell, 3)
        for cell in grid
    ]
    assert_same(found, expected, rtol=1e-4)


def test_same_seed_same_classifiers(rng):
    x, y = problem(rng)
    first, report = fit(short("simclr"), x, y)
    again, _ = fit(short("simclr"), x, y)
    assert_same(again, first)
    other, _ = fit(short("simclr"), x, y, seed=4)
    assert np.abs(other[0].weights - first[0].weights).max() > 1e-3
    json.dumps(report)
    assert report["batch_size"] == 16 and report["nesterov"] and "adam_betas" not in report


def test_rows_outside_do_not_count(rng):
    x, y = problem(rng)
    rows = np.arange(0, N, 2)
    expected, _ = fit(short("stl10"), x, y, rows)
    x[1::2], y[1::2] = np.nan, 0
    assert_same(fit(short("stl10"), x, y, rows)[0], expected)


def test_batch_larger_than_the_training_rows(rng):
    x, y = problem(rng)
    protocol = short("moco")
    whole, _ = fit(protocol._replace(batch_size=4096), x, y)
    assert_same(fit(protocol._replace(batch_size=N), x, y)[0], whole)


def test_divergence_is_reported_and_stays_in_its_cell(rng):
    x, y = problem(rng)
    expected, _ = fit(short("moco"), x, y, grid=[GRID[0]] * 3)
    found, report = fit(short("moco"), x, y, grid=[GRID[0], (1e4, 10.0), GRID[0]])
    assert report["finite"] == [True, False, True]
    assert not np.isfinite(logits(found[1], x)).all()
    assert_same([found[0], found[2]], [expected[0], expected[2]])


@pytest.mark.parametrize("name", PROTOCOLS)
def test_accuracy_is_that_of_scikit_learn(rng, name):
    centres = 2 * sphere(rng, CLASSES, 16)
    y, test_y = rng.integers(CLASSES, size=(2, 1000))
    x, test_x = (
        (centres[side] + 0.6 * rng.normal(size=(1000, 16))).astype(np.float32)
        for side in (y, test_y)
    )
    reference = LogisticRegression(C=1e6, max_iter=2000).fit(x, y).score(test_x, test_y)
    assert reference > 0.9
    protocol = PROTOCOLS[name]
    # Rates of 10 and more are for ImageNet; a fifth of the epochs is enough here.
    grid = {"stl10": [(1e-2, 0.0)], "simclr": [(25.6, 0.0)]}.get(name, [(1.0, 0.0)])
    protocol = protocol._replace(epochs=protocol.epochs // 5, batch_size=128)
    (classifier,), _ = fit(protocol, x, y, grid=grid)
    accuracy = np.mean(np.argmax(logits(classifier, test_x), axis=1) == test_y)
    assert accuracy > reference - 0.015


def test_mistakes_are_one_line(rng):
    x, y = problem(rng)
    with pytest.raises(UserError, match="grid: give at least one"):
        fit(short("moco"), x, y, grid=[])
    for cell in [(0.0, 0.0), (np.nan, 0.0), (1.0, -1.0), (1.0, np.inf)]:
        with pytest.raises(UserError, match=r"grid: learning rate .* weight decay"):
            fit(short("moco"), x, y, grid=[cell])
    with pytest.raises(UserError, match="no rows"):
        fit(short("moco"), x, y, rows=[])
    with pytest.raises(UserError, match=r"epoch 0 features: expected shape \(60, 8\), got \(60, 7"):
        fit(short("moco"), x, y, epoch_features=lambda epoch: x[:, 1:])
    with pytest.raises(UserError, match="epoch 0 features: 60 of 60 rows hold NaN"):
        fit(short("moco"), x, y, epoch_features=lambda epoch: x * np.nan)


def test_the_command_line_offers_every_protocol():
    assert set(typing.get_args(Protocol)) == {"lbfgs", "knn", "quick_thought", *PROTOCOLS}
