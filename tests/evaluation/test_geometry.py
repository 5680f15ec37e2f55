"""Geometry of features, compared with closed forms, SciPy and NumPy in float64."""

import math

import jax
import numpy as np
import pytest
from oracles import uniformity
from points import sphere
from scipy import stats

import hypersphere_jax as hj
from hypersphere_jax.evaluation import geometry, metrics


@pytest.fixture(params=[2**23, 60], ids=["one block", "many blocks"])
def blocks(request, monkeypatch):
    monkeypatch.setattr(geometry, "FLOAT64_ENTRIES", request.param)


@pytest.mark.parametrize("shape", [(50, 6), (6, 50), (8, 8)])
def test_effective_rank_matches_singular_values(shape, blocks, rng):
    x = sphere(rng, *shape) + 0.2
    found = geometry.effective_rank(x)
    x = x.astype(np.float64)
    values = np.linalg.svd(x, compute_uv=False)
    np.testing.assert_allclose(found.singular_values, values / shape[0] ** 0.5, rtol=1e-9)
    np.testing.assert_allclose(found.effective_rank, np.exp(stats.entropy(values)), rtol=1e-9)
    eigenvalues = np.linalg.eigvalsh(np.cov(x.T))
    expected = eigenvalues.sum() ** 2 / (eigenvalues**2).sum()
    np.testing.assert_allclose(found.participation_ratio, expected, rtol=1e-9)


@pytest.mark.parametrize("d", [2, 5, 64])
def test_projections_of_the_uniform_sphere(d, rng):
    n = 20_000
    found = geometry.projections(sphere(rng, n, d))
    np.testing.assert_allclose(found.variance, 1, atol=0.05)  # 1 / d along a direction, times d
    np.testing.assert_allclose(found.mean, 0, atol=0.03)
    assert found.ks_sphere.max() < 2 / n**0.5 and found.sliced_wasserstein.max() < 2e-3
    assert (
        found.counts.shape == (min(16, d), geometry.PROJECTION_BINS)
        and (found.counts.sum(1) == n).all()
    )
    # Of few dimensions, no projection is normal; of many, all are.
    assert found.ks_normal.min() > 0.05 if d == 2 else found.ks_normal.max() < 0.05


def test_projection_distances_match_scipy(blocks, rng):
    n, d, seed = 300, 6, 3
    x = sphere(rng, n, d) + 0.3
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    found = geometry.projections(x, count=4, seed=seed)
    directions = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, 4)))[0]
    projected = d**0.5 * x.astype(np.float64) @ directions
    np.testing.assert_allclose(found.mean, projected.mean(0), rtol=1e-6)
    np.testing.assert_allclose(found.variance, projected.var(0), rtol=1e-6)
    marginal = stats.beta((d - 1) / 2, (d - 1) / 2, loc=-(d**0.5), scale=2 * d**0.5)
    quantiles = marginal.ppf((np.arange(n) + 0.5) / n)
    bins = np.linspace(-found.half_width, found.half_width, geometry.PROJECTION_BINS + 1)
    for k in range(4):
        # Within a bin, the distribution of the sample can jump once.
        for ks, law in ((found.ks_sphere, marginal), (found.ks_normal, stats.norm)):
            exact = stats.ks_1samp(projected[:, k], law.cdf).statistic
            np.testing.assert_allclose(ks[k], exact, atol=1.5 / n)
        # Algorithm 1 of Chen et al. along one direction, with the sphere's quantiles as samples.
        expected = np.mean((np.sort(projected[:, k]) - quantiles) ** 2)
        np.testing.assert_allclose(found.sliced_wasserstein[k], expected, rtol=2e-2)
        # Fine bins, and so their points, may fall to the other side of a border.
        assert np.abs(found.counts[k] - np.histogram(projected[:, k], bins)[0]).max() <= 1


def test_pair_distances(blocks, rng):
    x, y = sphere(rng, 100, 4), sphere(rng, 100, 4)
    y[0] = -x[0] * 1.004  # norms are near 1 only
    mean, counts = geometry.pair_distances(x, y)
    lengths = np.linalg.norm(x.astype(np.float64) - y, axis=1)
    np.testing.assert_allclose(mean.value, lengths.mean(), rtol=1e-6)
    expected, _ = np.histogram(np.minimum(lengths, 2), 50, (0, 2))
    np.testing.assert_array_equal(counts, expected)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 3])
