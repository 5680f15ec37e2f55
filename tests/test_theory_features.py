"""Theory of features: the contrastive limit, entropy, prototype bias, uniform points."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import sphere
from test_theory import exact_mean_potential, simplex, sphere_integral

from hypersphere_jax import align_loss, uniform_loss
from hypersphere_jax.theory import (
    contrastive_limit,
    prototype_bias,
    sphere_log_area,
    uniform_sphere,
    uniformity_lower_bound,
    uniformity_optimum,
    uniformity_with_self,
    uniformity_without_self,
    vmf_kde_entropy,
    vmf_log_normalizer,
)

# The limit of the contrastive loss.


def limit_oracle(x, y, tau):
    n, total = len(x), 0.0
    for i in range(n):
        potentials = [math.exp(float(x[j] @ x[i]) / tau) for j in range(n)]
        total += math.log(sum(potentials) / n) - float(x[i] @ y[i]) / tau
    return total / n


@pytest.mark.parametrize("n", [1, 5, 256, 300])
@pytest.mark.parametrize("tau", [0.07, 0.5, 2.0])
def test_limit_against_loops(n, tau, rng):
    x, y = sphere(rng, n, 6), sphere(rng, n, 6)
    expected = limit_oracle(x.astype(np.float64), y.astype(np.float64), tau)
    value = jax.jit(contrastive_limit)(x, y, tau)
    assert value.dtype == jnp.float32 and value.shape == ()
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=2e-6)


def test_limit_is_one(rng):
    # Theorem 1, with negatives drawn from the rows: the deviation shrinks like M^-1/2.
    x, y, tau = sphere(rng, 20, 3), sphere(rng, 20, 3), 0.5
    deviations = []
    for m in (20, 50_000):
        losses = []
        for i in range(20):
            negatives = np.exp(x[rng.integers(20, size=(40, m))] @ x[i] / tau).sum(axis=1)
            positive = math.exp(float(x[i] @ y[i]) / tau)
            losses.append(-np.log(positive / (positive + negatives)).mean())
        deviations.append(abs(np.mean(losses) - math.log(m) - float(contrastive_limit(x, y, tau))))
    assert deviations[0] > 0.01 and deviations[1] < 0.002


def test_limit_and_uniformity(rng):
    # With tau = 1 / 2t the log stands inside the mean, where uniformity has it outside: Jensen,
    # with equality where all points see the same.
    t = 2.0
    for points, equal in ((simplex(4).astype(np.float32), True), (sphere(rng, 9, 4), False)):
        gap = uniform_loss(points, t, include_self=True) - contrastive_limit(points, points, 0.25)
        assert abs(gap) < 3e-6 if equal else gap > 1e-3


def test_limit_of_extreme_inputs(rng):
    x = sphere(rng, 7, 3)
    np.testing.assert_allclose(contrastive_limit(x, x, 1e-3), -math.log(7), atol=1e-3)
    same = np.repeat(x[:1], 5, axis=0)
    np.testing.assert_allclose(contrastive_limit(same, -same, 0.01), 200.0, rtol=1e-5)
    half = jnp.asarray(x, jnp.bfloat16)
    assert contrastive_limit(half, half).dtype == jnp.float32


def test_limit_gradient(rng):
    x, y, tau, step = sphere(rng, 300, 3), sphere(rng, 300, 3), 0.3, 1e-4
    for_x, for_y = jax.grad(contrastive_limit, argnums=(0, 1))(x, y, tau)
    np.testing.assert_allclose(for_y, -x / (300 * tau), rtol=1e-6)

    def value(x):
        repulsion = np.log(np.exp(x @ x.T / tau).mean(axis=1)).mean()
        return repulsion - (x * y).sum() / (300 * tau)

    for i, k in ((0, 0), (255, 1), (256, 2), (299, 0)):
        moved = np.zeros((300, 3))
        moved[i, k] = step
        expected = (value(x + moved) - value(x - moved)) / (2 * step)
        np.testing.assert_allclose(for_x[i, k], expected, rtol=2e-4, atol=1e-7)


def test_limit_needs_memory_for_blocks_only():
    n = 4096
    shapes = [jax.ShapeDtypeStruct((n, 8), jnp.float32)] * 2
    for function in (contrastive_limit, jax.grad(contrastive_limit)):
        memory = jax.jit(function).lower(*shapes).compile().memory_analysis()
        assert memory.temp_size_in_bytes < n * n * 4 / 4


# Areas, the von Mises-Fisher normalizer, entropy.


def test_areas():
    areas = {1: 2, 2: 2 * np.pi, 3: 4 * np.pi, 4: 2 * np.pi**2, 5: 8 * np.pi**2 / 3}
    for d, area in areas.items():
        np.testing.assert_allclose(math.exp(sphere_log_area(d)), area, rtol=1e-12)
    for d in (6, 100, 8190):
        step = sphere_log_area(d + 2) - sphere_log_area(d)
        np.testing.assert_allclose(step, math.log(2 * np.pi / d), atol=1e-10)


@pytest.mark.parametrize("kappa", [0.01, 1.0, 14.0, 100.0])
def test_normalizer(kappa):
    angles = np.linspace(0, 2 * np.pi, 4096, endpoint=False)
    circle = 2 * np.pi * np.exp(kappa * np.cos(angles)).mean()
    closed = {1: 2 * math.cosh(kappa), 2: circle, 3: 4 * np.pi * math.sinh(kappa) / kappa}
    for d, value in closed.items():
        np.testing.assert_allclose(vmf_log_normalizer(d, kappa), math.log(value), rtol=1e-12)
    for d in (4, 7, 50):
        value = sphere_integral(d, lambda u: np.exp(kappa * u))
        np.testing.assert_allclose(vmf_log_normalizer(d, kappa), math.log(value), rtol=1e-8)
    for d in (512, 8192):  # the mean of exp(kappa u), u of mean 0 and variance 1/d
        excess = vmf_log_normalizer(d, kappa) - sphere_log_area(d)
        assert 0 < excess < kappa**2 / (2 * d) * (1 + 1e-6)
        exact = float(exact_mean_potential(d, kappa / 2).ln()) + kappa
        np.testing.assert_allclose(excess, exact, atol=1e-10)


def test_entropy_against_a_density_on_the_circle(rng):
    angles, kappa = rng.vonmises(0.5, 2.0, size=300), 7.0
    differences = angles[:, None] - angles[None]
    density = (np.exp(kappa * np.cos(differences)) / (2 * np.pi * np.i0(kappa))).mean(axis=1)
    x = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    for run in (vmf_kde_entropy, jax.jit(vmf_kde_entropy, static_argnames="kappa")):
        value = run(x, kappa=kappa)
        assert value.dtype == jnp.float32 and value.shape == ()
        np.testing.assert_allclose(value, -np.log(density).mean(), rtol=1e-5)


@pytest.mark.parametrize(("d", "kappa"), [(2, 20.0), (3, 10.0), (8, 3.0)])
def test_entropy_of_uniform_points_is_the_log_area(d, kappa):
    x = uniform_sphere(jax.random.key(1), 4000, d)
    np.testing.assert_allclose(vmf_kde_entropy(x, kappa), sphere_log_area(d), atol=0.01)
    cap = jnp.abs(x)  # one orthant: a 2^d-th of the area, blurred at its rim by the kernel
    expected = sphere_log_area(d) - d * math.log(2)
    assert expected < vmf_kde_entropy(cap, kappa) < sphere_log_area(d) - 0.3


def test_entropy_is_that_of_the_limit(rng):
    x, tau = sphere(rng, 50, 5), 0.2
    second_term = float(contrastive_limit(x, x, tau)) + 1 / tau
    expected = vmf_log_normalizer(5, 1 / tau) - second_term
    np.testing.assert_allclose(vmf_kde_entropy(x, 1 / tau), expected, atol=5e-6)
    assert jnp.isfinite(jax.grad(vmf_kde_entropy)(x, 5.0)).all()


# Prototype bias.


def test_prototype_bias(rng):
    x, mates = (rng.standard_normal((20, 6)).astype(np.float32) for _ in range(2))
    expected = sum(math.dist(a, b) for a, b in zip(x, mates, strict=True)) / 20
    value = jax.jit(prototype_bias)(x, mates)
    assert value.dtype == jnp.float32 and value.shape == ()
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(prototype_bias(3 * x, 3 * mates), 3 * expected, rtol=1e-6)
    assert prototype_bias(x, x) == 0
    assert abs(value - align_loss(x, mates)) > 0.1  # distances, not their squares


def test_prototype_bias_gradient(rng):
    x, mates = sphere(rng, 4, 3), sphere(rng, 4, 3)
    mates[1] = x[1]
    gradient = np.asarray(jax.grad(prototype_bias)(x, mates))
    assert (gradient[1] == 0).all()
    apart = (x - mates)[[0, 2, 3]]
    expected = apart / np.linalg.norm(apart, axis=1, keepdims=True) / 4
    np.testing.assert_allclose(gradient[[0, 2, 3]], expected, rtol=1e-5, atol=1e-7)


# Uniform points.


@pytest.mark.parametrize("d", [1, 2, 3, 16, 300])
def test_uniform_points(d):
    n = 20_000
    x = np.asarray(uniform_sphere(jax.random.key(7), n, d))
    assert x.shape == (n, d) and x.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(x.astype(np.float64), axis=1), 1, atol=3e-7)
    assert np.abs(x.mean(axis=0)).max() < 4.5 / math.sqrt(n * d)
    deviation = 4.5 * math.sqrt(2) / (d * math.sqrt(n))
    assert np.abs(x.T @ x / n - np.eye(d) / d).max() < deviation + 1e-5
    # Fourth moments tell the sphere from cubes and lattices: E x_1^4 = 3 / (d (d + 2)).
    np.testing.assert_allclose((x**4).mean(), 3 / (d * (d + 2)), rtol=0.02)


def test_uniform_points_fill_the_circle_and_the_ball():
    n = 20_000
    line = (np.arange(n) + 0.5) / n
    circle = np.asarray(uniform_sphere(jax.random.key(3), n, 2))
    turns = np.sort(np.arctan2(circle[:, 1], circle[:, 0])) / (2 * np.pi) + 0.5
    ball = np.asarray(uniform_sphere(jax.random.key(4), n, 3))
    heights = (np.sort(ball[:, 2]) + 1) / 2  # Archimedes: heights on the ball are uniform
    for sample in (turns, heights):  # Kolmogorov-Smirnov, at a level of 1e-3
        assert np.abs(sample - line).max() < 1.95 / math.sqrt(n)


def test_uniform_points_are_near_the_optimum():
    for d in (2, 3, 32):
        x = uniform_sphere(jax.random.key(11), 2000, d)
        np.testing.assert_allclose(uniform_loss(x, 2.0), uniformity_optimum(d, 2.0), atol=0.01)


def test_uniform_points_are_those_of_their_key():
    one, again, other = (uniform_sphere(jax.random.key(seed), 5, 3) for seed in (0, 0, 1))
    assert (one == again).all() and not (one == other).any()
    assert uniform_sphere(jax.random.key(0), 0, 3).shape == (0, 3)


def test_ranges():
    x, nothing = jnp.ones((2, 3)), jnp.ones((0, 3))
    key, nan = jax.random.key(0), math.nan
    for call, named in (
        (lambda: uniformity_optimum(0, 2.0), "d=0"),
        (lambda: uniformity_optimum(3, 0.0), "t=0.0"),
        (lambda: uniformity_optimum(3, -1.0), "t=-1.0"),
        (lambda: uniformity_optimum(3, nan), "t=nan"),
        (lambda: uniformity_optimum(3, math.inf), "t=inf"),
        (lambda: uniformity_lower_bound(0, 2.0, 5), "d=0"),
        (lambda: uniformity_lower_bound(3, 0.0, 5), "t=0.0"),
        (lambda: uniformity_lower_bound(3, 2.0, 1), "n=1"),
        (lambda: uniformity_lower_bound(3, 2.0, 0, include_self=True), "n=0"),
        (lambda: uniformity_without_self(-1.0, 1), "n=1"),
        (lambda: uniformity_with_self(-1.0, 1), "n=1"),
        (lambda: contrastive_limit(x, x, 0.0), "tau must be positive and finite, got 0.0"),
        (lambda: contrastive_limit(x, x[:1]), r"\(2, 3\), \(1, 3\)"),
        (lambda: contrastive_limit(nothing, nothing), r"\(0, 3\)"),
        (lambda: sphere_log_area(0), "d=0"),
        (lambda: vmf_log_normalizer(0, 1.0), "d=0"),
        (lambda: vmf_log_normalizer(3, 0.0), "kappa=0.0"),
        (lambda: vmf_kde_entropy(x, -1.0), "kappa=-1.0"),
        (lambda: vmf_kde_entropy(x[0], 1.0), r"\(3,\)"),
        (lambda: vmf_kde_entropy(nothing, 1.0), r"\(0, 3\)"),
        (lambda: prototype_bias(x, x[:, :2]), r"same_class .*\(2, 3\), \(2, 2\)"),
        (lambda: prototype_bias(nothing, nothing), r"\(0, 3\)"),
        (lambda: uniform_sphere(key, 3, 0), "d=0"),
        (lambda: uniform_sphere(key, -1, 3), "n=-1"),
    ):
        with pytest.raises(ValueError, match=named):
            call()
