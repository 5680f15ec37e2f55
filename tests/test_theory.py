"""Theory against exact series, integrals over the sphere, float64 loops, and real point sets."""

import decimal
import functools
import math
from decimal import Decimal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import sphere

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


@functools.cache
def exact_mean_potential(d, t):
    """`exp(-2t) 0F1(; d/2; t^2)`, the series term by term in 60 digits."""
    with decimal.localcontext(prec=60):
        z, b, k = Decimal(t) ** 2, Decimal(d) / 2, 0
        term = total = Decimal(1)
        while k < t or term > total * Decimal("1e-55"):
            term *= z / ((b + k) * (k + 1))
            total += term
            k += 1
        return (-2 * Decimal(t)).exp() * total


def exact_lower_bound(d, t, n):
    with decimal.localcontext(prec=60):
        fraction = (n * exact_mean_potential(d, t) - 1) / (n - 1)
        return max(-4 * t, float(fraction.ln())) if fraction > 0 else -4 * t


def sphere_integral(d, function):
    """The integral of a function of the first coordinate, by the midpoint rule in the angle."""
    angles = (np.arange(200_000) + 0.5) * np.pi / 200_000
    band = 2 * np.pi ** ((d - 1) / 2) / math.gamma((d - 1) / 2)
    return band * (function(np.cos(angles)) * np.sin(angles) ** (d - 2)).mean() * np.pi


# The optimum of uniformity.


@pytest.mark.parametrize("t", [0.1, 2.0, 20.0])
def test_optimum_on_the_circle(t):
    angles = np.linspace(0, 2 * np.pi, 4096, endpoint=False)
    mean = np.exp(-t * (2 - 2 * np.cos(angles))).mean()
    np.testing.assert_allclose(uniformity_optimum(2, t), math.log(mean), rtol=1e-12)


@pytest.mark.parametrize("d", [3, 5, 64])
@pytest.mark.parametrize("t", [0.5, 2.0, 8.0])
def test_optimum_on_higher_spheres(d, t):
    total = sphere_integral(d, lambda u: np.exp(-2 * t * (1 - u)))
    mean = total / sphere_integral(d, np.ones_like)
    np.testing.assert_allclose(uniformity_optimum(d, t), math.log(mean), rtol=1e-9)


@pytest.mark.parametrize("t", [0.01, 0.5, 20.0, 100.0])
def test_optimum_in_closed_form(t):
    two_points = math.log((1 + math.exp(-4 * t)) / 2)
    np.testing.assert_allclose(uniformity_optimum(1, t), two_points, rtol=1e-12)
    ball = math.log(-math.expm1(-4 * t)) - math.log(4 * t)  # exp(-2t) sinh(2t) / 2t
    np.testing.assert_allclose(uniformity_optimum(3, t), ball, rtol=1e-12)


@pytest.mark.parametrize("d", [1, 2, 3, 7, 64, 511, 2048, 8192, 100_000])
def test_optimum_against_the_exact_series(d):
    for t in (1e-4, 0.01, 0.1, 0.5, 2.0, 7.7, 20.0, 100.0):
        exact = float(exact_mean_potential(d, t).ln())
        np.testing.assert_allclose(uniformity_optimum(d, t), exact, rtol=1e-12, atol=1e-14)


def test_optimum_in_high_dimensions():
    # All pairs are orthogonal: -2t from above.
    for d in (512, 8192):
        for t in (0.1, 2.0, 20.0):
            assert -2 * t < uniformity_optimum(d, t) < -2 * t + 2 * t * t / d


# The bound for finite samples.


@pytest.mark.parametrize("d", [1, 2, 3, 16, 128, 8192])
def test_lower_bound_against_the_exact_one(d):
    cases = {"-4t": 0, "fraction": 0}
    for t in (0.1, 0.7, 2.0, 5.0, 20.0):
        for n in (2, 3, 4, 10, 256, 10**6, 10**12):
            bound, exact = uniformity_lower_bound(d, t, n), exact_lower_bound(d, t, n)
            # Near the border the bound is rounded downwards, and only there: see the next test.
            excess = n * float(exact_mean_potential(d, t)) - 1
            if excess <= 0 or excess > 1e-4:
                np.testing.assert_allclose(bound, exact, rtol=1e-8)
            cases["-4t" if bound == -4 * t else "fraction"] += 1
    assert cases["-4t"] and (cases["fraction"] or d == 8192)


def test_lower_bound_at_the_border():
    # Two antipodal points of the line reach -4t, which the fraction equals: 2 e^optimum - 1 is
    # exp(-4t), lost in rounding beyond t = 9, where a careless logarithm gives -32 or so.
    for t in np.linspace(0.05, 50.0, 1000):
        bound = uniformity_lower_bound(1, float(t), 2)
        np.testing.assert_allclose(bound, -4 * t, atol=1e-12 * math.exp(min(4 * t, 20)))
        assert bound <= -4 * t * (1 - 1e-12)
    # The t at which 0F1 = e^2t / n, by bisection: to both sides, never above the exact bound.
    for d, n in ((2, 30), (3, 100), (4, 500)):
        low, high = 1.0, 100.0
        for _ in range(60):
            t = (low + high) / 2
            low, high = (t, high) if n * exact_mean_potential(d, t) > 1 else (low, t)
        for shift in (-1e-3, -1e-9, -1e-13, -1e-15, 0.0, 1e-15, 1e-13, 1e-9, 1e-3):
            bound = uniformity_lower_bound(d, low * (1 + shift), n)
            exact = exact_lower_bound(d, low * (1 + shift), n)
            assert -4 * low * (1 + 1e-2) < bound <= exact + 1e-9
            if abs(shift) > 1e-10:
                np.testing.assert_allclose(bound, exact, rtol=1e-4)


