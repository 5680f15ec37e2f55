"""Theory against exact series, integrals over the sphere, and loops in float64."""

import decimal
import functools
import itertools
import math
from decimal import Decimal

import jax
import numpy as np
import pytest
from oracles import numeric_slopes, uniform_oracle
from points import sphere
from scipy import stats

from hypersphere_jax import theory

N = 20
D = 3
limit = jax.jit(jax.value_and_grad(theory.contrastive_limit, argnums=(0, 1)))
repelling = jax.jit(theory.repelling_bound, static_argnames="classes")


@functools.cache
def exact_mean_potential(d, t):
    """`exp(-2t) 0F1(; d/2; t^2)`, the series term by term in 60 digits."""
    with decimal.localcontext(prec=60):
        z = Decimal(t) ** 2
        b = Decimal(d) / 2
        term = total = Decimal(1)
        k = 0
        while k < t or term > total * Decimal("1e-55"):
            term *= z / ((b + k) * (k + 1))
            total += term
            k += 1
        return (-2 * Decimal(t)).exp() * total


def exact_lower_bound(d, t, n):
    with decimal.localcontext(prec=60):
        fraction = (n * exact_mean_potential(d, t) - 1) / (n - 1)
        return max(-4 * t, float(fraction.ln())) if fraction > 0 else -4 * t


