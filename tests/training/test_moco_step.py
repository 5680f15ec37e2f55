"""Momentum Contrast: its step is Algorithm 1, on any number of devices; runs with a queue."""

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
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from run_states import assert_same_run, killed_after_checkpoint, state_of
from steps_by_hand import IMAGES, KEY, LABELS, OPTIMIZER, assert_close, noisy, rows, slope, unit

from hypersphere_jax import configs as C
from hypersphere_jax.losses import l2_normalize
from hypersphere_jax.moco import queue_init, shuffle
from hypersphere_jax.training import checkpoints, distributed, run_dir
from hypersphere_jax.training import train as training
from hypersphere_jax.training.objectives import make_queue_objective
from hypersphere_jax.training.optimizers import make_optimizer
from hypersphere_jax.training.step import (
    Momentum,
    init_state,
    make_moco_step,
    make_step_of,
    scalars_of,
)

QUEUE = 11  # keys: four batches go round twice
OBJECTIVE = make_queue_objective(C.ObjectiveConfig(0.5, 0.3, 0.7, 1.5, 1.2, 3.0))
DECAYS = 0.5, 0.6, 0.7, 0.8
SEPARATE = functools.partial(shuffle, groups=4, axis_name=distributed.AXIS)


def linear(params, stats, x, train, axis_name=None):
    """A network without batch norm, whose statistics are those of its own part of the batch."""
    z = jnp.reshape(x, (len(x), -1)) @ params["w"]
    moved = {"mean": 0.5 * stats["mean"] + 0.5 * jnp.mean(x)}
    return {"output": l2_normalize(z)}, moved if train else stats


def make(axis_name=None, **options):
    options |= {"axis_name": axis_name, "decay": lambda step: 0.5 + 0.1 * step}
    step = make_moco_step(linear, OBJECTIVE, OPTIMIZER, noisy, **options)
    params = {"w": jax.random.normal(jax.random.key(0), (6, 4))}
    state = init_state(params, {"mean": jnp.float32(2)}, OPTIMIZER)
    momentum = Momentum(params, {"mean": jnp.float32(4)}, queue_init(jax.random.key(1), QUEUE, 4))
    return step, state._replace(momentum=momentum)


@pytest.fixture(scope="module")
def alone():
    return steps_by_hand.on_one_device(*make(), 4)


def test_algorithm_1(alone):
    """MoCo's, in float64 and with difference quotients; Wang & Isola's terms are added."""
    start = alone[0][0]
    w, queue = np.float64(start.params["w"]), np.float64(start.momentum.queue.keys)
    w_key, velocity, mean, key_mean, ptr = w, 0, 2.0, 4.0, 0
    for step, (state, found) in enumerate(alone[1:]):
        x_q, x_k = steps_by_hand.views_of(step)
        k, held = unit(x_k @ w_key), queue.copy()

        def terms(w, x_q=x_q, k=k, held=held):
            q = unit(x_q @ w)
            return {
                "contrastive": oracles.info_nce_oracle(q, k, held, 0.3),
                "align": oracles.align_oracle(q, k, 1.5),
                "uniform": oracles.uniform_queue_oracle(q, held, 3),
            }

        def loss(w, terms=terms):
            return np.dot([0.5, 0.7, 1.2], list(terms(w).values()))

        gradient, q = slope(loss, w), unit(x_q @ w)
        expected = {
            "loss": loss(w),
            "grad_norm": np.linalg.norm(gradient),
            "positive_similarity": np.sum(q * k, 1).mean(),
            "negative_similarity": (q @ held.T).mean(),
            "chance": math.log(QUEUE + 1),
            "queue_filled": (0, 8 / 11, 1, 1)[step],
            "queue_age": (0, 0, 3 / 11, 3 / 11)[step],
        }
        assert_close(found, terms(w) | expected)
        velocity = steps_by_hand.BETA * velocity + gradient
        w = w - steps_by_hand.RATE * velocity
        w_key = DECAYS[step] * w_key + (1 - DECAYS[step]) * w
        mean, key_mean = (mean + x_q.mean()) / 2, (key_mean + x_k.mean()) / 2
        queue[(ptr + np.arange(8)) % QUEUE] = k
        ptr = (ptr + 8) % QUEUE
        assert_close([state.params["w"], state.stats["mean"]], [w, mean])
        expected = [w_key, key_mean, queue, ptr, step + 1]
        assert_close(jax.tree.leaves((state.momentum, state.step)), expected)


