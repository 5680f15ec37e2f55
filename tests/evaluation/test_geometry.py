"""Geometry of features against closed forms, SciPy and NumPy in float64."""

import numpy as np
import pytest
from points import sphere
from scipy import stats

import hypersphere_jax as hj
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


def test_measure_leaves_float64_features_unchanged(rng):
    x = sphere(rng, 50, 6).astype(np.float64)
    x.flags.writeable = False  # as in a mapped file
    found = hj.measure(x)
    np.testing.assert_allclose(found["effective_rank"], geometry.effective_rank(x).effective_rank)


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


@pytest.mark.parametrize("alpha", [0.5, 2.0, 3.0])
def test_class_alignment_is_the_mean_over_pairs_of_one_class(alpha, rng):
    labels = rng.permutation(np.repeat(["a", "b", "c", "d"], [30, 20, 9, 1]))
    x = sphere(rng, 60, 3)
    x[labels == "b"] = x[labels == "b"][0]  # distances of 0
    distances = np.linalg.norm(np.float64(x)[:, None] - x, axis=-1) ** alpha
    same = (labels[:, None] == labels) & ~np.eye(60, dtype=bool)

    def mean(rows):
        block = np.ix_(rows, rows)
        return distances[block][same[block]].mean()

    found = geometry.class_alignment(x, geometry.class_rows(labels, 60), alpha)
    np.testing.assert_allclose(found.value, mean(np.arange(60)), rtol=1e-6)
    left_out = np.array([mean(np.delete(np.arange(60), i)) for i in range(60)])
    jackknife = np.sqrt(59 / 60 * np.sum((left_out - left_out.mean()) ** 2))
    np.testing.assert_allclose(found.standard_error, jackknife, rtol=0.1)
    measured = hj.measure(x, labels=labels, alpha=alpha)
    assert (measured["align"], measured["align_standard_error"]) == found


@pytest.mark.parametrize("ignored", [-1, 9])
def test_ignored_points_are_in_no_pair(ignored, rng):
    x = sphere(rng, 20, 3)
    labels = rng.integers(0, 3, 20)
    more = hj.measure(
        np.concatenate([x, x[:5]]), labels=[*labels, *[ignored] * 5], ignore_label=ignored
    )
    assert more["align"] == pytest.approx(hj.measure(x, labels=labels)["align"], rel=1e-12)


@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [-1] * 4, [0, 0, 1]])
def test_measure_refuses_labels_that_do_not_fit(labels, rng):
    with pytest.raises(hj.UserError, match="labels"):
        hj.measure(sphere(rng, 4, 3), labels=labels)
