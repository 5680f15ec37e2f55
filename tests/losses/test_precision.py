"""Sums on accelerators, and products of bfloat16 parts."""

import functools
import itertools
from pathlib import Path

import jax
import numpy as np
import oracles
import pytest
import test_reductions
from points import sphere
from scipy.special import logsumexp, softmax

import hypersphere_jax as hj
from hypersphere_jax.losses._pairwise import far_points, logits, options, sums
from hypersphere_jax.losses._pairwise.options import Exclude, PairOptions
from hypersphere_jax.losses._pairwise.pair_sets import PairsBetween
from hypersphere_jax.losses._pairwise.points import MASKED_LOGIT, Points, make_points
from hypersphere_jax.losses._pairwise.reductions import mean_row_logsumexp

# Parts of each factor whose products "high" and "highest" sum.
PARTS = {"high": 2, "highest": 3}


@pytest.fixture
def accelerator(monkeypatch):
    for module in (far_points, logits, options, sums):
        monkeypatch.setattr(module, "on_cpu", lambda: False)


def tensor_core_product(a, b, precision="highest"):
    """The product of bfloat16 parts or TF32 on tensor cores, summed in float32."""
    if precision == "default":
        a, b = (jax.lax.reduce_precision(side, 8, 10) for side in (a, b))
        return jax.numpy.matmul(a, b, precision="highest")
    count = PARTS[precision]
    places = [(i, j) for i, j in itertools.product(range(count), repeat=2) if i + j < count]
    parts_a = bfloat16_parts(a, count)
    parts_b = bfloat16_parts(b, count)
    multiply = functools.partial(jax.numpy.matmul, precision="highest")
    return sum(multiply(parts_a[i], parts_b[j]) for i, j in reversed(places))


def bfloat16_parts(x, count):
    parts = []
    for _ in range(count):
        parts.append(jax.lax.reduce_precision(x, 8, 7))
        x = x - parts[-1]
    return parts


SLOW = [pytest.param(name, None, marks=pytest.mark.slow) for name in test_reductions.REDUCTIONS]


@pytest.mark.parametrize(("name", "block_size"), [("total within", 3), *SLOW])
def test_sums_on_accelerators(name, block_size, accelerator, rng):
    """Biases inside the product, plain sums where float32 represents them; logits of any size."""
    function, dense, letters = test_reductions.REDUCTIONS[name]

    @jax.jit
    @jax.value_and_grad
    def step(arrays):
        return function(PairOptions(block_size=block_size), *arrays)

    for far in (0, 57, 63, 300, -57, -63, -300):
        arrays = test_reductions.inputs(rng, letters, far)
        directions = test_reductions.inputs(rng, letters)
        value, gradients = step(arrays)
        np.testing.assert_allclose(value, dense(*map(np.float64, arrays)), rtol=1e-5, atol=1e-6)
        expected = oracles.numeric_slopes(dense, arrays, directions)
        test_reductions.assert_close(test_reductions.slopes(gradients, directions), expected)


def plain_squared_distances(x, y, factor):
    return jax.numpy.sum((factor * (x[:, None] - y[None])) ** 2, -1)


def plain_weighted_differences(weights, x, y):
    return jax.numpy.sum(weights[:, :, None] * (y[None] - x[:, None]), 1)


def test_far_points_on_accelerators(accelerator, rng, monkeypatch):
    """Chunks that do not divide the terms; and their gradients."""
    monkeypatch.setattr(far_points, "CHUNK", 3)
    x = np.float32(rng.standard_normal((7, 4)))
    y = np.float32(rng.standard_normal((5, 4)))
    weights = np.float32(rng.random((7, 5)))

    def value_and_gradients(function, arrays):
        def total(*arrays):
            return jax.numpy.sum(jax.numpy.sin(function(*arrays)))

        return jax.value_and_grad(total, tuple(range(len(arrays))))(*arrays)

    for function, plain, arrays in (
        (far_points.squared_distances, plain_squared_distances, (x, y, np.float32(1.5))),
        (far_points.weighted_differences, plain_weighted_differences, (weights, x, y)),
    ):
        close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
        found = value_and_gradients(function, arrays)
        jax.tree.map(close, found, value_and_gradients(plain, arrays))


