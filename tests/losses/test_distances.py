"""Squared distances where inner products would cancel: far, close and very long points."""

import functools

import numpy as np
import oracles
import pytest
from loss_cases import CASES, M, N, assert_slopes, gradients, inputs, value

DISTANCES = {
    "uniform": "t",
    "uniform with self": "t",
    "queue and batch": "t",
    "nt_xent distance": "tau",
}


def distant_clusters(rng, shapes):
    """Three clusters of close points 566 from the origin, and one point further away."""
    centers = 566 * inputs(rng, "n")[0][:3]
    arrays = [centers[np.arange(len(a)) % 3] + a for a in inputs(rng, shapes)]
    arrays[0][5] *= 20
    return [np.float32(array) for array in arrays]


def outlier(rng, shapes):
    arrays = inputs(rng, shapes)
    arrays[0][3] *= 1e5
    return arrays


@pytest.mark.parametrize("points", [distant_clusters, outlier])
@pytest.mark.parametrize("name", DISTANCES)
def test_far_points(name, points, rng):
    number = {DISTANCES[name]: 0.3}
    arrays = points(rng, CASES[name].shapes)
    oracle = functools.partial(CASES[name].oracle, **number)
    found, (slopes, number_slopes) = gradients(name, arrays, **number)
    np.testing.assert_allclose(found, oracle(*arrays), rtol=1e-5)
    assert_slopes(slopes, oracle, arrays, rng, rtol=1e-3, atol=1e-5)
    up = CASES[name].oracle(*arrays, **{DISTANCES[name]: 0.3 + 1e-6})
    down = CASES[name].oracle(*arrays, **{DISTANCES[name]: 0.3 - 1e-6})
    np.testing.assert_allclose(number_slopes[DISTANCES[name]], (up - down) / 2e-6, rtol=1e-3)


@pytest.mark.parametrize("norm", [1e19, 1e38])
def test_uniformity_with_an_outlier_whose_square_overflows(norm, rng):
    (x,) = inputs(rng, "n")
    x[3] *= norm
    found, (slopes, _) = gradients("uniform", [x], t=0.3)
    np.testing.assert_allclose(found, oracles.uniform_oracle(x, t=0.3), rtol=1e-5)
    assert np.isfinite(slopes[0]).all()


@pytest.mark.parametrize("name", ["uniform", "queue and batch"])
def test_uniformity_of_close_points(name, rng):
    """Distances of 1e-4 around a point far from the origin."""
    points = np.eye(5)[0] + 1e-4 * rng.standard_normal((N + M, 5))
    arrays = [np.float32(points[:N]), np.float32(points[N:])][: len(CASES[name].shapes)]
    expected = CASES[name].oracle(*arrays, t=1e7)
    np.testing.assert_allclose(value(name, *arrays, t=1e7), expected, rtol=1e-3)
