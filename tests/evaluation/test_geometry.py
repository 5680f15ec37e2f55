"""Geometry of features against closed forms, SciPy and NumPy in float64."""

import numpy as np
import pytest
from points import sphere
from scipy import stats

from hypersphere_jax.evaluation import geometry


@pytest.mark.parametrize("shape", [(50, 6), (6, 50), (8, 8)])
def test_effective_rank_matches_singular_values(shape, rng):
    x = sphere(rng, *shape) + 0.2
    found = geometry.effective_rank(x)
    x = x.astype(np.float64)
    values = np.linalg.svd(x, compute_uv=False)
    np.testing.assert_allclose(found.singular_values, values / shape[0] ** 0.5, rtol=1e-9)
    np.testing.assert_allclose(found.effective_rank, np.exp(stats.entropy(values)), rtol=1e-9)
    eigenvalues = np.linalg.eigvalsh(np.cov(x.T))
    expected = eigenvalues.sum() ** 2 / (eigenvalues**2).sum()
    np.testing.assert_allclose(found.participation_ratio, expected, rtol=1e-9)


def test_projection_distances_match_scipy(rng):
    n, d, seed = 300, 6, 3
    x = sphere(rng, n, d) + 0.3
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    found = geometry.projections(x, count=4, seed=seed)
    directions = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, 4)))[0]
    projected = d**0.5 * x.astype(np.float64) @ directions
    np.testing.assert_allclose(found.mean, projected.mean(0), rtol=1e-6)
    marginal = stats.beta((d - 1) / 2, (d - 1) / 2, loc=-(d**0.5), scale=2 * d**0.5)
    quantiles = marginal.ppf((np.arange(n) + 0.5) / n)
    for k in range(4):
        for ks, law in ((found.ks_sphere, marginal), (found.ks_normal, stats.norm)):
            exact = stats.ks_1samp(projected[:, k], law.cdf).statistic
            np.testing.assert_allclose(ks[k], exact, atol=1.5 / n)
        # Algorithm 1 of Chen et al. along one direction, with the sphere's quantiles as samples.
        expected = np.mean((np.sort(projected[:, k]) - quantiles) ** 2)
        np.testing.assert_allclose(found.sliced_wasserstein[k], expected, rtol=2e-2)
