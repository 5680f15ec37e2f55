"""Batch norm of groups, of devices and of the global batch, against NumPy and each other."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from flax import nnx
from steps_by_hand import assert_close

from hypersphere_jax import models
from hypersphere_jax.config import ModelConfig, UserError
from hypersphere_jax.models.norm import BatchNorm

SCALE, BIAS = np.float32([1.5, -0.5, 2.0]), np.float32([0.1, 0.2, -0.3])


def samples(rng, n=16):
    """`[n, 2, 3]`, no two of one distribution, so that statistics of other groups are others."""
    scale = 1 + rng.random((n, 1, 1))
    return (scale * rng.standard_normal((n, 2, 3)) + 3 * scale).astype(np.float32)


def layer(x, *, groups=1, axis_name=None, train=True):
    """Output and running statistics, which begin at (1, 1, 1) and (4, 4, 4)."""
    norm = BatchNorm(3, groups=groups, axis_name=axis_name)
    norm.scale, norm.bias = nnx.Param(jnp.array(SCALE)), nnx.Param(jnp.array(BIAS))
    norm.mean, norm.var = nnx.BatchStat(jnp.ones(3)), nnx.BatchStat(4 * jnp.ones(3))
    return norm(x, train), norm.mean[...], norm.var[...]


def by_hand(x, groups):
    wide = np.float64(x).reshape(groups, -1, 2, 3)
    mean, var = (f(wide, axis=(1, 2), keepdims=True) for f in (np.mean, np.var))
    normed = ((wide - mean) / np.sqrt(var + 1e-5)).reshape(x.shape) * SCALE + BIAS
    mean, var = (value.mean(axis=(0, 1, 2)) for value in (mean, var))
    return normed, 0.9 + 0.1 * mean, 3.6 + 0.1 * var


def test_groups_have_statistics_of_their_own(rng):
    x, split = samples(rng), jax.jit(functools.partial(layer, groups=4))
    assert_close(split(x), by_hand(x, 4))
    # Channels that hardly vary about a large mean: E[x^2] - E[x]^2 would cancel.
    flat = (1000 + 0.1 * rng.standard_normal(x.shape)).astype(np.float32)
    np.testing.assert_allclose(split(flat)[0], by_hand(flat, 4)[0], atol=0.02)
    # Statistics are float32's, whatever comes; the output is as wide as what came.
    half = jnp.asarray(x, jnp.bfloat16)
    found, *running = split(half)
    assert found.dtype == jnp.bfloat16 and running[0].dtype == jnp.float32
    expected, *statistics = by_hand(np.float64(half.astype(jnp.float32)), 4)
    np.testing.assert_allclose(found.astype(jnp.float32), expected, atol=0.02)
    assert_close(running, statistics)
    # In evaluation there are no groups, and the running statistics stay.
    expected = (np.float64(x[:3]) - 1) / np.sqrt(4 + 1e-5) * SCALE + BIAS
    found = jax.jit(functools.partial(layer, groups=4, train=False))(x[:3])
    assert_close(found, (expected, np.ones(3), 4 * np.ones(3)))


def test_devices_are_groups_or_one_batch(rng):
    """Value and gradient: with the axis as of the whole batch, without as of groups."""
    x, weights = samples(rng), rng.standard_normal((16, 2, 3)).astype(np.float32)

    def part(axis_name, x, weights, groups=1):
        def loss(x):
            output, *stats = layer(x, groups=groups, axis_name=axis_name)
            return jnp.sum(output * weights), (output, stats)

        slope, (output, stats) = jax.grad(loss, has_aux=True)(x)
        return output, slope, stats

    for axis_name, groups in (("data", 1), (None, 4)):
        alone = jax.jit(functools.partial(part, None, groups=groups))(x, weights)
        mapped = jax.pmap(functools.partial(part, axis_name), "data", devices=jax.devices()[:4])
        *found, stats = mapped(x.reshape(4, 4, 2, 3), weights.reshape(4, 4, 2, 3))
        found = [one.reshape(x.shape) for one in found]
        assert_close((*found, [stat.mean(axis=0) for stat in stats]), alone)
    # And of groups as by a difference quotient in float64.
    along = rng.standard_normal(x.shape)
    quotient = oracles.numeric_slope(lambda x: np.sum(by_hand(x, 4)[0] * weights), [x], [along])
    np.testing.assert_allclose(np.vdot(alone[1], along), quotient, rtol=1e-3)


def test_the_config_says_over_what(rng):
    """Outputs and averaged statistics of a CNN on so many devices."""
    x = samples(rng, 8 * 32).reshape(8, 8, 8, -1)[..., :1]
    plain = ModelConfig(image_size=8, channels=1, width=0.1, dim=3)
    _, params, stats = models.create(plain, jax.random.key(0))

    def on_devices(batch_norm, devices, **options):
        config = dataclasses.replace(plain, batch_norm=batch_norm, **options)
        part = functools.partial(models.abstract(config)[0], params, stats)
        mapped = jax.pmap(lambda x: part(x, True, "data"), "data", devices=jax.devices()[:devices])
        outputs, new = mapped(x.reshape(devices, -1, 8, 8, 1))
        return np.reshape(outputs["output"], (8, 3)), jax.tree.map(lambda a: a.mean(0), new)

    sync, split = on_devices("sync", 1), on_devices("split", 1, bn_groups=4)
    assert_close(on_devices("sync", 2), sync)
    assert_close(on_devices("split", 2, bn_groups=4), split)
    assert_close(on_devices("local", 4), split)
    assert np.abs(sync[0] - split[0]).max() > 0.01
    with pytest.raises(UserError, match="--bn-groups 4 does not divide over 8 devices"):
        on_devices("split", 8, bn_groups=4)
