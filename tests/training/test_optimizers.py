"""Optimizers against NumPy, schedules against their closed forms."""

import dataclasses

import jax
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict

from hypersphere_jax import models
from hypersphere_jax.configs import ModelConfig, OptimizerConfig
from hypersphere_jax.training.optimizers import make_optimizer, make_schedule, weight_mask

STEPS = 8
# Rate 0.2 for half the run, then 0.02.
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
    "adam decay": ADAM | {"weight_decay_end": 0.05},
    "adamw": ADAM | {"optimizer": "adamw", "weight_decay": 0.1},
    "adamw decay": ADAM | {"optimizer": "adamw", "weight_decay_end": 0.3},
}


def draw(rng, zero):
    """Return parameters or gradients of a layer with normalization, and an array of norm 0."""
    shapes = {"kernel": (3, 4), "bias": (4,), "scale": (4,), "zero": (2, 2)}
    drawn = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    if zero:
        drawn["zero"] = np.zeros((2, 2))
    return drawn


def optimize(config, params, gradients, scalars=None):
    """Return the parameters after each step."""
    scalars = dict(scalars or {})
    schedule = make_schedule(config, STEPS, scalars.pop("learning_rate", None))
    optimizer = make_optimizer(config, schedule, scalars)

    def step(carry, gradient):
        params, state = carry
        updates, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        return (params, state), params

    return jax.lax.scan(step, (params, optimizer.init(params)), gradients)[1]


def adam_by_hand(config, w, g, memory, t, rate, decay):
    """Kingma & Ba, Algorithm 1; Loshchilov & Hutter, Algorithm 2, with their alpha in the rate."""
    a, b = config.adam_betas
    memory["m"] = a * memory["m"] + (1 - a) * g
    memory["v"] = b * memory["v"] + (1 - b) * g**2
    root = np.sqrt(memory["v"] / (1 - b**t)) + config.adam_eps
    return w - rate * (memory["m"] / (1 - a**t) / root + decay * w)


def momentum_by_hand(config, w, g, memory, rate, is_adapted):
    """PyTorch's SGD multiplies the velocity by the rate; LARS (You et al.) accumulates it."""
    is_lars = config.optimizer == "lars"
    if is_lars and is_adapted and np.linalg.norm(w) * np.linalg.norm(g) > 0:
        g = config.lars_trust * np.linalg.norm(w) / np.linalg.norm(g) * g
    if is_lars:
        g = rate * g
    memory["v"] = config.momentum * memory["v"] + g
    step = memory["v"]
    if config.nesterov:
        step = g + config.momentum * memory["v"]
    if is_lars:
        return w - step
    return w - rate * step


