"""Theory of uniformity and of features: exact series, integrals over the sphere, real points."""

import decimal
import functools
import itertools
import math
from decimal import Decimal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import numeric_slopes, uniform_oracle
from points import sphere
from scipy import stats

from hypersphere_jax import theory

N, D = 20, 3
limit = jax.jit(jax.value_and_grad(theory.contrastive_limit, argnums=(0, 1)))
entropy = jax.jit(theory.vmf_kde_entropy, static_argnames="kappa")


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


def test_optimum_against_the_exact_series():
    for d in (1, 2, 3, 7, 64, 511, 2048, 8192, 100_000):
        for t in (1e-4, 0.01, 0.1, 0.5, 2.0, 7.7, 20.0, 100.0):
            exact = float(exact_mean_potential(d, t).ln())
            np.testing.assert_allclose(
                theory.uniformity_optimum(d, t), exact, rtol=1e-12, atol=1e-14
            )


def test_lower_bound_against_the_exact_one():
    sizes = (2, 3, 4, 10, 256, 10**6, 10**12)
    for d, t, n in itertools.product((1, 2, 3, 16, 128, 8192), (0.1, 0.7, 2.0, 5.0, 20.0), sizes):
        # Near the border the bound is rounded downwards, and only there: see below.
        if not 0 < n * float(exact_mean_potential(d, t)) - 1 <= 1e-4:
            bound, exact = theory.uniformity_lower_bound(d, t, n), exact_lower_bound(d, t, n)
            np.testing.assert_allclose(bound, exact, rtol=1e-8)
    # Far out, of infinitely many points, and with estimator (8).
    assert theory.uniformity_lower_bound(512, 5000.0, 2) == -20000.0
    assert theory.uniformity_lower_bound(2, 1e-3, 2) >= -4e-3
    optimum = theory.uniformity_optimum(16, 2.0)
    np.testing.assert_allclose(theory.uniformity_lower_bound(16, 2.0, 10**15), optimum, atol=1e-12)
    assert theory.uniformity_lower_bound(16, 2.0, 1, include_self=True) == optimum
    with pytest.raises(ValueError, match="n=1"):
        theory.uniformity_lower_bound(3, 2.0, 1)


def test_lower_bound_at_the_border():
    # Two antipodal points of the line reach -4t, which the fraction equals: 2 e^optimum - 1 is
    # exp(-4t), lost in rounding beyond t = 9, where a careless logarithm gives -32 or so.
    for t in np.linspace(0.05, 50.0, 1000):
        bound = theory.uniformity_lower_bound(1, float(t), 2)
        np.testing.assert_allclose(bound, -4 * t, atol=1e-12 * math.exp(min(4 * t, 20)))
        assert bound <= -4 * t * (1 - 1e-12)


def simplex(d):
    """d + 1 points in R^d, all pairs at the same distance."""
    centred = np.eye(d + 1) - 1 / (d + 1)
    points = centred @ np.linalg.svd(centred)[2][:d].T
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def adversaries(rng, d):
    random, pole = np.float64(sphere(rng, 40, d)), np.eye(d)[:1]
    angles = 2 * np.pi * np.arange(9) / 9
    polygon = np.stack([np.cos(angles), np.sin(angles), *np.zeros((d - 2, 9))], axis=1)
    yield from (simplex(d), polygon, random)
    for half in (np.eye(d), random, pole, np.concatenate([pole, pole])):
        yield np.concatenate([half, -half])


def test_no_point_set_is_below_its_bound(rng):
    for d, t in itertools.product((2, 3, 8, 40), (0.1, 1.0, 2.0, 10.0, 60.0)):
        gaps = []
        for points in adversaries(rng, d):
            n = len(points)
            potentials = np.exp(-t * ((points[:, None] - points[None]) ** 2).sum(-1))
            with_self = math.log(potentials.mean())
            np.fill_diagonal(potentials, 0.0)
            without_self = math.log(potentials.sum() / (n * (n - 1)))
            gaps.append(without_self - theory.uniformity_lower_bound(d, t, n))
            assert gaps[-1] > -1e-9 * t
            assert with_self > theory.uniformity_lower_bound(d, t, n, include_self=True) - 1e-12
        assert min(gaps) < 1e-9 * t  # the antipodal pair: some set is at its bound