def test_terms_are_the_configs(rng):
    """Without the pairs of queries, (21); a term without weight is not there."""
    config = C.ObjectiveConfig(uniform_weight=2, uniform_intra_batch=False, align_weight=0)
    q, k, queue = unit(rng.standard_normal((12, 3)).astype(np.float32)).reshape(3, 4, 3)
    loss, found = jax.jit(lambda *x: make_queue_objective(config)(*x, None))(q, k, queue)
    uniform = oracles.uniform_queue_oracle(q, queue, intra_batch=False)
    assert_close([found["uniform"], loss], [uniform, 2 * uniform])
    assert "contrastive" not in found


def test_devices_change_nothing(alone):
    """Nor do shuffled keys: each draws its view by its place in the batch, and comes back."""
    devices = jax.devices()[:4]
    step, start = make(distributed.AXIS, separate=SEPARATE)
    mapped = distributed.pmap(step, devices)
    state, *fixed, key = distributed.replicate((start, IMAGES, LABELS, KEY), devices)
    for number, (_, expected) in enumerate(alone[1:]):
        indices = distributed.split(rows(number).reshape(4, -1), devices)
        state, found = mapped(state, *fixed, indices, key)
        assert_close(distributed.unreplicate(found), expected)
    assert_close(distributed.unreplicate(state), alone[-1][0])
    keys = np.asarray(state.momentum.queue.keys)
    assert (keys[1:] == keys[0]).all()  # to the bit


@pytest.mark.slow
def test_images_that_stream_and_averaged_statistics(alone):
    """A device's keys are made of images that were sent to it; under `shard_map`, too."""
    step, state = make(distributed.AXIS, separate=SEPARATE, resident=False, own_stats=False)
    whole, part = PartitionSpec(), PartitionSpec(distributed.AXIS)
    mesh = Mesh(np.array(jax.devices()[:4]), (distributed.AXIS,))
    specs = {"in_specs": (whole, part, part, part, whole), "out_specs": whole}
    mapped = jax.jit(jax.shard_map(step, mesh=mesh, **specs))
    state = jax.device_put(state, NamedSharding(mesh, whole))
    places, key_mean = np.tile(np.arange(2, dtype=np.int32), 4), 4.0
    for number, (after, expected) in enumerate(alone[1:]):
        state, found = mapped(state, IMAGES[rows(number)], LABELS[rows(number)], places, KEY)
        assert_close(found, expected)
        key_mean = DECAYS[number] * key_mean + (1 - DECAYS[number]) * float(after.stats["mean"])
        np.testing.assert_allclose(state.momentum.stats["mean"], key_mean, rtol=1e-4)
    assert_close(state._replace(momentum=after.momentum), after)
    assert_close(state.momentum, after.momentum._replace(stats=state.momentum.stats))


def test_a_checkpoint_holds_queue_and_momentum_encoder(queue_run):
    assert checkpoints.steps(queue_run / "checkpoints") == [0, 4, 8, 10]  # two, and each fourth
    first, last = state_of(queue_run, 0), state_of(queue_run)
    start, end = first["momentum"], last["momentum"]
    jax.tree.map(np.testing.assert_array_equal, start.params, first["params"])  # a copy
    assert start.queue.ptr == 0 and end.queue.ptr == 10 * 104 % 130
    assert not np.isclose(start.queue.keys, end.queue.keys).any(axis=1).any()  # all replaced
    np.testing.assert_allclose(np.linalg.norm(end.queue.keys, axis=1), 1, rtol=1e-5)
    for other in (start.params, last["params"]):
        moved = jax.tree.leaves(jax.tree.map(np.subtract, end.params, other))
        assert any(np.abs(leaf).max() > 1e-4 for leaf in moved)
    # With a queue, keys have statistics of other images than their queries, unless it is told.
    config = run_dir.read_config(queue_run)
    assert (config.batch_norm, config.bn_groups) == ("split", 8)
    # What is measured of the run is the trained encoder.
    jax.tree.map(
        np.testing.assert_array_equal, run_dir.load_encoder(queue_run).params, last["params"]
    )


@pytest.mark.slow
def test_resumption_is_exact(queue_run, tmp_path):
    with killed_after_checkpoint(4):
        training.train(tiny_runs.queue(tmp_path))
    assert_same_run(training.train(tiny_runs.queue(tmp_path)), queue_run)