@pytest.mark.parametrize("d", [1, 2, 3, 7, 64, 511, 8192, 100_000])
def test_optimum_is_the_exact_series(d):
    for t in (1e-4, 0.01, 0.5, 2.0, 7.7, 20.0, 100.0):
        exact = float(exact_mean_potential(d, t).ln())
        np.testing.assert_allclose(theory.uniformity_optimum(d, t), exact, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("d", [1, 2, 3, 16, 128, 8192])
def test_lower_bound_is_the_exact_one(d):
    for t, n in itertools.product((0.1, 0.7, 2.0, 5.0, 20.0), (2, 3, 4, 10, 256, 10**6, 10**12)):
        # Near the border the bound is rounded downwards: see the next test.
        if not 0 < n * float(exact_mean_potential(d, t)) - 1 <= 1e-4:
            bound = theory.uniformity_lower_bound(d, t, n)
            np.testing.assert_allclose(bound, exact_lower_bound(d, t, n), rtol=1e-8)


def test_lower_bound_of_one_point():
    """Estimator (8) has no pairs to leave out: its bound is the optimum."""
    bound = theory.uniformity_lower_bound(16, 2.0, 1, include_self=True)
    assert bound == theory.uniformity_optimum(16, 2.0)
    with pytest.raises(ValueError, match="n=1"):
        theory.uniformity_lower_bound(3, 2.0, 1)


def antipodal_sets(rng, d):
    """Point sets of low potential; the first attains its bound."""
    for half in (np.eye(d)[:1], np.eye(d), np.float64(sphere(rng, 40, d))):
        yield np.concatenate([half, -half])


@pytest.mark.parametrize("d", [2, 3, 8, 40])
@pytest.mark.parametrize("t", [0.1, 2.0, 60.0])
def test_no_point_set_is_below_its_bound(d, t, rng):
    gaps = []
    for points in antipodal_sets(rng, d):
        n = len(points)
        potentials = np.exp(-t * ((points[:, None] - points[None]) ** 2).sum(-1))
        with_self = math.log(potentials.mean())
        assert with_self > theory.uniformity_lower_bound(d, t, n, include_self=True) - 1e-12
        np.fill_diagonal(potentials, 0.0)
        without_self = math.log(potentials.sum() / (n * (n - 1)))
        gaps.append(without_self - theory.uniformity_lower_bound(d, t, n))
    assert abs(gaps[0]) < 1e-9 * t
    assert min(gaps) > -1e-9 * t


def test_estimators_convert_into_each_other(rng):
    x = sphere(rng, 30, 4)
    with_self = uniform_oracle(x, 2.0, include_self=True)
    without_self = uniform_oracle(x, 2.0)
    np.testing.assert_allclose(theory.uniformity_without_self(with_self, 30), without_self, 1e-12)
    np.testing.assert_allclose(theory.uniformity_with_self(without_self, 30), with_self, 1e-12)
    # The distances between points are infinite.
    assert theory.uniformity_without_self(-math.log(8), 8) == -math.inf
    np.testing.assert_allclose(theory.uniformity_with_self(-math.inf, 8), -math.log(8))


def limit_oracle(x, y, tau):
    x = np.float64(x)
    repulsion = np.log(np.exp((x @ x.T - 1) / tau).mean(axis=1)).mean()
    return repulsion + (1 - np.mean(np.sum(x * np.float64(y), axis=1))) / tau


@pytest.mark.parametrize("tau", [0.07, 0.5, 2.0])
def test_contrastive_limit_and_its_gradient(tau, rng):
    x = sphere(rng, N, D)
    y = sphere(rng, N, D)
    value, slopes = limit(x, y, tau)
    np.testing.assert_allclose(value, limit_oracle(x, y, tau), rtol=1e-5, atol=2e-6)
    directions = rng.standard_normal((2, N, D))
    expected = numeric_slopes(functools.partial(limit_oracle, tau=tau), (x, y), directions)
    found = [np.vdot(*pair) for pair in zip(slopes, directions, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-3)


@pytest.mark.parametrize("kappa", [0.01, 1.0, 14.0, 100.0])
def test_von_mises_fisher_normalizer(kappa):
    """The integral over the sphere by the midpoint rule; the exact series in high dimensions."""
    expected = math.log(2 * math.cosh(kappa))
    np.testing.assert_allclose(theory.vmf_log_normalizer(1, kappa), expected, rtol=1e-12)
    angles = (np.arange(200_000) + 0.5) * np.pi / 200_000
    for d in (2, 3, 4, 7, 50):
        band = 2 * np.pi ** ((d + 1) / 2) / math.gamma((d - 1) / 2)
        integral = band * (np.exp(kappa * np.cos(angles)) * np.sin(angles) ** (d - 2)).mean()
        found = theory.vmf_log_normalizer(d, kappa)
        np.testing.assert_allclose(found, math.log(integral), rtol=1e-8)
    for d in (512, 8192):
        excess = theory.vmf_log_normalizer(d, kappa) - theory.sphere_log_area(d)
        exact = float(exact_mean_potential(d, kappa / 2).ln()) + kappa
        np.testing.assert_allclose(excess, exact, atol=1e-10)


def test_entropy_of_uniform_points_is_the_log_area():
    x = theory.uniform_sphere(jax.random.key(1), 4000, 8)
    found = theory.vmf_kde_entropy(x, kappa=3.0)
    np.testing.assert_allclose(found, theory.sphere_log_area(8), atol=0.01)


def test_prototype_bias_is_the_mean_distance(rng):
    x, prototypes = rng.standard_normal((2, 4, 3)).astype(np.float32)
    prototypes[1] = x[1]
    value, slope = jax.value_and_grad(theory.prototype_bias)(x, prototypes)
    lengths = np.linalg.norm(x - prototypes, axis=1)
    np.testing.assert_allclose(value, lengths.mean(), rtol=1e-6)
    expected = (x - prototypes) / np.maximum(lengths, 1e-9)[:, None] / 4  # zero where equal
    np.testing.assert_allclose(slope, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("d", [1, 2, 3, 16])
def test_uniform_points(d):
    """Moments up to the fourth, which tell the sphere from cubes, and two distributions."""
    n = 20_000
    x = np.asarray(theory.uniform_sphere(jax.random.key(7), n, d))
    assert x.shape == (n, d) and x.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(x.astype(np.float64), axis=1), 1, atol=2e-6)
    assert np.abs(x.mean(axis=0)).max() < 4.5 / math.sqrt(n * d)
    deviation = 4.5 * math.sqrt(2) / (d * math.sqrt(n))
    assert np.abs(x.T @ x / n - np.eye(d) / d).max() < deviation + 1e-5
    np.testing.assert_allclose((x**4).mean(), 3 / (d * (d + 2)), rtol=0.02)
    if d == 2:
        angles = np.arctan2(x[:, 1], x[:, 0]) / (2 * np.pi) + 0.5
        assert stats.kstest(angles, "uniform").pvalue > 1e-3
    if d == 3:  # Archimedes' theorem
        assert stats.kstest((x[:, 2] + 1) / 2, "uniform").pvalue > 1e-3


def cosine(a, b):
    return a @ b / np.sqrt((a @ a) * (b @ b))


def test_attracting_bound_is_true_where_it_is_assumed(rng):
    anchors = sphere(rng, 200, 6)
    views = sphere(rng, 800, 6).reshape(4, 200, 6)
    views[:, :50] = views[0, :50]  # equal views attain the bound
    left, right, assumed = theory.attracting_bound(anchors, views)
    of_mean = [-cosine(*pair) for pair in zip(anchors, views.mean(0), strict=True)]
    np.testing.assert_allclose(left, of_mean, 1e-5, 1e-6)
    np.testing.assert_allclose(right, -(anchors * views).sum(-1).mean(0), 1e-5, 1e-6)
    np.testing.assert_allclose(left[:50], right[:50], atol=1e-6)
    np.testing.assert_array_equal(assumed, right <= 0)
    np.testing.assert_array_equal((left <= right)[50:], assumed[50:])
    assert 40 < assumed.sum() < 160


def repelling_oracle(anchors, labels, views, view_labels, alpha):
    """(10) from its text, anchor by anchor: left, right, bracket and nu."""
    rows = []
    for anchor, label in zip(np.float64(anchors), labels, strict=True):
        others = set(view_labels.tolist()) - {label}
        prototypes = [views[:, view_labels == c].mean((0, 1), np.float64) for c in others]
        nu = min(np.linalg.norm(prototype) for prototype in prototypes)
        logs = np.log(np.exp(alpha * (views @ anchor)).mean(axis=1))
        bracket = (logs.mean() + math.log(len(others) + 1)) / alpha
        left = max(cosine(anchor, prototype) for prototype in prototypes)
        rows.append((left, bracket / nu, bracket, nu))
    return np.array(rows).T


@pytest.fixture
def classes_of_views(rng):
    """Seven anchors with labels; three views of four images of each of three classes."""
    labels = rng.permutation(np.repeat(np.arange(3), 4))
    images = rng.normal(size=(3, 5))[labels] + rng.normal(size=(12, 5))
    views = images + 0.3 * rng.normal(size=(3, 12, 5))
    views = np.float32(views / np.linalg.norm(views, axis=-1, keepdims=True))
    return sphere(rng, 7, 5), labels[:7], views, labels


def test_repelling_bound_is_its_formula(classes_of_views):
    for alpha in (0.5, 40.0):
        found = repelling(*classes_of_views, alpha, 3)
        expected = repelling_oracle(*classes_of_views, alpha)
        np.testing.assert_allclose(np.stack(found), expected, rtol=2e-5, atol=2e-6)
