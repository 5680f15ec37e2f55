"""Optima and bounds of uniformity: exact series, integrals over the sphere, real point sets."""

import decimal
import functools
import math
from decimal import Decimal

import numpy as np
from oracles import uniform_oracle
from points import sphere

from hypersphere_jax.theory import (
    uniformity_lower_bound,
    uniformity_optimum,
    uniformity_with_self,
    uniformity_without_self,
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


def test_optimum_against_the_exact_series():
    for d in (1, 2, 3, 7, 64, 511, 2048, 8192, 100_000):
        for t in (1e-4, 0.01, 0.1, 0.5, 2.0, 7.7, 20.0, 100.0):
            exact = float(exact_mean_potential(d, t).ln())
            np.testing.assert_allclose(uniformity_optimum(d, t), exact, rtol=1e-12, atol=1e-14)


def test_lower_bound_against_the_exact_one():
    for d in (1, 2, 3, 16, 128, 8192):
        for t in (0.1, 0.7, 2.0, 5.0, 20.0):
            for n in (2, 3, 4, 10, 256, 10**6, 10**12):
                bound, exact = uniformity_lower_bound(d, t, n), exact_lower_bound(d, t, n)
                # Near the border the bound is rounded downwards, and only there: see below.
                excess = n * float(exact_mean_potential(d, t)) - 1
                if excess <= 0 or excess > 1e-4:
                    np.testing.assert_allclose(bound, exact, rtol=1e-8)
    # Far out, of infinitely many points, and with estimator (8).
    assert uniformity_lower_bound(512, 5000.0, 2) == -20000.0
    assert uniformity_lower_bound(2, 1e-3, 2) >= -4e-3
    optimum = uniformity_optimum(16, 2.0)
    np.testing.assert_allclose(uniformity_lower_bound(16, 2.0, 10**15), optimum, atol=1e-12)
    assert uniformity_lower_bound(16, 2.0, 1, include_self=True) == optimum


def test_lower_bound_at_the_border():
    # Two antipodal points of the line reach -4t, which the fraction equals: 2 e^optimum - 1 is
    # exp(-4t), lost in rounding beyond t = 9, where a careless logarithm gives -32 or so.
    for t in np.linspace(0.05, 50.0, 1000):
        bound = uniformity_lower_bound(1, float(t), 2)
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
    yield from (simplex(d), np.concatenate([np.eye(d), -np.eye(d)]), polygon, random)
    yield from (np.concatenate([random, -random]), np.concatenate([pole, -pole]))
    yield np.concatenate([pole, pole, -pole, -pole])


def test_no_point_set_is_below_its_bound(rng):
    for d in (2, 3, 8, 40):
        for t in (0.1, 1.0, 2.0, 10.0, 60.0):
            gaps = []
            for points in adversaries(rng, d):
                n = len(points)
                potentials = np.exp(-t * ((points[:, None] - points[None]) ** 2).sum(-1))
                with_self = math.log(potentials.mean())
                np.fill_diagonal(potentials, 0.0)
                without_self = math.log(potentials.sum() / (n * (n - 1)))
                gaps.append(without_self - uniformity_lower_bound(d, t, n))
                assert gaps[-1] > -1e-9 * t
                assert with_self > uniformity_lower_bound(d, t, n, include_self=True) - 1e-12
            assert min(gaps) < 1e-9 * t  # the antipodal pair: some set is at its bound


def test_the_bound_of_the_sphere_is_tight_for_designs():
    # A small t sees low moments only, in which the orthoplex agrees with the sphere: the paper's
    # optimum is not the bound of estimator (9), which the orthoplex undercuts.
    value = uniform_oracle(np.concatenate([np.eye(4), -np.eye(4)]), 0.1)
    assert value < uniformity_optimum(4, 0.1) - 0.01
    np.testing.assert_allclose(value, uniformity_lower_bound(4, 0.1, 8), atol=2e-5)


def test_estimators_into_each_other(rng):
    x = sphere(rng, 30, 4)
    with_self, without = uniform_oracle(x, 2.0, include_self=True), uniform_oracle(x, 2.0)
    np.testing.assert_allclose(uniformity_without_self(with_self, 30), without, rtol=1e-12)
    np.testing.assert_allclose(uniformity_with_self(without, 30), with_self, rtol=1e-12)
    values = -np.linspace(0.01, 10.0, 200).reshape(2, 100)
    for n in (2, 3, 1000):
        forth = uniformity_with_self(values, n)
        assert forth.shape == (2, 100) and (forth > -math.log(n)).all()
        np.testing.assert_allclose(uniformity_without_self(forth, n), values, atol=1e-7)
    for value in (-math.log(8), -math.log(8) - 1e-9):  # of points infinitely far apart
        assert uniformity_without_self(value, 8) == -math.inf
    np.testing.assert_allclose(uniformity_with_self(-math.inf, 8), -math.log(8))
