"""Losses at their edges: extreme options, close points, memory, types and bad arguments."""

import functools
import inspect
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from loss_cases import CASES, ONE_FORM, gradients, inputs, value
from platforms import has_float16
from points import sphere

import hypersphere_jax as hj
from hypersphere_jax import l2_normalize
from hypersphere_jax.losses._pairwise.precision import on_cpu


@pytest.mark.parametrize("name", ["contrastive", "nt_xent dot", "info_nce", "generalized"])
def test_losses_near_zero_keep_their_digits(name, rng):
    """Aligned pairs at low temperature: the loss is log(1 + tiny), and so are its gradients."""
    z = sphere(rng, 12, 5)
    others = sphere(rng, 7, 5)
    for tau in (0.05, 0.01):

        def exact(z, tau=tau):
            """The loss from differences of logits, which are not near zero, in float64."""
            negatives = others if name == "info_nce" else z
            gaps = (z @ negatives.T - np.sum(z**2, 1)[:, None]) / tau
            if name != "info_nce":
                np.fill_diagonal(gaps, -np.inf)
            views = 1 if name in ("contrastive", "info_nce") else 2
            return np.log1p(views * np.exp(gaps).sum(1)).mean()

        arrays = [z, z, others][: len(CASES[name].shapes)]
        scale = tau if name == "generalized" else 1
        options = {"alpha": 1 / tau, "lam": 1} if name == "generalized" else {"tau": tau}
        found, (slopes, _) = gradients(name, arrays, **options)
        np.testing.assert_allclose(found, scale * exact(np.float64(z)), rtol=2e-5)
        towards = rng.standard_normal(z.shape)
        slope = np.vdot(slopes[0] + slopes[1], towards)
        expected = oracles.numeric_slope(exact, [z], [towards])
        np.testing.assert_allclose(slope, scale * expected, rtol=1e-3)


def test_uniformity_of_close_points(rng):
    """Distances of 1e-4 around a far point: squares would drown in the rounding of the norms."""
    t = 1e7
    close = np.float32(np.eye(5)[0] + 1e-4 * rng.standard_normal((12, 5)))
    keys = close[:7] + np.float32(1e-4)
    for name, arrays in (("uniform", [close]), ("queue (22)", [close, keys])):
        expected = CASES[name].oracle(*arrays, t=t)
        np.testing.assert_allclose(value(name, *arrays, t=t), expected, rtol=1e-3)


@pytest.mark.parametrize("name", [n for n in ONE_FORM if "align" not in n and "sliced" not in n])
def test_memory_is_linear_in_n(name):
    """No array of value or gradients is as large as a part of all pairs."""
    n = 512
    step = jax.value_and_grad(lambda arrays: CASES[name].loss(*arrays, block_size=16))
    arrays = [jax.ShapeDtypeStruct((n, 2), jnp.float32) for _ in CASES[name].shapes]
    shapes = re.findall(r"f32\[([\d,]+)\]", str(jax.make_jaxpr(step)(arrays)))
    largest = max(math.prod(map(int, shape.split(","))) for shape in shapes)
    bound = 4 if on_cpu() else 6  # biases are columns on accelerators
    assert 2 * n <= largest <= bound * n


@pytest.mark.parametrize("mode", ["x64", "strict"])
def test_modes_of_types(mode):
    """Loss and gradients of float64 features are float64."""
    with jax.enable_x64(True) if mode == "x64" else jax.numpy_dtype_promotion("strict"):
        x = jnp.asarray(np.linalg.qr(np.random.default_rng(0).standard_normal((6, 6)))[0])
        for call in (
            lambda x: hj.uniform_loss(x, np.float64(40.0)),
            lambda x: hj.balanced_contrastive_loss(x, x[::-1], np.float64(3.0), np.float64(1.0)),
            lambda x: hj.generalized_contrastive_loss(jax.random.key(0), x, x[::-1]),
            lambda x: hj.uniform_queue_loss(x, x[:2]),
        ):
            found, slope = jax.eval_shape(jax.value_and_grad(call), x)
            assert found.dtype == slope.dtype == x.dtype


@pytest.mark.parametrize("name", CASES)
def test_mistakes_with_every_loss(name, rng):
    loss, _, shapes, (numbers, *_) = CASES[name]
    good = inputs(rng, shapes)

    def fails(message, arrays=good, **changes):
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(lambda: loss(*arrays, **numbers | changes))

    for option in numbers:
        for wrong in (-1.0, jnp.float32(-1), math.inf, math.nan):
            fails(f"{option} must be .*positive and finite", **{option: wrong})
    fails("at least (1|2)|equal (n and )?d", [a[:0] for a in good])
    fails(
        "d >= 1, got .*, 0",
        [a[:, :0] if s != "D" else a for a, s in zip(good, shapes, strict=True)],
    )
    fails("must be floating point, got int", [good[0].astype(int), *good[1:]])
    if len(shapes) > 1:
        fails(r"\(12, 4\), ", [good[0][:, 1:], *good[1:]])
    if "ring" in inspect.signature(loss.func).parameters:
        fails("block_size .*0", block_size=0)
        fails("needs axis_name", ring=True)
    if name in ("uniform", "dcl"):
        fails("2 (points|pairs)", [a[:1] for a in good])


