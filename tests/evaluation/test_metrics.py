"""Metrics of data sets and of neighbouring sentences: against loops, with errors, from files."""

import itertools
import json
import math
from pathlib import Path

import jax
import numpy as np
import pytest
from oracles import quick_thought_align_oracle, uniformity
from points import sphere

from hypersphere_jax import theory
from hypersphere_jax.config import MetricsConfig, UserError
from hypersphere_jax.evaluation import metrics, sentences
from hypersphere_jax.evaluation.files import FeatureFile
from hypersphere_jax.evaluation.measure import measure
from hypersphere_jax.evaluation.sentences import neighbour_metrics


@pytest.mark.parametrize(("n", "chunk", "devices"), [(100, 30, 1), (101, 17, 4)])
def test_uniformity_is_that_of_all_points(n, chunk, devices, rng):
    x = sphere(rng, n, 5)
    for t in (2.0, 60.0):
        found = metrics.uniformity(x, t, devices=jax.devices()[:devices], chunk=chunk)
        np.testing.assert_allclose(found.value, uniformity(x, t), rtol=2e-6)
        whole = metrics.uniformity(x, t)
        np.testing.assert_allclose(whole.value, uniformity(x, t), rtol=2e-6)
        np.testing.assert_allclose(found.standard_error, whole.standard_error, rtol=1e-4)


def test_uniformity_of_features_far_from_the_origin(rng):
    # One narrow cone: squared distances of 1e-6 beside norms of 1.
    x = np.eye(3)[0] + 1e-3 * rng.standard_normal((50, 3))
    np.testing.assert_allclose(metrics.uniformity(x, 1e5).value, uniformity(x, 1e5), rtol=1e-5)
    of_groups = metrics.uniformities(x, [np.arange(50), np.arange(20)], 1e5)
    expected = [uniformity(x, 1e5), uniformity(x[:20], 1e5)]
    np.testing.assert_allclose([e.value for e in of_groups], expected, rtol=1e-5)


@pytest.mark.parametrize("apart", [0, 2])
def test_standard_error_is_the_spread_of_repeated_samples(apart, rng):
    """Of two clusters, and of the sphere: there all points have one mean potential."""
    found = []
    for _ in range(600):
        x = apart * np.eye(4)[0] * rng.choice([-1, 1], (60, 1)) + rng.standard_normal((60, 4))
        found.append(metrics.uniformity(x / np.linalg.norm(x, axis=1, keepdims=True), 2.0))
    spread = np.std([estimate.value for estimate in found])
    mean_error = np.sqrt(np.mean([estimate.standard_error**2 for estimate in found]))
    np.testing.assert_allclose(mean_error, spread, rtol=0.15)


def test_alignment(rng, monkeypatch):
    monkeypatch.setattr(metrics, "CHUNK", 128)
    x, y = sphere(rng, 300, 4), sphere(rng, 300, 4)
    for alpha in (1.0, 2.0):
        found = metrics.alignment(x, y, alpha)
        powers = np.linalg.norm(np.float64(x) - y, axis=1) ** alpha
        np.testing.assert_allclose(found.value, powers.mean(), rtol=1e-6)
        np.testing.assert_allclose(found.standard_error, powers.std(ddof=1) / 300**0.5, rtol=1e-5)


def test_summary_has_what_it_names(rng):
    x, pairs = sphere(rng, 60, 4), (sphere(rng, 300, 4), sphere(rng, 300, 4))
    found = metrics.summary(x, pairs, alpha=1.0, t=3.0)
    estimates = {"align": metrics.alignment(*pairs, 1.0), "uniform": metrics.uniformity(x, 3.0)}
    for name, estimate in estimates.items():
        assert (found[name], found[f"{name}_standard_error"]) == estimate
    rest = {"align_alpha": 1.0, "uniform_t": 3.0, "d": 4, "n": 60}
    rest["uniform_optimum"] = theory.uniformity_optimum(4, 3.0)
    rest["uniform_lower_bound"] = theory.uniformity_lower_bound(4, 3.0, 60)
    assert rest == {name: found[name] for name in rest} and len(found) == 10
    assert metrics.summary(x, None)["align_standard_error"] is None


def test_too_few_points(rng):
    assert math.isnan(metrics.alignment(*[sphere(rng, 1, 3)] * 2).standard_error)
    assert math.isnan(metrics.uniformity(sphere(rng, 4, 3)).standard_error)
    with pytest.raises(UserError, match="at least two points, got 1"):
        metrics.uniformity(sphere(rng, 1, 3))


