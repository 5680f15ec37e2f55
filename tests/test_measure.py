"""The measures of the metrics verb, from files and from runs, and their picture."""

import json

import jax
import matplotlib.image
import numpy as np
import pytest
from conftest import sphere
from oracles import uniformity

import run as command_line
from hypersphere_jax import plots, report, runs, training
from hypersphere_jax.config import (
    MetricsConfig,
    ModelConfig,
    OptimizerConfig,
    PretrainConfig,
    RuntimeConfig,
    UserError,
)
from hypersphere_jax.data import Arrays
from hypersphere_jax.evaluation import geometry, material
from hypersphere_jax.evaluation.features import pair_features, split_features
from hypersphere_jax.evaluation.measure import lines, measure

# Files.


@pytest.fixture
def files(rng, tmp_path):
    x, y = sphere(rng, 120, 6), sphere(rng, 120, 6)
    labels = rng.integers(0, 4, 120)
    labels[:5] = -1
    for name, array in (("x", x), ("y", y), ("labels", labels)):
        np.save(tmp_path / f"{name}.npy", array)
    return tmp_path


ALL = ("rank", "classes", "distances", "projections", "views", "prototype")


def test_all_parts_of_files(files, capsys):
    paths = [str(files / f"{name}.npy") for name in ("x", "y", "labels")]
    out, picture = files / "o.json", files / "o.png"
    arguments = [paths[0], "--pairs", paths[1], "--labels", paths[2], "--parts", *ALL]
    arguments += ["--out", str(out), "--figure", str(picture), "--devices", "3"]
    assert command_line.main(["metrics", *arguments]) == 0
    shown, written = capsys.readouterr()
    found = json.loads(out.read_text())
    x, y, labels = map(np.load, paths)
    assert found["classes"] == [0, 1, 2, 3] and sum(found["n_by_class"]) == 115
    for label in range(4):
        expected = uniformity(x[labels == label])
        np.testing.assert_allclose(found["uniform_by_class"][label], expected, rtol=1e-5)
    expected = (uniformity(x) + uniformity(y)) / 2
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
    for name, value, _, _ in lines(found):
        assert name in shown and f"{value:.2f}"[:-1] in shown
    assert len(lines(found)) == 8 and max(map(len, shown.splitlines())) <= 80
    assert f"written: {out}\nwritten: {picture}\n" in written
    pixels = matplotlib.image.imread(picture)
    assert (pixels[..., :3].min(axis=-1) < 0.9).mean() > 0.01


def test_parts_that_the_data_allow(files):
    x, labels = str(files / "x.npy"), files / "labels.npy"
    found = measure(MetricsConfig(x))
    assert "effective_rank" in found and "projections" in found
    assert "uniform_by_class" not in found and "pair_distance" not in found
    found = measure(MetricsConfig(x, parts=()))
    assert not lines(found) and found["uniform"] < 0
    assert "prototype_bias" not in measure(MetricsConfig(x, labels=labels))
    # A long row of numbers is left out unless it is asked for.
    np.save(files / "line.npy", np.sign(np.load(x)[:, :1]))
    found = measure(MetricsConfig(str(files / "line.npy")))
    assert "projections" not in found and found["effective_rank"] == 1


def test_rank_is_left_out_where_it_takes_long(files, monkeypatch, caplog):
    monkeypatch.setattr("hypersphere_jax.evaluation.measure.RANK_ENTRIES", 35)
    x = str(files / "x.npy")
    assert "effective_rank" not in measure(MetricsConfig(x)) and "--parts rank" in caplog.text
    assert "effective_rank" in measure(MetricsConfig(x, parts=("rank",)))


