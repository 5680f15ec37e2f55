"""Optimizers against NumPy and PyTorch, schedules against their closed forms."""

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

PAGE = (Path(__file__).parent.parent / "docs" / "optimizers.md").read_text()
STEPS = 8
# Constant for half the run, then a tenth: 0.2 and 0.02.
BASE = OptimizerConfig(
    batch_size=512, learning_rate=0.1, momentum=0.8, weight_decay=0.01, decay_at=(0.5,)
)


def tree(rng):
    """Parameters or gradients of a layer with normalization, and one of the norm 0."""
    shapes = {"kernel": (3, 4), "bias": (4,), "scale": (4,), "zero": (2, 2)}
    made = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    made["zero"] = np.zeros((2, 2))
    return {"layer": made}


def make_problem(rng):
    params, gradients = tree(rng), [tree(rng) for _ in range(STEPS)]
    for number, gradient in enumerate(gradients):
        if number >= 2:  # weights of norm 0 meet a gradient, then have a norm
            gradient["layer"]["zero"] = rng.standard_normal((2, 2))
    return params, gradients


def run(config, params, gradients):
    """The parameters after each step."""
    optimizer = make_optimizer(config, make_schedule(config, len(gradients)))
    params = jax.tree.map(jnp.float32, params)
    state, path = optimizer.init(params), []
    for gradient in gradients:
        gradient = jax.tree.map(jnp.float32, gradient)
        updates, state = jax.jit(optimizer.update)(gradient, state, params)
        params = optax.apply_updates(params, updates)
        path.append(params)
    return path


def by_hand(rule, params, gradients):
    """A rule for one array, (name, w, g, memory, step) -> new w, along the steps."""
    layer = dict(params["layer"])
    memory, path = {name: {} for name in layer}, []
    for number, gradient in enumerate(gradients):
        for name, w in layer.items():
            layer[name] = rule(name, w, gradient["layer"][name], memory[name], number)
        path.append({"layer": dict(layer)})
    return path


def assert_same_path(found, expected, rtol=2e-5):
    assert len(found) == len(expected) == STEPS
    for a, b in zip(found, expected, strict=True):
        for name in b["layer"]:
            np.testing.assert_allclose(a["layer"][name], b["layer"][name], rtol=rtol, atol=1e-6)


def rate(number):
    return 0.2 if number < STEPS // 2 else 0.02


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("exclude", [False, True])
def test_sgd_is_pytorchs(nesterov, exclude, rng):
    def sgd(name, w, g, memory, number):
        # torch.optim.SGD: decay into the gradient, momentum, then the rate.
        if not (exclude and name in ("bias", "scale")):
            g = g + 0.01 * w
        v = memory["v"] = 0.8 * memory["v"] + g if memory else g
        return w - rate(number) * (g + 0.8 * v if nesterov else v)

    config = dataclasses.replace(BASE, nesterov=nesterov, exclude_norm_and_bias=exclude)
    problem = make_problem(rng)
    assert_same_path(run(config, *problem), by_hand(sgd, *problem))


@pytest.mark.parametrize("nesterov", [False, True])
def test_lars_is_simclrs(nesterov, rng):
    def lars(name, w, g, memory, number):
        # You et al., Algorithm 1; biases and normalization as plain SGD without decay.
        trust = 1.0
        if name not in ("bias", "scale"):
            g = g + 0.01 * w
            if np.linalg.norm(w) > 0 and np.linalg.norm(g) > 0:
                trust = 0.02 * np.sqrt((w**2).sum()) / np.sqrt((g**2).sum())
        step = rate(number) * trust * g
        v = memory["v"] = 0.8 * memory.get("v", 0.0) + step
        return w - (0.8 * v + step if nesterov else v)

    config = dataclasses.replace(BASE, optimizer="lars", lars_trust=0.02, nesterov=nesterov)
    problem = make_problem(rng)
    found = run(config, *problem)
    assert_same_path(found, by_hand(lars, *problem))
    excluded = dataclasses.replace(config, exclude_norm_and_bias=True)
    assert_same_path(found, run(excluded, *problem), rtol=0)


