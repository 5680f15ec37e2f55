"""Runs with a queue: what a checkpoint holds, resumption to the bit, any number of devices."""

import dataclasses

import jax
import numpy as np
import pytest

from hypersphere_jax import checkpoint, models, runs, training
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
from hypersphere_jax.moco import queue_init
from hypersphere_jax.optimizers import make_optimizer, make_schedule
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


def state_of(folder, step=None):
    """The whole tree of a checkpoint, its structure taken from a state made anew."""
    made = runs.read_config(folder)
    _, params, stats = models.abstract(made.model)
    optimizer = make_optimizer(made.optimizer, make_schedule(made.optimizer, STEPS))

    def anew(params, stats):
        queue = queue_init(jax.random.key(0), QUEUE, DIM)
        state = init_state(params, stats, optimizer)
        return state._replace(momentum=Momentum(params, stats, queue))

    like = jax.eval_shape(anew, params, stats)._asdict()
    return checkpoint.restore(folder / "checkpoints", like, step)[1]


def timeless(folder):
    dropped = ("images_per_s", "data_wait")
    return [{k: v for k, v in r.items() if k not in dropped} for r in runs.read_metrics(folder)]


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
    assert timeless(again) == timeless(finished)
    jax.tree.map(np.testing.assert_array_equal, state_of(again), state_of(finished))


@pytest.mark.parametrize(("batch_norm", "numbers"), [("sync", (1, 4, 8)), ("split", (1, 4))])
def test_devices_change_nothing(tmp_path, batch_norm, numbers):
    model = ModelConfig(dim=DIM, width=0.1, batch_norm=batch_norm, bn_groups=4)
    found = []
    for devices in numbers:
        runtime = dataclasses.replace(RUNTIME, devices=devices)
        folder = training.train(config(tmp_path, str(devices), model=model, runtime=runtime))
        found.append((state_of(folder), [record["loss"] for record in runs.read_metrics(folder)]))
    for state, losses in found[1:]:
        np.testing.assert_allclose(losses, found[0][1], rtol=1e-4, atol=1e-4)
        for part in ("params", "momentum"):
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
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
    local = ModelConfig(dim=DIM, width=0.1, batch_norm="local")
    with pytest.raises(UserError, match=r"give the positives away.*--batch-norm split"):
        training.train(config(tmp_path, model=local, runtime=alone))
    assert not (tmp_path / "run").exists()
