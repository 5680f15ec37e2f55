"""The sliced Wasserstein losses: over devices, in blocks, second derivatives."""

import functools

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from hypersphere_jax import generalized_contrastive_loss, sliced_wasserstein_loss
from hypersphere_jax.losses import mesh, sliced_wasserstein

KEY = jax.random.key(3)


@pytest.fixture(scope="module")
def arrays():
    """A linear encoder, 16 points and samples of five dimensions, and seven directions."""
    rng = np.random.default_rng(1)
    shapes = {"weights": (5, 5), "points": (16, 5), "samples": (16, 5), "directions": (5, 7)}
    return {name: rng.standard_normal(s).astype(np.float32) for name, s in shapes.items()}


def step(weights, points, samples, directions, axis_name=None):
    """Value and gradient of the replicated weights, with given samples and with drawn ones."""
    losses = [
        lambda w, **of: sliced_wasserstein_loss(points @ w, samples, directions, **of),
        lambda w, **of: sliced_wasserstein.prior_matching_loss(KEY, points @ w, "normal", **of),
        lambda w, **of: generalized_contrastive_loss(KEY, points @ w, samples, **of),
    ]
    found = [jax.value_and_grad(f)(weights, axis_name=axis_name) for f in losses]
    mean = functools.partial(jax.lax.pmean, axis_name=axis_name) if axis_name else lambda g: g
    return [(value, mean(gradient)) for value, gradient in found]


@pytest.fixture(scope="module")
def alone(arrays):
    return jax.jit(step)(**arrays)


@pytest.mark.slow
@pytest.mark.parametrize(("mapping", "devices"), [("pmap", 8), ("shard_map", 4)])
def test_devices_change_nothing(mapping, devices, arrays, alone):
    """Neither 5 nor 7 directions are a multiple of 2; the samples are those of the whole batch."""
    local = jax.devices()[:devices]
    if mapping == "pmap":
        spread = functools.partial(step, axis_name="data")
        mapped = jax.pmap(spread, "data", in_axes=(None, 0, 0, None), devices=local)
        weights, *sides, directions = arrays.values()
        found = mapped(weights, *(side.reshape(devices, -1, 5) for side in sides), directions)
        assert all((np.ptp(a, axis=0) == 0).all() for a in jax.tree.leaves(found))
        found = jax.tree.map(lambda a: a[0], found)
    else:
        axes, every, split = ("a", "b"), PartitionSpec(), PartitionSpec(("a", "b"))
        mesh, specs = Mesh(np.array(local).reshape(2, -1), axes), (every, split, split, every)
        spread = functools.partial(step, axis_name=axes)
        mapped = jax.shard_map(spread, mesh=mesh, in_specs=specs, out_specs=every)
        found = jax.jit(mapped)(*arrays.values())
    for one, other in zip(*map(jax.tree.leaves, (found, alone)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_directions_in_blocks(arrays, alone, monkeypatch):
    """Three at a time, and what is left."""
    monkeypatch.setattr(sliced_wasserstein, "SORTED_TOGETHER", 3 * 16)
    mesh._compiled.cache_clear()  # losses that were traced with the number of before
    found = jax.jit(functools.partial(step, axis_name=None))(**arrays)
    for x, y in zip(*map(jax.tree.leaves, (found, alone)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_lengths_do_not_matter_on_the_sphere_alone(arrays):
    """And another key has other directions and samples."""
    _, z1, z2, _ = arrays.values()
    for prior in ("hypersphere", "normal"):
        loss = jax.jit(functools.partial(generalized_contrastive_loss, prior=prior))
        one, long = loss(KEY, z1, z2), loss(KEY, 3 * z1, z2)
        assert np.allclose(one, long, rtol=1e-5) == (prior == "hypersphere")
        assert abs(one - loss(jax.random.key(4), z1, z2)) > 1e-4


def test_second_derivatives(arrays):
    """The orders stay as they are nearby, so that it is a sum of squares of linear functions."""
    _, points, samples, directions = arrays.values()
    towards = tuple(np.random.default_rng(4).standard_normal((2, 16, 5)).astype(np.float32))
    gradient = jax.grad(lambda *sides: sliced_wasserstein_loss(*sides, directions), (0, 1))
    bends = jax.jit(lambda *a: jax.jvp(gradient, *a)[1])((points, samples), towards)
    bend = sum(np.vdot(b, v) for b, v in zip(bends, towards, strict=True))
    moved = [
        np.take_along_axis(v @ directions, np.argsort(side @ directions, axis=0), axis=0)
        for side, v in zip((points, samples), towards, strict=True)
    ]
    np.testing.assert_allclose(bend, 2 * np.mean((moved[0] - moved[1]) ** 2), rtol=1e-4)
