"""Microbatches: the loss, gradient and views of the whole batch, on any number of devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import own_parts
import pytest
import tiny_runs
from run_states import killed, timeless
from steps_by_hand import IMAGES, KEY, LABELS, OPTIMIZER, assert_close, noisy, rows

import hypersphere_jax as hj
from hypersphere_jax.losses._pairwise.collectives import all_gather
from hypersphere_jax.models.norm import BatchNorm
from hypersphere_jax.training import distributed, step


def objective(view1, view2, labels, axis_name, key, logit_scale=None):
    """Return a loss of all outputs, the labels and the key, which does not split into parts."""
    arrays = (view1, view2, labels)
    view1, view2, labels = jax.tree.map(lambda array: all_gather(array, axis_name), arrays)
    scores = view1["output"] @ (view2["output"] + jax.random.normal(key, (1, 3))).T
    hits = jax.nn.log_softmax(view1["logits"] + view2["logits"])[jnp.arange(len(labels)), labels]
    return jax.nn.logsumexp(scores) - jnp.mean(jnp.diag(scores)) - jnp.mean(hits), {}


def plain(params, stats, x, train, axis_name=None):
    z = jnp.tanh(jnp.reshape(x, (len(x), 6)) @ params["w"])
    output = z / jnp.linalg.norm(z, axis=1, keepdims=True)
    updated = {"mean": 0.5 * stats["mean"] + 0.5 * jnp.mean(x, axis=(0, 1, 2))}
    return {"output": output, "logits": z @ params["c"]}, updated


def normed(params, stats, x, train, axis_name=None, groups=1):
    """Normalize groups of the batch before the nonlinearity; statistics are their mean."""
    norm = BatchNorm(3, groups=groups, axis_name=axis_name)
    norm.mean.set_value(stats["mean"])
    z = jnp.tanh(norm(jnp.reshape(x, (len(x), 6)) @ params["w"], train))
    output = z / jnp.linalg.norm(z, axis=1, keepdims=True)
    return {"output": output, "logits": z @ params["c"]}, {"mean": norm.mean[...]}


def trained(network, dtype, devices=1, microbatches=1):
    """Return the state and metrics after a step of eight images."""
    keys = jax.random.split(jax.random.key(1))
    params = {"c": jax.random.normal(keys[0], (3, 2)), "w": jax.random.normal(keys[1], (6, 3))}
    initial = jax.tree.map(lambda x: x.astype(dtype), (params, {"mean": jnp.ones(3)}))
    options = {"axis_name": distributed.AXIS, "microbatches": microbatches}
    take = step.make_step(network, objective, OPTIMIZER, noisy, **options)
    local = jax.devices()[:devices]
    state = step.init_state(*initial, OPTIMIZER)
    state, *fixed, key = distributed.replicate((state, IMAGES, LABELS, KEY), local)
    order = distributed.local_rows(8, local, microbatches)
    indices = distributed.split(rows(0)[order].reshape(devices, -1), local)
    return distributed.unreplicate(distributed.pmap(take, local)(state, *fixed, indices, key))


@tiny_runs.needs_devices(4)
def test_microbatches_equal_the_batch_in_float64():
    with jax.enable_x64(True):
        batch = trained(plain, np.float64)
        assert batch[0].params["w"].dtype == batch[1]["loss"].dtype == np.float64
        for devices, microbatches in ((1, 4), (4, 2)):
            parts = trained(plain, np.float64, devices, microbatches)
            close = functools.partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-13)
            jax.tree.map(close, parts, batch)


@pytest.mark.slow
@tiny_runs.needs_devices(4)
def test_microbatches_are_groups_of_batch_norm():
    groups = trained(functools.partial(normed, groups=2), np.float32)
    for devices in (1, 4):
        assert_close(trained(normed, np.float32, devices, microbatches=2), groups)


def run(folder, **changes):
    options = {"batch_size": 16, "epochs": 4, "log_every_steps": 3, "checkpoint_every_steps": 6}
    config = own_parts.config(folder, **(options | changes))
    parts = {"images": own_parts.IMAGES, "network": own_parts.NETWORK, "augment": own_parts.noisy}
    return hj.train(config, loss=own_parts.spread, **parts)


@pytest.mark.slow
@tiny_runs.needs_devices(2)
def test_run_with_microbatches_equals_one_without_and_resumes(tmp_path):
    options = {"microbatch_size": 4, "devices": 2, "steps_per_call": 3}
    parts = run(tmp_path / "parts", **options)
    batch = run(tmp_path / "batch")
    np.testing.assert_allclose(parts.encoder.params["w"], batch.encoder.params["w"], atol=1e-4)
    for record, expected in zip(parts.metrics, batch.metrics, strict=True):
        assert record["loss"] == pytest.approx(expected["loss"], abs=1e-4)
    killed(parts.folder, 6, tmp_path / "killed")
    resumed = run(tmp_path / "killed", **options)
    np.testing.assert_array_equal(resumed.encoder.params["w"], parts.encoder.params["w"])
    assert timeless(resumed.folder) == timeless(parts.folder)
