"""`l2_normalize`: values, gradients, half precisions, and norms out of range."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loss_cases import inputs
from platforms import has_float16

import hypersphere_jax as hj
from hypersphere_jax import l2_normalize

needs_float16 = pytest.mark.skipif(not has_float16(), reason="XLA has no float16 here")
HALF = [pytest.param("float16", marks=needs_float16), "bfloat16"]


def test_value_along_any_axis_and_jacobian(rng):
    x = rng.standard_normal((4, 3, 5)).astype(np.float32)
    for axis in (-1, 0, 1):
        expected = x / np.linalg.norm(x, axis=axis, keepdims=True)
        np.testing.assert_allclose(l2_normalize(x, axis), expected, rtol=1e-6)
    x = rng.standard_normal(5).astype(np.float32)
    unit = x / np.linalg.norm(x)
    expected = (np.eye(5) - np.outer(unit, unit)) / np.linalg.norm(x)
    np.testing.assert_allclose(jax.jacobian(l2_normalize)(x), expected, atol=1e-6)


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_is_rounded_once(dtype, rng):
    """Squares of 300 overflow float16."""
    x = jnp.asarray(300 * rng.standard_normal((8, 64)), dtype)
    wide = np.asarray(x, np.float32)
    found = l2_normalize(x)
    assert found.dtype == dtype
    expected = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    np.testing.assert_allclose(np.float32(found), expected, rtol=1.01 * 2**-8, atol=1e-7)


def test_norms_of_any_size():
    """Norms up to eps = 1e-12 are divided by it; squares or inverses may overflow; NaN stays."""
    lengths = np.float32([[2.4e38], [1e30], [1.0], [1e-6], [1e-11], [1e-20], [1e-26]])
    expected = np.array([0.6, 0.8]) * np.minimum(1, 1.25 * np.float64(lengths) / 1e-12)
    np.testing.assert_allclose(l2_normalize(lengths * np.float32([0.75, 1.0])), expected, rtol=1e-6)
    assert np.isnan(l2_normalize(np.float32([[np.inf, 1], [np.nan, 1]]))).any(axis=1).all()


NORMALIZING = {
    "l2_normalize": lambda z1, z2: jnp.sum(l2_normalize(z1) * z2),
    "nt_xent": hj.nt_xent_loss,
    "prior_matching": lambda z1, z2: hj.prior_matching_loss(jax.random.key(0), z1),
    "generalized": lambda z1, z2: hj.generalized_contrastive_loss(jax.random.key(0), z1, z2),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("l2_normalize", "float32"),
        ("nt_xent", "float32"),
        ("generalized", "float32"),
        ("prior_matching", "float32"),
        pytest.param("l2_normalize", "float16", marks=needs_float16),
        pytest.param("nt_xent", "float16", marks=needs_float16),
        pytest.param("prior_matching", "float16", marks=needs_float16),
    ],
)
def test_short_vectors_have_gradient_zero(name, dtype, rng):
    z1, z2 = (jnp.asarray(z, dtype) for z in inputs(rng, "nn"))
    z1 = z1.at[2].set(0).at[5].set(1e-20)  # float16 rounds this to zero
    slopes = jax.grad(NORMALIZING[name])(z1, z2)
    assert slopes.dtype == dtype
    slopes = np.float32(slopes)
    short = np.isin(np.arange(len(slopes)), (2, 5))
    assert (slopes[short] == 0).all()
    assert (np.abs(slopes[~short]).max(axis=1) > 0).all()
    assert np.isfinite(slopes).all()