def test_mistakes(files, capsys):
    labels = np.load(files / "labels.npy")
    for name, array in (
        ("short", labels[:50]),
        ("floats", labels.astype(float)),
        ("one", np.full(120, 7)),
        ("none", np.full(120, -1)),
        ("single", np.arange(120)),
        ("column", labels[:, None]),
    ):
        np.save(files / f"{name}.npy", array)
    for arguments, said in (
        (["--labels", "short.npy"], "short.npy: expected 120 labels, one a row, got shape (50,)"),
        (["--labels", "column.npy"], "got shape (120, 1)"),
        (["--labels", "floats.npy"], "floats.npy: expected integers, got float64"),
        (["--labels", "one.npy"], "one.npy: all points are of one class (7)"),
        (["--labels", "none.npy"], "none.npy: no point has a label"),
        (["--labels", "single.npy"], "each of the 120 classes has one point only"),
        (["--labels", "nothing.npy"], "nothing.npy: there is no such file"),
        (["--parts", "distances"], "--parts distances: there are no positive pairs: give --pairs"),
        (["--parts", "views"], "--parts views: there are no positive pairs: give --pairs"),
        (["--parts", "prototype"], "--parts prototype: there are no labels: give --labels"),
        (["--figure", "picture.jpg"], "pictures are PNG"),
    ):
        arguments = [str(files / a) if "." in a else a for a in arguments]
        assert command_line.main(["metrics", str(files / "x.npy"), *arguments]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1, error
    with pytest.raises(UserError, match=r"--labels is for an \.npy file"):
        MetricsConfig("some-run", labels=files / "labels.npy")


# Runs.


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return training.train(
        PretrainConfig(
            name="run",
            runs_dir=str(tmp_path_factory.mktemp("runs")),
            model=ModelConfig(dim=6, width=0.25),
            optimizer=OptimizerConfig(epochs=1, batch_size=200),
            runtime=RuntimeConfig(devices=1),
        )
    )


def test_all_parts_of_a_run(run):
    assert command_line.main(["metrics", str(run), "--devices", "1", "--parts", *ALL]) == 0
    name = "metrics-test-" + "+".join(sorted(ALL))
    found = json.loads((run / "eval" / f"{name}.json").read_text())
    assert (run / "figures" / f"{name}.png").stat().st_size > 10_000
    # Lists stay in the files: a table of runs has what one reads.
    columns, _ = report.eval_tables([run])["metrics"]
    assert "effective rank" in columns and not {"singular values", "projections"} & set(columns)
    encoder, devices = runs.load_encoder(run), jax.devices()[:1]
    test = runs.load_data(run).test
    x = split_features(encoder, test, ["output"], devices)["output"].x
    for label in range(10):
        expected = uniformity(x[test.labels == label])
        np.testing.assert_allclose(found["uniform_by_class"][label], expected, rtol=1e-3)
    # Eq. (51) by hand: the mates' images in the places of the images, so augmented alike.
    mates = geometry.class_mates(geometry.class_rows(test.labels, 397), 397, 0)
    others = Arrays(test.images[mates], test.labels[mates], test.class_names, "mates")
    ours, theirs = (pair_features(encoder, source, devices) for source in (test, others))
    expected = np.linalg.norm(np.float64(ours) - theirs, axis=2).mean()
    np.testing.assert_allclose(found["prototype_bias"], expected, rtol=1e-3)
    assert found["prototype_bias_n"] == 397 and found["n_by_class"] == [
        int((test.labels == label).sum()) for label in range(10)
    ]
    np.testing.assert_allclose(
        found["uniform_views"], np.mean([uniformity(side) for side in ours]), rtol=1e-4
    )


def test_features_that_are_not_finite(run, monkeypatch):
    original = material.split_features

    def spoilt(*arguments):
        found = original(*arguments)["output"]
        x = np.array(found.x)
        x[[3, 90], 1] = np.nan
        return {"output": found._replace(x=x)}

    monkeypatch.setattr(material, "split_features", spoilt)
    said = r"test features of run: 2 of 397 rows hold NaN or infinity \(rows 3, 90\)"
    with pytest.raises(UserError, match=said):
        measure(MetricsConfig(str(run), devices=1))


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


# The picture.


def test_picture_has_what_was_measured(files):
    paths = [str(files / f"{name}.npy") for name in ("x", "y", "labels")]
    result = measure(MetricsConfig(paths[0], pairs=paths[1], labels=files / "labels.npy"))
    figure = plots.metrics_figure(json.loads(json.dumps(result)), files / "p.png")
    panels = figure.get_axes()
    labels = [axes.get_xlabel() for axes in panels]
    assert len(panels) == 3 + 8 and not any(axes.axison for axes in panels[9:])
    for axes in panels[:3]:
        assert axes.get_xlabel() and axes.get_ylabel() and axes.get_title()
    assert "distance" in labels[0] and "uniformity" in labels[1] and "singular" in labels[2]
    grid = panels[3:9]
    assert all(axes.get_title().startswith("KS 0.") for axes in grid)
    assert grid[0].get_ylabel() == "density" and grid[4].get_xlabel().startswith("projection")
    # Histograms have the area 1.
    for axes in grid:
        (steps,) = axes.patches
        values, edges, _ = steps.get_data()
        np.testing.assert_allclose((values * np.diff(edges)).sum(), 1, rtol=1e-9)
    singular = panels[2].lines[0].get_ydata()
    np.testing.assert_allclose(singular, result["singular_values"])
    with pytest.raises(ValueError, match="no part to draw"):
        plots.metrics_figure({"features": "x.npy"})


@pytest.mark.parametrize("classes", [40, 3])
def test_picture_of_many_classes_and_of_a_folder_that_is_none(classes, rng, files):
    result = {"features": "a$b.npy", "n": 300, "d": 5, "uniform": -2.0, "uniform_optimum": -3.0}
    result |= {"uniform_by_class_mean": -1.0, "classes": [f"c$ {i}" for i in range(classes)]}
    result["uniform_by_class"] = [None, *rng.uniform(-3, 0, classes - 1)]
    result["uniform_by_class_standard_error"] = [None] * classes
    figure = plots.metrics_figure(result, files / "p.png")
    (axes,) = figure.get_axes()
    assert axes.get_ylabel() == ("class" if classes == 3 else "classes below (%)")
    assert plots.draw_metrics(result, files / "x.npy" / "p.png") is None
    assert plots.draw_metrics({"n": 3, "d": 2}, files / "q.png") is None
