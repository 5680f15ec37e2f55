"""LeJEPA and VISReg against float64 oracles, with the closed form of the Epps-Pulley statistic."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import scipy.stats

import hypersphere_jax as hj

KEY = jax.random.key(0)


def epps_pulley(s):
    """n times the integral of |mean of exp(i t s) - exp(-t^2/2)|^2 exp(-t^2/2), without limits."""
    n = len(s)
    pairs = np.exp(-((s[:, None] - s[None]) ** 2) / 2).sum() / n
    cross = math.sqrt(2) * np.exp(-(s**2) / 4).sum()
    return math.sqrt(2 * math.pi) * (pairs - cross + n / math.sqrt(3))


def shape_distance(s):
    """Squared distance of sorted numbers to the quantiles i / (n + 1) of N(0, 1)."""
    quantiles = scipy.stats.norm.ppf(np.arange(1, len(s) + 1) / (len(s) + 1))
    return np.mean((np.sort(s) - quantiles) ** 2)


def sigreg(z, directions):
    return np.mean([epps_pulley(z @ w) for w in directions])


def visreg(z, directions):
    mean = z.mean(0)
    deviation = z.std(0)
    standardized = (z - mean) / deviation
    shape = np.mean([shape_distance(standardized @ w) for w in directions])
    return np.mean(mean**2) + np.mean((deviation - 1) ** 2) + shape


CASES = {"lejepa": (hj.lejepa_loss, sigreg), "visreg": (hj.visreg_loss, visreg)}
each_loss = pytest.mark.parametrize("name", CASES)


def views(rng, n=40, d=1):
    z1 = rng.standard_normal((n, d)) + 0.3
    return [z1, z1 + 0.5 * rng.standard_normal((n, d))]


def draw_directions(rng, count, d):
    w = rng.standard_normal((count, d))
    return w / np.linalg.norm(w, axis=1, keepdims=True)


def oracle_of(name, directions, lam):
    def oracle(z1, z2):
        center = (z1 + z2) / 2
        alignment = np.mean([(z - center) ** 2 for z in (z1, z2)])
        test = CASES[name][1]
        return (1 - lam) * alignment + lam * (test(z1, directions) + test(z2, directions)) / 2

    return oracle


@each_loss
def test_value_along_one_dimension(name, rng):
    """Both signs of the only direction have the same value."""
    z = views(rng)
    with jax.enable_x64(True):
        found = CASES[name][0](KEY, *z, 0.3, num_slices=3)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, oracle_of(name, np.ones((1, 1)), 0.3)(*z), rtol=1e-5)
    narrow = [np.float32(view) for view in z]
    np.testing.assert_allclose(CASES[name][0](KEY, *narrow, 0.3), found, rtol=1e-4)


def test_gradient_of_lejepa(rng):
    z = views(rng)
    oracle = oracle_of("lejepa", np.ones((1, 1)), 0.3)
    slopes = jax.grad(hj.lejepa_loss, (1, 2))(KEY, *map(np.float32, z), 0.3)
    towards = [rng.standard_normal(view.shape) for view in z]
    expected = oracles.numeric_slopes(oracle, z, towards)
    found = [np.vdot(*pair) for pair in zip(slopes, towards, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


@each_loss
def test_value_of_many_directions(name, rng):
    """Other directions than the oracle's, and any rotation of the features."""
    z = [np.float32(view @ np.diag([0.5, 1.0, 1.5, 2.0])) for view in views(rng, 100, 4)]
    loss = jax.jit(lambda z1, z2: CASES[name][0](KEY, z1, z2, 0.5, num_slices=4096))
    found = loss(*z)
    expected = oracle_of(name, draw_directions(rng, 1000, 4), 0.5)(*z)
    np.testing.assert_allclose(found, expected, rtol=0.05)
    if name == "lejepa":  # the scale of VISReg is of single dimensions
        turn = np.float32(np.linalg.qr(rng.standard_normal((4, 4)))[0])
        np.testing.assert_allclose(loss(*(view @ turn for view in z)), found, rtol=0.05)


@each_loss
def test_normal_features_have_the_smallest_distribution_term(name, rng):
    def term(z):
        terms = CASES[name][0](KEY, z, z, with_terms=True)
        assert terms.alignment == 0
        return terms.distribution

    normal = np.float32(rng.standard_normal((512, 2)))
    ours = term(normal)
    others = (normal + 0.3, 1.5 * normal, np.sign(normal), 0 * normal)
    assert all(term(z) > 1.5 * ours for z in others)


def test_closed_forms_of_the_statistic(rng):
    """The mean of many normal samples, and equal features."""
    z = jnp.asarray(rng.standard_normal((16, 2048)), jnp.float32)
    mean = hj.lejepa_loss(KEY, z, z, 1.0, num_slices=2048)
    np.testing.assert_allclose(mean, math.sqrt(2 * math.pi) * (1 - 3**-0.5), rtol=0.05)
    zeros = hj.lejepa_loss(KEY, 0 * z, 0 * z, 1.0)
    np.testing.assert_allclose(zeros, epps_pulley(np.zeros(16)), rtol=1e-4)


@each_loss
def test_equal_features_have_finite_gradients(name):
    same = np.ones((8, 3), np.float32)
    assert np.isfinite(jax.grad(CASES[name][0], 1)(KEY, same, same)).all()


@each_loss
def test_wrong_arguments_are_refused(name):
    z = np.ones((8, 3), np.float32)
    for match, options in (("lam", {"lam": -1.0}), ("num_slices", {"num_slices": 0})):
        with pytest.raises(ValueError, match=match):
            CASES[name][0](KEY, z, z, **options)
    with pytest.raises(ValueError, match="z1"):
        CASES[name][0](KEY, z, z[:7])
