"""The sliced Wasserstein losses: over devices, in blocks, second derivatives."""

import functools

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from hypersphere_jax import (
    generalized_contrastive_loss,
    prior_matching_loss,
    sliced_wasserstein_loss,
)
from hypersphere_jax.losses import _projections
from hypersphere_jax.losses._pairwise import sharding
from hypersphere_jax.losses._pairwise.collectives import global_mean

KEY = jax.random.key(3)


@pytest.fixture(scope="module")
def arrays():
    """A linear encoder, 16 points and samples of five dimensions, and seven directions."""
    rng = np.random.default_rng(1)
    shapes = {"weights": (5, 5), "points": (16, 5), "samples": (16, 5), "directions": (5, 7)}
    return {name: rng.standard_normal(s).astype(np.float32) for name, s in shapes.items()}


def step(weights, points, samples, directions, axis_name=None):
    """Value and gradient of the replicated weights, with given samples and with drawn ones."""

    def sliced(w):
        return sliced_wasserstein_loss(points @ w, samples, directions, axis_name=axis_name)

    def prior_matching(w):
        return prior_matching_loss(KEY, points @ w, "normal", axis_name=axis_name)

    def generalized(w):
        return generalized_contrastive_loss(KEY, points @ w, samples, axis_name=axis_name)

    results = []
    for loss in (sliced, prior_matching, generalized):
        value, gradient = jax.value_and_grad(loss)(weights)
        results.append((value, global_mean(gradient, axis_name)))
    return results


@pytest.fixture(scope="module")
def alone(arrays):
    return jax.jit(step)(**arrays)


@pytest.mark.slow
@pytest.mark.parametrize(("mapping", "devices"), [("pmap", 8), ("shard_map", 4)])
def test_devices_change_nothing(mapping, devices, arrays, alone):
    """Neither 5 nor 7 directions are a multiple of 2; the samples belong to the whole batch."""
    local = jax.devices()[:devices]
    if mapping == "pmap":
        spread = functools.partial(step, axis_name="data")
        mapped = jax.pmap(spread, "data", in_axes=(None, 0, 0, None), devices=local)
        weights, *sides, directions = arrays.values()
        found = mapped(weights, *(side.reshape(devices, -1, 5) for side in sides), directions)
        assert all((np.ptp(a, axis=0) == 0).all() for a in jax.tree.leaves(found))
        found = jax.tree.map(lambda a: a[0], found)
    else:
        axes = ("a", "b")
        whole = PartitionSpec()
        split = PartitionSpec(axes)
        mapped = jax.shard_map(
            functools.partial(step, axis_name=axes),
            mesh=Mesh(np.array(local).reshape(2, -1), axes),
            in_specs=(whole, split, split, whole),
            out_specs=whole,
        )
        found = jax.jit(mapped)(*arrays.values())
    for one, other in zip(*map(jax.tree.leaves, (found, alone)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_directions_in_blocks(arrays, alone, monkeypatch):
    """Three at a time, and a smaller last batch."""
    monkeypatch.setattr(_projections, "SORTED_TOGETHER", 3 * 16)
    sharding._compiled.cache_clear()  # Losses may be traced with the usual size.
    found = jax.jit(functools.partial(step, axis_name=None))(**arrays)
    for x, y in zip(*map(jax.tree.leaves, (found, alone)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_only_the_sphere_prior_ignores_lengths(arrays):
    """And another key draws other directions and samples."""
    _, z1, z2, _ = arrays.values()
    for prior in ("hypersphere", "normal"):
        loss = jax.jit(functools.partial(generalized_contrastive_loss, prior=prior))
        value = loss(KEY, z1, z2)
        assert np.allclose(value, loss(KEY, 3 * z1, z2), rtol=1e-5) == (prior == "hypersphere")
        assert abs(value - loss(jax.random.key(4), z1, z2)) > 1e-4


def test_second_derivatives(arrays):
    """Nearby the orders stay the same: the distance is a sum of squares of linear functions."""
    _, points, samples, directions = arrays.values()
    towards = tuple(np.random.default_rng(4).standard_normal((2, 16, 5)).astype(np.float32))

    @functools.partial(jax.grad, argnums=(0, 1))
    def gradient(points, samples):
        return sliced_wasserstein_loss(points, samples, directions)

    @jax.jit
    def second_derivative(sides, towards):
        return jax.jvp(gradient, sides, towards)[1]

    bends = second_derivative((points, samples), towards)
    bend = sum(np.vdot(b, v) for b, v in zip(bends, towards, strict=True))
    moved = [
        np.take_along_axis(v @ directions, np.argsort(side @ directions, axis=0), axis=0)
        for side, v in zip((points, samples), towards, strict=True)
    ]
    np.testing.assert_allclose(bend, 2 * np.mean((moved[0] - moved[1]) ** 2), rtol=1e-4)