def test_the_bound_of_the_sphere_is_tight_for_designs():
    # A small t sees low moments only, in which the orthoplex agrees with the sphere: the paper's
    # optimum is not the bound of estimator (9), which the orthoplex undercuts.
    value = uniform_oracle(np.concatenate([np.eye(4), -np.eye(4)]), 0.1)
    assert value < theory.uniformity_optimum(4, 0.1) - 0.01
    np.testing.assert_allclose(value, theory.uniformity_lower_bound(4, 0.1, 8), atol=2e-5)


def test_estimators_into_each_other(rng):
    x = sphere(rng, 30, 4)
    with_self, without = uniform_oracle(x, 2.0, include_self=True), uniform_oracle(x, 2.0)
    np.testing.assert_allclose(theory.uniformity_without_self(with_self, 30), without, rtol=1e-12)
    np.testing.assert_allclose(theory.uniformity_with_self(without, 30), with_self, rtol=1e-12)
    values = -np.linspace(0.01, 10.0, 200).reshape(2, 100)
    for n in (2, 3, 1000):
        forth = theory.uniformity_with_self(values, n)
        assert forth.shape == (2, 100) and (forth > -math.log(n)).all()
        np.testing.assert_allclose(theory.uniformity_without_self(forth, n), values, atol=1e-7)
    for value in (-math.log(8), -math.log(8) - 1e-9):  # of points infinitely far apart
        assert theory.uniformity_without_self(value, 8) == -math.inf
    np.testing.assert_allclose(theory.uniformity_with_self(-math.inf, 8), -math.log(8))


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
        towards = rng.standard_normal((2, N, D))
        expected = numeric_slopes(lambda *a, t=tau: limit_oracle(*a, t), (x, y), towards)
        along = [np.vdot(*pair) for pair in zip(slopes, towards, strict=True)]
        np.testing.assert_allclose(along, expected, rtol=1e-3)
    np.testing.assert_allclose(limit(x, x, 1e-3)[0], -math.log(N), atol=1e-3)


def test_limit_is_one(rng):
    # Theorem 1, with negatives drawn from the rows: the deviation shrinks like M^-1/2.
    x, y, tau, deviations = sphere(rng, N, D), sphere(rng, N, D), 0.5, []
    positives = np.exp(np.sum(x * y, axis=1) / tau)
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
        uniformity = uniform_oracle(points, 2.0, include_self=True)
        gap = uniformity - limit(points, points, 0.25)[0]
        assert abs(gap) < 3e-6 if equal else gap > 1e-3


@pytest.mark.parametrize("kappa", [0.01, 1.0, 14.0, 100.0])
def test_normalizer(kappa):
    np.testing.assert_allclose(
        theory.vmf_log_normalizer(1, kappa), math.log(2 * math.cosh(kappa)), 1e-12
    )
    angles = (np.arange(200_000) + 0.5) * np.pi / 200_000
    for d in (2, 3, 4, 7, 50):  # the integral over the sphere, by the midpoint rule in the angle
        band = 2 * np.pi ** ((d + 1) / 2) / math.gamma((d - 1) / 2)
        value = band * (np.exp(kappa * np.cos(angles)) * np.sin(angles) ** (d - 2)).mean()
        np.testing.assert_allclose(theory.vmf_log_normalizer(d, kappa), math.log(value), rtol=1e-8)
    for d in (512, 8192):  # the mean of exp(kappa u), u of mean 0 and variance 1/d
        excess = theory.vmf_log_normalizer(d, kappa) - theory.sphere_log_area(d)
        assert 0 < excess < kappa**2 / (2 * d) * (1 + 1e-6)
        exact = float(exact_mean_potential(d, kappa / 2).ln()) + kappa
        np.testing.assert_allclose(excess, exact, atol=1e-10)


def test_entropy_of_uniform_points_is_the_log_area():
    for d, kappa in ((2, 20.0), (3, 10.0), (8, 3.0)):
        x = theory.uniform_sphere(jax.random.key(1), 4000, d)
        np.testing.assert_allclose(entropy(x, kappa=kappa), theory.sphere_log_area(d), atol=0.01)


def test_entropy_is_that_of_the_limit(rng):
    x, tau = sphere(rng, N, D), 0.2
    second_term = float(limit(x, x, tau)[0]) + 1 / tau
    expected = theory.vmf_log_normalizer(D, 1 / tau) - second_term
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
        x = np.asarray(theory.uniform_sphere(jax.random.key(7), n, d))
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
    one, again, other = (theory.uniform_sphere(jax.random.key(seed), 5, 3) for seed in (0, 0, 1))
    assert (one == again).all() and not (one == other).any()
