"""Momentum Contrast: the step is Algorithm 1, on any number of devices; runs with a queue."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import pytest
import steps_by_hand
import tiny_runs
from run_states import state_of
from steps_by_hand import IMAGES, KEY, LABELS, OPTIMIZER, assert_close, noisy, rows, slope, unit

from hypersphere_jax import configs as C
from hypersphere_jax.losses import l2_normalize
from hypersphere_jax.moco import queue_init, shuffle
from hypersphere_jax.training import checkpoints, distributed, run_dir
from hypersphere_jax.training.hparams import scalars_of
from hypersphere_jax.training.objectives import make_queue_objective
from hypersphere_jax.training.optimizers import make_optimizer
from hypersphere_jax.training.step import (
    Momentum,
    init_state,
    make_moco_step,
    make_step_of,
)

QUEUE = 11  # keys, which four batches fill more than twice
OBJECTIVE = make_queue_objective(C.ObjectiveConfig(0.5, 0.3, 0.7, 1.5, 1.2, 3.0))
DECAYS = (0.5, 0.6, 0.7, 0.8)
SEPARATE = functools.partial(shuffle, groups=4, axis_name=distributed.AXIS)


def linear(params, stats, x, train, axis_name=None):
    """A network without batch norm; statistics cover the device's part of the batch."""
    z = jnp.reshape(x, (len(x), -1)) @ params["w"]
    updated = {"mean": 0.5 * stats["mean"] + 0.5 * jnp.mean(x)}
    return {"output": l2_normalize(z)}, updated if train else stats


def make(axis_name=None, **options):
    options |= {"axis_name": axis_name, "decay": lambda step: 0.5 + 0.1 * step}
    step = make_moco_step(linear, OBJECTIVE, OPTIMIZER, noisy, **options)
    params = {"w": jax.random.normal(jax.random.key(0), (6, 4))}
    state = init_state(params, {"mean": jnp.float32(2)}, OPTIMIZER)
    momentum = Momentum(params, {"mean": jnp.float32(4)}, queue_init(jax.random.key(1), QUEUE, 4))
    return step, state._replace(momentum=momentum)


@pytest.fixture(scope="module")
def one_device():
    return steps_by_hand.on_one_device(*make(), 4)


def terms(w, queries, keys, queue):
    q = unit(queries @ w)
    return {
        "contrastive": oracles.info_nce_oracle(q, keys, queue, 0.3),
        "align": oracles.align_oracle(q, keys, 1.5),
        "uniform": oracles.uniform_queue_oracle(q, queue, 3),
    }


def weighted_sum(terms):
    return np.dot([0.5, 0.7, 1.2], list(terms.values()))


def test_step_is_algorithm_1_by_hand(one_device):
    """MoCo's Algorithm 1 in float64 with Wang & Isola's terms added."""
    initial = one_device[0][0]
    w = w_key = np.float64(initial.params["w"])
    queue = np.float64(initial.momentum.queue.keys)
    velocity, mean, key_mean, ptr = 0, 2.0, 4.0, 0
    for step, (state, metrics) in enumerate(one_device[1:]):
        x_query, x_key = steps_by_hand.views_of(step)
        keys = unit(x_key @ w_key)
        loss = functools.partial(terms, queries=x_query, keys=keys, queue=queue.copy())
        gradient = slope(lambda w, loss=loss: weighted_sum(loss(w)), w)
        q = unit(x_query @ w)
        expected = loss(w) | {
            "loss": weighted_sum(loss(w)),
            "grad_norm": np.linalg.norm(gradient),
            "positive_similarity": np.sum(q * keys, 1).mean(),
            "negative_similarity": (q @ queue.T).mean(),
            "chance": math.log(QUEUE + 1),
            "queue_filled": (0, 8 / 11, 1, 1)[step],
            "queue_age": (0, 0, 3 / 11, 3 / 11)[step],
        }
        assert_close(metrics, expected)
        velocity = steps_by_hand.BETA * velocity + gradient
        w = w - steps_by_hand.RATE * velocity
        w_key = DECAYS[step] * w_key + (1 - DECAYS[step]) * w
        mean = (mean + x_query.mean()) / 2
        key_mean = (key_mean + x_key.mean()) / 2
        queue[(ptr + np.arange(8)) % QUEUE] = keys
        ptr = (ptr + 8) % QUEUE
        assert_close([state.params["w"], state.stats["mean"]], [w, mean])
        momentum = jax.tree.leaves((state.momentum, state.step))
        assert_close(momentum, [w_key, key_mean, queue, ptr, step + 1])


