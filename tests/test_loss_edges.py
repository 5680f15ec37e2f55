"""Losses at their edges: extreme options, few points, memory, odd devices, bad arguments."""

import functools
import math

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
    info_nce_loss,
    l2_normalize,
    nt_xent_loss,
    sliced_wasserstein_loss,
    uniform_loss,
    uniform_queue_loss,
)


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
        ("balanced_contrastive", "alpha", 3.0),
        ("quick_thought_contrastive", "tau", 0.3),
    ],
)
def test_an_option_can_be_learned(name, option, at, rng):
    """A temperature that is an array has a gradient too."""
    arrays = inputs(rng, {"uniform": "n", "info_nce": "nnm", "uniform_queue": "nm"}.get(name, "nn"))
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


def test_memory_is_linear_in_n():
    n, d = 16384, 8
    x = jax.ShapeDtypeStruct((n, d), jnp.float32)
    for loss, count in ((uniform_loss, 1), (contrastive_loss, 2), (nt_xent_loss, 2)):
        step = jax.jit(jax.value_and_grad(loss, tuple(range(count))))
        needed = step.lower(*[x] * count).compile().memory_analysis().temp_size_in_bytes
        assert needed < 4 * n * n / 8, (loss.__name__, needed)


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
        lambda: contrastive_loss(x, x, 0),
        lambda: balanced_contrastive_loss(x, x, alpha=0.0),
        lambda: hj.quick_thought_align_loss(x, x, alpha=float("nan")),
    ):
        with pytest.raises(ValueError, match="must be positive"):
            call()
    for call in (
        lambda: decoupled_nt_xent_loss(x, x, lam=-1.0),
        lambda: generalized_contrastive_loss(jax.random.key(0), x, x, lam=-1.0),
    ):
        with pytest.raises(ValueError, match="lam must not be negative"):
            call()
    for call, name in (
        (lambda: nt_xent_loss(x, x, similarity="cos"), "'cos'"),
        (lambda: decoupled_nt_xent_loss(x, x, scaling="both"), "'both'"),
        (lambda: generalized_contrastive_loss(jax.random.key(0), x, x, "cube"), "'cube'"),
        (lambda: uniform_loss(x, block_size=0), "block_size.*0"),
        (lambda: contrastive_loss(x, x, ring=True), "needs axis_name"),
        (lambda: uniform_loss(np.eye(3, dtype=int)), "floating"),
    ):
        with pytest.raises(ValueError, match=name):
            call()


def test_the_fewest_points():
    one, two = np.eye(3, dtype=np.float32)[:1], np.eye(3, dtype=np.float32)[:2]
    # Defined for one pair: nothing to tell it from.
    for loss in (contrastive_loss, nt_xent_loss):
        np.testing.assert_allclose(loss(one, one), 0.0, atol=1e-6)
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
