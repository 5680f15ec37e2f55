"""Alignment and uniformity of data sets, files and runs, compared with NumPy."""

import json
import shutil
from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from oracles import uniformity
from points import sphere

from hypersphere_jax import cli as command_line
from hypersphere_jax import theory
from hypersphere_jax.configs import MetricsConfig, UserError
from hypersphere_jax.configs.base import check_output
from hypersphere_jax.data import Arrays, subsets
from hypersphere_jax.evaluation import measure_runs, metrics
from hypersphere_jax.evaluation.feature_files import Features, load_features
from hypersphere_jax.evaluation.measure_runs import metrics_rows, run_metrics
from hypersphere_jax.training import run_dir
from hypersphere_jax.utils.files import read_json


@pytest.mark.parametrize(("n", "chunk", "devices"), [(100, 30, 1), (101, 17, 4)])
def test_uniformity_in_chunks_is_over_all_pairs(n, chunk, devices, rng):
    x = sphere(rng, n, 5)
    for t in (2.0, 60.0):
        found = metrics.uniformity(x, t, devices=jax.devices()[:devices], chunk=chunk)
        whole = metrics.uniformity(x, t)
        np.testing.assert_allclose([found.value, whole.value], uniformity(x, t), rtol=2e-6)
        np.testing.assert_allclose(found.standard_error, whole.standard_error, rtol=1e-4)


def test_uniformity_of_features_far_from_the_origin(rng):
    # One narrow cone: squared distances of 1e-6 beside norms of 1.
    x = np.eye(3)[0] + 1e-3 * rng.standard_normal((50, 3))
    found = [metrics.uniformity(x, 1e5)]
    found += metrics.uniformities(x, [np.arange(50), np.arange(20)], 1e5)
    expected = [uniformity(x[:n], 1e5) for n in (50, 50, 20)]
    np.testing.assert_allclose([e.value for e in found], expected, rtol=1e-5)


@pytest.mark.parametrize("apart", [0, 2])
def test_standard_error_is_the_spread_over_samples(apart, rng):
    """Of two clusters, and of the sphere: there all points have one mean potential."""
    found = []
    for _ in range(600):
        x = apart * np.eye(4)[0] * rng.choice([-1, 1], (60, 1)) + rng.standard_normal((60, 4))
        found.append(metrics.uniformity(x / np.linalg.norm(x, axis=1, keepdims=True), 2.0))
    spread = np.std([estimate.value for estimate in found])
    mean_error = np.sqrt(np.mean([estimate.standard_error**2 for estimate in found]))
    np.testing.assert_allclose(mean_error, spread, rtol=0.15)


def test_alignment(rng, monkeypatch):
    monkeypatch.setattr(metrics, "CHUNK_ROWS", 128)
    x, y = sphere(rng, 300, 4), sphere(rng, 300, 4)
    for alpha in (1.0, 2.0):
        powers = np.linalg.norm(np.float64(x) - y, axis=1) ** alpha
        expected = powers.mean(), powers.std(ddof=1) / 300**0.5
        np.testing.assert_allclose(metrics.alignment(x, y, alpha), expected, rtol=1e-5)


def test_summary_has_values_errors_and_bounds(rng):
    x, pairs = sphere(rng, 60, 4), (sphere(rng, 300, 4), sphere(rng, 300, 4))
    estimates = {"align": metrics.alignment(*pairs, 1.0), "uniform": metrics.uniformity(x, 3.0)}
    found = metrics.summary(x, estimates["align"], alpha=1.0, t=3.0)
    for name, estimate in estimates.items():
        assert (found[name], found[f"{name}_standard_error"]) == estimate
    rest = {"align_alpha": 1.0, "uniform_t": 3.0, "d": 4, "n": 60}
    rest["uniform_optimum"] = theory.uniformity_optimum(4, 3.0)
    rest["uniform_lower_bound"] = theory.uniformity_lower_bound(4, 3.0, 60)
    assert rest == {name: found[name] for name in rest}


