"""The step: its objective, and the same numbers on any number of devices."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from hypersphere_jax import augment, models
from hypersphere_jax.config import ModelConfig, ObjectiveConfig, OptimizerConfig
from hypersphere_jax.data.arrays import digits
from hypersphere_jax.optimizers import make_optimizer, make_schedule
from hypersphere_jax.train_step import init_state, make_objective, make_step

MODEL = ModelConfig(image_size=8, channels=1, width=0.125, dim=4, num_classes=10)
OBJECTIVE = ObjectiveConfig(contrastive_weight=0.5, supervised_weight=0.3)
OPTIMIZER = OptimizerConfig(batch_size=16, learning_rate=1.6, epochs=3)
STEPS = 20


@functools.cache
def parts(model=MODEL):
    apply, params, stats = models.create(model, jax.random.key(1))
    optimizer = make_optimizer(OPTIMIZER, make_schedule(OPTIMIZER, STEPS))
    step = functools.partial(
        make_step, apply, make_objective(OBJECTIVE), optimizer, augment.make_augment("digits", 8)
    )
    return step, init_state(params, stats, optimizer)


def batches():
    train, _ = digits()
    images, labels = train.images, train.labels
    order = np.random.default_rng(0).permutation(200)[: 12 * 16].reshape(12, 16)
    indices = np.concatenate([order, order])[:STEPS]
    return images[:200], labels[:200], indices


@functools.cache
def on_one_device():
    step, state = parts()
    compiled = jax.jit(step(axis_name=None))
    images, labels, indices = batches()
    losses = []
    for batch in indices:
        state, metrics = compiled(state, images, labels, batch, jax.random.key(2))
        losses.append(float(metrics["loss"]))
    return losses, state


def mapped_step(step, devices):
    """The step of so many devices, which share the batch's indices `[devices, b]`."""
    return jax.pmap(
        step(axis_name="data"),
        axis_name="data",
        in_axes=(None, None, None, 0, None),
        out_axes=None,
        devices=jax.devices()[:devices],
    )


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.slow
def test_pmap_gives_the_same_run(devices):
    step, state = parts()
    mapped = mapped_step(step, devices)
    images, labels, indices = batches()
    losses = []
    for batch in indices:
        parted = batch.reshape(devices, -1)
        state, metrics = mapped(state, images, labels, parted, jax.random.key(2))
        losses.append(float(metrics["loss"]))
    expected, final = on_one_device()
    np.testing.assert_allclose(losses, expected, atol=1e-4)
    assert losses[-1] < losses[0] - 0.1
    for a, b in zip(*map(jax.tree.leaves, (state.params, final.params)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.slow
def test_shard_map_gives_the_same_run(check_vma):
    step, state = parts()
    whole, part = PartitionSpec(), PartitionSpec("data")
    mapped = jax.jit(
        jax.shard_map(
            step(axis_name="data"),
            mesh=Mesh(np.array(jax.devices()[:4]), ("data",)),
            in_specs=(whole, whole, whole, part, whole),
            out_specs=whole,
            check_vma=check_vma,
        )
    )
    images, labels, indices = batches()
    losses = []
    for batch in indices:
        state, metrics = mapped(state, images, labels, batch, jax.random.key(2))
        losses.append(float(metrics["loss"]))
    np.testing.assert_allclose(losses, on_one_device()[0], atol=1e-4)


def test_unsynchronized_batch_norm_keeps_one_state():
    step, state = parts(dataclasses.replace(MODEL, batch_norm="local"))
    mapped = jax.pmap(
        step(axis_name="data"),
        axis_name="data",
        in_axes=(None, None, None, 0, None),
        devices=jax.devices()[:4],
    )
    images, labels, indices = batches()
    state, metrics = mapped(state, images, labels, indices[0].reshape(4, 4), jax.random.key(2))
    for leaf in jax.tree.leaves((state, metrics)):
        for device in range(1, 4):
            np.testing.assert_array_equal(leaf[device], leaf[0])
    assert abs(float(metrics["loss"][0]) - on_one_device()[0][0]) > 1e-4


@pytest.mark.slow
def test_groups_of_batch_norm_hold_the_same_images_on_any_number_of_devices():
    step, state = parts(dataclasses.replace(MODEL, batch_norm="split", bn_groups=4))
    images, labels, indices = batches()
    losses = []
    for devices in (1, 2, 4):
        mapped = mapped_step(step, devices)
        parted = indices[0].reshape(devices, -1)
        new, metrics = mapped(state, images, labels, parted, jax.random.key(2))
        losses.append([*metrics.values(), new.stats["conv3"]["norm"]["var"][0]])
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=1e-4)
    assert abs(losses[0][0] - on_one_device()[0][0]) > 1e-4


def test_augmentation_depends_on_position_and_step():
    step, state = parts()
    compiled = jax.jit(step(axis_name=None))
    images, labels, indices = batches()
    key = jax.random.key(2)
    _, first = compiled(state, images, labels, indices[0], key)
    _, again = compiled(state, images, labels, indices[0], key)
    assert first["loss"] == again["loss"]
    _, later = compiled(state._replace(step=state.step + 1), images, labels, indices[0], key)
    _, other = compiled(state, images, labels, indices[0], jax.random.key(3))
    assert first["loss"] != later["loss"] and first["loss"] != other["loss"]


def test_objective_is_the_weighted_sum(rng):
    def view():
        output = rng.standard_normal((6, 4)).astype(np.float32)
        output /= np.linalg.norm(output, axis=1, keepdims=True)
        return {"output": output, "logits": rng.standard_normal((6, 10)).astype(np.float32)}

    views, labels = (view(), view()), np.arange(6)
    config = ObjectiveConfig(
        contrastive_weight=0.25,
        align_weight=0.5,
        align_alpha=1.5,
        uniform_weight=2.0,
        uniform_t=3.0,
        supervised_weight=4.0,
    )
    loss, metrics = make_objective(config)(*views, labels, None)
    x, y = (v["output"].astype(np.float64) for v in views)
    potentials = [
        np.exp(-3 * ((s[:, None] - s[None]) ** 2).sum(-1))[~np.eye(6, dtype=bool)] for s in (x, y)
    ]
    align = (np.linalg.norm(x - y, axis=1) ** 1.5).mean()
    uniform = np.mean([np.log(p.mean()) for p in potentials])
    entropies = []
    for v in views:
        logits = v["logits"].astype(np.float64)
        entropies.append(np.log(np.exp(logits).sum(1)) - logits[np.arange(6), labels])
    supervised = np.mean(entropies)
    np.testing.assert_allclose(metrics["align"], align, rtol=1e-5)
    np.testing.assert_allclose(metrics["uniform"], uniform, rtol=1e-5)
    np.testing.assert_allclose(metrics["supervised"], supervised, rtol=1e-5)
    total = 0.25 * metrics["contrastive"] + 0.5 * align + 2 * uniform + 4 * supervised
    np.testing.assert_allclose(loss, total, rtol=1e-5)
    _, plain = make_objective(ObjectiveConfig())(*views, labels, None)
    assert plain.keys() == {"align", "uniform"}
