"""Theory of features: the contrastive limit, entropy, prototype bias, uniform points."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from points import sphere
from scipy import stats
from test_theory import exact_mean_potential, simplex

from hypersphere_jax import theory
from hypersphere_jax.theory import (
    contrastive_limit,
    sphere_log_area,
    uniform_sphere,
    vmf_kde_entropy,
    vmf_log_normalizer,
)

N, D = 20, 3
limit = jax.jit(jax.value_and_grad(contrastive_limit, argnums=(0, 1)))
entropy = jax.jit(vmf_kde_entropy, static_argnames="kappa")


def sphere_integral(d, function):
    """The integral of a function of the first coordinate, by the midpoint rule in the angle."""
    angles = (np.arange(200_000) + 0.5) * np.pi / 200_000
    band = 2 * np.pi ** ((d - 1) / 2) / math.gamma((d - 1) / 2)
    return band * (function(np.cos(angles)) * np.sin(angles) ** (d - 2)).mean() * np.pi


def limit_oracle(x, y, tau):
    x, y = np.float64(x), np.float64(y)
    repulsion = np.log(np.exp((x @ x.T - 1) / tau).mean(axis=1)).mean()
    return repulsion + (1 - np.mean(np.sum(x * y, axis=1))) / tau


def test_limit_and_its_gradient(rng):
    x, y = sphere(rng, N, D), sphere(rng, N, D)
    for tau in (0.07, 0.5, 2.0):
        value, slopes = limit(x, y, tau)
        assert value.dtype == jnp.float32 and value.shape == ()
        np.testing.assert_allclose(value, limit_oracle(x, y, tau), rtol=1e-5, atol=2e-6)
        towards = [rng.standard_normal((N, D)) for _ in range(2)]
        expected = oracles.numeric_slopes(lambda *a, t=tau: limit_oracle(*a, t), (x, y), towards)
        np.testing.assert_allclose(
            [np.vdot(*pair) for pair in zip(slopes, towards, strict=True)], expected, rtol=1e-3
        )
    np.testing.assert_allclose(limit(x, x, 1e-3)[0], -math.log(N), atol=1e-3)


def test_limit_is_one(rng):
    # Theorem 1, with negatives drawn from the rows: the deviation shrinks like M^-1/2.
    x, y, tau = sphere(rng, N, D), sphere(rng, N, D), 0.5
    positives = np.exp(np.sum(x * y, axis=1) / tau)
    deviations = []
    for m in (20, 50_000):
        losses = []
        for i in range(N):
            negatives = np.exp(x[rng.integers(N, size=(40, m))] @ x[i] / tau).sum(axis=1)
            losses.append(-np.log(positives[i] / (positives[i] + negatives)).mean())
        deviations.append(abs(np.mean(losses) - math.log(m) - float(limit(x, y, tau)[0])))
    assert deviations[0] > 0.01 and deviations[1] < 0.002


def test_limit_and_uniformity(rng):
    # With tau = 1 / 2t the log stands inside the mean, where uniformity has it outside: Jensen,
    # with equality where all points see the same.
    for points, equal in ((simplex(D).astype(np.float32), True), (sphere(rng, D + 1, D), False)):
        uniformity = oracles.uniform_oracle(points, 2.0, include_self=True)
        gap = uniformity - limit(points, points, 0.25)[0]
        assert abs(gap) < 3e-6 if equal else gap > 1e-3


@pytest.mark.parametrize("kappa", [0.01, 1.0, 14.0, 100.0])
def test_normalizer(kappa):
    np.testing.assert_allclose(vmf_log_normalizer(1, kappa), math.log(2 * math.cosh(kappa)), 1e-12)
    for d in (2, 3, 4, 7, 50):
        value = sphere_integral(d, lambda u: np.exp(kappa * u))
        np.testing.assert_allclose(vmf_log_normalizer(d, kappa), math.log(value), rtol=1e-8)
    for d in (512, 8192):  # the mean of exp(kappa u), u of mean 0 and variance 1/d
        excess = vmf_log_normalizer(d, kappa) - sphere_log_area(d)
        assert 0 < excess < kappa**2 / (2 * d) * (1 + 1e-6)
        exact = float(exact_mean_potential(d, kappa / 2).ln()) + kappa
        np.testing.assert_allclose(excess, exact, atol=1e-10)


@pytest.mark.parametrize(("d", "kappa"), [(2, 20.0), (3, 10.0), (8, 3.0)])
def test_entropy_of_uniform_points_is_the_log_area(d, kappa):
    x = uniform_sphere(jax.random.key(1), 4000, d)
    np.testing.assert_allclose(entropy(x, kappa=kappa), sphere_log_area(d), atol=0.01)


def test_entropy_is_that_of_the_limit(rng):
    x, tau = sphere(rng, N, D), 0.2
    second_term = float(limit(x, x, tau)[0]) + 1 / tau
    expected = vmf_log_normalizer(D, 1 / tau) - second_term
    np.testing.assert_allclose(entropy(x, kappa=1 / tau), expected, atol=5e-6)


def test_prototype_bias_is_the_mean_distance(rng):
    x, mates = (rng.standard_normal((4, 3)).astype(np.float32) for _ in range(2))
    mates[1] = x[1]
    value, slope = jax.jit(jax.value_and_grad(theory.prototype_bias))(x, mates)
    lengths = [math.dist(a, b) for a, b in zip(x, mates, strict=True)]
    np.testing.assert_allclose(value, np.mean(lengths), rtol=1e-6)
    expected = (x - mates) / np.maximum(lengths, 1e-9)[:, None] / 4  # zero where they coincide
    np.testing.assert_allclose(slope, expected, rtol=1e-5, atol=1e-7)


def test_uniform_points():
    """Moments up to the fourth, which tell the sphere from cubes, and two whole distributions."""
    n = 20_000
    for d in (1, 2, 3, 16):
        x = np.asarray(uniform_sphere(jax.random.key(7), n, d))
        assert x.shape == (n, d) and x.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(x.astype(np.float64), axis=1), 1, atol=3e-7)
        assert np.abs(x.mean(axis=0)).max() < 4.5 / math.sqrt(n * d)
        deviation = 4.5 * math.sqrt(2) / (d * math.sqrt(n))
        assert np.abs(x.T @ x / n - np.eye(d) / d).max() < deviation + 1e-5
        np.testing.assert_allclose((x**4).mean(), 3 / (d * (d + 2)), rtol=0.02)  # of E x_1^4
        if d in (2, 3):  # turns on the circle; heights on the ball are uniform, says Archimedes
            turns = np.arctan2(x[:, 1], x[:, 0]) / (2 * np.pi) + 0.5
            sample = turns if d == 2 else (x[:, 2] + 1) / 2
            assert stats.kstest(sample, "uniform").pvalue > 1e-3


def test_uniform_points_are_those_of_their_key():
    one, again, other = (uniform_sphere(jax.random.key(seed), 5, 3) for seed in (0, 0, 1))
    assert (one == again).all() and not (one == other).any()


def test_mistakes():
    x = np.ones((2, 3), np.float32)
    for function, arguments, named in (
        (theory.uniformity_optimum, (0, 2.0), "d=0"),
        (theory.uniformity_lower_bound, (3, 2.0, 1), "n=1"),
        (contrastive_limit, (x, x[:1]), r"\(2, 3\), \(1, 3\)"),
        (vmf_log_normalizer, (3, 0.0), "kappa=0.0"),
        (uniform_sphere, (jax.random.key(0), 3, 0), "d=0"),
    ):
        with pytest.raises(ValueError, match=named):
            function(*arguments)