def test_features_of_any_length_and_precision_in_files(rng, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = sphere(rng, 60, 4)
    arrays = {"x": x, "half": x.astype(np.float16), "long": 3 * x}
    arrays |= {"huge": 1e200 * np.float64(x), "tiny": 1e-200 * np.float64(x)}
    arrays |= {"zero": x * (np.arange(60) != 7)[:, None], "bad": np.where(x == x[3, 1], np.nan, x)}
    for name, array in arrays.items():
        np.save(f"{name}.npy", array)
    for name in ("x", "half", "long", "huge", "tiny"):
        normalize = name not in ("x", "half")
        found = run_metrics(MetricsConfig(f"{name}.npy", parts=(), normalize=normalize))
        assert found["align"] is None and found["normalized"] == normalize
        np.testing.assert_allclose(found["uniform"], uniformity(x), rtol=1e-4)
    features = load_features("long.npy", normalize=True)
    assert isinstance(features, np.memmap)
    np.testing.assert_allclose(features[10:20], x[10:20], rtol=1e-6)
    for file, options, said in (
        ("long.npy", {}, "norms go from 3 to 3"),
        ("zero.npy", {"normalize": True}, "rows 7;"),
        ("bad.npy", {}, "NaN or infinity, first rows 3"),
    ):
        with pytest.raises(UserError, match=said):
            run_metrics(MetricsConfig(file, **options))


@pytest.fixture
def files(rng, tmp_path):
    labels = rng.integers(0, 4, 120)
    labels[:5] = -1
    for name, array in (("x", sphere(rng, 120, 6)), ("y", sphere(rng, 120, 6)), ("labels", labels)):
        np.save(tmp_path / f"{name}.npy", array)
    return tmp_path


def distances(x, y):
    return np.linalg.norm(np.float64(x) - y, axis=-1)


def test_all_parts_of_files(files, capsys):
    paths = x, y, labels = [str(files / f"{name}.npy") for name in ("x", "y", "labels")]
    out, picture = files / "o.json", files / "o.png"
    arguments = [x, "--pairs", y, "--labels", labels, "--out", str(out), "--figure", str(picture)]
    options = "--devices 2 --t 3 --parts rank classes distances projections views prototype"
    assert command_line.main(["metrics", *arguments, *options.split()]) == 0
    shown = capsys.readouterr().out
    found = json.loads(out.read_text())
    x, y, labels = map(np.load, paths)
    assert found["classes"] == [0, 1, 2, 3] and sum(found["n_by_class"]) == 115
    by_class = [uniformity(x[labels == label], 3) for label in range(4)]
    np.testing.assert_allclose(found["uniform_by_class"], by_class, rtol=1e-5)
    assert found["uniform_views"] == pytest.approx((uniformity(x, 3) + uniformity(y, 3)) / 2, 1e-5)
    assert found["pair_distance"] == pytest.approx(distances(x, y).mean(), rel=1e-5)
    # All pairs of a class, instead of one mate for each point.
    lengths = distances(x[:, None], x)
    same = (labels[:, None] == labels) & (labels >= 0) & ~np.eye(120, dtype=bool)
    expected = np.mean([lengths[i][same[i]].mean() for i in np.flatnonzero(labels >= 0)])
    error = found["prototype_bias_standard_error"]
    assert abs(found["prototype_bias"] - expected) < 4 * error and error < 0.05
    assert found["prototype_bias_n"] == 115 and len(found["projections"]) == 6
    assert picture.stat().st_size > 10_000
    check_output(out, ".json")  # both may be written anew
    check_output(picture, ".png")
    assert all(
        name in shown and f"{value:.2f}"[:-1] in shown for name, value, *_ in metrics_rows(found)
    )


def test_default_parts_depend_on_the_data(files):
    def found(file="x", **options):
        return set(run_metrics(MetricsConfig(str(files / f"{file}.npy"), **options)))

    assert {"effective_rank", "projections"} <= found() - {"uniform_by_class", "pair_distance"}
    labelled = found(labels=files / "labels.npy")
    assert "prototype_bias" not in labelled and "uniform_by_class" in labelled
    np.save(files / "inside.npy", np.load(files / "x.npy") * np.linspace(1, 0.5, 120)[:, None])
    with pytest.raises(UserError, match=r"row 119 has 0\.5"):
        found("inside")
    with pytest.raises(UserError, match="give pairs="):
        found(parts=("views",))


def test_seed_draws_directions_and_class_mates(files):
    of = {"run": str(files / "x.npy"), "labels": files / "labels.npy"}
    of |= {"devices": 1, "parts": ("projections", "prototype")}
    one, same, other = (run_metrics(MetricsConfig(seed=seed, **of)) for seed in (1, 1, 2))
    for name in ("sliced_wasserstein", "prototype_bias"):
        assert one[name] == same[name] != other[name]


@pytest.mark.slow
def test_run_metrics_of_checkpoints_and_splits(image_run, tmp_path, monkeypatch):
    run, seeds = shutil.copytree(image_run, tmp_path / "run"), []
    whole = run_dir.load_data(run)  # with more images, without labels, to train on
    whole = whole._replace(pretrain=subsets.Concatenated([whole.train, whole.test]))
    monkeypatch.setattr(run_dir, "load_data", lambda *_: whole)

    def split(encoder, source, layers, devices):
        x = sphere(np.random.default_rng([encoder.step, len(source)]), len(source), 6)
        return SimpleNamespace(features={"output": Features(x, source.labels)})

    def pairs(encoder, source, devices, seed=0):
        seeds.append(seed)
        rng = np.random.default_rng([encoder.step, len(source), seed])
        return sphere(rng, len(source), 6), sphere(rng, len(source), 6)

    monkeypatch.setattr(measure_runs, "split_features", split)
    monkeypatch.setattr(measure_runs, "pair_features", pairs)
    parts = ["--devices", "1", "--parts", "classes", "prototype", "views"]
    for name, step, n, seed, alpha, t in (
        ("test", 56, 397, 0, 2, 2),
        ("test-step28", 28, 397, 0, 2, 2),
        ("train", 56, 1400, 0, 2, 2),
        ("test-alpha1.0-t3.0-seed4", 56, 397, 4, 1, 3),
    ):
        options = f"--alpha {alpha} --t {t} --seed {seed} --split {name.split('-')[0]}".split()
        options += ["--step", "28"] if step == 28 else []
        seeds.clear()
        assert command_line.main(["metrics", str(run), *options, *parts]) == 0
        assert set(seeds) == {seed}  # of prototypes, too
        found = read_json(run / "eval" / f"metrics-{name}-classes+prototype+views.json")
        assert (found["step"], found["n"], sum(found["n_by_class"])) == (step, n, n)
        one, two = pairs(run_dir.load_encoder(run, step), range(n), [], seed)
        assert found["align"] == pytest.approx((distances(one, two) ** alpha).mean())
        x = sphere(np.random.default_rng([step, n]), n, 6)
        ours = [(uniformity(one, t) + uniformity(two, t)) / 2, uniformity(x, t)]
        np.testing.assert_allclose([found["uniform_views"], found["uniform"]], ours, rtol=1e-4)
        assert (run / "figures" / f"metrics-{name}-classes+prototype+views.png").is_file()


def test_prototype_bias_leaves_out_images_without_mates(monkeypatch):
    # An image's one pixel says which it is; rows 4, 7 and 8 have no mate.
    labels = np.array([0, 2, 0, 2, 1, 0, 2, -1, -1])
    images = np.arange(9, dtype=np.uint8).reshape(9, 1, 1, 1)
    source, seen = Arrays(images, labels, ("a", "b", "c"), "nine"), []

    def encode(encoder, source, devices, seed):
        """Features `[n, 2]`: the image's number, and its place, which stands for `t_i`."""
        numbers = [source[i]["image"].item() for i in range(len(source))]
        seen.append(np.stack([numbers, 100 * np.arange(len(source))], axis=1).astype(np.float32))
        return seen[-1], seen[-1] + seed

    monkeypatch.setattr(measure_runs, "pair_features", encode)
    views = partial(measure_runs._row_views, None, source, [], 3)
    features = measure_runs.MeasuredFeatures(np.zeros((9, 2)), None, labels, views=views)
    found = measure_runs.METRIC_PARTS["prototype"](features, MetricsConfig("run", seed=3), [])
    (ours, places), (theirs, their_places) = (x.T for x in seen)
    assert found["prototype_bias_n"] == 6 and list(ours) == [0, 1, 2, 3, 5, 6]
    np.testing.assert_array_equal(places, their_places)  # augmented alike
    np.testing.assert_array_equal(labels[theirs.astype(int)], [0, 2, 0, 2, 0, 2])
    assert (theirs != ours).all()
    assert found["prototype_bias"] == pytest.approx(np.abs(theirs - ours).mean())
