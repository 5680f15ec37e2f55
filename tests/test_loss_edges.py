"""Losses at their edges: extreme options, few points, memory, odd devices, bad arguments."""

import functools
import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from conftest import sphere
from jax.sharding import Mesh, PartitionSpec
from loss_cases import CASES, gradients, inputs

import hypersphere_jax as hj
from hypersphere_jax import (
    align_loss,
    balanced_contrastive_loss,
    contrastive_loss,
    dcl_loss,
    decoupled_nt_xent_loss,
    generalized_contrastive_loss,
    generalized_nt_xent_loss,
    info_nce_loss,
    l2_normalize,
    nt_xent_loss,
    sliced_wasserstein_loss,
    uniform_loss,
    uniform_queue_loss,
)

SHAPES = {"uniform": "n", "logsumexp": "n", "info_nce": "nnm", "uniform_queue": "nm"}  # else "nn"


def test_uniform_loss_of_close_points(rng):
    # Distances of 1e-4 around a far point: squares would drown in the rounding of the norms.
    x = (np.array([[1.0, 0.0, 0.0]]) + 1e-4 * rng.standard_normal((8, 3))).astype(np.float32)
    t = 1e7
    np.testing.assert_allclose(uniform_loss(x, t), oracles.uniform_oracle(x, t), rtol=1e-3)


def test_vanishing_temperature(rng):
    x, y = sphere(rng, 8, 4), sphere(rng, 8, 4)
    value, gradient = jax.value_and_grad(contrastive_loss)(x, y, 1e-4)
    assert np.isfinite(value) and np.isfinite(gradient).all()
    # The loss is the gap to the hardest negative over tau.
    logits = x.astype(np.float64) @ y.T
    gap = (logits.max(1) - np.diag(logits) + logits.max(0) - np.diag(logits)).mean() / 2
    np.testing.assert_allclose(value * 1e-4, gap, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "option", "at"),
    [
        ("align", "alpha", 1.3),
        ("uniform", "t", 2.0),
        ("uniform_queue", "t", 2.0),
        ("contrastive", "tau", 0.3),
        ("info_nce", "tau", 0.3),
        ("nt_xent", "tau", 0.3),
        ("decoupled_nt_xent", "lam", 0.3),
        ("logsumexp", "tau", 0.3),
        ("balanced_contrastive", "alpha", 3.0),
        ("quick_thought_contrastive", "tau", 0.3),
    ],
)
def test_an_option_can_be_learned(name, option, at, rng):
    """A temperature that is an array has a gradient too."""
    arrays = inputs(rng, SHAPES.get(name, "nn"))
    loss, oracle = getattr(hj, f"{name}_loss"), getattr(oracles, f"{name}_oracle")
    slope = jax.grad(lambda value: loss(*arrays, **{option: value}))(at)
    ends = [oracle(*arrays, **{option: at + sign * 1e-5}) for sign in (1, -1)]
    np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["uniform 2", "uniform 40", "contrastive 0.5", "balanced"])
def test_second_derivatives(name, rng):
    loss, oracle, shapes, _ = CASES[name]
    arrays = inputs(rng, shapes)
    blocks = functools.partial(loss, block_size=4)
    towards = [rng.standard_normal(a.shape).astype(np.float32) for a in arrays]
    bend = jax.jvp(lambda *a: gradients(blocks, a)[1], tuple(arrays), tuple(towards))[1]
    bend = sum(np.vdot(b, v) for b, v in zip(bend, towards, strict=True))
    eps = 1e-4
    ends = [
        oracle(*(a.astype(np.float64) + s * eps * v for a, v in zip(arrays, towards, strict=True)))
        for s in (-1, 0, 1)
    ]
    expected = (ends[0] - 2 * ends[1] + ends[2]) / eps**2
    np.testing.assert_allclose(bend, expected, rtol=2e-3)


@pytest.mark.parametrize("loss", [uniform_loss, contrastive_loss, nt_xent_loss])
def test_memory_is_linear_in_n(loss):
    d, count = 8, 1 if loss is uniform_loss else 2

    def needed(n):
        x = jax.ShapeDtypeStruct((n, d), jnp.float32)
        step = jax.jit(jax.value_and_grad(loss, tuple(range(count))))
        return step.lower(*[x] * count).compile().memory_analysis().temp_size_in_bytes

    small, large = needed(8192), needed(65536)
    # What grows is a few arrays of the size of the points; the blocks stay as they are.
    assert large - small < 20 * count * 4 * (65536 - 8192) * d


