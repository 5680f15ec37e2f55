"""The learned temperature: its gradient, its bound, and runs that learn it."""

import functools
import math
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import own_parts
import pytest
from points import sphere
from run_states import timeless

import hypersphere_jax as hj
from hypersphere_jax import configs as C
from hypersphere_jax.training import checkpoints
from hypersphere_jax.training.objectives import (
    initial_logit_scale,
    make_objective,
    make_queue_objective,
)
from hypersphere_jax.training.optimizers import make_optimizer
from hypersphere_jax.training.step import init_state, make_step

CONTRASTIVE = {"contrastive_weight": 1.0, "align_weight": 0.0, "uniform_weight": 0.0}
LABELS = np.array([0, 1, 2, 1, 0, -1])
# Without the label of the image that has none.
CLASSES = np.tile([0, 1, 2, 1, 0, 3], 2)


def supervised(x, y, tau):
    return oracles.supervised_contrastive_oracle(np.concatenate([x, y]), CLASSES, tau)


# Options of a loss at temperature 0.4, and its oracle as a function of the temperature.
CASES = {
    "weighted": ({**CONTRASTIVE, "contrastive_tau": 0.4}, oracles.contrastive_oracle),
    "nt_xent": ({"loss_tau": 0.4}, oracles.nt_xent_oracle),
    "dcl": ({"loss_tau": 0.4}, oracles.dcl_oracle),
    "supervised_contrastive": ({"loss_tau": 0.4}, supervised),
}


def slope_in_logit_scale(loss, tau=0.4):
    step = 1e-5
    return (loss(tau * math.exp(-step)) - loss(tau * math.exp(step))) / (2 * step)


def test_gradient_of_each_loss(rng):
    sides = [sphere(rng, 6, 4) for _ in range(2)]
    views = [{"output": side} for side in sides]
    objectives = {}
    for name, (options, _) in CASES.items():
        config = C.ObjectiveConfig(loss=name, learn_tau=True, **options)
        np.testing.assert_allclose(initial_logit_scale(config), -math.log(0.4), rtol=1e-6)
        # The learned temperature replaces the config's.
        other = config.replace(**{config.temperature_option: 0.7})
        objectives[name] = make_objective(other)

    def losses(scale):
        values = {}
        for name, objective in objectives.items():
            values[name], _ = objective(*views, LABELS, None, None, scale)
        return values

    scale = jnp.float32(-math.log(0.4))
    found = jax.jit(lambda: (losses(scale), jax.jacrev(losses)(scale)))()
    for name, (_, oracle) in CASES.items():
        loss = functools.partial(oracle, *sides)
        np.testing.assert_allclose(found[0][name], loss(tau=0.4), rtol=1e-5)
        expected = slope_in_logit_scale(lambda tau, loss=loss: loss(tau=tau))
        np.testing.assert_allclose(found[1][name], expected, rtol=1e-3, atol=1e-5)


def test_gradient_with_a_queue(rng):
    query, key, queue = (sphere(rng, n, 4) for n in (6, 6, 9))
    config = C.ObjectiveConfig(**CONTRASTIVE, learn_tau=True)
    objective = make_queue_objective(config)
    slope = jax.grad(lambda scale: objective(query, key, queue, None, scale)[0])
    expected = slope_in_logit_scale(lambda tau: oracles.info_nce_oracle(query, key, queue, tau))
    found = slope(jnp.float32(-math.log(0.4)))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


RATE = 0.5
DECAY = 0.1
IMAGES = own_parts.IMAGES[:8]
WEIGHTS = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)


def network(params, stats, x, train, axis_name=None):
    return {"output": hj.l2_normalize(x.reshape(len(x), -1) @ params["w"])}, stats


def make(axis_name=None, tau=0.4):
    """Return a step of gradient descent with weight decay, and its initial state."""
    config = C.PretrainConfig(
        **{"loss": "nt_xent", "learn_tau": True, "weight_decay": DECAY, "momentum": 0.0}
    )
    optimizer = make_optimizer(config, optax.constant_schedule(RATE))
    objective = make_objective(config)
    step = make_step(network, objective, optimizer, own_parts.half, axis_name=axis_name)
    return step, init_state({"w": WEIGHTS}, {}, optimizer, np.float32(-math.log(tau)))


BATCH = (IMAGES, np.zeros(8, np.int32), np.arange(8))
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def one_device():
    step, state = make()
    return jax.jit(step), state


def test_step_by_hand(one_device):
    """The weights decay, the temperature does not."""
    step, state = one_device
    after, metrics = step(state, *BATCH, KEY)
    x = IMAGES.reshape(8, -1) / 510

    def loss(weights, tau):
        return oracles.nt_xent_oracle(x @ weights, x @ weights, tau)

    slope = slope_in_logit_scale(functools.partial(loss, np.float64(WEIGHTS)))
    np.testing.assert_allclose(after.logit_scale, -math.log(0.4) - RATE * slope, rtol=1e-4)
    np.testing.assert_allclose(metrics["tau"], 0.4, rtol=1e-6)
    towards = np.ones_like(WEIGHTS)
    slope = oracles.numeric_slope(lambda w: loss(w, 0.4), [WEIGHTS], [towards])
    expected = (1 - RATE * DECAY) * WEIGHTS.sum() - RATE * slope
    np.testing.assert_allclose(after.params["w"].sum(), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("start", "bound"), [(110.0, 100.0), (0.01, 1.0)])
def test_temperature_stays_between_a_hundredth_and_one(start, bound, one_device):
    step, state = one_device
    after, _ = step(state._replace(logit_scale=jnp.float32(math.log(start))), *BATCH, KEY)
    np.testing.assert_allclose(after.logit_scale, math.log(bound), rtol=1e-6, atol=1e-6)


def test_run_learns_saves_and_resumes_the_temperature(tmp_path):
    options = CONTRASTIVE | {"contrastive_tau": 0.3, "queue_size": 96}
    config = own_parts.config(tmp_path, **options, learn_tau=True, weight_decay=0.1)
    parts = {"images": own_parts.IMAGES, "network": own_parts.NETWORK, "augment": own_parts.noisy}
    run = hj.train(config, **parts)
    taus = [record["tau"] for record in run.metrics]
    assert taus[0] == pytest.approx(0.3, rel=1e-6) and len(set(taus)) == 4

    folder = shutil.copytree(run.folder, tmp_path / "copy" / "own")
    for step in (3, 4):
        shutil.rmtree(folder / "checkpoints" / str(step))
    again = hj.train(config.replace(runs_dir=str(tmp_path / "copy")), **parts)
    assert timeless(again.folder) == timeless(run.folder)
    np.testing.assert_array_equal(again.encoder.params["w"], run.encoder.params["w"])
    scales = [_saved_scale(one.folder) for one in (run, again)]
    assert scales[0] == scales[1] != pytest.approx(-math.log(taus[-1]))


def _saved_scale(folder):
    like = {"logit_scale": np.zeros((), np.float32)}
    return checkpoints.restore(folder / "checkpoints", like)[1]["logit_scale"]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "contrastive_weight"),
        ({"loss": "nt_xent", "loss_tau": 2.0}, "loss_tau"),
        ({"loss": "balanced_contrastive"}, "learn_tau"),
    ],
)
def test_losses_without_a_learnable_temperature_are_refused(options, match):
    with pytest.raises(C.UserError, match=match):
        C.ObjectiveConfig(learn_tau=True, **options)
