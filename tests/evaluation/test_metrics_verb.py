"""The verb metrics: what is measured of runs and files, of which data, and where it goes."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from oracles import uniformity
from points import sphere

import run as command_line
from hypersphere_jax import plots, runs
from hypersphere_jax.config import MetricsConfig
from hypersphere_jax.data import Arrays
from hypersphere_jax.evaluation import material
from hypersphere_jax.evaluation.cache import Features
from hypersphere_jax.evaluation.measure import lines, measure


@pytest.fixture
def files(rng, tmp_path):
    labels = rng.integers(0, 4, 120)
    labels[:5] = -1
    arrays = {"x": sphere(rng, 120, 6), "y": sphere(rng, 120, 6), "labels": labels}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    return tmp_path


def distances(x, y):
    return np.linalg.norm(np.float64(x) - y, axis=-1)


def test_all_parts_of_files(files, capsys):
    paths = [str(files / f"{name}.npy") for name in ("x", "y", "labels")]
    out, picture = files / "o.json", files / "o.png"
    arguments = [paths[0], "--pairs", paths[1], "--labels", paths[2], "--out", str(out)]
    arguments += ["--figure", str(picture), "--devices", "2", "--t", "3", "--parts", "rank"]
    arguments += ["classes", "distances", "projections", "views", "prototype"]
    assert command_line.main(["metrics", *arguments]) == 0
    shown = capsys.readouterr().out
    found = json.loads(out.read_text())
    x, y, labels = map(np.load, paths)
    assert found["classes"] == [0, 1, 2, 3] and sum(found["n_by_class"]) == 115
    by_class = [uniformity(x[labels == label], 3) for label in range(4)]
    np.testing.assert_allclose(found["uniform_by_class"], by_class, rtol=1e-5)
    expected = (uniformity(x, 3) + uniformity(y, 3)) / 2
    assert found["uniform_views"] == pytest.approx(expected, rel=1e-5)
    assert found["pair_distance"] == pytest.approx(distances(x, y).mean(), rel=1e-5)
    # All pairs of a class, instead of one mate for each point.
    lengths = distances(x[:, None], x)
    same = (labels[:, None] == labels) & (labels >= 0) & ~np.eye(120, dtype=bool)
    expected = np.mean([lengths[i][same[i]].mean() for i in np.flatnonzero(labels >= 0)])
    error = found["prototype_bias_standard_error"]
    assert abs(found["prototype_bias"] - expected) < 4 * error and error < 0.05
    assert found["prototype_bias_n"] == 115 and len(found["projections"]) == 6
    assert len(lines(found)) == 8 and picture.stat().st_size > 10_000
    assert all(name in shown and f"{value:.2f}"[:-1] in shown for name, value, *_ in lines(found))


def test_parts_that_the_data_allow(files, fails):
    def found(**options):
        return set(measure(MetricsConfig(str(files / "x.npy"), **options)))

    assert {"effective_rank", "projections"} <= found() - {"uniform_by_class", "pair_distance"}
    labelled = found(labels=files / "labels.npy")
    assert "prototype_bias" not in labelled and "uniform_by_class" in labelled
    np.save(files / "inside.npy", np.load(files / "x.npy") * np.linspace(1, 0.5, 120)[:, None])
    assert "row 119 has 0.5" in fails("metrics", str(files / "inside.npy"))
    for part, needed in (("views", "--pairs"), ("prototype", "--labels")):
        assert f"give {needed}" in fails("metrics", str(files / "x.npy"), "--parts", part)


def test_checkpoint_split_seed_and_options_of_a_run_are_those_asked_for(run, monkeypatch):
    """Features tell here of which checkpoint, images and seed they are."""

    def split(encoder, source, layers, devices):
        x = sphere(np.random.default_rng([encoder.step, len(source)]), len(source), 6)
        return {"output": Features(x, source.labels)}

    def pairs(encoder, source, devices, seed=0):
        rng = np.random.default_rng([encoder.step, len(source), seed])
        return sphere(rng, len(source), 6), sphere(rng, len(source), 6)

    monkeypatch.setattr(material, "split_features", split)
    monkeypatch.setattr(material, "pair_features", pairs)
    parts = ["--devices", "1", "--parts", "classes", "views"]
    for name, step, n, seed, alpha, t in (
        ("test", 56, 397, 0, 2, 2),
        ("test-step28", 28, 397, 0, 2, 2),
        ("train", 56, 1400, 0, 2, 2),
        ("test-alpha1.0-t3.0-seed4", 56, 397, 4, 1, 3),
    ):
        options = f"--alpha {alpha} --t {t} --seed {seed} --split {name.split('-')[0]}".split()
        options += ["--step", "28"] if step == 28 else []
        assert command_line.main(["metrics", str(run), *options, *parts]) == 0
        found = runs.read_json(run / "eval" / f"metrics-{name}-classes+views.json")
        assert (found["step"], found["n"], sum(found["n_by_class"])) == (step, n, n)
        one, two = pairs(runs.load_encoder(run, step), range(n), [], seed)
        assert found["align"] == pytest.approx((distances(one, two) ** alpha).mean())
        views = (uniformity(one, t) + uniformity(two, t)) / 2
        assert found["uniform_views"] == pytest.approx(views, rel=1e-4)
        x = sphere(np.random.default_rng([step, n]), n, 6)
        assert found["uniform"] == pytest.approx(uniformity(x, t), rel=1e-4)
        assert (run / "figures" / f"metrics-{name}-classes+views.png").is_file()


def test_neighbours_of_text_are_in_one_document(monkeypatch):
    """The pairs of a run of sentences: each with the next and the one before, both ways."""
    found = {name: Features(np.arange(7.0)[:, None] + k, None) for name, k in (("f", 0), ("g", 50))}
    source = SimpleNamespace(documents=np.array([0, 3, 4, 7]))
    monkeypatch.setattr(material, "split_features", lambda *_: found)
    text = material._of_text(SimpleNamespace(folder=Path("run")), source, [])
    pairs = np.concatenate([side[slice(None)] for side in text.pairs], axis=1)
    expected = [(0, 51), (1, 52), (4, 55), (5, 56), (1, 50), (2, 51), (5, 54), (6, 55)]
    np.testing.assert_array_equal(pairs, expected)


def test_prototype_bias_of_a_run_leaves_out_images_without_mates(monkeypatch):
    # An image's one pixel says which it is; rows 4, 7 and 8 have no mate.
    labels = np.array([0, 2, 0, 2, 1, 0, 2, -1, -1])
    images = np.arange(9, dtype=np.uint8).reshape(9, 1, 1, 1)
    source, seen = Arrays(images, labels, ("a", "b", "c"), "nine"), []

    def encode(encoder, source, devices, seed):
        """Features `[n, 2]`: the image's number, and its place, which stands for `t_i`."""
        numbers = [source[i]["image"].item() for i in range(len(source))]
        seen.append(np.stack([numbers, 100 * np.arange(len(source))], axis=1).astype(np.float32))
        return seen[-1], seen[-1] + seed

    monkeypatch.setattr(material, "pair_features", encode)
    pairs = encode(None, source, [], 3)
    found, n = material._prototype_of_run(None, source, pairs, [], 3)
    (ours, places), (theirs, their_places) = (x.T for x in seen[1:])
    assert n == 6 and list(ours) == [0, 1, 2, 3, 5, 6]
    np.testing.assert_array_equal(places, their_places)  # augmented alike
    np.testing.assert_array_equal(labels[theirs.astype(int)], [0, 2, 0, 2, 0, 2])
    assert (theirs != ours).all() and found.value == pytest.approx(np.abs(theirs - ours).mean())


def test_picture_has_what_was_measured(files):
    x, y, labels = (files / f"{name}.npy" for name in ("x", "y", "labels"))
    result = measure(MetricsConfig(str(x), pairs=y, labels=labels))
    drawn = [axes for axes in plots.metrics_figure(result).get_axes() if axes.axison]
    histograms = [axes.patches[0].get_data() for axes in drawn if len(axes.patches) == 1]
    areas = [(h.values * np.diff(h.edges)).sum() for h in histograms]
    assert sum(math.isclose(area, 1, rel_tol=1e-9) for area in areas) >= 6  # directions
    curves = [line.get_ydata() for axes in drawn for line in axes.lines]
    assert any(np.array_equal(curve, result["singular_values"]) for curve in curves)