def test_lower_bound_far_out():
    assert uniformity_lower_bound(512, 5000.0, 2) == -20000.0
    assert uniformity_lower_bound(2, 1e-3, 2) >= -4e-3
    # Infinitely many points: the optimum.
    optimum = uniformity_optimum(16, 2.0)
    np.testing.assert_allclose(uniformity_lower_bound(16, 2.0, 10**15), optimum, atol=1e-12)
    assert uniformity_lower_bound(16, 2.0, 100) < uniformity_lower_bound(16, 2.0, 1000) < optimum
    assert uniformity_lower_bound(16, 2.0, 1, include_self=True) == optimum


def simplex(d):
    """d + 1 points in R^d, all pairs at the same distance."""
    centred = np.eye(d + 1) - 1 / (d + 1)
    points = centred @ np.linalg.svd(centred)[2][:d].T
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def adversaries(rng, d):
    random = sphere(rng, 40, d).astype(np.float64)
    angles = 2 * np.pi * np.arange(9) / 9
    polygon = np.zeros((9, d))
    polygon[:, 0], polygon[:, 1] = np.cos(angles), np.sin(angles)
    pole = np.eye(d)[:1]
    yield from (simplex(d), np.concatenate([np.eye(d), -np.eye(d)]), polygon, random)
    yield from (np.concatenate([random, -random]), np.concatenate([pole, -pole]))
    yield np.concatenate([pole, pole, -pole, -pole])


@pytest.mark.parametrize("d", [2, 3, 8, 40])
@pytest.mark.parametrize("t", [0.1, 1.0, 2.0, 10.0, 60.0])
def test_no_point_set_is_below_its_bound(d, t, rng):
    gaps = []
    for points in adversaries(rng, d):
        n = len(points)
        potentials = np.exp(-t * ((points[:, None] - points[None]) ** 2).sum(-1))
        np.fill_diagonal(potentials, 0.0)
        without_self = math.log(potentials.sum() / (n * (n - 1)))
        with_self = math.log((potentials.sum() + n) / (n * n))
        gaps.append(without_self - uniformity_lower_bound(d, t, n))
        assert gaps[-1] > -1e-9 * t
        assert with_self > uniformity_lower_bound(d, t, n, include_self=True) - 1e-12
        np.testing.assert_allclose(uniformity_with_self(without_self, n), with_self, atol=1e-12)
        if with_self + math.log(n) > 1e-6:
            back = uniformity_without_self(with_self, n)
            np.testing.assert_allclose(back, without_self, atol=1e-8)
    assert min(gaps) < 1e-9 * t  # the antipodal pair: some set is at its bound


def test_the_bound_of_the_sphere_is_tight_for_designs():
    # A small t sees low moments only, in which the orthoplex agrees with the sphere: the paper's
    # optimum is not the bound of estimator (9), which the orthoplex undercuts.
    points = np.concatenate([np.eye(4), -np.eye(4)])
    value = float(uniform_loss(points.astype(np.float32), 0.1))
    assert value < uniformity_optimum(4, 0.1) - 0.01
    np.testing.assert_allclose(value, uniformity_lower_bound(4, 0.1, 8), atol=2e-5)


# The two estimators.


def test_estimators_into_each_other(rng):
    x = sphere(rng, 30, 4)
    with_self, without = uniform_loss(x, 2.0, include_self=True), uniform_loss(x, 2.0)
    np.testing.assert_allclose(uniformity_without_self(with_self, 30), without, rtol=1e-5)
    np.testing.assert_allclose(uniformity_with_self(without, 30), with_self, rtol=1e-6)
    values = -np.linspace(0.01, 30.0, 200).reshape(2, 100)
    for n in (2, 3, 1000):
        forth = uniformity_with_self(values, n)
        assert forth.shape == (2, 100) and (forth > -math.log(n)).all()
        # (8) holds the part of (9) beside the point's own, to the 16 digits of that.
        close = np.exp(values) * (n - 1) > 1e-6
        back = uniformity_without_self(forth, n)
        np.testing.assert_allclose(back[close], values[close], atol=1e-8)
    assert uniformity_without_self(0.0, 7) == 0.0
    np.testing.assert_allclose(uniformity_with_self(0.0, 7), 0.0, atol=1e-15)


def test_estimators_at_the_end():
    # All points infinitely far apart, and a rounding error below that.
    assert uniformity_without_self(-math.log(8), 8) == -math.inf
    assert uniformity_without_self(-math.log(8) - 1e-9, 8) == -math.inf
    np.testing.assert_allclose(uniformity_with_self(-math.inf, 8), -math.log(8))
    np.testing.assert_allclose(uniformity_with_self(-1e5, 8), -math.log(8))


def test_estimators_of_jax_arrays():
    values = jnp.array([-1.0, -2.0])
    for function in (uniformity_without_self, uniformity_with_self):
        out = jax.jit(lambda v, function=function: function(v, 50))(values)
        assert isinstance(out, jax.Array) and out.dtype == jnp.float32
        np.testing.assert_allclose(out, function(np.array([-1.0, -2.0]), 50), rtol=1e-5)


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