def test_uniformity_by_class_is_that_of_each_class(devices, rng):
    sizes = [2, 3, 70, 64, 65, 1, 120]  # some of one size on the device, one too large, one alone
    names = [0, 5, 6, 7, 9, 11, 12]
    labels = rng.permutation([*np.repeat(names, sizes), -1, -1])
    x = sphere(rng, len(labels), 4) + 0.5
    groups = geometry.class_rows(labels, len(labels))
    assert list(groups) == names and [len(rows) for rows in groups.values()] == sizes
    local = jax.devices()[:devices]
    found = metrics.uniformities(x, list(groups.values()), 3.0, devices=local, chunk=100)
    for label, size, estimate in zip(names, sizes, found, strict=True):
        own = x[labels == label]
        if size < 2:
            assert math.isnan(estimate.value)
            continue
        np.testing.assert_allclose(estimate.value, uniformity(own, 3.0), rtol=1e-5)
        if size > 100:  # in several chunks above, and in one here
            alone = metrics.uniformity(own, 3.0)
            np.testing.assert_allclose(estimate.standard_error, alone.standard_error, rtol=1e-3)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0, 3.0])
def test_class_alignment_is_the_mean_over_pairs_of_one_class(alpha, rng, monkeypatch):
    monkeypatch.setattr(geometry, "FLOAT64_ENTRIES", 64)  # several blocks per class
    labels = rng.permutation(np.repeat(["a", "b", "c", "d"], [30, 20, 9, 1]))
    x = sphere(rng, 60, 3) + (labels == "a")[:, None]
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    x[labels == "b"] = x[labels == "b"][:1]  # one point: distances of 0
    distances = np.linalg.norm(np.float64(x)[:, None] - x, axis=-1) ** alpha
    same = (labels[:, None] == labels) & ~np.eye(60, dtype=bool)

    def mean(rows):
        return distances[np.ix_(rows, rows)][same[np.ix_(rows, rows)]].mean()

    found = geometry.class_alignment(x, geometry.class_rows(labels, 60), alpha)
    np.testing.assert_allclose(found.value, mean(np.arange(60)), rtol=1e-6)
    left_out = np.array([mean(np.delete(np.arange(60), i)) for i in range(60)])
    jackknife = np.sqrt(59 / 60 * np.sum((left_out - left_out.mean()) ** 2))
    np.testing.assert_allclose(found.standard_error, jackknife, rtol=0.1)
    measured = hj.measure(x, labels=labels, alpha=alpha)
    assert (measured["align"], measured["align_standard_error"]) == found
    assert measured["uniform"] == hj.measure(x)["uniform"] and hj.measure(x)["align"] is None
    # Ignored points are in no pair.
    for ignored in (-1, 9):
        ids = [*np.unique(labels, return_inverse=True)[1], *[ignored] * 5]
        more = np.concatenate([x, x[:5]])
        again = hj.measure(more, labels=ids, alpha=alpha, ignore_label=ignored)
        assert again["align"] == pytest.approx(found.value, rel=1e-12)


def test_measure_refuses_other_labels(rng):
    x = sphere(rng, 4, 3)
    for given, match in (
        ({"y": x, "labels": [0, 0, 1, 1]}, "y and labels"),
        ({"labels": [0, 1, 2, 3]}, "no class has two points"),
        ({"labels": [-1] * 4}, "no class has two points"),
        ({"labels": [0, 0, 1]}, "labels: .*4"),
    ):
        with pytest.raises(hj.UserError, match=match):
            hj.measure(x, **given)


def test_class_mates():
    labels = np.array([3] * 4 + [8] * 2 + [5] + [-1] * 3)
    groups = geometry.class_rows(labels, 10)
    drawn = np.array([geometry.class_mates(groups, 10, seed) for seed in range(600)])
    assert (drawn[:, 6:] == -1).all()
    for row in range(6):
        others = np.flatnonzero((labels == labels[row]) & (np.arange(10) != row))
        values, counts = np.unique(drawn[:, row], return_counts=True)
        assert list(values) == list(others) and (counts > 0.7 * 600 / len(others)).all()


def test_prototype_bias(blocks, rng):
    draws = [tuple(sphere(rng, 80, 3) for _ in range(2)) for _ in range(2)]
    lengths = np.mean([np.linalg.norm(np.float64(x) - y, axis=1) for x, y in draws], axis=0)
    found = geometry.mean_prototype_bias(draws)
    np.testing.assert_allclose(found.value, lengths.mean(), rtol=1e-6)
    np.testing.assert_allclose(found.standard_error, lengths.std(ddof=1) / 80**0.5, rtol=1e-6)
