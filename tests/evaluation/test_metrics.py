"""Alignment and uniformity of arrays, files and runs against NumPy."""

import json
import shutil

import jax
import numpy as np
import pytest
from oracles import uniformity
from points import sphere

import hypersphere_jax as hj
from hypersphere_jax import cli, theory
from hypersphere_jax.configs import MetricsConfig, UserError
from hypersphere_jax.data import subsets
from hypersphere_jax.evaluation import geometry, metrics
from hypersphere_jax.evaluation.features import pair_features
from hypersphere_jax.evaluation.measure_runs import load_features, run_metrics
from hypersphere_jax.training import run_dir
from hypersphere_jax.utils.files import read_json


def distances(x, y):
    return np.linalg.norm(np.float64(x) - y, axis=-1)


@pytest.mark.parametrize("t", [2.0, 60.0])
def test_uniformity_is_over_all_pairs(t, rng):
    x = sphere(rng, 101, 5)
    assert metrics.uniformity(x, t).value == pytest.approx(uniformity(x, t), rel=2e-6)


def test_uniformity_of_features_far_from_the_origin(rng):
    """Squared distances are 1e-6 of the squared norms."""
    x = np.eye(3)[0] + 1e-3 * rng.standard_normal((50, 3))
    assert metrics.uniformity(x, 1e5).value == pytest.approx(uniformity(x, 1e5), rel=1e-5)


def test_rankme_matches_the_singular_values(rng):
    x = sphere(rng, 50, 6) * np.array([1, 1, 0.5, 0.1, 0.01, 0])
    values = np.linalg.svd(np.float64(x), compute_uv=False)
    shares = values / values.sum() + 1e-7
    assert hj.rankme(x) == pytest.approx(np.exp(-np.sum(shares * np.log(shares))), rel=1e-9)
    assert hj.rankme(np.ones((9, 4))) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("apart", [0, 2])
def test_standard_error_of_uniformity_is_the_spread_over_samples(apart, rng):
    """For two clusters, and for the sphere, where all points have one mean potential."""
    found = []
    for _ in range(400):
        x = apart * np.eye(4)[0] * rng.choice([-1, 1], (60, 1)) + rng.standard_normal((60, 4))
        found.append(metrics.uniformity(x / np.linalg.norm(x, axis=1, keepdims=True), 2.0))
    spread = np.std([estimate.value for estimate in found])
    mean_error = np.sqrt(np.mean([estimate.standard_error**2 for estimate in found]))
    np.testing.assert_allclose(mean_error, spread, rtol=0.2)


def test_measure_has_values_errors_and_bounds(rng):
    x, y = sphere(rng, 60, 4), sphere(rng, 60, 4)
    found = hj.measure(x, y, alpha=1.0, t=3.0)
    lengths = distances(x, y)
    assert found["align"] == pytest.approx(lengths.mean(), rel=1e-5)
    assert found["align_standard_error"] == pytest.approx(lengths.std(ddof=1) / 60**0.5, rel=1e-5)
    uniform = metrics.uniformity(x, 3.0)
    assert (found["uniform"], found["uniform_standard_error"]) == uniform
    assert found["uniform_optimum"] == theory.uniformity_optimum(4, 3.0)
    assert found["uniform_lower_bound"] == theory.uniformity_lower_bound(4, 3.0, 60)
    assert found["effective_rank"] == geometry.effective_rank(x).effective_rank
    assert hj.measure(x)["align"] is None
    with pytest.raises(UserError, match="labels"):
        hj.measure(x, y, labels=[0] * 60)


@pytest.mark.parametrize("scale", [np.float16(1), 3.0, 1e200, 1e-200])
def test_files_of_features_of_any_length_and_precision(scale, rng, tmp_path):
    x = sphere(rng, 60, 4)
    np.save(tmp_path / "x.npy", scale * x.astype(type(scale)))
    file = str(tmp_path / "x.npy")
    found = run_metrics(MetricsConfig(file, parts=(), normalize=bool(scale != 1)))
    np.testing.assert_allclose(found["uniform"], uniformity(x), rtol=1e-4)
    assert isinstance(load_features(file, normalize=True), np.memmap)


