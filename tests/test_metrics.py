"""Metrics of whole data sets: against the losses, their errors against repeated samples, files."""

import json
import math

import jax
import numpy as np
import pytest
from conftest import sphere

import run as command_line
from hypersphere_jax import align_loss, uniform_loss
from hypersphere_jax.config import MetricsConfig, UserError
from hypersphere_jax.evaluation import metrics
from hypersphere_jax.evaluation.files import FeatureFile
from hypersphere_jax.evaluation.measure import measure


@pytest.mark.parametrize(
    ("n", "chunk", "devices"), [(100, 100, 1), (100, 30, 1), (101, 17, 4), (30, 7, 3)]
)
@pytest.mark.parametrize("t", [2.0, 60.0])
def test_uniformity_is_the_loss_of_all_points(n, chunk, devices, t, rng):
    x = sphere(rng, n, 5)
    found = metrics.uniformity(x, t, devices=jax.devices()[:devices], chunk=chunk)
    np.testing.assert_allclose(found.value, uniform_loss(x, t), rtol=2e-6)
    whole = metrics.uniformity(x, t)
    np.testing.assert_allclose(found.standard_error, whole.standard_error, rtol=1e-4)


def test_uniformity_of_features_far_from_the_origin(rng):
    # One narrow cone: squared distances of 1e-6 beside norms of 1.
    x = np.array([[1.0, 0.0, 0.0]]) + 1e-3 * rng.standard_normal((50, 3))
    squares = ((x[:, None] - x[None]) ** 2).sum(-1)[~np.eye(50, dtype=bool)]
    found = metrics.uniformity(x, 1e5)
    np.testing.assert_allclose(found.value, math.log(np.exp(-1e5 * squares).mean()), rtol=1e-5)


def samples(kind, rng, n):
    if kind == "uniform":  # the mean potential of every point is the same: a degenerate statistic
        return sphere(rng, n, 4)
    x = np.array([2.0, 0.0, 0.0, 0.0]) * rng.choice([-1, 1], (n, 1)) + rng.standard_normal((n, 4))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("kind", ["uniform", "clusters"])
def test_standard_error_is_the_spread_of_repeated_samples(kind, rng):
    found = [metrics.uniformity(samples(kind, rng, 60), 2.0) for _ in range(600)]
    spread = np.std([estimate.value for estimate in found])
    mean_error = np.sqrt(np.mean([estimate.standard_error**2 for estimate in found]))
    np.testing.assert_allclose(mean_error, spread, rtol=0.15)


def test_alignment(rng):
    x, y = sphere(rng, 300, 4), sphere(rng, 300, 4)
    for alpha in (1.0, 2.0):
        found = metrics.alignment(x, y, alpha)
        np.testing.assert_allclose(found.value, align_loss(x, y, alpha), rtol=1e-6)
        powers = np.linalg.norm(x - y, axis=1) ** alpha
        np.testing.assert_allclose(found.standard_error, powers.std(ddof=1) / 300**0.5, rtol=1e-5)


def test_too_few_points(rng):
    assert math.isnan(metrics.alignment(*[sphere(rng, 1, 3)] * 2).standard_error)
    assert math.isnan(metrics.uniformity(sphere(rng, 3, 3)).standard_error)
    with pytest.raises(UserError, match="at least two points, got 1"):
        metrics.uniformity(sphere(rng, 1, 3))
    with pytest.raises(UserError, match="one pair"):
        metrics.alignment(np.zeros((0, 3)), np.zeros((0, 3)))


@pytest.fixture
def files(rng, tmp_path):
    """Features and those of their positives, in files."""
    x = sphere(rng, 90, 6)
    y = x + 0.1 * rng.standard_normal(x.shape)
    y /= np.linalg.norm(y, axis=1, keepdims=True)
    for name, array in (("x", x), ("y", y), ("long", 3 * x), ("half", x.astype(np.float16))):
        np.save(tmp_path / f"{name}.npy", array)
    return tmp_path


def test_metrics_of_files(files, capsys):
    x, y = (np.load(files / f"{name}.npy") for name in "xy")
    arguments = [
        str(files / "x.npy"),
        "--pairs",
        str(files / "y.npy"),
        "--out",
        str(files / "o.json"),
    ]
    assert command_line.main(["metrics", *arguments]) == 0
    saved = json.loads((files / "o.json").read_text())
    np.testing.assert_allclose(saved["uniform"], uniform_loss(x), rtol=1e-6)
    np.testing.assert_allclose(saved["align"], align_loss(x, y), rtol=1e-5)
    assert saved["n"] == 90 and saved["d"] == 6 and saved["pairs"].endswith("y.npy")
    assert saved["uniform_lower_bound"] < saved["uniform_optimum"] < saved["uniform"]
    shown = capsys.readouterr().out
    assert f"{saved['align']:.4f} ± 0.00" in shown and f"{saved['uniform']:.3f} ± 0.0" in shown
    assert "its optimum" in shown and max(map(len, shown.splitlines())) <= 80
    # Alone, without alignment; lengths do not matter once normalized; half precision will do.
    for name, options in (("x", {}), ("long", {"normalize": True}), ("half", {})):
        found = measure(MetricsConfig(str(files / f"{name}.npy"), **options))
        assert found["align"] is None and found["normalized"] == bool(options)
        np.testing.assert_allclose(found["uniform"], saved["uniform"], rtol=1e-4)


def test_any_length_can_be_normalized(files, rng):
    x = np.load(files / "x.npy")
    expected = metrics.uniformity(x).value
    for name, scale in (("huge", 1e200), ("tiny", 1e-200)):
        np.save(files / f"{name}.npy", scale * x.astype(np.float64))
        found = measure(MetricsConfig(str(files / f"{name}.npy"), normalize=True))
        np.testing.assert_allclose(found["uniform"], expected, rtol=1e-6)


def test_equal_points_have_no_spread():
    for x in (np.eye(8), np.tile(np.eye(4)[:1], (50, 1))):
        assert metrics.uniformity(x).standard_error == 0.0


def test_a_file_is_read_in_slices(files):
    features = FeatureFile(files / "long.npy", normalize=True)
    assert isinstance(features._rows, np.memmap)
    np.testing.assert_allclose(features[10:20], np.load(files / "x.npy")[10:20], rtol=1e-6)


def test_mistakes_in_files(files, capsys):
    np.save(files / "flat.npy", np.zeros(5, np.float32))
    np.save(files / "text.npy", np.array([["a", "b"]]))
    np.save(files / "short.npy", np.load(files / "x.npy")[:50])
    zero, bad = np.load(files / "x.npy"), np.load(files / "x.npy")
    zero[7], bad[3, 1] = 0, np.nan
    np.save(files / "zero.npy", zero)
    np.save(files / "bad.npy", bad)
    np.savez(files / "several.npz", a=zero, b=bad)
    np.save(files / "brain.npy", zero.astype(jax.numpy.bfloat16))
    (files / "junk.npy").write_bytes(b"no array")
    x = str(files / "x.npy")
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
        (["x.npy", "--pairs", "short.npy"], "(90, 6) and "),
        (["x.npy", "--pairs", "long.npy"], "--normalize divides each row by its norm"),
        (["x.npy", "--split", "train"], "--split is for a run"),
        (["x.npy", "--t", "0"], "--t 0.0: must be finite and positive"),
    ):
        arguments = [str(files / a) if ".np" in a else a for a in arguments]
        assert command_line.main(["metrics", *arguments]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1, error
    with pytest.raises(UserError, match=r"--pairs is for an \.npy file"):
        MetricsConfig("some-run", pairs=x)