@pytest.fixture(scope="module")
def symmetric():
    return steps_by_hand.on_one_device(*make(symmetric=True), 2)


def test_symmetric_step_takes_both_views_as_queries_and_keys(symmetric):
    """The mean of two losses against one queue, into which the keys of both views go."""
    w = w_key = np.float64(symmetric[0][0].params["w"])
    queue = np.float64(symmetric[0][0].momentum.queue.keys)
    velocity, mean, key_mean = 0, 2.0, 4.0
    for step, (state, metrics) in enumerate(symmetric[1:]):
        views = steps_by_hand.views_of(step)
        keys = [unit(view @ w_key) for view in views]
        negatives = queue.copy()

        def loss(w, views=views, keys=keys, negatives=negatives):
            first = weighted_sum(terms(w, views[0], keys[1], negatives))
            return (first + weighted_sum(terms(w, views[1], keys[0], negatives))) / 2

        assert_close([metrics["loss"], metrics["queue_filled"]], [loss(w), step])
        velocity = steps_by_hand.BETA * velocity + slope(loss, w)
        w = w - steps_by_hand.RATE * velocity
        w_key = DECAYS[step] * w_key + (1 - DECAYS[step]) * w
        for number in (0, 1):
            mean = (mean + views[number].mean()) / 2
            key_mean = (key_mean + views[1 - number].mean()) / 2
        order = (16 * step + np.arange(16)) % QUEUE
        for place, key in zip(order, np.concatenate(keys), strict=True):
            queue[place] = key
        assert_close([state.params["w"], state.stats["mean"]], [w, mean])
        assert_close(jax.tree.leaves(state.momentum)[:3], [w_key, key_mean, queue])


def test_queue_objective_follows_its_config(rng):
    """Uniformity without the pairs of queries is Eq. (21); a term without weight is left out."""
    config = C.ObjectiveConfig(uniform_weight=2, uniform_intra_batch=False, align_weight=0)
    q, k, queue = unit(rng.standard_normal((12, 3)).astype(np.float32)).reshape(3, 4, 3)
    loss, metrics = jax.jit(lambda *x: make_queue_objective(config)(*x, None))(q, k, queue)
    uniform = oracles.uniform_queue_oracle(q, queue, intra_batch=False)
    assert_close([metrics["uniform"], loss], [uniform, 2 * uniform])
    assert "contrastive" not in metrics


@tiny_runs.needs_devices(4)
@pytest.mark.parametrize(
    ("fixture", "options"),
    [
        ("one_device", {}),
        pytest.param("symmetric", {"symmetric": True}, marks=pytest.mark.slow),
    ],
)
def test_step_under_pmap_with_shuffled_keys_equals_one_device(fixture, options, request):
    states = request.getfixturevalue(fixture)
    devices = jax.devices()[:4]
    step, initial = make(distributed.AXIS, separate=SEPARATE, **options)
    mapped = distributed.pmap(step, devices)
    state, *fixed, key = distributed.replicate((initial, IMAGES, LABELS, KEY), devices)
    for number, (_, expected) in enumerate(states[1:]):
        indices = distributed.split(rows(number).reshape(4, -1), devices)
        state, metrics = mapped(state, *fixed, indices, key)
        assert_close(distributed.unreplicate(metrics), expected)
    assert_close(distributed.unreplicate(state), states[-1][0])
    keys = np.asarray(state.momentum.queue.keys)
    assert (keys[1:] == keys[0]).all()


def test_checkpoint_contains_queue_and_momentum_encoder(queue_run):
    assert checkpoints.steps(queue_run / "checkpoints") == [0, 4, 8, 10]  # two, and every fourth
    first = state_of(queue_run, 0)
    last = state_of(queue_run)
    jax.tree.map(np.testing.assert_array_equal, first["momentum"].params, first["params"])
    queue = last["momentum"].queue
    assert first["momentum"].queue.ptr == 0 and queue.ptr == 10 * 104 % 130
    assert not np.isclose(first["momentum"].queue.keys, queue.keys).any(axis=1).any()
    np.testing.assert_allclose(np.linalg.norm(queue.keys, axis=1), 1, rtol=1e-5)
    for other in (first["params"], last["params"]):
        moved = jax.tree.map(np.subtract, last["momentum"].params, other)
        assert any(np.abs(leaf).max() > 1e-4 for leaf in jax.tree.leaves(moved))
    encoder = run_dir.load_encoder(queue_run)
    jax.tree.map(np.testing.assert_array_equal, encoder.params, last["params"])
    # Keys get the batch statistics of other images than their queries by default.
    assert (encoder.config.batch_norm, encoder.config.bn_groups) == ("split", 8)


