"""Optimizers against rules in NumPy, schedules against their closed forms, the page of flags."""

import dataclasses
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tyro

from hypersphere_jax import models
from hypersphere_jax.config import ModelConfig, OptimizerConfig, UserError
from hypersphere_jax.optimizers import make_optimizer, make_schedule, weight_mask

PAGE = (Path(__file__).parents[2] / "docs" / "optimizers.md").read_text()
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
    "adam": ADAM | {"clip_norm": 2.0},
    "adam exclude": ADAM | {"exclude_norm_and_bias": True},
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
        params, state = carry
        updates, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        return (params, state), params

    return jax.lax.scan(step, (params, optimizer.init(params)), gradients)[1]


def by_hand(config, params, gradients):
    """The papers' rules in float64. Adam: Kingma & Ba; LARS: You et al., Algorithm 1."""
    m, is_lars = config.momentum, config.optimizer == "lars"
    memory, path = {name: {} for name in params}, []
    for number, gradient in enumerate(gradients):
        rate = config.learning_rate * 2 * (1 if number < STEPS // 2 else 0.1)
        norm = np.sqrt(sum((g**2).sum() for g in gradient.values()))
        params = dict(params)
        for name, w in params.items():
            g, held, weight = gradient[name], memory[name], name in ("kernel", "zero")
            g = g * min(1, (config.clip_norm or norm) / norm)
            if weight or not (is_lars or config.exclude_norm_and_bias):
                g = g + config.weight_decay * w
            if config.optimizer == "adam":
                (a, b), t = config.adam_betas, number + 1
                first = held["m"] = a * held.get("m", 0) + (1 - a) * g
                second = held["v"] = b * held.get("v", 0) + (1 - b) * g**2
                root = np.sqrt(second / (1 - b**t)) + config.adam_eps
                params[name] = w - rate * first / (1 - a**t) / root
                continue
            # PyTorch's SGD multiplies what momentum made by the rate, LARS accumulates with it.
            if is_lars and weight and np.linalg.norm(w) * np.linalg.norm(g) > 0:
                g = config.lars_trust * np.linalg.norm(w) / np.linalg.norm(g) * g
            g = rate * g if is_lars else g
            v = held["v"] = m * held.get("v", 0) + g
            step = g + m * v if config.nesterov else v
            params[name] = w - (step if is_lars else rate * step)
        path.append(params)
    return path


def test_rules(rng):
    """Of configs, and with numbers that are arguments, as of encoders that train together."""
    params = tree(rng, zero=True)  # weights of norm 0 meet a gradient at the third step
    gradients = [tree(rng, zero=number < 2) for number in range(STEPS)]
    gradients[5:] = [jax.tree.map(lambda g: 0.1 * g, one) for one in gradients[5:]]
    configs = {case: dataclasses.replace(BASE, **changes) for case, changes in CASES.items()}
    changed = {"learning_rate": 0.3, "weight_decay": 0.1, "momentum": 0.4}
    others = {f"{case} together": configs[case] for case in ("sgd", "lars nesterov clip", "adam")}

    @jax.jit
    def all_paths(params, gradients, numbers):
        found = {case: along(config, params, gradients) for case, config in configs.items()}
        return found | {
            case: along(config, params, gradients, numbers) for case, config in others.items()
        }

    stacked = jax.tree.map(lambda *x: np.float32(x), *gradients)
    found = all_paths(jax.tree.map(np.float32, params), stacked, changed)
    others = {case: dataclasses.replace(config, **changed) for case, config in others.items()}
    for case, config in {**configs, **others}.items():
        for number, expected in enumerate(by_hand(config, params, gradients)):
            for name, value in expected.items():
                at = f"{case}, {name} after step {number + 1}"
                its = found[case][name][number]
                np.testing.assert_allclose(its, value, rtol=1e-4, atol=1e-6, err_msg=at)


def test_weights_are_told_by_name_and_by_dimension():
    params = {
        "attention": {"kernel": np.zeros((4, 2, 2)), "bias": np.zeros((2, 2))},
        "scale": {"kernel": np.zeros((2, 2)), "slope": np.zeros(2), "tau": np.zeros(())},
        "groups": {"scale": np.zeros((2, 2))},
        "layers": [np.zeros((2, 2)), np.zeros(2)],
    }
    assert weight_mask(params) == {
        "attention": {"kernel": True, "bias": False},
        "scale": {"kernel": True, "slope": False, "tau": False},
        "groups": {"scale": False},
        "layers": [True, False],
    }
    assert weight_mask(np.zeros(3)) is False and weight_mask(np.zeros((3, 3))) is True
    for name, size in (("small_cnn", 8), ("small_alexnet", 64)):
        config = ModelConfig(name=name, image_size=size, channels=1, num_classes=10)
        mask = weight_mask(models.abstract(config)[1])
        for path, kept in jax.tree_util.tree_leaves_with_path(mask):
            assert kept == (path[-1].key == "kernel"), (name, path)


def rates(config, total, steps=None):
    return jax.vmap(make_schedule(config, total))(np.arange(total) if steps is None else steps)


def test_steps():
    # The papers' 200 epochs: 0.12 per 256, times 0.1 from epochs 155, 170 and 185 on.
    at = np.array([0, 155 * 130 - 1, 155 * 130, 170 * 130, 199 * 130])
    found = rates(OptimizerConfig(batch_size=768), 200 * 130, at)
    np.testing.assert_allclose(found, [0.36, 0.36, 0.036, 3.6e-3, 3.6e-4], rtol=1e-5)
    # In 10 steps the first two decays fall on one step: both count.
    short = rates(OptimizerConfig(), 10)
    np.testing.assert_allclose(short, [0.12] * 8 + [0.0012, 0.00012], rtol=1e-5)
    np.testing.assert_allclose(rates(OptimizerConfig(decay_at=()), 10), [0.12] * 10, rtol=1e-6)
    config = OptimizerConfig(epochs=20, warmup_epochs=5, decay_at=(0.25, 0.5), decay_factor=0.5)
    found = rates(config, 200, np.array([0, 25, 49, 50, 99, 100, 199]))
    expected = [0, 0.06, 0.12 * 0.98, 0.06, 0.06, 0.03, 0.03]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("epochs, warmup", [(10, 0.0), (10, 2.0), (5, 0.5)])
def test_warm_up_and_cosine(epochs, warmup):
    config = OptimizerConfig(
        epochs=epochs, warmup_epochs=warmup, schedule="cosine", learning_rate=2.0
    )
    total, w = 20 * epochs, int(20 * warmup)
    found = np.asarray(rates(config, total, np.arange(total + 1)))
    np.testing.assert_allclose(found[:w], 2.0 * np.arange(w) / max(w, 1), rtol=1e-6)
    after = np.arange(total - w + 1)
    np.testing.assert_allclose(found[w:], 1 + np.cos(np.pi * after / (total - w)), atol=1e-6)
    # In a run of few steps, one is left for the peak.
    short = OptimizerConfig(epochs=1, warmup_epochs=0.99, schedule="cosine")
    np.testing.assert_allclose(rates(short, 3), [0, 0.06, 0.12])
    assert make_schedule(short, 1)(0) == np.float32(0.12)


def test_scaling():
    for batch in (128, 256, 4096):
        for scaling, rate, peak in (
            ("linear", 0.3, 0.3 * batch / 256),
            ("sqrt", 1.2, 0.075 * batch**0.5),
            ("none", 0.03, 0.03),
        ):
            config = OptimizerConfig(batch_size=batch, scaling=scaling, learning_rate=rate)
            np.testing.assert_allclose(make_schedule(config, 100)(0), peak, rtol=1e-6)


def test_state_of_the_default_rules():
    """A checkpoint of such a run holds what it always did: the state of three plain rules."""
    config = OptimizerConfig()
    empty, trace, schedule = make_optimizer(config, make_schedule(config, 10)).init(jnp.zeros(2))
    assert empty == optax.EmptyState() and isinstance(trace, optax.TraceState)
    assert isinstance(schedule, optax.ScaleByScheduleState)
    assert config.adam_eps == 1e-8


def test_mistakes():
    for changes, words in (
        ({"warmup_epochs": 160}, "--decay-at .*before --warmup-epochs 160 are over; shorten"),
        ({"adam_eps": -1.0}, "--adam-eps -1.0: must be finite and positive"),
        ({"adam_betas": (-0.1, 0.9)}, "--adam-betas"),
        ({"nesterov": True, "optimizer": "adam"}, "--nesterov needs --optimizer sgd or lars"),
    ):
        with pytest.raises(UserError, match=words):
            OptimizerConfig(**changes)
    OptimizerConfig(warmup_epochs=160, schedule="cosine")  # which a late warm-up suits


# From the papers: optimizer, weight decay, clipping, epochs, batch; rates at epochs of the run.
EXPECTED = {
    "[WI] STL-10": ("sgd", 1e-4, None, 200, 768, {0: 0.36, 154: 0.36, 156: 0.036, 199: 3.6e-4}),
    "[WI] NYU-Depth-v2": (
        *("sgd", 1e-4, None, 400, 128),
        {0: 0.06, 309: 0.06, 311: 6e-3, 341: 6e-4, 371: 6e-5},
    ),
    "[WI] ImageNet-100": (
        *("sgd", 1e-4, None, 240, 128),
        {0: 0.03, 119: 0.03, 121: 3e-3, 159: 3e-3, 161: 3e-4, 199: 3e-4, 201: 3e-5},
    ),
    "[WI] ImageNet": ("sgd", 1e-4, None, 200, 256, {119: 0.03, 121: 3e-3, 161: 3e-4}),
    "[WI] BookCorpus": ("adam", 0.0, 0.5, 1, 400, {0: 5e-4, 0.999: 5e-4}),
    "[C] CIFAR-10": ("lars", 1e-4, None, 800, 128, {5: 0.0375 * 128**0.5, 10: 0.075 * 128**0.5}),
    "[C] ImageNet": ("lars", 1e-4, None, 800, 1024, {5: 1.2, 10: 2.4, 405: 1.2, 800: 0}),
    "[B] ImageNet": ("sgd", 1e-4, None, 100, 512, {0: 0.1, 50: 0.05, 100: 0}),
    "[B] CIFAR-10": ("sgd", 1e-4, None, 200, 512, {0: 0.1, 100: 0.05, 200: 0}),
}


def test_the_pages_flags_are_the_papers_settings():
    table = re.findall(r"^\| ([^|`]+) \| `(--[^`]+)` \|", PAGE, re.MULTILINE)
    assert {name.strip() for name, _ in table} == EXPECTED.keys()
    for row, flags in table:
        name, config = row.strip(), tyro.cli(OptimizerConfig, args=flags.split())
        *expected, at = EXPECTED[name]
        kinds = [config.optimizer, config.weight_decay, config.clip_norm, config.epochs]
        assert [*kinds, config.batch_size] == expected and config.momentum == 0.9, name
        steps = np.array([round(epoch * 1000) for epoch in at])
        found = rates(config, config.epochs * 1000, steps)
        np.testing.assert_allclose(found, list(at.values()), rtol=1e-5, atol=1e-8, err_msg=name)
    for field in dataclasses.fields(OptimizerConfig):
        assert f"--{field.name.replace('_', '-')}" in PAGE, field.name
