"""Theory against exact series, integrals over the sphere, and loops in float64 (the bounds)."""

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
attracting = jax.jit(theory.attracting_bound)
repelling = jax.jit(theory.repelling_bound, static_argnames="classes")


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
        np.testing.assert_allclose(np.linalg.norm(x.astype(np.float64), axis=1), 1, atol=2e-6)
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


def drawn(rng, views=3, classes=3, each=4, d=5):
    """Anchors of seven images, labels, views of all, their labels: classes around centres."""
    labels = rng.permutation(np.repeat(np.arange(classes), each))
    images = rng.normal(size=(classes, d))[labels] + rng.normal(size=(classes * each, d))
    seen = images + 0.3 * rng.normal(size=(views, *images.shape))
    unit = lambda x: np.float32(x / np.linalg.norm(x, axis=-1, keepdims=True))  # noqa: E731
    return unit(images[:7]), rng.permutation(labels)[:7], unit(seen), labels


def on_circle(*degrees):
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)


def cosine(a, b):
    return sum(a * b) / math.sqrt(sum(a * a)) / math.sqrt(sum(b * b))


def repelling_oracle(anchors, labels, views, view_labels, alpha):
    """(10) from its text, anchor by anchor: left, right, bracket and nu."""
    found, classes = [], sorted(set(view_labels.tolist()))
    for anchor, label in zip(anchors.astype(float), labels, strict=True):
        prototypes = [
            np.mean([view[i].astype(float) for view in views for i in members], axis=0)
            for c in classes
            if c != label and len(members := np.flatnonzero(view_labels == c))
        ]
        nu = min(math.sqrt(sum(mean * mean)) for mean in prototypes)
        cosines = np.array([[cosine(anchor, x) for x in view] for view in views.astype(float)])
        logs = np.log(np.exp(alpha * cosines).mean(axis=1))
        bracket = (logs.mean() + math.log(len(classes))) / alpha
        left = max(cosine(anchor, mean) for mean in prototypes)
        found.append((left, bracket / nu, bracket, nu))
    return np.array(found).T


def test_attracting_is_the_formula_and_holds_where_it_is_assumed(rng):
    anchors, views = sphere(rng, 500, 6), sphere(rng, 2000, 6).reshape(4, 500, 6)
    views[:, :50] = views[0, :50]  # an equality for equal views
    left, right, assumed = map(np.asarray, attracting(anchors, views))
    of_mean = -np.array(list(map(cosine, anchors, views.mean(0))))
    of_views = -np.mean([list(map(cosine, anchors, view)) for view in views], axis=0)
    np.testing.assert_allclose((left, right), (of_mean, of_views), 1e-5, 1e-6)
    np.testing.assert_allclose(left[:50], right[:50], atol=1e-6)
    np.testing.assert_array_equal(assumed, right <= 0)
    np.testing.assert_array_equal((left <= right)[50:], assumed[50:])
    assert 100 < assumed.sum() < 400


def test_repelling_is_the_formula(rng):
    for alpha in (0.5, 4.0, 40.0):
        parts = drawn(rng)
        found, expected = repelling(*parts, alpha, 3), repelling_oracle(*parts, alpha)
        np.testing.assert_allclose(np.stack(found), expected, rtol=2e-5, atol=2e-6)
        # The nearest class and nu are those of other classes: they differ between labels.
        assert len(set(np.round(found.nu, 4).tolist())) > 1
    # As alpha grows the bracket goes to the nearest image of each view.
    nearest = np.einsum("nd,vmd->vnm", parts[0], parts[2]).max(axis=2).mean(axis=0)
    np.testing.assert_allclose(repelling(*parts, 1e6, 3).bracket, nearest, atol=1e-5)
    with pytest.raises(ValueError, match="equally many of each class"):
        theory.repelling_bound(*parts[:3], np.repeat([0, 1, 2], [3, 4, 5]), 1.0, 3)


def test_theorem_4_6_fails_for_three_classes_on_the_circle():
    """By hand: nu = 1/2 is that of the class at 120 and 240; the nearest class is at 135."""
    views, classes = on_circle(180, 180, 120, 240, 135, 135)[None], np.array([0, 0, 1, 1, 2, 2])
    bound = repelling(on_circle(0), np.array([0]), views, classes, 4.0, 3)
    bracket = math.log(math.exp(-4) + math.exp(-2) + math.exp(-4 / math.sqrt(2))) / 4
    expected = [[-math.sqrt(0.5)], [bracket / 0.5], [bracket], [0.5]]
    np.testing.assert_allclose(np.stack(bound), expected, atol=2e-6)
    # It fails, -0.707 > -0.774; what the proof does show holds.
    assert bound.right[0] + 0.06 < bound.left[0] < bound.bracket[0]


def test_cancelled_features_have_no_cosine():
    opposite, anchor = np.float32([[1, 0], [-1, 0]]), on_circle(90)
    assert np.isnan(attracting(anchor, opposite[:, None]).left[0])
    views, label = np.concatenate([opposite, anchor, anchor])[None], np.array([0])
    # Of the anchor's own class that is no matter.
    own = repelling(anchor, label, views, np.array([0, 0, 1, 1]), 1.0, 2)
    assert own.left[0] == own.nu[0] == 1
    other = repelling(anchor, label, views, np.array([1, 1, 0, 0]), 1.0, 2)
    assert np.isnan(other.left[0]) and other.nu[0] == 0
