"""The step of Momentum Contrast is Algorithm 1, and the same one on any number of devices."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from steps_by_hand import (
    BATCH,
    IMAGES,
    KEY,
    LABELS,
    assert_close,
    noisy,
    rows,
    slope,
    unit,
    views_of,
)

from hypersphere_jax import sharding
from hypersphere_jax.config import ObjectiveConfig
from hypersphere_jax.losses import l2_normalize
from hypersphere_jax.moco import queue_init
from hypersphere_jax.shuffle import shuffle
from hypersphere_jax.train_step import Momentum, init_state, make_moco_step, make_queue_objective

# Four batches go round the queue twice.
QUEUE, DIM, STEPS, RATE, BETA = 11, 4, 4, 0.5, 0.9
OBJECTIVE = ObjectiveConfig(
    contrastive_weight=0.5, contrastive_tau=0.3, align_weight=0.7, uniform_weight=1.2, uniform_t=3
)


def linear(params, stats, x, train, axis_name=None):
    """A network without batch norm, whose statistics are those of its own part of the batch."""
    z = jnp.reshape(x, (len(x), -1)) @ params["w"]
    moved = {"mean": 0.5 * stats["mean"] + 0.5 * jnp.mean(x)}
    return {"output": l2_normalize(z)}, moved if train else stats


def decay(step):
    return 0.5 + 0.1 * step


def make(axis_name=None, **options):
    optimizer = optax.chain(optax.trace(BETA), optax.scale_by_learning_rate(RATE))
    objective = make_queue_objective(OBJECTIVE)
    options |= {"axis_name": axis_name, "decay": decay}
    step = make_moco_step(linear, objective, optimizer, noisy, **options)
    params = {"w": jax.random.normal(jax.random.key(0), (6, DIM))}
    state = init_state(params, {"mean": jnp.float32(2)}, optimizer)
    queue = queue_init(jax.random.key(1), QUEUE, DIM)
    return step, state._replace(momentum=Momentum(params, {"mean": jnp.float32(4)}, queue))


@pytest.fixture(scope="module")
def alone():
    """The start; then state and metrics of each step on one device."""
    step, state = make()
    step, path = jax.jit(step), [(state, None)]
    for number in range(STEPS):
        path.append(step(path[-1][0], IMAGES, LABELS, rows(number), KEY))
    return path


def algorithm_1(w, queue):
    """MoCo's Algorithm 1 in float64, with difference quotients for a gradient; each step's numbers.

    Wang & Isola's terms are added to InfoNCE.
    """
    w_key, velocity, ptr = w.copy(), np.zeros_like(w), 0
    mean, key_mean = 2.0, 4.0
    for step in range(STEPS):
        x_q, x_k = views_of(step)
        k, held = unit(x_k @ w_key), np.stack(queue)

        def terms(w, x_q=x_q, k=k, held=held):
            q = unit(x_q @ w)
            return {
                "contrastive": oracles.info_nce_oracle(q, k, held, 0.3),
                "align": oracles.align_oracle(q, k),
                "uniform": oracles.uniform_queue_oracle(q, held, 3),
            }

        def loss(w, terms=terms):
            found = terms(w)
            return 0.5 * found["contrastive"] + 0.7 * found["align"] + 1.2 * found["uniform"]

        gradient, q = slope(loss, w), unit(x_q @ w)
        metrics = terms(w) | {
            "loss": loss(w),
            "grad_norm": np.linalg.norm(gradient),
            "positive_similarity": np.sum(q * k, 1).mean(),
            "negative_similarity": (q @ held.T).mean(),
            "chance": math.log(QUEUE + 1),
            "queue_filled": (0, 8 / 11, 1, 1)[step],
            "queue_age": (0, 0, 3 / 11, 3 / 11)[step],
        }
        velocity = BETA * velocity + gradient
        w = w - RATE * velocity
        w_key = decay(step) * w_key + (1 - decay(step)) * w
        mean, key_mean = (mean + x_q.mean()) / 2, (key_mean + x_k.mean()) / 2
        for row in k:
            queue[ptr] = row
            ptr = (ptr + 1) % QUEUE
        yield metrics, (w, mean), (w_key, key_mean), np.stack(queue), ptr


def test_algorithm_1(alone):
    start = alone[0][0]
    queue = list(np.asarray(start.momentum.queue.keys, np.float64))
    expected = algorithm_1(np.asarray(start.params["w"], np.float64), queue)
    for (state, found), (metrics, *parts, ptr) in zip(alone[1:], expected, strict=True):
        assert_close(found, metrics)
        momentum = state.momentum
        its = [(one.params["w"], one.stats["mean"]) for one in (state, momentum)]
        assert_close([*its, momentum.queue.keys], parts)
        assert int(momentum.queue.ptr) == ptr
    assert int(state.step) == STEPS


def test_terms_are_the_configs(rng):
    """Without the pairs of queries, (21); a term without weight is not there."""
    config = ObjectiveConfig(
        align_weight=0, align_alpha=1, uniform_weight=2, uniform_t=1, uniform_intra_batch=False
    )
    q, k, queue = unit(rng.standard_normal((16, 3)).astype(np.float32)).reshape(4, 4, 3)[:3]
    loss, found = jax.jit(lambda *x: make_queue_objective(config)(*x, None))(q, k, queue)
    uniform = oracles.uniform_queue_oracle(q, queue, 1, intra_batch=False)
    np.testing.assert_allclose([found["uniform"], loss], [uniform, 2 * uniform], rtol=1e-5)
    np.testing.assert_allclose(found["align"], oracles.align_oracle(q, k, 1), rtol=1e-5)
    assert "contrastive" not in found


def test_devices_change_nothing(alone):
    """Nor do shuffled keys: each draws its view by its place in the batch, and comes back."""
    devices = jax.devices()[:4]
    separate = functools.partial(shuffle, groups=4, axis_name=sharding.AXIS)
    step, start = make(sharding.AXIS, separate=separate)
    mapped = sharding.pmap(step, devices)
    state, *fixed, key = sharding.replicate((start, IMAGES, LABELS, KEY), devices)
    for number, (_, expected) in enumerate(alone[1:]):
        indices = sharding.split(rows(number).reshape(4, -1), devices)
        state, found = mapped(state, *fixed, indices, key)
        assert_close(sharding.unreplicate(found), expected)
    assert_close(sharding.unreplicate(state), alone[-1][0])
    keys = np.asarray(state.momentum.queue.keys)
    for others in keys[1:]:  # to the bit
        np.testing.assert_array_equal(others, keys[0])


def test_images_that_stream_and_averaged_statistics(alone):
    """A device's keys are made of images that were sent to it; under `shard_map`, too."""
    separate = functools.partial(shuffle, groups=4, axis_name=sharding.AXIS)
    step, state = make(sharding.AXIS, separate=separate, resident=False, own_stats=False)
    whole, part = PartitionSpec(), PartitionSpec(sharding.AXIS)
    mesh = Mesh(np.array(jax.devices()[:4]), (sharding.AXIS,))
    specs = {"in_specs": (whole, part, part, part, whole), "out_specs": whole}
    mapped = jax.jit(jax.shard_map(step, mesh=mesh, **specs))
    state = jax.device_put(state, NamedSharding(mesh, whole))
    places, key_mean = np.tile(np.arange(BATCH // 4, dtype=np.int32), 4), 4.0
    for number, (after, expected) in enumerate(alone[1:]):
        batch = IMAGES[rows(number)], LABELS[rows(number)]
        state, found = mapped(state, *batch, places, KEY)
        assert_close(found, expected)
        key_mean = decay(number) * key_mean + (1 - decay(number)) * float(after.stats["mean"])
        np.testing.assert_allclose(state.momentum.stats["mean"], key_mean, rtol=1e-4)
    momentum = after.momentum._replace(stats=state.momentum.stats)
    assert_close(state, after._replace(momentum=momentum))