def test_masked_points_on_accelerators(accelerator, rng):
    """Also with logits beyond exponentials; masked rows fill blocks and parts of blocks."""
    x = np.float32(rng.standard_normal((7, 3)))
    masked = np.arange(7) > 4
    bias = np.where(masked, MASKED_LOGIT, np.float32(rng.standard_normal(7)))
    for size, limit in itertools.product((1.0, 20.0), (2, 16)):
        points = Points(size * x, bias)
        blocks = PairOptions(block_size=limit)
        found, _ = sums.pair_logsumexp(points, None, blocks, exclude=Exclude.SELF)
        logits = np.float64(size * x) @ (size * x).T + bias[:, None] + bias
        np.fill_diagonal(logits, -np.inf)
        np.testing.assert_allclose(found[:5], logsumexp(logits[:5, :5], 1), rtol=1e-5)
        assert (np.asarray(found[5:]) < MASKED_LOGIT / 2).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tau", "high", "tf32"),
    [(0.005, 2e-4, 3e-2), (0.05, 1.4e-5, 1.2e-3), (0.1, 7e-6, 6e-4)],
)
def test_errors_of_precisions(tau, high, tf32, accelerator, monkeypatch, rng):
    """Six products of three parts round like float32. Three products of two parts, and TF32, have
    the relative errors of the gradient that docs/losses.md states."""
    centers = sphere(rng, 10, 64)
    x = centers[rng.integers(0, 10, 300)] + 0.05 * rng.standard_normal((300, 64))
    x, y = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, x + 0.01 * x[::-1]))
    similarities = x @ y.T / tau
    weights = softmax(similarities, 1) + softmax(similarities, 0) - 2 * np.eye(300)
    expected = weights @ y / tau / 600

    def error(precision):
        loss = functools.partial(_contrastive, precision, tau)
        found = jax.jit(jax.grad(loss))(np.float32(x), np.float32(y))
        return np.linalg.norm(found - expected) / np.linalg.norm(expected)

    float32_error = error("highest")
    monkeypatch.setattr(logits, "matmul", tensor_core_product)
    assert max(float32_error, error("highest")) < high / 2
    assert high / 2 < error("high") < 2 * high
    assert tf32 / 2 < error("default") < 2 * tf32
    page = " ".join(Path("docs/losses.md").read_text().split())
    assert "some 7e-6 at tau = 0.1, by some 2e-4 at 0.005" in page
    assert "TF32, off by 6e-4 at tau = 0.1 and by 3e-2 at 0.005" in page


def _contrastive(precision, tau, x, y):
    """The contrastive loss, which is not cached for other precisions and products."""
    pairs = PairsBetween(
        PairOptions(precision=precision), columns_are_anchors=True, exclude=Exclude.SELF
    )
    x = x / tau**0.5
    y = y / tau**0.5
    return mean_row_logsumexp(pairs, make_points(x), make_points(y), positives=(x * y).sum(1))


def test_algorithms_on_a_gpu(monkeypatch):
    """bfloat16 parts, but float32 for small sides, which XLA has no kernel for."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for sides, precision, expected in (
        ((16, 16, 16), "highest", "BF16_BF16_F32_X6"),
        ((16, 16, 16), "high", "BF16_BF16_F32_X3"),
        ((16, 8, 16), "high", "HIGHEST"),
        ((3, 16, 16), "highest", "HIGHEST"),
        ((16, 16, 16), "default", "None"),
        ((16, 16, 2), "default", "None"),
    ):
        n, k, m = sides
        product = functools.partial(logits.matmul, precision=precision)
        a = np.zeros((n, k), np.float32)
        b = np.zeros((k, m), np.float32)
        with jax.default_matmul_precision(None):
            made = jax.make_jaxpr(product)(a, b)
        (dot,) = [e for e in made.jaxpr.eqns if e.primitive.name == "dot_general"]
        assert expected in str(dot.params["precision"]), (sides, precision)


def test_precision_is_one_of_three(rng):
    x = np.float32(sphere(rng, 6, 3))
    values = {float(hj.uniform_loss(x, precision=p)) for p in ("highest", "high", "default")}
    assert values == {float(hj.uniform_loss(x))}  # on CPU
    for wrong in ("float32", None, 3):
        with pytest.raises(ValueError, match="precision must be one of"):
            hj.contrastive_loss(x, x, precision=wrong)