@pytest.mark.parametrize("exclude", [False, True])
def test_adam_is_kingma_and_bas(exclude, rng):
    def adam(name, w, g, memory, number):
        if not (exclude and name in ("bias", "scale")):
            g = g + 0.01 * w
        m = memory["m"] = 0.7 * memory.get("m", 0.0) + 0.3 * g
        v = memory["v"] = 0.95 * memory.get("v", 0.0) + 0.05 * g**2
        m, v = m / (1 - 0.7 ** (number + 1)), v / (1 - 0.95 ** (number + 1))
        return w - rate(number) * m / (np.sqrt(v) + 0.05)

    config = dataclasses.replace(
        BASE,
        optimizer="adam",
        adam_betas=(0.7, 0.95),
        adam_eps=0.05,
        exclude_norm_and_bias=exclude,
    )
    problem = make_problem(rng)
    assert_same_path(run(config, *problem), by_hand(adam, *problem), rtol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"nesterov": True},
        {"clip_norm": 2.0},
        {"optimizer": "adam", "adam_betas": (0.5, 0.99), "adam_eps": 1e-3},
        {"exclude_norm_and_bias": True, "clip_norm": 1.0},
    ],
    ids=str,
)
def test_pytorch_takes_the_same_steps(changes, rng):
    torch = pytest.importorskip("torch")
    config = dataclasses.replace(BASE, **changes)
    params, gradients = make_problem(rng)
    weights = {name: torch.nn.Parameter(torch.tensor(w)) for name, w in params["layer"].items()}
    groups = [
        {"params": [weights["kernel"], weights["zero"]]},
        {
            "params": [weights["bias"], weights["scale"]],
            "weight_decay": 0.0 if config.exclude_norm_and_bias else 0.01,
        },
    ]
    if config.optimizer == "adam":
        optimizer = torch.optim.Adam(
            groups, lr=0.2, betas=config.adam_betas, eps=config.adam_eps, weight_decay=0.01
        )
    else:
        optimizer = torch.optim.SGD(
            groups, lr=0.2, momentum=0.8, weight_decay=0.01, nesterov=config.nesterov
        )
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [STEPS // 2])
    path = []
    for gradient in gradients:
        for name, weight in weights.items():
            weight.grad = torch.tensor(gradient["layer"][name])
        if config.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(weights.values(), config.clip_norm)
        optimizer.step()
        schedule.step()
        path.append({"layer": {name: w.detach().numpy().copy() for name, w in weights.items()}})
    assert_same_path(run(config, params, gradients), path, rtol=1e-4)


@pytest.mark.parametrize("optimizer", ["sgd", "lars"])
def test_clipping_shortens_the_gradient_of_all_parameters(optimizer, rng):
    params, gradients = make_problem(rng)
    gradients = [gradients[-1]] + [jax.tree.map(lambda g: 0.01 * g, g) for g in gradients[1:]]
    norms = [np.sqrt(sum((g**2).sum() for g in each["layer"].values())) for each in gradients]
    assert norms[0] > 1 > max(norms[1:])
    config = dataclasses.replace(BASE, optimizer=optimizer)
    shortened = [jax.tree.map(lambda g: g / norms[0], gradients[0]), *gradients[1:]]
    found = run(dataclasses.replace(config, clip_norm=1.0), params, gradients)
    assert_same_path(found, run(config, params, shortened), rtol=1e-5)


@pytest.mark.parametrize("name, size", [("small_cnn", 8), ("small_alexnet", 64)])
def test_weights_of_a_model(name, size):
    config = ModelConfig(name=name, image_size=size, channels=1, num_classes=10)
    _, params, _ = models.abstract(config)
    leaves = jax.tree_util.tree_leaves_with_path(weight_mask(params))
    found = {jax.tree_util.keystr(path): kept for path, kept in leaves}
    assert len(found) == len(jax.tree.leaves(params))
    assert {path for path, kept in found.items() if kept} == {
        path for path in found if path.endswith("['kernel']")
    }
    assert {path.split("'")[-2] for path in found} == {"kernel", "bias", "scale"}


def test_weights_by_name_and_by_dimension():
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


def test_steps():
    # The papers' 200 epochs: 0.12 per 256, times 0.1 from epochs 155, 170 and 185 on.
    config = OptimizerConfig(batch_size=768)
    schedule = make_schedule(config, 200 * 130)
    for epoch, expected in ((0, 0.36), (154.99, 0.36), (155, 0.036), (170, 3.6e-3), (199, 3.6e-4)):
        np.testing.assert_allclose(schedule(int(epoch * 130)), expected, rtol=1e-5)
    # In 10 steps the first two decays fall on one step: both count.
    short = make_schedule(OptimizerConfig(), 10)
    np.testing.assert_allclose([short(7), short(8), short(9)], [0.12, 0.0012, 0.00012], rtol=1e-5)
    constant = make_schedule(OptimizerConfig(decay_at=()), 10)
    np.testing.assert_allclose([constant(0), constant(9)], [0.12, 0.12], rtol=1e-6)


def test_cosine():
    steps = np.arange(101)
    schedule = make_schedule(OptimizerConfig(schedule="cosine"), 100)
    found = np.array([schedule(int(s)) for s in steps])
    np.testing.assert_allclose(found, 0.12 * (1 + np.cos(np.pi * steps / 100)) / 2, atol=1e-7)
    # The cosines of a whole run cancel: the rates of its steps sum to (S + 1) / 2 of the peak.
    np.testing.assert_allclose(found[:100].sum(), 0.12 * 101 / 2, rtol=1e-5)


@pytest.mark.parametrize("epochs, warmup", [(10, 2.0), (10, 0.5), (5, 0.5)])
def test_warm_up_then_cosine(epochs, warmup):
    config = OptimizerConfig(
        epochs=epochs, warmup_epochs=warmup, schedule="cosine", learning_rate=2.0
    )
    total = 20 * epochs
    w = int(20 * warmup)
    schedule = make_schedule(config, total)
    found = np.array([schedule(s) for s in range(total + 1)])
    assert found[0] == 0 and found.argmax() == w
    np.testing.assert_allclose(found[:w], 2.0 * np.arange(w) / w, rtol=1e-6)
    after = np.arange(total - w + 1)
    expected = 1 + np.cos(np.pi * after / (total - w))
    np.testing.assert_allclose(found[w:], expected, atol=1e-6)
    # The ramp's w (w - 1) / 2 w and the cosine's (S - w + 1) / 2 peaks.
    area = 2.0 * ((w - 1) / 2 + (total - w + 1) / 2)
    np.testing.assert_allclose(found[:total].sum(), area, rtol=1e-5)
    traced = jax.jit(jax.vmap(schedule))(jnp.arange(total + 1))
    np.testing.assert_allclose(traced, found, atol=1e-6)


def test_warm_up_then_steps():
    config = OptimizerConfig(epochs=20, warmup_epochs=5, decay_at=(0.25, 0.5), decay_factor=0.5)
    schedule = make_schedule(config, 200)
    found = [schedule(s) for s in (0, 25, 49, 50, 99, 100, 199)]
    expected = [0, 0.06, 0.12 * 0.98, 0.06, 0.06, 0.03, 0.03]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_warm_up_leaves_a_run_its_last_step():
    config = OptimizerConfig(epochs=1, warmup_epochs=0.99, schedule="cosine")
    np.testing.assert_allclose([make_schedule(config, 3)(s) for s in range(3)], [0, 0.06, 0.12])
    assert make_schedule(config, 1)(0) == np.float32(0.12)


@pytest.mark.parametrize("batch", [128, 256, 4096])
def test_scaling(batch):
    def peak(scaling, learning_rate):
        config = OptimizerConfig(batch_size=batch, scaling=scaling, learning_rate=learning_rate)
        return float(make_schedule(config, 100)(0))

    np.testing.assert_allclose(peak("linear", 0.3), 0.3 * batch / 256, rtol=1e-6)
    np.testing.assert_allclose(peak("sqrt", 1.2), 0.075 * batch**0.5, rtol=1e-6)
    np.testing.assert_allclose(peak("none", 0.03), 0.03, rtol=1e-6)


def test_defaults_are_the_authors():
    config = OptimizerConfig()
    # Kingma & Ba's for Adam; for LARS, SimCLR's.
    assert (config.adam_betas, config.adam_eps) == ((0.9, 0.999), 1e-8)
    assert config.lars_trust == 0.001


def test_defaults_are_three_plain_rules():
    """A checkpoint of such a run holds what it always did."""
    config = OptimizerConfig()
    optimizer = make_optimizer(config, make_schedule(config, 10))
    state = optimizer.init({"w": jnp.zeros(2)})
    empty, trace, schedule = state
    assert empty == optax.EmptyState()
    assert isinstance(trace, optax.TraceState)
    assert isinstance(schedule, optax.ScaleByScheduleState)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"warmup_epochs": 200}, "--warmup-epochs 200 of --epochs 200: .*less than the run"),
        ({"warmup_epochs": -1}, "--warmup-epochs -1 .*at least 0"),
        ({"warmup_epochs": float("nan")}, "--warmup-epochs nan"),
        ({"warmup_epochs": 160}, "--decay-at .*before --warmup-epochs 160 are over; shorten"),
        ({"clip_norm": 0.0}, "--clip-norm 0.0: must be finite and positive"),
        ({"clip_norm": float("inf")}, "--clip-norm inf"),
        ({"lars_trust": 0.0}, "--lars-trust 0.0"),
        ({"adam_eps": -1.0}, "--adam-eps -1.0"),
        ({"adam_betas": (0.9, 1.0)}, r"--adam-betas \(0.9, 1.0\): both must be in \[0, 1\)"),
        ({"adam_betas": (-0.1, 0.9)}, "--adam-betas"),
        ({"nesterov": True, "optimizer": "adam"}, "--nesterov needs --optimizer sgd or lars"),
        ({"nesterov": True, "momentum": 0.0}, "--nesterov needs .*--momentum above 0"),
    ],
)
def test_mistakes(changes, words):
    with pytest.raises(UserError, match=words):
        OptimizerConfig(**changes)


