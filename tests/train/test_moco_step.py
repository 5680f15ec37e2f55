"""The step of Momentum Contrast is Algorithm 1, and the same one on any number of devices."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import steps_by_hand
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from steps_by_hand import IMAGES, KEY, LABELS, OPTIMIZER, assert_close, noisy, rows, slope, unit

from hypersphere_jax import sharding
from hypersphere_jax.config import ObjectiveConfig
from hypersphere_jax.losses import l2_normalize
from hypersphere_jax.moco import queue_init
from hypersphere_jax.shuffle import shuffle
from hypersphere_jax.train_step import Momentum, init_state, make_moco_step, make_queue_objective

QUEUE = 11  # keys: four batches go round twice
OBJECTIVE = make_queue_objective(
    ObjectiveConfig(0.5, 0.3, align_weight=0.7, align_alpha=1.5, uniform_weight=1.2, uniform_t=3)
)
DECAYS = 0.5, 0.6, 0.7, 0.8
SEPARATE = functools.partial(shuffle, groups=4, axis_name=sharding.AXIS)


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
            found = terms(w)
            return 0.5 * found["contrastive"] + 0.7 * found["align"] + 1.2 * found["uniform"]

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
        momentum = state.momentum
        assert_close([state.params["w"], state.stats["mean"]], [w, mean])
        assert_close([momentum.params["w"], momentum.stats["mean"]], [w_key, key_mean])
        assert_close(momentum.queue.keys, queue)
        assert (int(momentum.queue.ptr), int(state.step)) == (ptr, step + 1)


def test_terms_are_the_configs(rng):
    """Without the pairs of queries, (21); a term without weight is not there."""
    config = ObjectiveConfig(uniform_weight=2, uniform_intra_batch=False, align_weight=0)
    q, k, queue = unit(rng.standard_normal((12, 3)).astype(np.float32)).reshape(3, 4, 3)
    loss, found = jax.jit(lambda *x: make_queue_objective(config)(*x, None))(q, k, queue)
    uniform = oracles.uniform_queue_oracle(q, queue, intra_batch=False)
    assert_close([found["uniform"], loss], [uniform, 2 * uniform])
    assert "contrastive" not in found


def test_devices_change_nothing(alone):
    """Nor do shuffled keys: each draws its view by its place in the batch, and comes back."""
    devices = jax.devices()[:4]
    step, start = make(sharding.AXIS, separate=SEPARATE)
    mapped = sharding.pmap(step, devices)
    state, *fixed, key = sharding.replicate((start, IMAGES, LABELS, KEY), devices)
    for number, (_, expected) in enumerate(alone[1:]):
        indices = sharding.split(rows(number).reshape(4, -1), devices)
        state, found = mapped(state, *fixed, indices, key)
        assert_close(sharding.unreplicate(found), expected)
    assert_close(sharding.unreplicate(state), alone[-1][0])
    keys = np.asarray(state.momentum.queue.keys)
    assert (keys[1:] == keys[0]).all()  # to the bit


def test_images_that_stream_and_averaged_statistics(alone):
    """A device's keys are made of images that were sent to it; under `shard_map`, too."""
    step, state = make(sharding.AXIS, separate=SEPARATE, resident=False, own_stats=False)
    whole, part = PartitionSpec(), PartitionSpec(sharding.AXIS)
    mesh = Mesh(np.array(jax.devices()[:4]), (sharding.AXIS,))
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