# The step that a config describes, with a network that tells which samples it sees together.

SIZE = 24
NUMBERED = np.arange(SIZE, dtype=np.uint8).reshape(SIZE, 1, 1, 1).repeat(4, 1).repeat(4, 2)


def telling(params, stats, x, train, axis_name):
    """Its statistics are the numbers of the samples, in the order of the global batch."""
    z = jnp.stack([x[:, 0, 0, 0], jnp.ones(len(x))], axis=1) * params["w"]
    return {"output": l2_normalize(z)}, {"seen": jax.lax.all_gather(x[:, 0, 0, 0], axis_name)}


def two_steps(devices, moco, batch_norm="split"):
    """The states after two steps that training makes of a config, of 10 in all."""
    groups = {"bn_groups": 4} if batch_norm == "split" else {}
    model = C.ModelConfig(dim=2, image_size=4, in_channels=1, batch_norm=batch_norm, **groups)
    rule = {"learning_rate": 0.5, "scaling": "none", "momentum": 0, "weight_decay": 0}
    sgd = C.OptimizerConfig(batch_size=SIZE, **rule)
    sections = vars(model) | vars(moco) | vars(sgd)
    made = C.PretrainConfig(recipe="none", **sections)
    optimizer = make_optimizer(sgd, optax.constant_schedule(0.5))
    step = make_step_of(made, telling, 10, axis_name=distributed.AXIS)
    params = {"w": jnp.array([[0.01, 0.3]])}
    stats = {"seen": jnp.zeros((devices, SIZE // devices))}
    momentum = Momentum(params, stats, queue_init(jax.random.key(0), SIZE, 2))
    state = init_state(params, stats, optimizer)._replace(momentum=momentum)
    local = distributed.local_devices(devices)
    started = state, (NUMBERED, np.zeros(SIZE, np.int32)), (jax.random.key(1), scalars_of(made))
    state, resident, fixed = distributed.replicate(started, local)
    indices = distributed.split(np.arange(SIZE, dtype=np.int32).reshape(devices, -1), local)
    mapped = distributed.pmap(step, local)
    first, _ = mapped(state, *resident, indices, *fixed)
    second, _ = mapped(first, *resident, indices, *fixed)
    return distributed.unreplicate(first), distributed.unreplicate(second)


@pytest.mark.slow
@pytest.mark.parametrize("devices, batch_norm", [(2, "split"), (4, "local")])
def test_key_and_query_share_no_group(devices, batch_norm):
    states, orders = two_steps(devices, C.MocoConfig(SIZE), batch_norm), set()
    for state in states:
        seen = state.stats["seen"], state.momentum.stats["seen"]
        queries, keys = (np.rint(255 * one).astype(int).ravel() for one in seen)
        np.testing.assert_array_equal(queries, np.arange(SIZE))
        np.testing.assert_array_equal(np.sort(keys), np.arange(SIZE))
        assert (np.argsort(keys) // (SIZE // 4) != np.arange(SIZE) // (SIZE // 4)).all()
        orders.add(tuple(keys))
    assert len(orders) == 2  # another one each step
    # And each key is that of its sample: its features are a function of the image alone.
    z = np.stack([np.arange(SIZE) / 255, np.ones(SIZE)], 1) * [0.01, 0.3]
    expected = z / np.linalg.norm(z, axis=1, keepdims=True)
    np.testing.assert_allclose(states[0].momentum.queue.keys, expected, rtol=1e-4)


@pytest.mark.slow
def test_options_of_the_momentum_encoder():
    moco = C.MocoConfig(SIZE, ema_decay=0.0, ema_schedule="cosine", ema_stats="averaged")
    first, second = two_steps(1, moco)
    # Half a cosine from 0 to 1 over 10 steps, at the step before: 0, and then a little.
    m = (1 - math.cos(math.pi / 10)) / 2
    for part, name in (("params", "w"), ("stats", "seen")):
        start, now = getattr(first, part)[name], getattr(second, part)[name]
        np.testing.assert_array_equal(getattr(first.momentum, part)[name], start)
        average = getattr(second.momentum, part)[name]
        np.testing.assert_allclose(average, m * start + (1 - m) * now, rtol=1e-5)
    assert np.abs(first.params["w"] - second.params["w"]).max() > 1e-4