def test_late_warm_up_suits_a_cosine():
    OptimizerConfig(warmup_epochs=160, schedule="cosine")


def settings():
    """The rows of the page's table: name of the setting, its flags."""
    rows = re.findall(r"^\| ([^|`]+) \| `(--[^`]+)` \|", PAGE, re.MULTILINE)
    return {name.strip(): flags.split() for name, flags in rows}


# From the papers: optimizer, peak rate, decay, warm-up; rates at epochs of the run.
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
    assert settings().keys() == EXPECTED.keys()
    for name, flags in settings().items():
        config = tyro.cli(OptimizerConfig, args=flags)
        optimizer, weight_decay, clip_norm, epochs, batch, rates = EXPECTED[name]
        assert (config.optimizer, config.clip_norm) == (optimizer, clip_norm), name
        assert (config.weight_decay, config.momentum) == (weight_decay, 0.9), name
        assert (config.epochs, config.batch_size) == (epochs, batch), name
        schedule = make_schedule(config, epochs * 1000)
        for epoch, expected in rates.items():
            found = schedule(round(epoch * 1000))
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-8, err_msg=name)


def test_the_page_names_every_option():
    for field in dataclasses.fields(OptimizerConfig):
        assert f"--{field.name.replace('_', '-')}" in PAGE, field.name
