"""Runs with a queue: what a checkpoint holds, resumption to the bit, what a config's step does."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny_runs
from run_states import assert_same_run, killed_after_checkpoint, state_of

from hypersphere_jax import assembly, data, runs, sharding, training
from hypersphere_jax import config as C
from hypersphere_jax.losses import l2_normalize
from hypersphere_jax.moco import queue_init
from hypersphere_jax.train_step import Momentum, init_state


def test_a_checkpoint_holds_queue_and_momentum_encoder(queue_run):
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
    model = runs.read_config(queue_run).model
    assert (model.batch_norm, model.bn_groups) == ("split", 8)
    assert [r["queue_filled"] for r in runs.read_metrics(queue_run)[::3]][:2] == [0, 1]
    # What is measured of the run is the trained encoder.
    jax.tree.map(np.testing.assert_array_equal, runs.load_encoder(queue_run).params, last["params"])


def test_resumption_is_exact(queue_run, tmp_path):
    with killed_after_checkpoint(4):
        training.train(tiny_runs.queue(tmp_path))
    assert_same_run(training.train(tiny_runs.queue(tmp_path)), queue_run)


def test_keys_that_nobody_shuffles_are_refused(tmp_path):
    local = C.ModelConfig(dim=3, width=0.1, batch_norm="local")
    with pytest.raises(C.UserError, match=r"give the positives away.*--batch-norm split"):
        training.train(tiny_runs.queue(tmp_path, model=local, runtime=C.RuntimeConfig(devices=1)))
    assert not (tmp_path / "queue").exists()


# The step that a config describes, with a network that tells which samples it sees together.

SIZE = 24
IMAGES = np.arange(SIZE, dtype=np.uint8).reshape(SIZE, 1, 1, 1).repeat(4, 1).repeat(4, 2)


def telling(params, stats, x, train, axis_name):
    """Its statistics are the numbers of the samples, in the order of the global batch."""
    z = jnp.stack([x[:, 0, 0, 0], jnp.ones(len(x))], axis=1) * params["w"]
    return {"output": l2_normalize(z)}, {"seen": jax.lax.all_gather(x[:, 0, 0, 0], axis_name)}


def two_steps(devices, moco, batch_norm="split"):
    """The states after two steps that training makes of a config, of 10 in all."""
    groups = {"bn_groups": 4} if batch_norm == "split" else {}
    model = C.ModelConfig(dim=2, image_size=4, channels=1, batch_norm=batch_norm, **groups)
    plain, batch = C.DataConfig(recipe="none"), C.OptimizerConfig(batch_size=SIZE)
    made = C.PretrainConfig(data=plain, model=model, moco=moco, optimizer=batch)
    source = data.Arrays(IMAGES, np.zeros(SIZE, np.int32), ("a",), "here")
    optimizer, dataset = optax.sgd(0.5), data.Dataset(source, None, source, "none")
    step = assembly.step_of(made, telling, optimizer, dataset, 10, resident=True)
    params = {"w": jnp.array([[0.01, 0.3]])}
    stats = {"seen": jnp.zeros((devices, SIZE // devices))}
    momentum = Momentum(params, stats, queue_init(jax.random.key(0), SIZE, 2))
    state = init_state(params, stats, optimizer)._replace(momentum=momentum)
    local = sharding.local_devices(devices)
    started = state, IMAGES, np.zeros(SIZE, np.int32), jax.random.key(1)
    state, images, labels, key = sharding.replicate(started, local)
    indices = sharding.split(np.arange(SIZE, dtype=np.int32).reshape(devices, -1), local)
    mapped, states = sharding.pmap(step, local), []
    for _ in range(2):
        state, _ = mapped(state, images, labels, indices, key)
        states.append(sharding.unreplicate(state))
    return states


@pytest.mark.parametrize("devices, batch_norm", [(2, "split"), (4, "local")])
def test_key_and_query_share_no_group(devices, batch_norm):
    states, orders = two_steps(devices, C.MocoConfig(SIZE), batch_norm), []
    for state in states:
        seen = state.stats["seen"], state.momentum.stats["seen"]
        queries, keys = (np.rint(255 * one).astype(int).ravel() for one in seen)
        np.testing.assert_array_equal(queries, np.arange(SIZE))
        np.testing.assert_array_equal(np.sort(keys), np.arange(SIZE))
        group_of = [np.argsort(order) // (SIZE // 4) for order in (queries, keys)]
        assert (group_of[0] != group_of[1]).all()
        orders.append(tuple(keys))
    assert orders[0] != orders[1]  # another one each step
    # And each key is that of its sample: its features are a function of the image alone.
    z = np.stack([np.arange(SIZE) / 255, np.ones(SIZE)], 1) * [0.01, 0.3]
    expected = z / np.linalg.norm(z, axis=1, keepdims=True)
    np.testing.assert_allclose(states[0].momentum.queue.keys, expected, rtol=1e-4)


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
