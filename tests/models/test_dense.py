"""Products with wide weights, whose gradients are products of their own on CPUs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from hypersphere_jax.models import ops
from hypersphere_jax.models.cpu import dense


@pytest.fixture
def layer(monkeypatch):
    monkeypatch.setattr(dense, "MIN_SIZE", 15)
    return nnx.Linear(3, 5, use_bias=False, dot_general=ops.dot_general, rngs=nnx.Rngs(0))


def loss_of(layer, kernel, x):
    graph, _ = nnx.split(layer)
    return jnp.sum(jnp.sin(nnx.merge(graph, {"kernel": kernel})(x)))


def test_values_and_gradients(layer, rng):
    """Against their formulas in float64."""
    x, kernel = rng.standard_normal((4, 3)), np.asarray(layer.kernel[...], "f8")
    of = jax.value_and_grad(lambda kernel, x: loss_of(layer, kernel, x), (0, 1))
    found, (of_kernel, of_x) = jax.jit(of)(np.float32(kernel), np.float32(x))
    slopes = np.cos(x @ kernel)
    np.testing.assert_allclose(found, np.sin(x @ kernel).sum(), rtol=1e-4)
    np.testing.assert_allclose(of_kernel, x.T @ slopes, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(of_x, slopes @ kernel.T, rtol=1e-4, atol=1e-5)


def test_which_weights_are_wide(layer, rng):
    """Others have derivatives in forward mode, too."""
    kernel, x = layer.kernel[...], np.float32(rng.standard_normal((4, 3)))

    def forwards(kernel, x):
        return jax.jvp(lambda x: ops.dot_general(x, kernel, ops.MATRIX_PRODUCT), (x,), (x,))[1]

    if jax.default_backend() == "cpu":
        with pytest.raises(TypeError, match="forward-mode"):
            forwards(kernel, x)
    np.testing.assert_allclose(forwards(kernel[:, :4], x), x @ kernel[:, :4], rtol=1e-4, atol=1e-5)
    half = forwards(kernel.astype("bfloat16"), jnp.bfloat16(x))
    np.testing.assert_allclose(np.float32(half), x @ kernel, rtol=0.05, atol=0.05)


def test_products_over_other_axes(layer, rng):
    x, y = (np.float32(rng.standard_normal((6, 6))) for _ in range(2))
    found = ops.dot_general(x, y, (((1,), (1,)), ((), ())))
    np.testing.assert_allclose(found, x @ y.T, rtol=1e-4, atol=1e-5)


def test_weights_are_read_along_their_rows(layer):
    """Of a gradient that is turned, in the compiled program; as it is for CPUs alone."""
    if jax.default_backend() == "cpu":
        of = jax.grad(lambda x, kernel: loss_of(layer, kernel, x))
        text = jax.jit(of).lower(jnp.ones((4, 3)), layer.kernel[...]).compile().as_text()
        assert "f32[5,4]" in text and "f32[3,4]" in text


def test_several_encoders_and_sharded_rows(layer, rng):
    """Under `vmap`, and under `shard_map`, whose replicated weights get the sum over devices."""
    kernel, x = layer.kernel[...], np.float32(rng.standard_normal((4, 3)))
    gradient = jax.grad(lambda kernel, x: loss_of(layer, kernel, x))
    both = jax.vmap(gradient)(np.stack([kernel, -kernel]), np.stack([x, 2 * x]))
    for found, alone in zip(both, (gradient(kernel, x), gradient(-kernel, 2 * x)), strict=True):
        np.testing.assert_allclose(found, alone, rtol=1e-5, atol=1e-6)
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))

    def over_devices(kernel, x):
        return jax.lax.psum(loss_of(layer, kernel, x), "data")

    mapped = jax.shard_map(over_devices, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
    np.testing.assert_allclose(jax.grad(mapped)(kernel, x), gradient(kernel, x), rtol=1e-5)
