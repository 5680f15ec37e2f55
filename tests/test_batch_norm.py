"""Batch norm by group, by device and over all devices, against NumPy and against each other."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hypersphere_jax import models
from hypersphere_jax.config import ModelConfig, UserError

CNN = ModelConfig(image_size=8, channels=1, width=0.2, dim=3)
SPLIT = ModelConfig(image_size=8, channels=1, width=0.2, dim=3, batch_norm="split", bn_groups=4)


@functools.cache
def made(config):
    apply, params, stats = models.create(config, jax.random.key(0))
    return jax.jit(apply, static_argnames=("train", "axis_name")), params, stats


def images(n=16):
    rng = np.random.default_rng(1)
    # No two samples of one distribution, so that statistics of other groups are others.
    scale = 1 + rng.random((n, 1, 1, 1))
    return (scale * rng.standard_normal((n, 8, 8, 1)) + scale).astype(np.float32)


def on_devices(config, x, devices):
    """Outputs and running statistics (averaged, as the step does), with the gradient's sum."""
    apply, params, stats = made(config)

    def part(x, weights):
        def loss(params):
            outputs, new = apply(params, stats, x, train=True, axis_name="data")
            total = jax.lax.psum(jnp.sum(outputs["output"] * weights), "data")
            return total, (outputs["output"], new)

        grads, (output, new) = jax.grad(loss, has_aux=True)(params)
        return output, *jax.lax.pmean((new, grads), "data")

    mapped = jax.pmap(part, axis_name="data", devices=jax.devices()[:devices])
    weights = np.random.default_rng(2).standard_normal((len(x), config.dim)).astype(np.float32)
    parts = [a.reshape(devices, -1, *a.shape[1:]) for a in (x, weights)]
    output, *rest = jax.device_get(mapped(*parts))
    return output.reshape(len(x), -1), *jax.tree.map(lambda a: a[0], rest)


def test_groups_are_batches_of_their_own():
    apply, params, stats = made(SPLIT)
    whole, _, _ = made(CNN)
    x = images()
    outputs, new = apply(params, stats, x, train=True)
    alone = [whole(params, stats, x[4 * g : 4 * g + 4], train=True) for g in range(4)]
    for name in ("conv1", "conv3", "output"):
        expected = np.concatenate([part[name] for part, _ in alone])
        np.testing.assert_allclose(outputs[name], expected, rtol=1e-4, atol=1e-5)
    for now, *parts in zip(*map(jax.tree.leaves, (new, *(s for _, s in alone))), strict=True):
        np.testing.assert_allclose(now, np.mean(parts, axis=0), rtol=1e-4, atol=1e-5)


def test_group_statistics_are_numpys():
    apply, params, stats = made(SPLIT)
    x = images()
    outputs, new = apply(params, stats, x, train=True)
    kernel = np.asarray(params["conv1"]["layer"]["kernel"], np.float64)
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    raw = sum(
        padded[:, i : i + 8, j : j + 8] @ kernel[i, j] for i in range(3) for j in range(3)
    ).reshape(4, 4, 8, 8, -1)
    mean, var = raw.mean((1, 2, 3), keepdims=True), raw.var((1, 2, 3), keepdims=True)
    normed = ((raw - mean) / np.sqrt(var + 1e-5)).reshape(16, 8, 8, -1)
    expected = normed / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (normed + 0.044715 * normed**3)))
    np.testing.assert_allclose(outputs["conv1"], expected, rtol=1e-3, atol=1e-4)
    now = new["conv1"]["norm"]
    np.testing.assert_allclose(now["mean"], 0.1 * mean.mean((0, 1, 2, 3)), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(now["var"], 0.9 + 0.1 * var.mean((0, 1, 2, 3)), rtol=1e-4)


def test_a_sample_acts_on_its_own_group_alone():
    apply, params, stats = made(SPLIT)
    x = images()
    changed = x.copy()
    changed[5] += 1
    first, _ = apply(params, stats, x, train=True)
    second, _ = apply(params, stats, changed, train=True)
    same = np.isclose(first["conv3"], second["conv3"], atol=1e-6).all(axis=(1, 2, 3))
    assert same.reshape(4, 4).all(axis=1).tolist() == [True, False, True, True]

    def of_group(x, group):
        outputs, _ = apply(params, stats, x, train=True)
        return jnp.sum(jnp.sin(outputs["output"][4 * group : 4 * group + 4]))

    slope = np.abs(jax.grad(of_group)(x, 2)).sum((1, 2, 3)).reshape(4, 4)
    assert (slope[[0, 1, 3]] == 0).all() and (slope[2] > 0).all() and np.isfinite(slope).all()


@pytest.mark.parametrize("config", [CNN, SPLIT], ids=["sync", "split"])
def test_number_of_devices_does_not_matter(config):
    x = images()
    expected = on_devices(config, x, 1)
    found = on_devices(config, x, 4)
    for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_local_statistics_are_a_devices_own():
    local = ModelConfig(image_size=8, channels=1, width=0.2, dim=3, batch_norm="local")
    x = images()
    found = on_devices(local, x, 4)
    expected = on_devices(SPLIT, x, 1)
    for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
    assert np.abs(found[0] - on_devices(CNN, x, 4)[0]).max() > 0.01


def test_gradient_through_groups_is_the_difference_quotient():
    apply, params, stats = made(SPLIT)
    x = images()
    along = np.random.default_rng(3).standard_normal(x.shape).astype(np.float32)

    def value(x):
        outputs, _ = apply(params, stats, x, train=True)
        return jnp.sum(jnp.cos(outputs["output"] + jnp.arange(48.0).reshape(16, 3)))

    slope = float(jnp.vdot(jax.grad(value)(x), along))
    quotient = float(value(x + 3e-3 * along) - value(x - 3e-3 * along)) / 6e-3
    np.testing.assert_allclose(slope, quotient, rtol=0.02)


def test_evaluation_knows_no_groups():
    apply, params, stats = made(SPLIT)
    one, _ = apply(params, stats, images(1), train=False)
    three, _ = apply(params, stats, images(3), train=False)
    assert one["output"].shape == (1, 3) and three["output"].shape == (3, 3)


def test_errors():
    apply, params, stats = made(SPLIT)
    with pytest.raises(ValueError, match="batch of 6 does not divide into 4 groups"):
        apply(params, stats, images(6), train=True)
    with pytest.raises(UserError, match=r"--bn-groups 4 does not divide over 8 devices"):
        on_devices(SPLIT, images(), 8)
