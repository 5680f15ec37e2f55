"""Runs with a queue: what a checkpoint holds, resumption to the bit, what a config's step does."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny_runs
from run_states import assert_same_run, state_of

from hypersphere_jax import assembly, checkpoint, data, runs, sharding, training
from hypersphere_jax.config import (
    DataConfig,
    MocoConfig,
    ModelConfig,
    OptimizerConfig,
    PretrainConfig,
    Stopped,
    UserError,
)
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
    # What is measured of the run is the trained encoder.
    jax.tree.map(np.testing.assert_array_equal, runs.load_encoder(queue_run).params, last["params"])


def test_metrics_and_defaults(queue_run):
    records = runs.read_metrics(queue_run)
    assert [r["queue_filled"] for r in records[:3]] == [0, pytest.approx(0.8), 1]
    assert records[0]["chance"] == pytest.approx(np.log(130 + 1))
    keys = {"positive_similarity", "negative_similarity", "queue_age", "contrastive", "align"}
    assert keys <= records[-1].keys()
    # With a queue, keys have statistics of other images than their queries, unless it is told.
    model = runs.read_config(queue_run).model
    assert (model.batch_norm, model.bn_groups) == ("split", 8)


def test_resumption_is_exact(queue_run, tmp_path, monkeypatch):
    original = runs.MetricsWriter.write

    def write(self, record):
        original(self, record)
        if record["step"] == 6:
            raise Stopped("as by a signal")

    with monkeypatch.context() as patch:
        patch.setattr(runs.MetricsWriter, "write", write)
        with pytest.raises(Stopped):
            training.train(tiny_runs.queue(tmp_path))
    assert checkpoint.steps(tmp_path / "queue" / "checkpoints")[-1] == 4
    assert_same_run(training.train(tiny_runs.queue(tmp_path)), queue_run)


@pytest.mark.slow
@pytest.mark.parametrize("batch_norm", ["sync", "split"])
def test_devices_change_nothing(tmp_path, batch_norm):
    groups = {"bn_groups": 4} if batch_norm == "split" else {}
    model = ModelConfig(dim=3, width=0.1, batch_norm=batch_norm, **groups)
    found = []
    for devices in (1, 8) if batch_norm == "sync" else (1, 4):
        base = tiny_runs.queue(tmp_path, f"{devices}", model=model)
        runtime = dataclasses.replace(base.runtime, devices=devices)
        folder = training.train(dataclasses.replace(base, runtime=runtime))
        state, records = state_of(folder), runs.read_metrics(folder)
        found.append(([r["loss"] for r in records], state["params"], state["momentum"]))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), found[1], found[0]
    )


def test_what_does_not_go_together(tmp_path):
    base = tiny_runs.queue(tmp_path)
    alone = {"runtime": dataclasses.replace(base.runtime, devices=1)}
    local = ModelConfig(dim=3, width=0.1, batch_norm="local")
    one, three = (
        dataclasses.replace(local, batch_norm="split", bn_groups=groups) for groups in (1, 3)
    )
    for words, changes in (
        (r"give the positives away.*--batch-norm split", {"model": local}),
        (r"give the positives away.*--batch-norm split", {"model": one}),
        (r"--bn-groups 3: .* multiple of the 2 dev", {"model": three, "runtime": base.runtime}),
        (r"--bn-groups 8: .* --batch-size 100", {"optimizer": OptimizerConfig(batch_size=100)}),
    ):
        with pytest.raises(UserError, match=words):
            training.train(dataclasses.replace(base, **{**alone, **changes}))
    assert not (tmp_path / "queue").exists()
    for setting in ({"ema_schedule": "cosine"}, {"ema_stats": "averaged"}):
        with pytest.raises(UserError, match=r"--ema-s.* needs --queue-size"):
            MocoConfig(**setting)


# The step that a config describes, with a network that tells which samples it sees together.

SIZE, GROUPS = 24, 4
IMAGES = np.arange(SIZE, dtype=np.uint8).reshape(SIZE, 1, 1, 1).repeat(4, 1).repeat(4, 2)


def telling(params, stats, x, train, axis_name):
    """Its statistics are the numbers of the samples, in the order of the global batch."""
    z = jnp.stack([x[:, 0, 0, 0], jnp.ones(len(x))], axis=1) * params["w"]
    return {"output": l2_normalize(z)}, {"seen": jax.lax.all_gather(x[:, 0, 0, 0], axis_name)}


def two_steps(devices, moco=None, **options):
    """The states after two steps that training makes of a config, of 10 in all."""
    made = PretrainConfig(
        data=DataConfig(recipe="none"),
        model=ModelConfig(dim=2, image_size=4, channels=1, **options),
        moco=moco or MocoConfig(queue_size=SIZE),
        optimizer=OptimizerConfig(batch_size=SIZE),
    )
    source = data.Arrays(IMAGES, np.zeros(SIZE, np.int32), ("a",), "here")
    optimizer = optax.sgd(0.5)
    dataset = data.Dataset(source, None, source, "none")
    step = assembly.step_of(made, telling, optimizer, dataset, 10, resident=True)
    local = sharding.local_devices(devices)
    params = {"w": jnp.array([[0.01, 0.3]])}
    stats = {"seen": jnp.zeros((devices, SIZE // devices))}
    queue = queue_init(jax.random.key(0), SIZE, 2)
    state = init_state(params, stats, optimizer)._replace(momentum=Momentum(params, stats, queue))
    state, key = sharding.replicate((state, jax.random.key(1)), local)
    images, labels = sharding.replicate((IMAGES, np.zeros(SIZE, np.int32)), local)
    indices = sharding.split(np.arange(SIZE, dtype=np.int32).reshape(devices, -1), local)
    mapped, states = sharding.pmap(step, local), []
    for _ in range(2):
        state, _ = mapped(state, images, labels, indices, key)
        states.append(sharding.unreplicate(state))
    return states


@pytest.mark.parametrize(
    ("devices", "options"),
    [(2, {"batch_norm": "split", "bn_groups": GROUPS}), (4, {"batch_norm": "local"})],
)
def test_key_and_query_share_no_group(devices, options):
    states, orders = two_steps(devices, **options), []
    for state in states:
        queries, keys = (
            np.rint(255 * stats["seen"]).astype(int).ravel()
            for stats in (state.stats, state.momentum.stats)
        )
        np.testing.assert_array_equal(queries, np.arange(SIZE))
        np.testing.assert_array_equal(np.sort(keys), np.arange(SIZE))
        group_of = [np.argsort(order) // (SIZE // GROUPS) for order in (queries, keys)]
        assert (group_of[0] != group_of[1]).all()
        orders.append(tuple(keys))
    assert orders[0] != orders[1]  # another one each step
    # And each key is that of its sample: its features are a function of the image alone.
    z = np.stack([np.arange(SIZE) / 255, np.ones(SIZE)], 1) * [0.01, 0.3]
    expected = z / np.linalg.norm(z, axis=1, keepdims=True)
    np.testing.assert_allclose(states[0].momentum.queue.keys, expected, rtol=1e-4)


def test_options_of_the_momentum_encoder():
    moco = MocoConfig(SIZE, ema_decay=0.0, ema_schedule="cosine", ema_stats="averaged")
    first, second = two_steps(1, moco, batch_norm="split", bn_groups=GROUPS)
    # Half a cosine from 0 to 1 over 10 steps, at the step before: 0, and then a little.
    m = (1 - math.cos(math.pi / 10)) / 2
    for part, name in (("params", "w"), ("stats", "seen")):
        start, now = getattr(first, part)[name], getattr(second, part)[name]
        np.testing.assert_array_equal(getattr(first.momentum, part)[name], start)
        average = getattr(second.momentum, part)[name]
        np.testing.assert_allclose(average, m * start + (1 - m) * now, rtol=1e-5)
    assert np.abs(first.params["w"] - second.params["w"]).max() > 1e-4