@pytest.fixture
def folder(rng, tmp_path, monkeypatch):
    x = sphere(rng, 60, 4)
    zero, bad = x.copy(), x.copy()
    zero[7], bad[3, 1] = 0, np.nan
    arrays = {"x": x, "half": x.astype(np.float16), "long": 3 * x, "zero": zero, "bad": bad}
    arrays |= {"huge": 1e200 * np.float64(x), "tiny": 1e-200 * np.float64(x), "short": x[:50]}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    monkeypatch.chdir(tmp_path)


def test_features_of_any_length_and_precision_in_files(folder):
    x = np.load("x.npy")
    for name in ("x", "half", "long", "huge", "tiny"):
        normalize = name not in ("x", "half")
        found = measure(MetricsConfig(f"{name}.npy", parts=(), normalize=normalize))
        assert found["align"] is None and found["normalized"] == normalize
        np.testing.assert_allclose(found["uniform"], uniformity(x), rtol=1e-4)
    features = FeatureFile(Path("long.npy"), normalize=True)
    assert isinstance(features._rows, np.memmap)
    np.testing.assert_allclose(features[10:20], x[10:20], rtol=1e-6)


def test_mistakes_in_feature_files(folder, fails):
    for arguments, said in (
        ("long.npy", "norms go from 3 to 3"),
        ("zero.npy --normalize", "row 7 is all zeros"),
        ("bad.npy", "row 3 holds NaN"),
        ("x.npy --out x.npy", "JSON in a file for arrays"),
        ("x.npy --pairs short.npy", "(60, 4) and "),
        ("x.npy --pairs long.npy", "--normalize"),
    ):
        assert said in fails("metrics", *arguments.split())


def test_neighbours_in_several_documents(rng):
    """Of each document those of a minibatch; all sentences with a neighbour weigh the same."""
    f, g = sphere(rng, 23, 4), sphere(rng, 23, 4)
    for documents, alpha, t in itertools.product(
        ([0, 23], [0, 2, 3, 4, 11, 23], [0, 1, 3, 22, 23]), (2.0, 1.5), (2.0, 5.0)
    ):
        found = neighbour_metrics(f, g, np.array(documents), alpha, t)
        parts = [slice(*ends) for ends in itertools.pairwise(documents)]
        parts = [part for part in parts if part.stop - part.start > 1]
        sizes = [part.stop - part.start for part in parts]
        values = [quick_thought_align_oracle(f[part], g[part], alpha) for part in parts]
        np.testing.assert_allclose(found["align"], np.average(values, weights=sizes), rtol=1e-5)
        assert found["pairs"] == sum(2 * (size - 1) for size in sizes)
        uniform = [uniformity(x, t) for x in (f, g)]
        np.testing.assert_allclose([found["uniform_f"], found["uniform_g"]], uniform, rtol=1e-5)
        np.testing.assert_allclose(found["uniform"], sum(uniform), rtol=1e-5)
        said = {"n": 23, "d": 4, "align_alpha": alpha, "documents": len(documents) - 1}
        assert {key: found[key] for key in said} == said


def test_errors_of_neighbours_by_hand():
    """On the circle at right angles: squared distances are 0, 2 and 4."""
    east, north, west = [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]
    f = np.array([east, east, north, west, west], np.float32)
    g = np.array([east, north, east, east, west], np.float32)
    # {0, 1}: f0 g1 = 2, f1 g0 = 0.  {2}: none.  {3, 4}: f3 g4 = 0, f4 g3 = 4.
    found = neighbour_metrics(f, g, [0, 2, 3, 5])
    assert found["align"] == pytest.approx((2 + 0 + 0 + 4) / 4)
    # Units {0, 1} and {3, 4}, whose means are 1 and 2.
    assert found["align_standard_error"] == pytest.approx(0.5)
    few = neighbour_metrics(f[:4], g[:4], [0, 4])
    assert few["uniform_standard_error"] is few["align_standard_error"] is None


def test_errors_of_both_encoders(rng):
    f, g = sphere(rng, 23, 4), sphere(rng, 23, 4)
    f[:10] = f[0]
    found = neighbour_metrics(f, g, [0, 23], devices=jax.devices()[:3])
    errors = [metrics.uniformity(x, 2.0).standard_error for x in (f, g)]
    errors = {"f_": errors[0], "g_": errors[1], "": sum(errors)}
    for which, error in errors.items():
        assert found[f"uniform_{which}standard_error"] == pytest.approx(error, rel=1e-4)
    assert json.loads(json.dumps(found)) == found


def test_units_are_pieces_of_one_document():
    units = sentences._units(np.array([0, 120, 121, 150, 500]))
    assert (np.diff(units) >= 0).all() and units[-1] + 1 == len(np.unique(units)) == 2 + 1 + 1 + 7
    np.testing.assert_array_equal(np.bincount(units), [60, 60, 1, 29, *[50] * 7])
