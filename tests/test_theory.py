"""The optimum of uniformity against integrals over the sphere."""

import math

import numpy as np
import pytest

from hypersphere_jax.theory import uniformity_optimum


@pytest.mark.parametrize("t", [0.1, 2.0, 20.0])
def test_on_the_circle(t):
    angles = np.linspace(0, 2 * np.pi, 4096, endpoint=False)
    mean = np.exp(-t * (2 - 2 * np.cos(angles))).mean()
    np.testing.assert_allclose(uniformity_optimum(2, t), math.log(mean), rtol=1e-10)


@pytest.mark.parametrize("d", [3, 5, 64])
@pytest.mark.parametrize("t", [0.5, 2.0, 8.0])
def test_on_higher_spheres(d, t):
    # The inner product of two uniform points has density (1 - u^2)^((d - 3) / 2).
    u = (np.arange(200_000) + 0.5) / 100_000 - 1
    weights = (1 - u**2) ** ((d - 3) / 2)
    mean = (np.exp(-2 * t * (1 - u)) * weights).sum() / weights.sum()
    np.testing.assert_allclose(uniformity_optimum(d, t), math.log(mean), rtol=1e-6)


def test_range():
    # In high dimensions all pairs are orthogonal: -2t from above.
    for d in (512, 8192):
        for t in (0.1, 2.0, 20.0):
            assert -2 * t < uniformity_optimum(d, t) < -2 * t + 2 * t * t / d
    for bad in ((0, 2.0), (3, 0.0), (3, -1.0)):
        with pytest.raises(ValueError):
            uniformity_optimum(*bad)