def optimize_by_hand(config, params, gradients):
    """Yield the parameters after each step in float64."""
    memory = {name: {"m": 0, "v": 0} for name in params}
    masked = config.optimizer in ("lars", "adamw") or config.exclude_norm_and_bias
    for t, gradient in enumerate(gradients, start=1):
        decay = config.weight_decay
        if config.weight_decay_end is not None:
            share = (1 - np.cos(np.pi * (t - 1) / STEPS)) / 2
            decay += share * (config.weight_decay_end - decay)
        rate = config.learning_rate * 2 * (1 if t <= STEPS // 2 else 0.1)
        norm = np.sqrt(sum((g**2).sum() for g in gradient.values()))
        params = dict(params)
        for name, w in params.items():
            is_weight = name in ("kernel", "zero")
            g = gradient[name] * min(1, (config.clip_norm or norm) / norm)
            lam = decay if is_weight or not masked else 0.0
            if config.optimizer != "adamw":
                g = g + lam * w
            if config.optimizer == "adam":
                params[name] = adam_by_hand(config, w, g, memory[name], t, rate, 0.0)
            elif config.optimizer == "adamw":
                params[name] = adam_by_hand(config, w, g, memory[name], t, rate, lam)
            else:
                params[name] = momentum_by_hand(config, w, g, memory[name], rate, is_weight)
        yield params


def test_optimizers_by_hand(rng):
    """Options of the config, and scalars as arguments, as of vmapped runs."""
    params = draw(rng, zero=True)
    gradients = [draw(rng, zero=step < 2) for step in range(STEPS)]
    gradients[5:] = [jax.tree.map(lambda g: 0.1 * g, gradient) for gradient in gradients[5:]]
    configs = {case: dataclasses.replace(BASE, **changes) for case, changes in CASES.items()}
    scalars = {"learning_rate": 0.3, "weight_decay": 0.1, "momentum": 0.4}
    traced = ("sgd", "lars nesterov clip", "adam", "adamw decay")

    @jax.jit
    def all_paths(params, gradients, scalars):
        paths = [optimize(config, params, gradients) for config in configs.values()]
        return paths + [optimize(configs[case], params, gradients, scalars) for case in traced]

    stacked = jax.tree.map(lambda *x: np.float32(x), *gradients)
    paths = all_paths(jax.tree.map(np.float32, params), stacked, scalars)
    expected = [*configs.items()]
    expected += [(case, dataclasses.replace(configs[case], **scalars)) for case in traced]
    for path, (case, config) in zip(paths, expected, strict=True):
        for step, by_hand in enumerate(optimize_by_hand(config, params, gradients)):
            for name, value in by_hand.items():
                where = f"{case}, {name}, step {step}"
                np.testing.assert_allclose(path[name][step], value, 1e-4, 1e-6, err_msg=where)


def test_weight_mask_excludes_biases_and_scales():
    layer = {name: np.zeros((2, 2)) for name in ("kernel", "bias", "scale")}
    layer["slope"] = np.zeros(2)
    expected = {"kernel": True, "bias": False, "scale": False, "slope": False}
    assert weight_mask({"scale": layer}) == {"scale": expected}


def test_weight_mask_of_a_vit_is_its_kernels():
    config = ModelConfig("vit_tiny", image_size=8, in_channels=1, head="simclr2")
    _, params, _ = models.abstract(config)
    for path, is_decayed in flatten_dict(weight_mask(params)).items():
        assert is_decayed == (path[-1] == "kernel"), path


def rates(config, total, *steps):
    return jax.vmap(make_schedule(config, total))(np.array(steps or range(total)))


@pytest.mark.parametrize(("scaling", "peak"), [("linear", 4.8), ("sqrt", 1.2), ("none", 0.3)])
def test_rate_scales_with_the_batch(scaling, peak):
    config = OptimizerConfig(batch_size=4096, scaling=scaling, learning_rate=0.3)
    np.testing.assert_allclose(make_schedule(config, 100)(0), peak, rtol=1e-6)


def test_step_schedule():
    """The papers decay by 0.1 at epochs 155, 170 and 185 of 200."""
    steps = (0, 155 * 130 - 1, 155 * 130, 170 * 130, 199 * 130)
    found = rates(OptimizerConfig(batch_size=768), 200 * 130, *steps)
    np.testing.assert_allclose(found, [0.36, 0.36, 0.036, 3.6e-3, 3.6e-4], rtol=1e-5)
    # In 10 steps the first two decays coincide: both count.
    found = rates(OptimizerConfig(), 10)
    np.testing.assert_allclose(found, [0.12] * 8 + [0.0012, 0.00012], rtol=1e-5)
    config = OptimizerConfig(epochs=20, warmup_epochs=5, decay_at=(0.25, 0.5), decay_factor=0.5)
    found = rates(config, 200, 0, 25, 49, 50, 99, 100, 199)
    np.testing.assert_allclose(found, [0, 0.06, 0.1176, 0.06, 0.06, 0.03, 0.03], rtol=1e-5)


@pytest.mark.parametrize(("epochs", "warmup"), [(10, 0.0), (10, 2.0), (5, 0.5)])
def test_cosine_with_warm_up(epochs, warmup):
    config = OptimizerConfig(
        epochs=epochs, warmup_epochs=warmup, schedule="cosine", learning_rate=2.0
    )
    total = 20 * epochs
    w = int(20 * warmup)
    found = np.asarray(rates(config, total, *range(total + 1)))
    np.testing.assert_allclose(found[:w], 2.0 * np.arange(w) / max(w, 1), rtol=1e-5)
    after = np.arange(total - w + 1)
    np.testing.assert_allclose(found[w:], 1 + np.cos(np.pi * after / (total - w)), atol=1e-5)


@pytest.mark.parametrize("warmup", [0.0, 1.5])
def test_cosine_by_epochs_is_constant_within_an_epoch(warmup):
    """MoCo's code: (1 + cos(pi e / E)) / 2 of the peak in epoch e of E."""
    config = OptimizerConfig(
        epochs=8, warmup_epochs=warmup, schedule="cosine_epochs", learning_rate=2.0
    )
    found = rates(config, 80)
    w = int(10 * warmup)
    starts = np.maximum(0, np.arange(80) // 10 * 10 - w)
    expected = 1 + np.cos(np.pi * starts / (80 - w))
    np.testing.assert_allclose(found[w:], expected[w:], atol=1e-5)
    np.testing.assert_allclose(found[:w], 2 * np.arange(w) / max(w, 1), atol=1e-5)
