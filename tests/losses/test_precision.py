"""The form of the sums on accelerators, and how exact products of bfloat16 parts leave them."""

import functools
import itertools
from pathlib import Path

import jax
import numpy as np
import oracles
import pytest
import test_pairs
from points import sphere
from scipy.special import logsumexp, softmax

import hypersphere_jax as hj
from hypersphere_jax.losses import blocks, devices, distances
from hypersphere_jax.losses.blocks import Points
from hypersphere_jax.losses.devices import PairOptions

# Products of parts that are kept, of as many parts as there are, in the order of their size.
KEPT = {"high": 2, "highest": 3}


@pytest.fixture
def accelerator(monkeypatch):
    for module in (blocks, devices, distances):
        monkeypatch.setattr(module, "on_cpu", lambda: False)


def of_parts(a, b, precision="highest"):
    """The product as tensor cores have it: of bfloat16 parts or TF32, summed in float32."""
    if precision == "default":
        a, b = (jax.lax.reduce_precision(side, 8, 10) for side in (a, b))
        return jax.numpy.matmul(a, b, precision="highest")
    count, sides = KEPT[precision], []
    for rest in (a, b):
        parts = []
        for _ in range(count):
            parts.append(jax.lax.reduce_precision(rest, 8, 7))
            rest = rest - parts[-1]
        sides.append(parts)
    places = [(i, j) for i, j in itertools.product(range(count), repeat=2) if i + j < count]
    times = functools.partial(jax.numpy.matmul, precision="highest")
    return sum(times(sides[0][i], sides[1][j]) for i, j in reversed(places))


CASES = [("log_total", 3), *((name, None) for name in test_pairs.SUMS)]


@pytest.mark.parametrize(
    ("name", "block_size"),
    [CASES[0], *(pytest.param(*case, marks=pytest.mark.slow) for case in CASES[1:])],
)
def test_sums_on_accelerators(name, block_size, accelerator, rng):
    """Biases inside the product, plain sums where float32 holds them: of logits of any size."""
    function, dense, letters = test_pairs.SUMS[name]
    step = jax.jit(jax.value_and_grad(functools.partial(_of, function, PairOptions(block_size))))
    for far in (0, 57, 63, 300, -57, -63, -300):
        arrays, towards = (test_pairs.inputs(rng, letters, f) for f in (far, 0))
        value, grads = step(arrays)
        wanted = oracles.numeric_slopes(dense, arrays, towards)
        np.testing.assert_allclose(value, dense(*map(np.float64, arrays)), rtol=1e-5, atol=1e-6)
        test_pairs.assert_close(test_pairs.slopes(grads, towards), wanted)


def _of(function, options, arrays):
    return function(options, *arrays)


def test_sums_of_differences_on_accelerators(accelerator, rng, monkeypatch):
    """Of terms that do not fill the last part; and their gradients."""
    monkeypatch.setattr(distances, "AT_ONCE", 3)
    x, y = rng.standard_normal((7, 4)), rng.standard_normal((5, 4))
    weights = rng.random((7, 5))

    def of(form, *arrays):
        return jax.numpy.sum(jax.numpy.sin(form(*arrays)))

    def squares(x, y, factor):
        return jax.numpy.sum((factor * (x[:, None] - y[None])) ** 2, -1)

    def weighted(weights, x, y):
        return jax.numpy.sum(weights[:, :, None] * (y[None] - x[:, None]), 1)

    for form, plain, arrays in (
        (distances.squared_distances, squares, (x, y, 1.5)),
        (distances.differences, weighted, (weights, x, y)),
    ):
        of_all = tuple(range(len(arrays)))
        found, wanted = (
            jax.value_and_grad(functools.partial(of, f), of_all)(*map(np.float32, arrays))
            for f in (form, plain)
        )
        close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
        jax.tree.map(close, found, wanted)


