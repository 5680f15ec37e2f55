"""Optimizers against rules in NumPy, schedules against their closed forms."""

import dataclasses

import jax
import numpy as np
import optax
import pytest

from hypersphere_jax.configs import OptimizerConfig
from hypersphere_jax.training.optimizers import make_optimizer, make_schedule, weight_mask

STEPS = 8
# Constant for half the run, then a tenth: 0.2 and 0.02.
BASE = OptimizerConfig(
    batch_size=512, learning_rate=0.1, momentum=0.8, weight_decay=0.01, decay_at=(0.5,)
)
ADAM = {"optimizer": "adam", "adam_betas": (0.7, 0.95), "adam_eps": 0.05}
LARS = {"optimizer": "lars", "lars_trust": 0.02}
CASES = {
    "sgd": {},
    "sgd nesterov": {"nesterov": True},
    "sgd exclude": {"exclude_norm_and_bias": True, "clip_norm": 2.0},
    "lars": LARS,
    "lars nesterov clip": LARS | {"nesterov": True, "clip_norm": 1.0},
    "lars exclude": LARS | {"exclude_norm_and_bias": True},
    "adam": ADAM | {"clip_norm": 2.0, "exclude_norm_and_bias": True},
}


def tree(rng, zero):
    """Parameters or gradients of a layer with normalization, and one that may be of norm 0."""
    shapes = {"kernel": (3, 4), "bias": (4,), "scale": (4,), "zero": (2, 2)}
    made = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    return made | {"zero": np.zeros((2, 2))} if zero else made


def along(config, params, gradients, numbers=None):
    """The parameters after each step."""
    numbers = dict(numbers or {})
    schedule = make_schedule(config, STEPS, numbers.pop("learning_rate", None))
    optimizer = make_optimizer(config, schedule, numbers)

    def step(carry, gradient):
        updates, state = optimizer.update(gradient, carry[1], carry[0])
        params = optax.apply_updates(carry[0], updates)
        return (params, state), params

    return jax.lax.scan(step, (params, optimizer.init(params)), gradients)[1]


