"""Losses against float64 loops written from the paper, closed forms, and invariances."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import sphere
from jax.sharding import Mesh, PartitionSpec

from hypersphere_jax import align_loss, contrastive_loss, l2_normalize, uniform_loss


def align_oracle(x, y, alpha):
    return sum(math.dist(a, b) ** alpha for a, b in zip(x, y, strict=True)) / len(x)


def uniform_oracle(x, t, include_self=False):
    n = len(x)
    total = 0.0
    for i in range(n):
        for j in range(n):
            if i != j or include_self:
                total += math.exp(-t * math.dist(x[i], x[j]) ** 2)
    return math.log(total / (n * n if include_self else n * (n - 1)))


def contrastive_oracle(x, y, tau):
    n, total = len(x), 0.0
    for i in range(n):
        positive = math.exp(float(x[i] @ y[i]) / tau)
        total -= math.log(positive / sum(math.exp(float(x[i] @ y[j]) / tau) for j in range(n)))
        total -= math.log(positive / sum(math.exp(float(x[j] @ y[i]) / tau) for j in range(n)))
    return total / (2 * n)


# Loss of two sides, its oracle: one list for all that is tested of every loss alike.
LOSSES = {
    "align 2": (functools.partial(align_loss, alpha=2.0), lambda x, y: align_oracle(x, y, 2)),
    "align 1": (functools.partial(align_loss, alpha=1.0), lambda x, y: align_oracle(x, y, 1)),
    "align 0.5": (functools.partial(align_loss, alpha=0.5), lambda x, y: align_oracle(x, y, 0.5)),
    "uniform 2": (lambda x, y, **k: uniform_loss(x, **k), lambda x, y: uniform_oracle(x, 2)),
    "uniform 7": (
        lambda x, y, **k: uniform_loss(x, 7.0, **k),
        lambda x, y: uniform_oracle(x, 7),
    ),
    "uniform (8)": (
        lambda x, y, **k: uniform_loss(x, 3.0, include_self=True, **k),
        lambda x, y: uniform_oracle(x, 3, include_self=True),
    ),
    "contrastive 0.5": (contrastive_loss, lambda x, y: contrastive_oracle(x, y, 0.5)),
    "contrastive 0.07": (
        functools.partial(contrastive_loss, tau=0.07),
        lambda x, y: contrastive_oracle(x, y, 0.07),
    ),
}
each_loss = pytest.mark.parametrize("name", LOSSES)


@pytest.fixture
def pairs(rng):
    x = sphere(rng, 12, 5)
    y = x + 0.4 * rng.standard_normal(x.shape)
    return x, (y / np.linalg.norm(y, axis=1, keepdims=True)).astype(np.float32)


@each_loss
def test_value(name, pairs):
    loss, oracle = LOSSES[name]
    x, y = (a.astype(np.float64) for a in pairs)
    np.testing.assert_allclose(loss(*pairs), oracle(x, y), rtol=2e-6)
    assert loss(*pairs).dtype == jnp.float32 and loss(*pairs).shape == ()


@each_loss
def test_gradient_by_differences(name, pairs, rng):
    loss, oracle = LOSSES[name]
    x, y = (a.astype(np.float64) for a in pairs)
    towards = [rng.standard_normal(x.shape) for _ in range(2)]
    eps = 1e-5
    up = oracle(x + eps * towards[0], y + eps * towards[1])
    down = oracle(x - eps * towards[0], y - eps * towards[1])
    grads = jax.grad(loss, argnums=(0, 1))(*pairs)
    slope = sum(np.vdot(g, v) for g, v in zip(grads, towards, strict=True))
    np.testing.assert_allclose(slope, (up - down) / (2 * eps), rtol=2e-4, atol=1e-5)


@each_loss
def test_invariant_to_rotation_and_order(name, pairs, rng):
    loss, _ = LOSSES[name]
    rotation = np.linalg.qr(rng.standard_normal((5, 5)))[0].astype(np.float32)
    order = rng.permutation(12)
    moved = [(a @ rotation)[order] for a in pairs]
    np.testing.assert_allclose(loss(*moved), loss(*pairs), rtol=1e-5)


@each_loss
def test_vmap_and_jit(name, rng):
    loss, _ = LOSSES[name]
    x, y = (np.stack([sphere(rng, 6, 3) for _ in range(4)]) for _ in range(2))
    one_by_one = [loss(a, b) for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(jax.jit(jax.vmap(loss))(x, y), one_by_one, rtol=1e-6)


@each_loss
def test_coincident_and_antipodal_points(name):
    loss, _ = LOSSES[name]
    pole = np.array([[0.0, 0.0, 1.0]], np.float32)
    same, opposite = np.repeat(pole, 4, 0), np.concatenate([pole, pole, -pole, -pole])
    for x, y in ((same, same), (opposite, opposite), (opposite, -opposite), (same, -same)):
        value, grads = jax.value_and_grad(loss, argnums=(0, 1))(x, y)
        assert np.isfinite(value)
        assert all(np.isfinite(g).all() for g in grads)


@each_loss
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_is_computed_in_float32(name, dtype, pairs):
    loss, oracle = LOSSES[name]
    x, y = (jnp.asarray(a, dtype) for a in pairs)
    exact = oracle(*(np.asarray(a, np.float64) for a in (x, y)))
    value = loss(x, y)
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, exact, rtol=5e-6)


@pytest.mark.parametrize(
    ("name", "devices"), [*((name, 4) for name in LOSSES), ("uniform 2", 2), ("contrastive 0.5", 8)]
)
def test_devices_give_the_same_value_and_gradient(name, devices, rng):
    loss, _ = LOSSES[name]
    x, y = (rng.standard_normal((16, 6)).astype(np.float32) for _ in range(2))
    weights = rng.standard_normal((6, 4)).astype(np.float32)

    def value_and_gradient(weights, x, y, axis_name=None):
        """What a data-parallel step computes, with a linear encoder."""
        axis = {} if axis_name is None else {"axis_name": axis_name}
        value, gradient = jax.value_and_grad(
            lambda weights: loss(l2_normalize(x @ weights), l2_normalize(y @ weights), **axis)
        )(weights)
        return value, gradient if axis_name is None else jax.lax.pmean(gradient, axis_name)

    expected = value_and_gradient(weights, x, y)
    step = functools.partial(value_and_gradient, axis_name="data")
    local = jax.devices()[:devices]
    sharded = [a.reshape(devices, -1, 6) for a in (x, y)]
    mapped = jax.pmap(step, axis_name="data", in_axes=(None, 0, 0), devices=local)
    results = [[a[0] for a in mapped(weights, *sharded)]]
    batch, replicated = PartitionSpec("data"), PartitionSpec()
    for check_vma in (True, False):
        sharded_step = jax.shard_map(
            step,
            mesh=Mesh(np.array(local), ("data",)),
            in_specs=(replicated, batch, batch),
            out_specs=replicated,
            check_vma=check_vma,
        )
        results.append(jax.jit(sharded_step)(weights, x, y))
    for value, gradient in results:
        np.testing.assert_allclose(value, expected[0], rtol=1e-5)
        np.testing.assert_allclose(gradient, expected[1], rtol=1e-4, atol=1e-6)


def test_closed_forms():
    pole = np.array([[1.0, 0.0]], np.float32)
    same = np.repeat(pole, 7, 0)
    assert align_loss(same, -same, 3.0) == 8.0
    assert uniform_loss(same) == 0.0
    np.testing.assert_allclose(contrastive_loss(same, same), math.log(7), rtol=1e-6)
    # Two antipodal points: the only pair has potential exp(-4t), and exp(0) with itself.
    both = np.concatenate([pole, -pole])
    np.testing.assert_allclose(uniform_loss(both, 5.0), -20.0, rtol=1e-6)
    np.testing.assert_allclose(
        uniform_loss(both, 5.0, include_self=True), math.log((1 + math.exp(-20)) / 2), rtol=1e-6
    )


def test_estimators_8_and_9_are_related(pairs):
    x, n = pairs[0], len(pairs[0])
    eight = float(uniform_loss(x, include_self=True))
    np.testing.assert_allclose(
        uniform_loss(x), math.log((n * math.exp(eight) - 1) / (n - 1)), rtol=1e-5
    )


def test_uniform_loss_of_close_points(rng):
    # Distances of 1e-4 around a far point: squares would drown in the rounding of the norms.
    x = (np.array([[1.0, 0.0, 0.0]]) + 1e-4 * rng.standard_normal((8, 3))).astype(np.float32)
    t = 1e7
    np.testing.assert_allclose(
        uniform_loss(x, t), uniform_oracle(x.astype(np.float64), t), rtol=1e-3
    )


def test_low_temperature_stays_finite(rng):
    x, y = sphere(rng, 8, 4), sphere(rng, 8, 4)
    value, gradient = jax.value_and_grad(contrastive_loss)(x, y, 0.005)
    assert np.isfinite(value) and np.isfinite(gradient).all()
    # At a vanishing temperature a loss is the gap to the hardest negative over tau.
    logits = x.astype(np.float64) @ y.T
    gap = (logits.max(1) - np.diag(logits) + logits.max(0) - np.diag(logits)).mean() / 2
    np.testing.assert_allclose(contrastive_loss(x, y, 1e-4) * 1e-4, gap, rtol=1e-4)


@pytest.mark.parametrize("loss", [align_loss, contrastive_loss])
def test_shapes_that_differ(loss):
    with pytest.raises(ValueError, match=r"\(3, 2\).*\(4, 2\)"):
        loss(np.ones((3, 2), np.float32), np.ones((4, 2), np.float32))
    with pytest.raises(ValueError, match=r"\(3,\)"):
        loss(np.ones(3, np.float32), np.ones(3, np.float32))
    with pytest.raises(ValueError, match="at least one pair"):
        loss(np.ones((0, 2), np.float32), np.ones((0, 2), np.float32))


def test_options_out_of_range():
    x = np.eye(3, dtype=np.float32)
    for call in (
        lambda: align_loss(x, x, 0.0),
        lambda: uniform_loss(x, -1.0),
        lambda: contrastive_loss(x, x, 0),
    ):
        with pytest.raises(ValueError, match="must be positive"):
            call()
    with pytest.raises(ValueError, match="two points"):
        uniform_loss(x[:1])
    assert uniform_loss(x[:1], include_self=True) == 0.0
    with pytest.raises(ValueError, match="floating"):
        uniform_loss(np.eye(3, dtype=int))


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