SIZE = 24
NUMBERED = np.arange(SIZE, dtype=np.uint8).reshape(SIZE, 1, 1, 1).repeat(4, 1).repeat(4, 2)


def recording(params, stats, x, train, axis_name):
    """A network whose statistics are the numbers of the samples, in the order of the batch."""
    z = jnp.stack([x[:, 0, 0, 0], jnp.ones(len(x))], axis=1) * params["w"]
    return {"output": l2_normalize(z)}, {"seen": jax.lax.all_gather(x[:, 0, 0, 0], axis_name)}


def two_steps(devices, batch_norm="split", **options):
    """Return the states after two of ten steps of numbered images, as a config describes them."""
    options |= {"bn_groups": 4} if batch_norm == "split" else {}
    options |= {"queue_size": SIZE, "dim": 2, "image_size": 4, "in_channels": 1, "recipe": "none"}
    options |= {"learning_rate": 0.5, "scaling": "none", "momentum": 0, "weight_decay": 0}
    config = C.PretrainConfig(batch_norm=batch_norm, batch_size=SIZE, **options)
    optimizer = make_optimizer(config, optax.constant_schedule(0.5))
    params = {"w": jnp.array([[0.01, 0.3]])}
    stats = {"seen": jnp.zeros((devices, SIZE // devices))}
    momentum = Momentum(params, stats, queue_init(jax.random.key(0), SIZE, 2))
    state = init_state(params, stats, optimizer)._replace(momentum=momentum)
    local = distributed.local_devices(devices)
    step = make_step_of(config, recording, 10, axis_name=distributed.AXIS)
    mapped = distributed.pmap(step, local)
    inputs = (NUMBERED, np.zeros(SIZE, np.int32), jax.random.key(1), scalars_of(config))
    state, images, labels, *hparams = distributed.replicate((state, *inputs), local)
    indices = distributed.split(np.arange(SIZE, dtype=np.int32).reshape(devices, -1), local)
    first, _ = mapped(state, images, labels, indices, *hparams)
    second, _ = mapped(first, images, labels, indices, *hparams)
    return distributed.unreplicate(first), distributed.unreplicate(second)


@pytest.mark.parametrize(
    ("devices", "batch_norm"),
    [
        (1, "split"),
        pytest.param(4, "local", marks=[tiny_runs.needs_devices(4), pytest.mark.slow]),
    ],
)
def test_key_and_query_are_never_in_one_group_of_batch_norm(devices, batch_norm):
    states = two_steps(devices, batch_norm)
    orders = set()
    for state in states:
        queries = np.rint(255 * state.stats["seen"]).astype(int).ravel()
        keys = np.rint(255 * state.momentum.stats["seen"]).astype(int).ravel()
        np.testing.assert_array_equal(queries, np.arange(SIZE))
        np.testing.assert_array_equal(np.sort(keys), np.arange(SIZE))
        assert (np.argsort(keys) // (SIZE // 4) != np.arange(SIZE) // (SIZE // 4)).all()
        orders.add(tuple(keys))
    assert len(orders) == 2  # a new shuffle in each step
    z = np.stack([np.arange(SIZE) / 255, np.ones(SIZE)], 1) * [0.01, 0.3]
    expected = z / np.linalg.norm(z, axis=1, keepdims=True)
    np.testing.assert_allclose(states[0].momentum.queue.keys, expected, rtol=1e-4)


@pytest.mark.slow
def test_decay_schedule_and_averaged_statistics_of_a_config():
    first, second = two_steps(1, ema_decay=0.0, ema_schedule="cosine", ema_stats="averaged")
    # Half a cosine from 0 to 1 over 10 steps: 0 in the first step, m in the second.
    m = (1 - math.cos(math.pi / 10)) / 2
    for part, name in (("params", "w"), ("stats", "seen")):
        before = getattr(first, part)[name]
        after = getattr(second, part)[name]
        np.testing.assert_array_equal(getattr(first.momentum, part)[name], before)
        average = getattr(second.momentum, part)[name]
        np.testing.assert_allclose(average, m * before + (1 - m) * after, rtol=1e-5)
    assert np.abs(first.params["w"] - second.params["w"]).max() > 1e-4