def by_hand(config, params, gradients):
    """The papers' rules in float64. Adam: Kingma & Ba; LARS: You et al., Algorithm 1."""
    m, is_lars = config.momentum, config.optimizer == "lars"
    memory = {name: {"m": 0, "v": 0} for name in params}
    for t, gradient in enumerate(gradients, start=1):
        rate = config.learning_rate * 2 * (1 if t <= STEPS // 2 else 0.1)
        norm = np.sqrt(sum((g**2).sum() for g in gradient.values()))
        params = dict(params)
        for name, w in params.items():
            g, held, weight = gradient[name], memory[name], name in ("kernel", "zero")
            g = g * min(1, (config.clip_norm or norm) / norm)
            if weight or not (is_lars or config.exclude_norm_and_bias):
                g = g + config.weight_decay * w
            if config.optimizer == "adam":
                a, b = config.adam_betas
                first = held["m"] = a * held["m"] + (1 - a) * g
                second = held["v"] = b * held["v"] + (1 - b) * g**2
                root = np.sqrt(second / (1 - b**t)) + config.adam_eps
                params[name] = w - rate * first / (1 - a**t) / root
                continue
            # PyTorch's SGD multiplies what momentum made by the rate, LARS accumulates with it.
            if is_lars and weight and np.linalg.norm(w) * np.linalg.norm(g) > 0:
                g = config.lars_trust * np.linalg.norm(w) / np.linalg.norm(g) * g
            g = rate * g if is_lars else g
            v = held["v"] = m * held["v"] + g
            step = g + m * v if config.nesterov else v
            params[name] = w - (step if is_lars else rate * step)
        yield params


def test_rules(rng):
    """Of configs, and with scalars that are arguments, as of vmapped runs."""
    params = tree(rng, zero=True)  # weights of norm 0 meet a gradient at the third step
    gradients = [tree(rng, zero=number < 2) for number in range(STEPS)]
    gradients[5:] = [jax.tree.map(lambda g: 0.1 * g, one) for one in gradients[5:]]
    configs = {case: dataclasses.replace(BASE, **changes) for case, changes in CASES.items()}
    changed = {"learning_rate": 0.3, "weight_decay": 0.1, "momentum": 0.4}
    others = {case: configs[case] for case in ("sgd", "lars nesterov clip", "adam")}

    @jax.jit
    def all_paths(params, gradients, numbers):
        found = [along(config, params, gradients) for config in configs.values()]
        return found + [along(config, params, gradients, numbers) for config in others.values()]

    stacked = jax.tree.map(lambda *x: np.float32(x), *gradients)
    found = all_paths(jax.tree.map(np.float32, params), stacked, changed)
    changes = [*CASES.items(), *((case, CASES[case] | changed) for case in others)]
    for path, (case, change) in zip(found, changes, strict=True):
        config = dataclasses.replace(BASE, **change)
        for number, expected in enumerate(by_hand(config, params, gradients)):
            for name, value in expected.items():
                at = f"{case}, {name}, step {number}"
                np.testing.assert_allclose(path[name][number], value, 1e-4, 1e-6, err_msg=at)


def test_weights_are_told_by_name_and_by_dimension():
    inside = dict.fromkeys(("kernel", "bias", "scale"), np.zeros((2, 2))) | {"slope": np.zeros(2)}
    expected = {"kernel": True, "bias": False, "scale": False, "slope": False}
    assert weight_mask({"scale": inside}) == {"scale": expected}


def rates(config, total, *steps):
    return jax.vmap(make_schedule(config, total))(np.array(steps or range(total)))


def test_steps_and_scaling():
    for batch in (128, 256, 4096):
        expected = {"linear": 0.3 * batch / 256, "sqrt": 0.3 * batch**0.5 / 16, "none": 0.3}
        for scaling, peak in expected.items():
            config = OptimizerConfig(batch_size=batch, scaling=scaling, learning_rate=0.3)
            np.testing.assert_allclose(make_schedule(config, 100)(0), peak, rtol=1e-6)
    # The papers' 200 epochs: 0.12 per 256, times 0.1 from epochs 155, 170 and 185 on.
    at = 0, 155 * 130 - 1, 155 * 130, 170 * 130, 199 * 130
    found = rates(OptimizerConfig(batch_size=768), 200 * 130, *at)
    np.testing.assert_allclose(found, [0.36, 0.36, 0.036, 3.6e-3, 3.6e-4], rtol=1e-5)
    # In 10 steps the first two decays fall on one step: both count.
    short = rates(OptimizerConfig(), 10)
    np.testing.assert_allclose(short, [0.12] * 8 + [0.0012, 0.00012], rtol=1e-5)
    config = OptimizerConfig(epochs=20, warmup_epochs=5, decay_at=(0.25, 0.5), decay_factor=0.5)
    found = rates(config, 200, 0, 25, 49, 50, 99, 100, 199)
    np.testing.assert_allclose(found, [0, 0.06, 0.1176, 0.06, 0.06, 0.03, 0.03], rtol=1e-5)


@pytest.mark.parametrize("epochs, warmup", [(10, 0.0), (10, 2.0), (5, 0.5)])
def test_warm_up_and_cosine(epochs, warmup):
    # In a run of few steps, one is left for the peak.
    short = OptimizerConfig(epochs=1, warmup_epochs=0.99, schedule="cosine")
    np.testing.assert_allclose(rates(short, 3), [0, 0.06, 0.12], rtol=1e-6)
    config = dataclasses.replace(short, epochs=epochs, warmup_epochs=warmup, learning_rate=2.0)
    total, w = 20 * epochs, int(20 * warmup)
    found = np.asarray(rates(config, total, *range(total + 1)))
    np.testing.assert_allclose(found[:w], 2.0 * np.arange(w) / max(w, 1), rtol=1e-5)
    after = np.arange(total - w + 1)
    np.testing.assert_allclose(found[w:], 1 + np.cos(np.pi * after / (total - w)), atol=1e-5)


@pytest.mark.parametrize("warmup", [0.0, 1.5])
def test_a_cosine_by_epochs_is_constant_within_each(warmup):
    """MoCo's code: before epoch e of E it takes (1 + cos(pi e / E)) / 2 of the peak."""
    config = OptimizerConfig(epochs=8, warmup_epochs=warmup, schedule="cosine_epochs")
    found = rates(dataclasses.replace(config, learning_rate=2.0, batch_size=256), 80)
    w = 10 * warmup
    begins = np.maximum(0, np.arange(80) // 10 * 10 - w)
    expected = 1 + np.cos(np.pi * begins / (80 - w))
    np.testing.assert_allclose(found[int(w) :], expected[int(w) :], atol=1e-5)
    np.testing.assert_allclose(found[: int(w)], 2 * np.arange(int(w)) / max(w, 1), atol=1e-5)
