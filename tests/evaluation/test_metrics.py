"""Metrics of whole data sets: against loops, their errors against repeated samples, from files."""

import math

import jax
import numpy as np
import pytest
from oracles import uniformity
from points import sphere

import run as command_line
from hypersphere_jax import theory
from hypersphere_jax.config import MetricsConfig, UserError
from hypersphere_jax.evaluation import metrics
from hypersphere_jax.evaluation.files import FeatureFile
from hypersphere_jax.evaluation.measure import measure


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


def samples(kind, rng, n):
    if kind == "uniform":  # the mean potential of every point is the same: a degenerate statistic
        return sphere(rng, n, 4)
    x = 2 * np.eye(4)[0] * rng.choice([-1, 1], (n, 1)) + rng.standard_normal((n, 4))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("kind", ["uniform", "clusters"])
def test_standard_error_is_the_spread_of_repeated_samples(kind, rng):
    found = [metrics.uniformity(samples(kind, rng, 60), 2.0) for _ in range(600)]
    spread = np.std([estimate.value for estimate in found])
    mean_error = np.sqrt(np.mean([estimate.standard_error**2 for estimate in found]))
    np.testing.assert_allclose(mean_error, spread, rtol=0.15)


def test_equal_points_have_no_spread():
    for x in (np.eye(8), np.tile(np.eye(4)[:1], (50, 1))):
        assert metrics.uniformity(x).standard_error == 0.0


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
    for name, estimate in (
        ("align", metrics.alignment(*pairs, 1.0)),
        ("uniform", metrics.uniformity(x, 3.0)),
    ):
        assert (found[name], found[f"{name}_standard_error"]) == estimate
    rest = {
        "align_alpha": 1.0,
        "uniform_t": 3.0,
        "uniform_optimum": theory.uniformity_optimum(4, 3.0),
        "uniform_lower_bound": theory.uniformity_lower_bound(4, 3.0, 60),
        "d": 4,
        "n": 60,
    }
    assert rest == {name: found[name] for name in rest} and len(found) == 10
    unknown = metrics.summary(x, None)
    assert unknown["align"] is None and unknown["align_standard_error"] is None


def test_too_few_points(rng):
    assert math.isnan(metrics.alignment(*[sphere(rng, 1, 3)] * 2).standard_error)
    assert math.isnan(metrics.uniformity(sphere(rng, 4, 3)).standard_error)
    for call, message in (
        (lambda: metrics.uniformity(sphere(rng, 1, 3)), "at least two points, got 1"),
        (lambda: metrics.alignment(np.zeros((0, 3)), np.zeros((0, 3))), "one pair"),
        (lambda: metrics.alignment(np.zeros((1, 3)), np.zeros((2, 3))), "one shape"),
    ):
        with pytest.raises(UserError, match=message):
            call()


@pytest.fixture
def feature_files(rng, tmp_path):
    x = sphere(rng, 60, 4)
    for name, array in (
        ("x", x),
        ("long", 3 * x),
        ("half", x.astype(np.float16)),
        ("huge", 1e200 * np.float64(x)),
        ("tiny", 1e-200 * np.float64(x)),
    ):
        np.save(tmp_path / f"{name}.npy", array)
    return tmp_path


def test_features_of_any_length_and_precision_in_files(feature_files):
    x = np.load(feature_files / "x.npy")
    for name in ("x", "half", "long", "huge", "tiny"):
        normalize = name not in ("x", "half")
        config = MetricsConfig(str(feature_files / f"{name}.npy"), parts=(), normalize=normalize)
        found = measure(config)
        assert found["align"] is None and found["normalized"] == normalize
        np.testing.assert_allclose(found["uniform"], uniformity(x), rtol=1e-4)
    features = FeatureFile(feature_files / "long.npy", normalize=True)
    assert isinstance(features._rows, np.memmap)
    np.testing.assert_allclose(features[10:20], x[10:20], rtol=1e-6)


def test_mistakes_in_feature_files(feature_files, capsys):
    x = np.load(feature_files / "x.npy")
    zero, bad = x.copy(), x.copy()
    zero[7], bad[3, 1] = 0, np.nan
    for name, array in (
        ("flat", np.zeros(5, np.float32)),
        ("text", np.array([["a", "b"]])),
        ("short", x[:50]),
        ("zero", zero),
        ("bad", bad),
        ("brain", x.astype(jax.numpy.bfloat16)),
    ):
        np.save(feature_files / f"{name}.npy", array)
    np.savez(feature_files / "several.npz", a=zero, b=bad)
    (feature_files / "junk.npy").write_bytes(b"no array")
    for arguments, said in (
        (["long.npy"], "norms go from 3 to 3 (mean 3;"),
        (["zero.npy"], "norms go from 0 to 1"),
        (["zero.npy", "--normalize"], "row 7 is all zeros"),
        (["bad.npy"], "row 3 holds NaN or infinity"),
        (["bad.npy", "--normalize"], "row 3 holds NaN or infinity"),
        (["x.npy", "--pairs", "several.npz"], "holds several arrays"),
        (["brain.npy"], "got |V2 (bfloat16? save it as float32)"),
        (["x.npy", "--out", "x.npy"], "JSON in a file for arrays"),
        (["x.npy", "--t", "1e30"], "at most 1e6"),
        (["flat.npy"], "expected real features of shape [n, d], got shape (5,)"),
        (["text.npy"], "expected real features of shape [n, d], got <U1"),
        (["junk.npy"], "cannot be read as an .npy array"),
        (["none.npy"], "there is no such file"),
        (["x.npy", "--pairs", "short.npy"], "(60, 4) and "),
        (["x.npy", "--pairs", "long.npy"], "--normalize divides each row by its norm"),
        (["x.npy", "--split", "train"], "--split is for a run"),
        (["x.npy", "--t", "0"], "--t 0.0: must be finite and positive"),
    ):
        arguments = [str(feature_files / a) if ".np" in a else a for a in arguments]
        assert command_line.main(["metrics", *arguments]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1, error
    with pytest.raises(UserError, match=r"--pairs is for an \.npy file"):
        MetricsConfig("some-run", pairs="x.npy")