def test_messages_are_short_and_name_the_loss(rng):
    x = sphere(rng, 3, 2)
    for call, error, match in (
        (lambda: hj.uniform_loss(x, tau=2.0), TypeError, r"^uniform_loss\(\) .*'tau'"),
        (lambda: hj.align_loss(x), TypeError, r"^align_loss\(\) missing .*'y'"),
        (lambda: hj.uniform_loss(x, weights=[1.0, -2.0, 3.0]), ValueError, "weights .*-2"),
        (lambda: hj.uniform_loss(x, weights=[1.0, math.nan, 3.0]), ValueError, "weights .*nan"),
        (
            lambda: hj.uniform_loss(x, mesh_axis="data"),
            ValueError,
            r"no mesh is set.*jax\.set_mesh",
        ),
    ):
        with pytest.raises(error, match=match):
            call()


NORMALIZING = {
    "l2_normalize": lambda z1, z2: jnp.sum(l2_normalize(z1) * z2),
    "nt_xent": hj.nt_xent_loss,
    "generalized": lambda z1, z2: hj.generalized_contrastive_loss(jax.random.key(0), z1, z2),
    "prior_matching": lambda z1, z2: hj.prior_matching_loss(jax.random.key(0), z1),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, "float32") for name in NORMALIZING]
    + [("l2_normalize", "float16"), ("l2_normalize", "bfloat16")],
)
def test_rows_shorter_than_eps_have_gradient_zero(name, dtype, rng):
    if dtype == "float16" and not has_float16():
        pytest.skip("XLA has no float16 on this processor")
    z1, z2 = (jnp.asarray(z, dtype) for z in inputs(rng, "nn"))
    z1 = z1.at[2].set(0).at[5].set(1e-20)  # float16 rounds this to zero
    slopes = jax.grad(NORMALIZING[name])(z1, z2)
    short = np.isin(np.arange(len(z1)), (2, 5))
    assert slopes.dtype == dtype
    assert (slopes[short] == 0).all()
    assert (np.abs(np.float32(slopes[~short])).max(axis=1) > 0).all()
    assert np.isfinite(np.float32(slopes)).all()


@pytest.mark.parametrize("name", [n for n in ONE_FORM if n != "align"])
def test_long_features_have_finite_losses_and_gradients(name, rng):
    """Logits round by thousands, and no exponential of their differences overflows."""
    shapes = CASES[name].shapes
    for length in (1e3, 1e5, 1e7):
        arrays = inputs(rng, shapes)
        arrays = [a if s == "D" else length * a for a, s in zip(arrays, shapes, strict=True)]
        for numbers in CASES[name].numbers:
            found, slopes = gradients(name, arrays, **numbers)
            np.testing.assert_allclose(found, CASES[name].oracle(*arrays, **numbers), rtol=1e-4)
            assert all(np.isfinite(slope).all() for slope in jax.tree.leaves(slopes))


def test_uniformity_of_long_features_is_that_of_the_closest_pair(rng):
    """The slope of `-t |x_i - y_j|^2` at the pair whose logit exceeds all others by thousands."""
    for d, t in ((2, 20.0), (5, 0.3), (33, 19.7)):
        x, queue = (np.float32(1e5 * rng.standard_normal((n, d))) for n in (6, 9))
        loss = functools.partial(hj.uniform_queue_loss, intra_batch=False)
        found, slopes = jax.value_and_grad(loss)(x, queue, t)
        gaps = np.float64(x)[:, None] - queue[None]
        i, j = np.unravel_index((gaps**2).sum(-1).argmin(), (6, 9))
        np.testing.assert_allclose(found, -t * (gaps[i, j] ** 2).sum(), rtol=1e-6)
        expected = np.zeros_like(x)
        expected[i] = -2 * t * gaps[i, j]
        np.testing.assert_allclose(slopes, expected, rtol=1e-5)


def test_l2_normalize(rng):
    """Vectors along any axis and of any length."""
    x = rng.standard_normal((4, 3, 5)).astype(np.float32)
    for k in (-1, 0, 1):
        expected = x / np.linalg.norm(x, axis=k, keepdims=True)
        np.testing.assert_allclose(l2_normalize(x, k), expected, rtol=1e-6)
    lengths = np.float32([[1e-11], [1e-6], [1.0], [1e30]])
    np.testing.assert_allclose(l2_normalize(lengths * [3, 4]), [[0.6, 0.8]] * 4, rtol=1e-6)
    point = x[0, 0]
    unit = point / np.linalg.norm(point)
    expected = (np.eye(5) - np.outer(unit, unit)) / np.linalg.norm(point)
    np.testing.assert_allclose(jax.jacobian(l2_normalize)(point), expected, atol=1e-6)
    # In the type given; computed in float32 and rounded once: squares of 300 overflow float16.
    for dtype in (jnp.bfloat16, jnp.float32, *[jnp.float16] * has_float16()):
        half = jnp.asarray(300 * rng.standard_normal((8, 64)), dtype)
        wide = np.asarray(half, np.float32)
        expected = wide / np.linalg.norm(wide, axis=1, keepdims=True)
        found = l2_normalize(half)
        assert found.dtype == dtype
        np.testing.assert_allclose(np.float32(found), expected, rtol=1.01 * 2**-8, atol=1e-7)
    assert l2_normalize(np.arange(3)).dtype == jnp.float32
    # Norms that, or whose inverses, are beyond the type.
    lengths = np.float32([[1e30], [1e38], [2.4e38], [1e-11], [1e-20], [1e-26]])
    expected = np.array([0.6, 0.8]) * np.minimum(1, 1.25 * np.float64(lengths) / 1e-12)
    np.testing.assert_allclose(l2_normalize(lengths * np.float32([0.75, 1.0])), expected, rtol=1e-6)
    assert np.isnan(l2_normalize(np.float32([[np.inf, 1], [np.nan, 1]]))).any(axis=1).all()
    assert l2_normalize(np.ones((3, 0))).shape == (3, 0)
