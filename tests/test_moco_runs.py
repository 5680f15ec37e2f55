"""Runs with a queue: what a checkpoint holds, resumption to the bit, any number of devices."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from run_cases import assert_same_run, state_of

from hypersphere_jax import assembly, checkpoint, data, runs, sharding, training
from hypersphere_jax.config import (
    DataConfig,
    MocoConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    PretrainConfig,
    ProbeConfig,
    RuntimeConfig,
    Stopped,
    UserError,
)
from hypersphere_jax.evaluation import probe
from hypersphere_jax.losses import l2_normalize
from hypersphere_jax.moco import queue_init
from hypersphere_jax.train_step import Momentum, init_state

STEPS, QUEUE, DIM = 10, 130, 3
RUNTIME = RuntimeConfig(devices=2, log_every_steps=1, checkpoint_every_steps=4)


def config(folder, name="run", **changes):
    """10 steps of a tiny encoder; the batch of 104 does not divide the queue of 130."""
    base = PretrainConfig(
        name=name,
        runs_dir=str(folder),
        data=DataConfig(fraction=0.15),
        model=ModelConfig(dim=DIM, width=0.1),
        objective=ObjectiveConfig(contrastive_weight=0.5),
        moco=MocoConfig(queue_size=QUEUE, ema_decay=0.9),
        optimizer=OptimizerConfig(epochs=5, batch_size=104),
        runtime=RUNTIME,
    )
    return dataclasses.replace(base, **changes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return training.train(config(tmp_path_factory.mktemp("runs")))


def test_a_checkpoint_holds_queue_and_momentum_encoder(finished):
    start, end = state_of(finished, 0)["momentum"], state_of(finished)["momentum"]
    params = state_of(finished, 0)["params"]
    jax.tree.map(np.testing.assert_array_equal, start.params, params)  # a copy to begin with
    assert start.queue.ptr == 0 and end.queue.ptr == STEPS * 104 % QUEUE
    assert not np.isclose(start.queue.keys, end.queue.keys).any(axis=1).any()  # all replaced
    np.testing.assert_allclose(np.linalg.norm(end.queue.keys, axis=1), 1, rtol=1e-5)
    moved = jax.tree.leaves(jax.tree.map(np.subtract, end.params, start.params))
    assert any(np.abs(leaf).max() > 1e-4 for leaf in moved)


def test_metrics(finished):
    records = runs.read_metrics(finished)
    assert [r["queue_filled"] for r in records[:3]] == [0, pytest.approx(0.8), 1]
    assert records[0]["chance"] == pytest.approx(np.log(QUEUE + 1))
    keys = {"positive_similarity", "negative_similarity", "queue_age", "contrastive", "align"}
    assert keys <= records[-1].keys()


def test_resumption_is_exact(finished, tmp_path, monkeypatch):
    original = runs.MetricsWriter.write

    def write(self, record):
        original(self, record)
        if record["step"] == 6:
            raise Stopped("as by a signal")

    with monkeypatch.context() as patch:
        patch.setattr(runs.MetricsWriter, "write", write)
        with pytest.raises(Stopped):
            training.train(config(tmp_path))
    assert checkpoint.steps(tmp_path / "run" / "checkpoints")[-1] == 4
    again = training.train(config(tmp_path))
    assert_same_run(again, finished)


@pytest.mark.slow
@pytest.mark.parametrize("batch_norm", ["sync", "split"])
def test_devices_change_nothing(tmp_path, batch_norm):
    numbers = (1, 2, 4, 8) if batch_norm == "sync" else (1, 4)
    groups = {"bn_groups": 4} if batch_norm == "split" else {}
    model = ModelConfig(dim=DIM, width=0.1, batch_norm=batch_norm, **groups)
    found = []
    for devices in numbers:
        runtime = dataclasses.replace(RUNTIME, devices=devices)
        folder = training.train(config(tmp_path, str(devices), model=model, runtime=runtime))
        found.append((state_of(folder), [record["loss"] for record in runs.read_metrics(folder)]))
    for state, losses in found[1:]:
        np.testing.assert_allclose(losses, found[0][1], rtol=1e-4, atol=1e-4)
        for part in ("params", "momentum"):
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
                state[part],
                found[0][0][part],
            )


def test_probe_takes_the_encoder(finished):
    linear, _ = probe.probe(ProbeConfig((str(finished),), devices=2))
    assert linear["step"] == STEPS and linear["n"] == 397


def test_what_does_not_go_together(tmp_path):
    with pytest.raises(UserError, match="--queue-size and --supervised-weight"):
        config(tmp_path, objective=ObjectiveConfig(supervised_weight=1.0))
    alone = dataclasses.replace(RUNTIME, devices=1)
    for options in ({"batch_norm": "local"}, {"batch_norm": "split", "bn_groups": 1}):
        model = ModelConfig(dim=DIM, width=0.1, **options)
        with pytest.raises(UserError, match=r"give the positives away.*--batch-norm split"):
            training.train(config(tmp_path, model=model, runtime=alone))
    with pytest.raises(UserError, match=r"--bn-groups 8: must .* divide --batch-size 100"):
        training.train(config(tmp_path, optimizer=OptimizerConfig(batch_size=100), runtime=alone))
    assert not (tmp_path / "run").exists()
    for name, value in (("ema_decay", 0.9), ("ema_schedule", "cosine"), ("ema_stats", "averaged")):
        with pytest.raises(UserError, match=f"--{name.replace('_', '-')} needs --queue-size"):
            MocoConfig(**{name: value})


# The step that a config describes, with a network that tells which samples it sees together.

SIZE, GROUPS = 24, 4
IMAGES = np.arange(SIZE, dtype=np.uint8).reshape(SIZE, 1, 1, 1).repeat(4, 1).repeat(4, 2)


def telling(params, stats, x, train, axis_name):
    """Its statistics are the numbers of the samples, in the order of the global batch."""
    z = jnp.stack([x[:, 0, 0, 0], jnp.ones(len(x))], axis=1) * params["w"]
    return {"output": l2_normalize(z)}, {"seen": jax.lax.all_gather(x[:, 0, 0, 0], axis_name)}


def first_step(devices, moco=None, steps=1, **options):
    """The state after the steps that training makes of a config."""
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
    mapped = sharding.pmap(step, local)
    for _ in range(steps):
        state, _ = mapped(state, images, labels, indices, key)
    return sharding.unreplicate(state)


@pytest.mark.parametrize(
    ("devices", "options"),
    [
        (1, {"batch_norm": "split", "bn_groups": GROUPS}),
        (2, {"batch_norm": "split", "bn_groups": GROUPS}),
        (4, {"batch_norm": "split", "bn_groups": GROUPS}),
        (4, {"batch_norm": "local"}),
    ],
)
def test_key_and_query_share_no_group(devices, options):
    state = first_step(devices, **options)
    seen = [
        np.rint(255 * s["seen"]).astype(int).ravel() for s in (state.stats, state.momentum.stats)
    ]
    group_of = [np.argsort(order) // (SIZE // GROUPS) for order in seen]
    np.testing.assert_array_equal(seen[0], np.arange(SIZE))
    np.testing.assert_array_equal(np.sort(seen[1]), np.arange(SIZE))
    assert (group_of[0] != group_of[1]).all()
    # And each key is that of its sample: its features are a function of the image alone.
    z = np.stack([np.arange(SIZE) / 255, np.ones(SIZE)], 1) * [0.01, 0.3]
    expected = z / np.linalg.norm(z, axis=1, keepdims=True)
    np.testing.assert_allclose(state.momentum.queue.keys, expected, rtol=1e-4)


@pytest.mark.slow
def test_options_of_the_momentum_encoder():
    def after(**options):
        moco = MocoConfig(queue_size=SIZE, **options)
        return first_step(1, moco, steps=2, batch_norm="split", bn_groups=GROUPS)

    copied = after(ema_decay=0.0, ema_stats="averaged")
    np.testing.assert_array_equal(copied.momentum.params["w"], copied.params["w"])
    np.testing.assert_array_equal(copied.momentum.stats["seen"], copied.stats["seen"])
    own = after(ema_decay=0.0, ema_stats="own")
    assert not np.array_equal(own.momentum.stats["seen"], own.stats["seen"])
    # Half a cosine from 0 to 1 over 10 steps, at the step before.
    m = [(1 - math.cos(math.pi * step / 10)) / 2 for step in (0, 1)]
    risen = after(ema_decay=0.0, ema_schedule="cosine")
    between = first_step(
        1, MocoConfig(queue_size=SIZE, ema_decay=0.0), batch_norm="split", bn_groups=GROUPS
    )
    expected = m[1] * between.params["w"] + (1 - m[1]) * risen.params["w"]
    np.testing.assert_allclose(risen.momentum.params["w"], expected, rtol=1e-5)
    assert not np.array_equal(risen.momentum.params["w"], risen.params["w"])