def test_files_that_do_not_fit_are_refused(rng, tmp_path):
    x = sphere(rng, 60, 4)
    not_finite = np.where(x == x[3, 1], np.nan, x)
    with_zeros = x * (np.arange(60) != 7)[:, None]
    np.save(tmp_path / "y.npy", x[1:])
    for array, options, named in (
        (3 * x, {}, "normalize=True"),
        (with_zeros, {"normalize": True}, "7"),
        (not_finite, {}, "3"),
        (x, {"pairs": tmp_path / "y.npy"}, r"y\.npy"),
    ):
        np.save(tmp_path / "x.npy", array)
        with pytest.raises(UserError, match=named):
            run_metrics(MetricsConfig(str(tmp_path / "x.npy"), **options))


@pytest.fixture
def files(rng, tmp_path):
    labels = rng.integers(0, 4, 120)
    labels[:5] = -1
    arrays = {"x": sphere(rng, 120, 6), "y": sphere(rng, 120, 6), "labels": labels}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    return tmp_path


def test_all_parts_of_files(files):
    paths = [str(files / f"{name}.npy") for name in ("x", "y", "labels")]
    out, picture = files / "o.json", files / "o.png"
    arguments = [paths[0], "--pairs", paths[1], "--labels", paths[2]]
    arguments += ["--out", str(out), "--figure", str(picture), "--t", "3"]
    parts = ["rank", "classes", "distances", "projections", "retrieval", "prototype"]
    assert cli.main(["metrics", *arguments, "--parts", *parts]) == 0
    found = json.loads(out.read_text())
    x, y, labels = map(np.load, paths)
    assert found["classes"] == [0, 1, 2, 3] and sum(found["n_by_class"]) == 115
    by_class = [uniformity(x[labels == label], 3) for label in range(4)]
    np.testing.assert_allclose(found["uniform_by_class"], by_class, rtol=1e-5)
    expected = hj.retrieval_scores(x, labels)
    assert found | expected == found and found["retrieval_queries"] == 115
    assert found["pair_distance"] == pytest.approx(distances(x, y).mean(), rel=1e-5)
    # The bias has one mate for each point, and the mean is over all mates.
    same = (labels[:, None] == labels) & (labels >= 0) & ~np.eye(120, dtype=bool)
    lengths = distances(x[:, None], x)
    expected = np.mean([lengths[i][same[i]].mean() for i in np.flatnonzero(labels >= 0)])
    error = found["prototype_bias_standard_error"]
    assert abs(found["prototype_bias"] - expected) < 4 * error and error < 0.05
    assert found["prototype_bias_n"] == 115 and len(found["projections"]) == 6
    assert picture.is_file()


@pytest.fixture(scope="module")
def run(image_run, tmp_path_factory):
    """Return a copy of the finished run, to which results and caches are added."""
    return shutil.copytree(image_run, tmp_path_factory.mktemp("runs") / "images")


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"step": 28, "split": "train"}, "metrics-train-step28"),
        ({"alpha": 1.0, "t": 3.0, "seed": 4}, "metrics-test-alpha1.0-t3.0-seed4"),
    ],
)
def test_metrics_of_a_run_are_those_of_its_checkpoint_and_split(run, options, name):
    config = MetricsConfig(str(run), devices=1, **options)
    found = run_metrics(config)
    assert read_json(run / "eval" / f"{name}.json").items() >= found.items()
    dataset = run_dir.load_data(run)
    source = dataset.train if config.split == "train" else dataset.test
    x = hj.load(run, config.step)(source.images)
    assert (found["step"], found["n"]) == (config.step or 56, len(x))
    assert found["uniform"] == pytest.approx(uniformity(x, config.t), rel=1e-4)
    encoder = run_dir.load_encoder(run, config.step)
    pairs = pair_features(encoder, source, jax.devices()[:1], config.seed)
    expected = (distances(*pairs) ** config.alpha).mean()
    assert found["align"] == pytest.approx(expected, rel=1e-4)


def test_prototype_bias_of_a_run_compares_views_of_class_mates(run):
    found = run_metrics(MetricsConfig(str(run), devices=1, parts=("prototype",), seed=3))
    encoder = run_dir.load_encoder(run)
    source = run_dir.load_data(run).test
    mates = geometry.class_mates(geometry.class_rows(source.labels, 397), 397, 3)
    images = (source, subsets.Subset(source, mates, "mates"))
    views = [pair_features(encoder, side, jax.devices()[:1], 3) for side in images]
    expected = np.mean([distances(*pair) for pair in zip(*views, strict=True)])
    assert found["prototype_bias"] == pytest.approx(expected, rel=1e-4)
