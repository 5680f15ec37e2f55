"""The sliced Wasserstein losses: over devices, in blocks, closed forms, second derivatives."""

import functools

import jax
import numpy as np
import oracles
import pytest
from conftest import sphere
from jax.sharding import Mesh, PartitionSpec

from hypersphere_jax import prior_matching_loss, sliced_wasserstein_loss
from hypersphere_jax.losses import sliced_wasserstein

KEY = jax.random.key(3)
PRIORS = ("hypersphere", "hypercube", "normal")
BATCH, REPLICATED = PartitionSpec("data"), PartitionSpec()


@pytest.fixture(scope="module")
def arrays():
    """A linear encoder, 16 points and samples of five dimensions, and seven directions."""
    rng = np.random.default_rng(1)
    shapes = {"weights": (5, 5), "points": (16, 5), "samples": (16, 5), "directions": (5, 7)}
    return {name: rng.standard_normal(s).astype(np.float32) for name, s in shapes.items()}


def step(weights, points, samples, directions, axis_name=None):
    """Value and gradient of the replicated weights, of the given samples and of each prior."""

    def given(z):
        return sliced_wasserstein_loss(z, samples, directions, axis_name=axis_name)

    drawn = [lambda z, p=p: prior_matching_loss(KEY, z, p, axis_name=axis_name) for p in PRIORS]
    found = [jax.value_and_grad(lambda w, f=f: f(points @ w))(weights) for f in (given, *drawn)]
    if axis_name is None:
        return found
    return [(value, jax.lax.pmean(gradient, axis_name)) for value, gradient in found]


@pytest.fixture(scope="module")
def alone(arrays):
    return jax.jit(step)(**arrays)


def test_alone_is_algorithm_1(arrays, alone):
    weights, points, *rest = arrays.values()

    def oracle(weights):
        return oracles.sliced_wasserstein_oracle(np.float64(points) @ weights, *rest)

    value, gradient = alone[0]
    np.testing.assert_allclose(value, oracle(np.float64(weights)), rtol=1e-5)
    towards = np.random.default_rng(2).standard_normal(weights.shape)
    slope = oracles.numeric_slope(oracle, [weights], [towards])
    np.testing.assert_allclose(np.vdot(gradient, towards), slope, rtol=1e-4)


@pytest.mark.parametrize(
    ("mapping", "devices"),
    [
        ("pmap", 8),
        ("shard_map", 4),
        *(pytest.param("pmap", devices, marks=pytest.mark.slow) for devices in (1, 2, 4)),
        *(pytest.param("shard_map", devices, marks=pytest.mark.slow) for devices in (1, 2, 8)),
    ],
)
def test_devices_change_nothing(mapping, devices, arrays, alone):
    """Neither 5 nor 7 directions are a multiple of 2; the samples are those of the whole batch."""
    local = jax.devices()[:devices]
    if mapping == "pmap":
        mapped = jax.pmap(
            functools.partial(step, axis_name="data"),
            axis_name="data",
            in_axes=(None, 0, 0, None),
            devices=local,
        )
        weights, *sides, directions = arrays.values()
        shares = [side.reshape(devices, -1, 5) for side in sides]
        found = jax.tree.map(np.asarray, mapped(weights, *shares, directions))
        assert all((np.ptp(a, axis=0) == 0).all() for a in jax.tree.leaves(found))
        found = jax.tree.map(lambda a: a[0], found)
    else:
        # Of four devices and more in two axes.
        shape, axes = ((2, devices // 2), ("a", "b")) if devices > 2 else ((devices,), ("a",))
        batch = PartitionSpec(axes)
        mapped = jax.shard_map(
            functools.partial(step, axis_name=axes if devices > 2 else "a"),
            mesh=Mesh(np.array(local).reshape(shape), axes),
            in_specs=(REPLICATED, batch, batch, REPLICATED),
            out_specs=REPLICATED,
        )
        found = jax.jit(mapped)(*arrays.values())
    for (value, gradient), expected in zip(found, alone, strict=True):
        np.testing.assert_allclose(value, expected[0], rtol=1e-5)
        np.testing.assert_allclose(gradient, expected[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("together", [1, 3 * 16])
def test_directions_in_blocks(together, arrays, alone, monkeypatch):
    """One at a time, even where a row alone is longer; three at a time, and what is left."""
    monkeypatch.setattr(sliced_wasserstein, "SORTED_TOGETHER", together)
    found = jax.jit(functools.partial(step, axis_name=None))(**arrays)
    for x, y in zip(*map(jax.tree.leaves, (found, alone)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_memory_is_a_few_copies_of_the_points(monkeypatch):
    """Samples, two projections and the slope, besides a block: no orders, nothing sorted."""
    n, d = 16384, 64
    monkeypatch.setattr(sliced_wasserstein, "SORTED_TOGETHER", n)
    step = jax.jit(jax.value_and_grad(lambda z: prior_matching_loss(KEY, z, "normal")))
    compiled = step.lower(jax.ShapeDtypeStruct((n, d), np.float32)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 4.7 * 4 * n * d


@pytest.mark.parametrize(("prior", "square"), [("normal", 1), ("hypercube", 1 / 3)])
def test_features_at_zero(prior, square):
    """Their distance is the mean square of the samples' coordinates."""
    zero = np.zeros((20_000, 5), np.float32)
    found = jax.jit(prior_matching_loss, static_argnums=2)(KEY, zero, prior)
    np.testing.assert_allclose(found, square, rtol=0.02)
    # On the sphere it is no mean: the squares of each sample along orthonormal directions add to 1.
    on_sphere = jax.jit(prior_matching_loss)(KEY, zero[:7])
    np.testing.assert_allclose(on_sphere, 1 / 5, rtol=1e-5)


def test_prior_matching_normalizes_for_the_sphere_alone(rng):
    z = sphere(rng, 9, 4)
    values = {p: [prior_matching_loss(KEY, c * z, p) for c in (1.0, 3.0)] for p in PRIORS}
    np.testing.assert_allclose(*values["hypersphere"], rtol=1e-5)
    assert all(abs(np.diff(values[prior])) > 0.1 for prior in ("normal", "hypercube"))
    assert prior_matching_loss(jax.random.key(4), z) != values["hypersphere"][0]
    with pytest.raises(ValueError, match=r"prior must be one of .*, got 'cube'"):
        prior_matching_loss(KEY, z, "cube")
    for wrong, message in ((z[0], r"must be \[n, d\]"), (z[:0], "at least one sample")):
        with pytest.raises(ValueError, match=message):
            prior_matching_loss(KEY, wrong)


def test_second_derivatives(arrays):
    """The orders stay as they are nearby, so that it is a sum of squares of linear functions."""
    _, points, samples, directions = arrays.values()
    rng = np.random.default_rng(4)
    towards = [rng.standard_normal((16, 5)).astype(np.float32) for _ in range(2)]

    def gradient(points, samples):
        return jax.grad(sliced_wasserstein_loss, (0, 1))(points, samples, directions)

    bends = jax.jit(lambda *a: jax.jvp(gradient, *a)[1])((points, samples), tuple(towards))
    bend = sum(np.vdot(b, v) for b, v in zip(bends, towards, strict=True))
    moved = [
        np.take_along_axis(v @ directions, np.argsort(side @ directions, axis=0), axis=0)
        for side, v in zip((points, samples), towards, strict=True)
    ]
    np.testing.assert_allclose(bend, 2 * np.mean((moved[0] - moved[1]) ** 2), rtol=1e-4)