def test_tuples_of_axes_and_a_ring_around_them(rng):
    x, y = sphere(rng, 16, 4), sphere(rng, 16, 4)
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))
    both = PartitionSpec(("a", "b"))
    for ring in (False, True):
        mapped = jax.shard_map(
            lambda x, y, ring=ring: contrastive_loss(x, y, axis_name=("a", "b"), ring=ring),
            mesh=mesh,
            in_specs=(both, both),
            out_specs=PartitionSpec(),
        )
        np.testing.assert_allclose(jax.jit(mapped)(x, y), contrastive_loss(x, y), rtol=1e-6)


def test_local_loss_inside_shard_map(rng):
    # Without axis_name each device has its own loss, of its own points; the queue is everyone's.
    x, queue = sphere(rng, 16, 4), sphere(rng, 6, 4)
    mapped = jax.shard_map(
        jax.grad(lambda x, queue: uniform_queue_loss(x, queue, 40.0, block_size=3)),
        mesh=Mesh(np.array(jax.devices()[:4]), ("data",)),
        in_specs=(PartitionSpec("data"), PartitionSpec()),
        out_specs=PartitionSpec("data"),
    )
    expected = [jax.grad(uniform_queue_loss)(part, queue, 40.0) for part in x.reshape(4, 4, 4)]
    found = jax.jit(mapped)(x, queue)
    np.testing.assert_allclose(found, np.concatenate(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("loss", [align_loss, contrastive_loss, nt_xent_loss, dcl_loss])
def test_shapes_that_differ(loss):
    with pytest.raises(ValueError, match=r"\(3, 2\).*\(4, 2\)"):
        loss(np.ones((3, 2), np.float32), np.ones((4, 2), np.float32))
    with pytest.raises(ValueError, match=r"\(3,\)"):
        loss(np.ones(3, np.float32), np.ones(3, np.float32))
    with pytest.raises(ValueError, match=r"at least (one pair|two pairs)"):
        loss(np.ones((0, 2), np.float32), np.ones((0, 2), np.float32))


def test_shapes_against_a_queue():
    x, wide = np.ones((3, 2), np.float32), np.ones((5, 4), np.float32)
    for call in (lambda: info_nce_loss(x, x, wide), lambda: uniform_queue_loss(x, wide)):
        with pytest.raises(ValueError, match=r"one d, got \(3, 2\), \(5, 4\)"):
            call()
    with pytest.raises(ValueError, match="one negative"):
        info_nce_loss(x, x, x[:0])
    with pytest.raises(ValueError, match="one key in the queue"):
        uniform_queue_loss(x, x[:0])
    with pytest.raises(ValueError, match=r"\(3, 2\), \(6, 4\)"):
        sliced_wasserstein_loss(x, x, np.ones((4, 6), np.float32))


def test_options_out_of_range():
    x = np.eye(3, dtype=np.float32)
    for call in (
        lambda: align_loss(x, x, 0.0),
        lambda: uniform_loss(x, -1.0),
        lambda: uniform_loss(x, math.inf),
        lambda: contrastive_loss(x, x, 0),
        lambda: contrastive_loss(x, x, np.float32(-1)),
        lambda: nt_xent_loss(x, x, jnp.float32(-1)),
        lambda: hj.logsumexp_loss(x, 0.0),
        lambda: balanced_contrastive_loss(x, x, alpha=0.0),
        lambda: hj.quick_thought_align_loss(x, x, alpha=float("nan")),
    ):
        with pytest.raises(ValueError, match="must be positive and finite"):
            call()
    for call in (
        lambda: decoupled_nt_xent_loss(x, x, lam=-1.0),
        lambda: generalized_contrastive_loss(jax.random.key(0), x, x, lam=-1.0),
    ):
        with pytest.raises(ValueError, match="lam must be zero or positive"):
            call()
    for call, name in (
        (lambda: nt_xent_loss(x, x, similarity="cos"), "'cos'"),
        (lambda: decoupled_nt_xent_loss(x, x, scaling="both"), "'both'"),
        (lambda: generalized_contrastive_loss(jax.random.key(0), x, x, "cube"), "'cube'"),
        (lambda: uniform_loss(x, block_size=0), "block_size.*0"),
        (lambda: uniform_loss(x, block_size=True), "block_size.*True"),
        (lambda: contrastive_loss(x, x, ring=True), "needs axis_name"),
        (lambda: contrastive_loss(x, x, jnp.ones(3)), r"tau must be one number, got shape \(3,\)"),
        (lambda: uniform_loss(np.eye(3, dtype=int)), "floating"),
    ):
        with pytest.raises(ValueError, match=name):
            call()


def test_options_of_other_types(rng):
    x, y = sphere(rng, 6, 4), sphere(rng, 6, 4)
    for loss, at in ((nt_xent_loss, 0.07), (balanced_contrastive_loss, 3.0)):
        # A half-precision temperature is its own number, but the loss is computed in float32.
        for option in (jnp.bfloat16(at), jnp.full((1,), at), np.float64(at)):
            number = float(jnp.reshape(option, ()))
            value = loss(x, y, option, block_size=np.int64(4))
            np.testing.assert_allclose(value, loss(x, y, number), rtol=1e-5)
            assert value.shape == () and value.dtype == jnp.float32


@pytest.mark.parametrize("tau", [0.05, 0.03, 0.01])
@pytest.mark.parametrize("name", ["contrastive", "nt_xent", "info_nce", "generalized", "decoupled"])
def test_losses_near_zero_keep_their_digits(name, tau, rng):
    """Aligned pairs at low temperature: the loss is log(1 + tiny), and so are its gradients."""
    z = sphere(rng, 24, 16)
    loss = {
        "contrastive": lambda z: contrastive_loss(z, z, tau),
        "nt_xent": lambda z: nt_xent_loss(z, z, tau, "dot"),
        "info_nce": lambda z: info_nce_loss(z[:12], z[:12], z[12:], tau),
        "generalized": lambda z: generalized_nt_xent_loss(z, z, 1 / tau, 1.0) / tau,
        "decoupled": lambda z: decoupled_nt_xent_loss(z, z, tau, tau) / tau,
    }[name]

    def exact(z):
        """From differences of logits, which are not near zero, in float64."""
        anchors, negatives = (z[:12], z[12:]) if name == "info_nce" else (z, z)
        gaps = (anchors @ negatives.T - np.sum(anchors**2, 1)[:, None]) / tau
        if name != "info_nce":
            np.fill_diagonal(gaps, -np.inf)
        views = 1 if name in ("contrastive", "info_nce") else 2
        return np.log1p(views * np.exp(gaps).sum(1)).mean()

    z64 = z.astype(np.float64)
    value, gradient = jax.value_and_grad(loss)(z)
    np.testing.assert_allclose(value, exact(z64), rtol=2e-5)
    towards, eps = rng.standard_normal(z.shape), 1e-6
    slope = (exact(z64 + eps * towards) - exact(z64 - eps * towards)) / (2 * eps)
    np.testing.assert_allclose(np.vdot(gradient, towards), slope, rtol=1e-3)


@pytest.mark.parametrize("t", [14.9, 15.1, 20.0, 21.0, 22.0])
def test_uniform_gradients_where_potentials_are_smallest(t, rng):
    x = sphere(rng, 1, 64)
    x = np.concatenate([x, -x])  # the one potential is exp(-4t), and its gradient that of -4t
    gradient = jax.grad(uniform_loss)(x, t)
    np.testing.assert_allclose(gradient, -2 * t * (x - x[::-1]), rtol=1e-5)


@pytest.mark.slow
def test_strict_dtype_promotion(rng):
    x, y = (jnp.asarray(sphere(rng, 6, 4)) for _ in range(2))
    with jax.numpy_dtype_promotion("strict"):
        for loss in (uniform_loss, uniform_queue_loss, contrastive_loss, nt_xent_loss):
            arrays = (x,) if loss is uniform_loss else (x, y)
            assert np.isfinite(jax.value_and_grad(loss)(*arrays)[0])


@pytest.mark.slow
def test_float64_mode():
    code = """
import jax, numpy as np
jax.config.update("jax_enable_x64", True)
import hypersphere_jax as hj
x = np.random.default_rng(0).standard_normal((6, 3))
x /= np.linalg.norm(x, axis=1, keepdims=True)
key = jax.random.key(0)
for call in (
    lambda x: hj.uniform_loss(x, np.float64(40.0)), lambda x: hj.contrastive_loss(x, x[::-1], 0.1),
    lambda x: hj.balanced_contrastive_loss(x, x[::-1], np.float64(3.0), np.float64(1.0)),
    lambda x: hj.generalized_contrastive_loss(key, x, x[::-1], lam=np.float64(2.0)),
    lambda x: hj.uniform_queue_loss(x, x[:2]), lambda x: hj.align_loss(x, x[::-1], np.float64(3.0)),
):
    value, gradient = jax.value_and_grad(call)(x)
    assert value.dtype == "float32" and gradient.dtype == "float64", (value, gradient.dtype)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_one_side_is_the_same_on_all_devices(rng):
    # Inside `shard_map` types tell what varies over devices: both sides of a loop must agree.
    x, y = sphere(rng, 8, 4), sphere(rng, 2, 4)
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    for ring in (False, True):
        mapped = jax.shard_map(
            lambda x, y, ring=ring: contrastive_loss(
                x, y, axis_name="data", block_size=1, ring=ring
            ),
            mesh=mesh,
            in_specs=(PartitionSpec("data"), PartitionSpec()),
            out_specs=PartitionSpec(),
        )
        expected = contrastive_loss(x, np.tile(y, (4, 1)))
        np.testing.assert_allclose(jax.jit(mapped)(x, y), expected, rtol=1e-5)


@pytest.mark.slow
def test_the_fewest_points():
    one, two = np.eye(3, dtype=np.float32)[:1], np.eye(3, dtype=np.float32)[:2]
    # Defined for one pair: nothing to tell it from.
    for loss in (contrastive_loss, nt_xent_loss):
        assert loss(one, one) == 0.0
    assert align_loss(one, -one) == 4.0
    assert uniform_loss(one, include_self=True) == 0.0
    assert jax.grad(lambda x: uniform_loss(x, include_self=True))(one).tolist() == [[0, 0, 0]]
    np.testing.assert_allclose(uniform_queue_loss(one, two), oracles.uniform_queue_oracle(one, two))
    np.testing.assert_allclose(
        info_nce_loss(one, one, two[1:], 1.0), math.log(1 + math.exp(-1)), rtol=1e-6
    )
    # Not defined: no pair, no negative, no neighbour.
    for call in (
        lambda: uniform_loss(one),
        lambda: hj.logsumexp_loss(one),
        lambda: dcl_loss(one, one),
        lambda: balanced_contrastive_loss(one, one),
        lambda: hj.quick_thought_align_loss(one, one),
        lambda: hj.quick_thought_contrastive_loss(one, one),
        lambda: hj.quick_thought_uniform_loss(one, one),
    ):
        with pytest.raises(ValueError, match=r"at least two (points|pairs|sentences)"):
            call()
    for name in ("uniform 2", "contrastive 0.5", "dcl 0.5", "nt_xent 0.005", "balanced"):
        loss, oracle, shapes, _ = CASES[name]
        arrays = inputs(np.random.default_rng(1), shapes, n=2, m=2, d=3)
        value, grads = gradients(loss, arrays)
        np.testing.assert_allclose(value, oracle(*arrays), rtol=1e-5, atol=5e-5, err_msg=name)
        assert all(np.isfinite(g).all() for g in grads), name


def test_one_point_on_each_device(rng):
    # No device has a pair of its own, all have together.
    x, y = sphere(rng, 4, 3), sphere(rng, 4, 3)
    for loss in (uniform_loss, balanced_contrastive_loss, dcl_loss):
        arrays = (x,) if loss is uniform_loss else (x, y)
        for ring in (False, True):
            mapped = jax.pmap(
                functools.partial(loss, axis_name="data", ring=ring),
                axis_name="data",
                devices=jax.devices()[:4],
            )
            values = mapped(*(a[:, None] for a in arrays))
            np.testing.assert_allclose(values, np.repeat(loss(*arrays), 4), rtol=1e-5)


class TestL2Normalize:
    def test_value(self, rng):
        x = rng.standard_normal((4, 3, 5)).astype(np.float32)
        for axis in (-1, 0, 1):
            expected = x / np.linalg.norm(x, axis=axis, keepdims=True)
            np.testing.assert_allclose(l2_normalize(x, axis), expected, rtol=1e-6)

    def test_any_length(self):
        for length in (1e-11, 1e-6, 1.0, 1e30):
            x = np.array([3.0, 4.0], np.float32) * np.float32(length)
            np.testing.assert_allclose(l2_normalize(x), [0.6, 0.8], rtol=1e-6)

    def test_zero(self):
        zero = np.zeros(3, np.float32)
        assert (l2_normalize(zero) == 0).all()
        assert np.isfinite(jax.jacobian(l2_normalize)(zero)).all()

    def test_gradient_is_tangent(self, rng):
        x = rng.standard_normal(5).astype(np.float32)
        unit = x / np.linalg.norm(x)
        expected = (np.eye(5) - np.outer(unit, unit)) / np.linalg.norm(x)
        np.testing.assert_allclose(jax.jacobian(l2_normalize)(x), expected, atol=1e-6)

    def test_dtype(self):
        for dtype in (jnp.bfloat16, jnp.float16, jnp.float32):
            assert l2_normalize(jnp.ones(3, dtype)).dtype == dtype
        # Squares of 300 overflow float16, the result does not.
        large = l2_normalize(jnp.full(4, 300.0, jnp.float16))
        np.testing.assert_allclose(np.asarray(large, np.float32), 0.5, rtol=1e-3)
