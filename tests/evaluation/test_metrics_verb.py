"""The verb metrics: what is measured of runs and files, of which data, and where it goes."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import jax
import matplotlib.image
import numpy as np
import pytest
from oracles import uniformity
from points import sphere

import run as command_line
from hypersphere_jax import plots, runs
from hypersphere_jax.config import MetricsConfig, UserError
from hypersphere_jax.data import Arrays
from hypersphere_jax.evaluation import material
from hypersphere_jax.evaluation.cache import Features
from hypersphere_jax.evaluation.features import pair_features, split_features
from hypersphere_jax.evaluation.measure import lines, measure
from hypersphere_jax.theory import uniformity_optimum

ALL = ("rank", "classes", "distances", "projections", "views", "prototype")


@pytest.fixture
def files(rng, tmp_path):
    x, y = sphere(rng, 120, 6), sphere(rng, 120, 6)
    labels = rng.integers(0, 4, 120)
    labels[:5] = -1
    for name, array in (("x", x), ("y", y), ("labels", labels)):
        np.save(tmp_path / f"{name}.npy", array)
    return tmp_path


def test_all_parts_of_files(files, capsys):
    paths = [str(files / f"{name}.npy") for name in ("x", "y", "labels")]
    out, picture = files / "o.json", files / "o.png"
    arguments = [paths[0], "--pairs", paths[1], "--labels", paths[2], "--parts", *ALL]
    arguments += ["--out", str(out), "--figure", str(picture), "--devices", "2", "--t", "3"]
    assert command_line.main(["metrics", *arguments]) == 0
    shown = capsys.readouterr().out
    found = json.loads(out.read_text())
    x, y, labels = map(np.load, paths)
    assert found["classes"] == [0, 1, 2, 3] and sum(found["n_by_class"]) == 115
    for label in range(4):
        expected = uniformity(x[labels == label], 3)
        np.testing.assert_allclose(found["uniform_by_class"][label], expected, rtol=1e-5)
    expected = (uniformity(x, 3) + uniformity(y, 3)) / 2
    np.testing.assert_allclose(found["uniform_views"], expected, rtol=1e-5)
    expected = np.linalg.norm(x.astype(np.float64) - y, axis=1).mean()
    np.testing.assert_allclose(found["pair_distance"], expected, rtol=1e-5)
    # All pairs of a class, instead of one mate for each point.
    lengths = np.linalg.norm(x[:, None] - x[None], axis=-1)
    same = (labels[:, None] == labels) & (labels >= 0) & ~np.eye(120, dtype=bool)
    expected = np.mean([lengths[i][same[i]].mean() for i in np.flatnonzero(labels >= 0)])
    error = found["prototype_bias_standard_error"]
    assert abs(found["prototype_bias"] - expected) < 4 * error and error < 0.05
    assert found["prototype_bias_n"] == 115 and len(found["projections"]) == 6
    # What is printed is what is kept, and no wider than a terminal.
    assert len(lines(found)) == 8 and max(map(len, shown.splitlines())) <= 80
    for name, value, _, _ in lines(found):
        assert name in shown and f"{value:.2f}"[:-1] in shown
    assert (matplotlib.image.imread(picture)[..., :3].min(axis=-1) < 0.9).mean() > 0.01


def test_parts_that_the_data_allow(files, monkeypatch, caplog):
    x, labels = str(files / "x.npy"), files / "labels.npy"
    found = measure(MetricsConfig(x))
    assert "effective_rank" in found and "projections" in found
    assert "uniform_by_class" not in found and "pair_distance" not in found
    found = measure(MetricsConfig(x, parts=()))
    assert not lines(found) and found["uniform"] < 0
    found = measure(MetricsConfig(x, labels=labels))
    assert "prototype_bias" not in found and "uniform_by_class" in found
    np.save(files / "long.npy", np.load(x) * np.arange(1, 121)[:, None])
    far = {"pairs": files / "long.npy", "normalize": True, "parts": ("distances",)}
    long = measure(MetricsConfig(str(files / "long.npy"), **far))
    assert long["uniform"] == pytest.approx(found["uniform"]) and long["normalized"]
    assert long["pair_distance"] < 1e-6
    # A long row of numbers is left out unless it is asked for.
    np.save(files / "line.npy", np.sign(np.load(x)[:, :1]))
    found = measure(MetricsConfig(str(files / "line.npy")))
    assert "projections" not in found and found["effective_rank"] == 1
    monkeypatch.setattr("hypersphere_jax.evaluation.measure.RANK_ENTRIES", 35)
    assert "effective_rank" not in measure(MetricsConfig(x)) and "--parts rank" in caplog.text
    assert "effective_rank" in measure(MetricsConfig(x, parts=("rank",)))


def test_mistakes_in_files(files, fails):
    labels, x = np.load(files / "labels.npy"), np.load(files / "x.npy")
    x[7] *= 0.5
    for name, array in (
        ("short", labels[:50]),
        ("floats", labels.astype(float)),
        ("one", np.full(120, 7)),
        ("none", np.full(120, -1)),
        ("single", np.arange(120)),
        ("column", labels[:, None]),
        ("inside", x),
    ):
        np.save(files / f"{name}.npy", array)
    for arguments, said in (
        ("--labels short.npy", "short.npy: expected 120 labels, one a row, got shape (50,)"),
        ("--labels column.npy", "got shape (120, 1)"),
        ("--labels floats.npy", "floats.npy: expected integers, got float64"),
        ("--labels one.npy", "one.npy: all points are of one class (7)"),
        ("--labels none.npy", "none.npy: no point has a label"),
        ("--labels single.npy", "each of the 120 classes has one point only"),
        ("--labels nothing.npy", "nothing.npy: there is no such file"),
        ("--pairs inside.npy", "row 7 has 0.5"),
        ("--parts distances", "--parts distances: there are no positive pairs: give --pairs"),
        ("--parts views", "--parts views: there are no positive pairs: give --pairs"),
        ("--parts prototype", "--parts prototype: there are no labels: give --labels"),
        ("--figure picture.jpg", "pictures are PNG"),
    ):
        given = [str(files / a) if "." in a else a for a in arguments.split()]
        assert said in fails("metrics", str(files / "x.npy"), *given)
    with pytest.raises(UserError, match=r"--labels is for an \.npy file"):
        MetricsConfig("some-run", labels=files / "labels.npy")


def test_parts_of_a_run(run):
    """All but the prototype bias, which is below."""
    options = ["--devices", "1", "--alpha", "1", "--t", "3", "--parts", *ALL[:-1]]
    assert command_line.main(["metrics", str(run), *options]) == 0
    name = "metrics-test-alpha1.0-t3.0-" + "+".join(sorted(ALL[:-1]))
    found = json.loads((run / "eval" / f"{name}.json").read_text())
    assert (run / "figures" / f"{name}.png").stat().st_size > 10_000
    encoder, devices, test = runs.load_encoder(run), jax.devices()[:1], runs.load_data(run).test
    x = split_features(encoder, test, ["output"], devices)["output"].x
    assert found["uniform"] == pytest.approx(uniformity(x, 3), rel=1e-5)
    assert found["uniform"] > found["uniform_optimum"] == uniformity_optimum(6, 3.0)
    for label in range(10):
        expected = uniformity(x[test.labels == label], 3)
        np.testing.assert_allclose(found["uniform_by_class"][label], expected, rtol=1e-3)
    assert found["n_by_class"] == np.bincount(test.labels).tolist()
    one, two = pair_features(encoder, test, devices)
    assert found["align"] == pytest.approx(np.linalg.norm(one - two, axis=1).mean(), 1e-4)
    expected = (uniformity(one, 3) + uniformity(two, 3)) / 2
    assert found["uniform_views"] == pytest.approx(expected, 1e-4)


def test_checkpoint_split_and_seed_of_a_run_are_those_asked_for(run, monkeypatch):
    """Features tell here of which checkpoint, images and seed they are; and may be spoilt."""

    def split(encoder, source, layers, devices):
        x = sphere(np.random.default_rng([encoder.step, len(source)]), len(source), 6)
        x[spoilt] = np.nan
        return {"output": Features(x, source.labels)}

    def pairs(encoder, source, devices, seed=0):
        rng = np.random.default_rng([encoder.step, len(source), seed])
        return sphere(rng, len(source), 6), sphere(rng, len(source), 6)

    spoilt = []
    monkeypatch.setattr(material, "split_features", split)
    monkeypatch.setattr(material, "pair_features", pairs)
    seen = set()
    for options, step, n, name in (
        ({}, 56, 397, "metrics-test"),
        ({"step": 28}, 28, 397, "metrics-test-step28"),
        ({"split": "train"}, 56, 1400, "metrics-train"),
        ({"seed": 4}, 56, 397, "metrics-test-seed4"),
    ):
        found = measure(MetricsConfig(str(run), devices=1, parts=("distances",), **options))
        file = run / "eval" / f"{name}-distances.json"
        assert json.loads(file.read_text()) == found and found["step"] == step
        assert found["split"] == options.get("split", "test") and found["n"] == n
        one, two = pairs(runs.load_encoder(run, step), range(n), [], options.get("seed", 0))
        assert found["align"] == pytest.approx((np.linalg.norm(one - two, axis=1) ** 2).mean())
        x = sphere(np.random.default_rng([step, n]), n, 6)
        assert found["uniform"] == pytest.approx(uniformity(x), rel=1e-4)
        seen.add(found["align"])
    assert len(seen) == 4
    spoilt[:] = [3, 90]
    said = r"test features of images: 2 of 397 rows hold NaN or infinity \(rows 3, 90\)"
    with pytest.raises(UserError, match=said):
        measure(MetricsConfig(str(run), devices=1))


def test_neighbours_of_text_are_in_one_document(monkeypatch):
    """The pairs of a run of sentences: each with the next and the one before, both ways."""
    f, g = (np.arange(14.0).reshape(7, 2) + k for k in (0, 100))
    source = SimpleNamespace(documents=np.array([0, 3, 4, 7]))
    found = {"f": Features(f, None), "g": Features(g, None)}
    monkeypatch.setattr(material, "split_features", lambda *_: found)
    text = material._of_text(SimpleNamespace(folder=Path("run")), source, [])
    pairs = np.stack([side[slice(None)] for side in text.pairs], axis=1)[:, :, 0] // 2
    expected = [(0, 51), (1, 52), (4, 55), (5, 56), (1, 50), (2, 51), (5, 54), (6, 55)]
    assert pairs.astype(int).tolist() == [list(pair) for pair in expected]


def test_prototype_bias_of_a_run_leaves_out_images_without_mates(monkeypatch):
    # An image's one pixel says which it is; rows 4, 7 and 8 have no mate.
    labels = np.array([0, 2, 0, 2, 1, 0, 2, -1, -1])
    images = np.arange(9, dtype=np.uint8).reshape(9, 1, 1, 1)
    source = Arrays(images, labels, ("a", "b", "c"), "nine")

    def encode(encoder, source, devices, seed):
        """Features `[n, 2]`: the image's number, and its place, which stands for `t_i`."""
        numbers = [source[i]["image"].item() for i in range(len(source))]
        x = np.stack([numbers, 100 * np.arange(len(source))], axis=1).astype(np.float32)
        seen.append(x)
        return x, x + seed

    seen = []
    monkeypatch.setattr(material, "pair_features", encode)
    pairs = encode(None, source, [], 3)
    found, n = material._prototype_of_run(None, source, pairs, [], 3)
    _, ours, theirs = seen
    assert n == 6 and list(ours[:, 0]) == [0, 1, 2, 3, 5, 6]
    np.testing.assert_array_equal(ours[:, 1], theirs[:, 1])  # augmented alike
    numbers = theirs[:, 0].astype(int)
    np.testing.assert_array_equal(labels[numbers], labels[[0, 1, 2, 3, 5, 6]])
    assert (theirs[:, 0] != ours[:, 0]).all()
    np.testing.assert_allclose(found.value, np.abs(theirs[:, 0] - ours[:, 0]).mean())
    # Nothing is silently left out: an image that cannot be read is in neither array.
    monkeypatch.setattr(material, "pair_features", lambda *a: [x[1:] for x in encode(*a)])
    with pytest.raises(UserError, match="some images of nine cannot be read"):
        material._prototype_of_run(None, source, pairs, [], 3)
    picked = [material.Picked(source, np.array(rows)).digest for rows in ([0, 1], [1, 0])]
    assert len({source.digest, *picked}) == 3


def test_picture_has_what_was_measured(files):
    paths = [str(files / f"{name}.npy") for name in ("x", "y", "labels")]
    result = measure(MetricsConfig(paths[0], pairs=paths[1], labels=files / "labels.npy"))
    figure = plots.metrics_figure(json.loads(json.dumps(result)), files / "p.png")
    drawn = [axes for axes in figure.get_axes() if axes.axison]
    histograms = [axes.patches[0].get_data() for axes in drawn if len(axes.patches) == 1]
    areas = [(h.values * np.diff(h.edges)).sum() for h in histograms]
    assert sum(math.isclose(area, 1, rel_tol=1e-9) for area in areas) >= 6  # directions
    curves = [line.get_ydata() for axes in drawn for line in axes.lines]
    assert any(np.array_equal(curve, result["singular_values"]) for curve in curves)
    with pytest.raises(ValueError, match="no part to draw"):
        plots.metrics_figure({"features": "x.npy"})
    assert plots.draw_metrics(result, files / "x.npy" / "p.png") is None  # no folder
    assert plots.draw_metrics({"n": 3, "d": 2}, files / "r.png") is None