def test_points_that_form_no_pair(accelerator, rng):
    """Also beside logits beyond exponentials; rows of whole blocks, and parts of blocks."""
    x, off = np.float32(rng.standard_normal((7, 3))), np.arange(7) > 4
    for size in (1.0, 20.0):
        bias = np.where(off, blocks.OFF, np.float32(rng.standard_normal(7)))
        points = Points(size * x, bias)
        for limit in (2, 16):
            found, _ = blocks.log_sums(points, None, exclude=1, blocking=blocks.Blocking(limit))
            logits = np.float64(size * x) @ (size * x).T + bias[:, None] + bias
            np.fill_diagonal(logits, -np.inf)
            np.testing.assert_allclose(found[:5], logsumexp(logits[:5, :5], 1), rtol=1e-5)
            assert (np.asarray(found[5:]) < blocks.OFF / 2).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tau", "high", "tf32"),
    [(0.005, 2e-4, 3e-2), (0.05, 1.4e-5, 1.2e-3), (0.1, 7e-6, 6e-4)],
)
def test_products_of_parts(tau, high, tf32, accelerator, monkeypatch, rng):
    """Six products of three parts round like float32; three products of two parts, and TF32, are
    off by as much of the gradient as docs/losses.md says."""
    centres = sphere(rng, 10, 64)
    x = centres[rng.integers(0, 10, 300)] + 0.05 * rng.standard_normal((300, 64))
    x, y = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, x + 0.01 * x[::-1]))
    logits = x @ y.T / tau
    weights = softmax(logits, 1) + softmax(logits, 0) - 2 * np.eye(300)
    wanted, errors = weights @ y / tau / 600, {}
    for form, product in {"float32": blocks.product, "parts": of_parts}.items():
        monkeypatch.setattr(blocks, "product", product)
        for precision in ("highest", *(("high", "default") if form == "parts" else ())):
            loss = functools.partial(_contrastive, precision, tau)
            found = jax.jit(jax.grad(loss))(np.float32(x), np.float32(y))
            errors[form, precision] = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
    assert max(errors["parts", "highest"], errors["float32", "highest"]) < high / 2
    assert high / 2 < errors["parts", "high"] < 2 * high
    assert tf32 / 2 < errors["parts", "default"] < 2 * tf32
    page = " ".join(Path("docs/losses.md").read_text().split())
    assert "some 7e-6 at tau = 0.1, by some 2e-4 at 0.005" in page
    assert "TF32, off by 6e-4 at tau = 0.1 and by 3e-2 at 0.005" in page


def test_algorithms_on_a_gpu(monkeypatch):
    """Parts of bfloat16, but of float32 where a side is small, which XLA has no kernel for."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for sides, precision, wanted in (
        ((16, 16, 16), "highest", "BF16_BF16_F32_X6"),
        ((16, 16, 16), "high", "BF16_BF16_F32_X3"),
        ((16, 8, 16), "high", "HIGHEST"),
        ((3, 16, 16), "highest", "HIGHEST"),
        ((16, 16, 16), "default", "None"),
        ((16, 16, 2), "default", "None"),
    ):
        n, k, m = sides
        of = functools.partial(blocks.product, precision=precision)
        with jax.default_matmul_precision(None):
            made = jax.make_jaxpr(of)(np.zeros((n, k), np.float32), np.zeros((k, m), np.float32))
        (dot,) = [e for e in made.jaxpr.eqns if e.primitive.name == "dot_general"]
        assert wanted in str(dot.params["precision"]), (sides, precision)


def _contrastive(precision, tau, x, y):
    # Not through the public function, which keeps what it compiled.
    x, y, options = x / tau**0.5, y / tau**0.5, PairOptions(precision=precision)
    sides = (Points(z, jax.numpy.zeros(len(z))) for z in (x, y))
    return test_pairs.pairs.mean_log_sums_between(
        *sides, options, columns=True, positives=(x * y).sum(1), exclude=1
    )


def test_precision_is_one_of_three(rng):
    x = np.float32(sphere(rng, 6, 3))
    of = {float(hj.uniform_loss(x, precision=p)) for p in ("highest", "high", "default")}
    assert of == {float(hj.uniform_loss(x))}  # on CPU
    for wrong in ("float32", None, 3):
        with pytest.raises(ValueError, match="precision must be one of highest, high, default"):
            hj.contrastive_loss(x, x, precision=wrong)
