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

# Rate 0.2, then 0.02.
BASE = OptimizerConfig(
    batch_size=512, learning_rate=0.1, momentum=0.8, weight_decay=0.01, decay_at=(0.5,)
)
LARS = {"optimizer": "lars", "lars_trust": 0.02}
ADAM = {"adam_betas": (0.7, 0.95), "adam_eps": 0.05}
CASES = {
    "sgd": {},
    "sgd nesterov": {"nesterov": True},
    "sgd exclude": {"exclude_norm_and_bias": True, "clip_norm": 2.0},
    "lars": LARS,
    "lars nesterov clip": LARS | {"nesterov": True, "clip_norm": 1.0},
    "adam": ADAM | {"optimizer": "adam", "clip_norm": 2.0, "exclude_norm_and_bias": True},
    "adamw": ADAM | {"optimizer": "adamw", "weight_decay_end": 0.3},
}
SCALAR_CASES = ("sgd", "lars nesterov clip", "adam", "adamw")


def optimize(config, params, gradients, scalars):
    """Return the parameters after two steps."""
    scalars = dict(scalars)
    schedule = make_schedule(config, 2, scalars.pop("learning_rate", None))
    optimizer = make_optimizer(config, schedule, scalars)
    state = optimizer.init(params)
    for gradient in gradients:
        updates, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return params


def optimize_by_hand(config, params, gradients):
    """PyTorch's SGD multiplies the velocity by the rate; LARS (You et al.) accumulates it.

    AdamW adds the decay to the step (Loshchilov & Hutter, Algorithm 2).
    """
    is_lars = config.optimizer == "lars"
    is_adamw = config.optimizer == "adamw"
    masked = is_lars or is_adamw or config.exclude_norm_and_bias
    rates = 2 * config.learning_rate * np.array([1, 0.1])
    decays = np.full(2, config.weight_decay)
    if config.weight_decay_end is not None:  # half the cosine is done at the second step
        decays[1] = (config.weight_decay + config.weight_decay_end) / 2
    norms = [np.sqrt(sum((g**2).sum() for g in gradient.values())) for gradient in gradients]
    found = {}
    for name, w in params.items():
        first = second = 0
        steps = zip(gradients, norms, rates, decays, strict=True)
        for t, (gradient, norm, rate, decay) in enumerate(steps, 1):
            g = gradient[name] * min(1, (config.clip_norm or norm) / norm)
            decayed = decay * w if name == "kernel" or not masked else 0
            if not is_adamw:
                g = g + decayed
            if config.optimizer in ("adam", "adamw"):
                a, b = config.adam_betas
                first = a * first + (1 - a) * g
                second = b * second + (1 - b) * g**2
                step = first / (1 - a**t) / (np.sqrt(second / (1 - b**t)) + config.adam_eps)
                step += decayed if is_adamw else 0
            else:
                if is_lars and name == "kernel" and np.any(w):
                    g = config.lars_trust * np.linalg.norm(w) / np.linalg.norm(g) * g
                g = g * rate if is_lars else g
                first = config.momentum * first + g
                step = g + config.momentum * first if config.nesterov else first
            w = w - (step if is_lars else rate * step)
        found[name] = w
    return found


def test_optimizers_by_hand(rng):
    """Options of the config, and scalars as arguments, as of vmapped runs; a kernel of zeros."""
    shapes = {"kernel": (3, 4), "bias": (4,), "scale": (4,)}
    params, *gradients = (
        {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
        for _ in range(3)
    )
    scalars = {"learning_rate": 0.3, "weight_decay": 0.1, "momentum": 0.4}
    configs = {case: dataclasses.replace(BASE, **changes) for case, changes in CASES.items()}
    zero = params | {"kernel": np.zeros((3, 4), np.float32)}
    runs = [(params, config, {}) for config in configs.values()]
    runs += [(params, configs[case], scalars) for case in SCALAR_CASES]
    runs.append((zero, configs["lars"], {}))

    @jax.jit
    def all_runs(gradients):
        return [optimize(config, start, gradients, given) for start, config, given in runs]

    for found, (start, config, given) in zip(all_runs(gradients), runs, strict=True):
        wide = jax.tree.map(np.float64, (start, gradients))
        expected = optimize_by_hand(dataclasses.replace(config, **given), *wide)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, 1e-4, 1e-6, err_msg=f"{config}, {name}")


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
