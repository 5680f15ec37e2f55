"""Geometry of features: closed forms, float64 by hand, and independence of slices and devices."""

import json
import math

import jax
import matplotlib.image
import numpy as np
import pytest
from conftest import sphere
from scipy import stats

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
from hypersphere_jax.evaluation import geometry, material, metrics
from hypersphere_jax.evaluation.features import pair_features, split_features
from hypersphere_jax.evaluation.measure import lines, measure
from hypersphere_jax.losses import sliced_wasserstein_loss


def uniformity(x, t=2.0):
    """Over all pairs of different points, in float64."""
    x = np.float64(x)
    squares = ((x[:, None] - x[None]) ** 2).sum(-1)[~np.eye(len(x), dtype=bool)]
    return math.log(np.exp(-t * squares).mean())


@pytest.fixture(params=[2**23, 60], ids=["one slice", "many slices"])
def slices(request, monkeypatch):
    monkeypatch.setattr(geometry, "ENTRIES", request.param)


# Rank.


@pytest.mark.parametrize("k", [1, 3, 7])
def test_effective_rank_of_one_hot_features_counts_them(k, slices):
    x = np.eye(7, dtype=np.float32)[np.arange(21 * k) % k]
    found = geometry.effective_rank(x)
    np.testing.assert_allclose(found.effective_rank, k, rtol=1e-12)
    # Centred, the k corners of a simplex lie in k - 1 dimensions.
    np.testing.assert_allclose(found.participation_ratio, k - 1, rtol=1e-12, atol=1e-12)
    expected = np.where(np.arange(7) < k, k**-0.5, 0)
    np.testing.assert_allclose(found.singular_values, expected, atol=1e-12)


@pytest.mark.parametrize("shape", [(50, 6), (6, 50), (8, 8)])
def test_rank_from_a_singular_value_decomposition(shape, slices, rng):
    x = sphere(rng, *shape) + 0.2
    found = geometry.effective_rank(x)
    values = np.linalg.svd(x.astype(np.float64), compute_uv=False)
    np.testing.assert_allclose(found.singular_values, values / shape[0] ** 0.5, rtol=1e-9)
    expected = math.exp(stats.entropy(values))
    np.testing.assert_allclose(found.effective_rank, expected, rtol=1e-9)
    eigenvalues = np.linalg.eigvalsh(np.cov(x.astype(np.float64).T))
    expected = eigenvalues.sum() ** 2 / (eigenvalues**2).sum()
    np.testing.assert_allclose(found.participation_ratio, expected, rtol=1e-9)


def test_rank_of_the_sphere_and_of_zeros(rng):
    found = geometry.effective_rank(sphere(rng, 20_000, 8))
    np.testing.assert_allclose(found[:2], 8, rtol=1e-2)
    with pytest.raises(UserError, match="all features are zero"):
        geometry.effective_rank(np.zeros((4, 3)))


# Projections.


@pytest.mark.parametrize("d", [2, 3, 4, 9, 1000])
def test_marginal_of_the_sphere(d):
    end = d**0.5
    edges = np.linspace(-end, end, 4001)
    # (1 + u) / 2 has a beta distribution.
    expected = stats.beta((d - 1) / 2, (d - 1) / 2).cdf((1 + edges / end) / 2)
    np.testing.assert_allclose(geometry.sphere_marginal(edges, d), expected, atol=1e-9)
    s = np.linspace(-0.9, 0.9, 7) * end
    density = stats.beta((d - 1) / 2, (d - 1) / 2).pdf((1 + s / end) / 2) / (2 * end)
    np.testing.assert_allclose(geometry.sphere_marginal_density(s, d), density, rtol=1e-9)


@pytest.mark.parametrize("d", [2, 5, 64])
def test_projections_of_the_uniform_sphere(d, rng):
    n = 20_000
    found = geometry.projections(sphere(rng, n, d))
    # The variance along a direction is 1 / d, and 1 in these units.
    np.testing.assert_allclose(found.variance, 1, atol=0.05)
    np.testing.assert_allclose(found.mean, 0, atol=0.03)
    assert found.ks_sphere.max() < 2 / n**0.5 and found.sliced_wasserstein.max() < 2e-3
    assert found.counts.shape == (min(16, d), geometry.BINS) and (found.counts.sum(1) == n).all()
    # Of few dimensions, no projection is normal; of many, all are.
    assert found.ks_normal.min() > 0.05 if d == 2 else found.ks_normal.max() < 0.05


def test_distances_of_projections(slices, rng):
    n, d, seed = 300, 6, 3
    x = sphere(rng, n, d) + 0.3
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    found = geometry.projections(x, count=4, seed=seed)
    # The directions follow from the histograms' moments nowhere, so they are drawn here again.
    directions = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, 4)))[0]
    projected = x.astype(np.float64) @ directions
    np.testing.assert_allclose(found.mean, d**0.5 * projected.mean(0), rtol=1e-6)
    np.testing.assert_allclose(found.variance, d * projected.var(0), rtol=1e-6)
    marginal = stats.beta((d - 1) / 2, (d - 1) / 2, loc=-1, scale=2)
    for k in range(4):
        ks = stats.ks_1samp(projected[:, k], marginal.cdf).statistic
        # Within a bin, the distribution of the sample can jump once.
        np.testing.assert_allclose(found.ks_sphere[k], ks, atol=1.5 / n)
        ks = stats.ks_1samp(d**0.5 * projected[:, k], stats.norm.cdf).statistic
        np.testing.assert_allclose(found.ks_normal[k], ks, atol=1.5 / n)
    # Algorithm 1 of Chen et al. with the quantiles of the sphere for its samples, one direction.
    quantiles = marginal.ppf((np.arange(n) + 0.5) / n).astype(np.float32)
    for k in range(4):
        one = np.ones((1, 1), np.float32)
        loss = sliced_wasserstein_loss(projected[:, k : k + 1], quantiles[:, None], one)
        np.testing.assert_allclose(found.sliced_wasserstein[k], d * loss, rtol=2e-2)


def test_projections_of_one_point():
    d = 50
    x = np.tile(np.eye(d)[:1], (40, 1))
    found = geometry.projections(x, seed=1)
    assert (np.count_nonzero(found.counts, axis=1) == 1).all()
    np.testing.assert_allclose(found.variance, 0, atol=1e-12)
    # All mass in one place, at m: the variance of the sphere, and m squared.
    np.testing.assert_allclose(found.sliced_wasserstein, 1 + found.mean**2, rtol=1e-3)
    with pytest.raises(UserError, match="two dimensions or more, got 1"):
        geometry.projections(np.ones((5, 1)))


def test_order_of_the_rows_is_nothing(rng):
    x, labels = sphere(rng, 200, 5), rng.integers(0, 4, 200)
    order = rng.permutation(200)
    for function in (geometry.effective_rank, geometry.projections):
        for one, two in zip(function(x), function(x[order]), strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-12)
    found = [
        geometry.uniformity_by_class(a, geometry.class_rows(b, 200))
        for a, b in ((x, labels), (x[order], labels[order]))
    ]
    np.testing.assert_allclose(*([e.value for e in f.uniform] for f in found), rtol=1e-6)


# Pairs.


def test_pair_distances(slices, rng):
    x, y = sphere(rng, 100, 4), sphere(rng, 100, 4)
    y[0] = -x[0] * 1.004  # norms are near 1 only
    found = geometry.pair_distances(x, y)
    lengths = np.linalg.norm(x.astype(np.float64) - y, axis=1)
    np.testing.assert_allclose(found.mean.value, lengths.mean(), rtol=1e-6)
    expected, _ = np.histogram(lengths[1:], 50, (0, 2))
    expected[-1] += 1
    np.testing.assert_array_equal(found.counts, expected)


# Classes.


@pytest.mark.parametrize("devices", [1, 3])
def test_uniformity_by_class_is_the_loss_of_each_class(devices, rng):
    sizes = [2, 3, 70, 64, 65, 1, 120]  # some of one size on the device, one too large, one alone
    labels = rng.permutation(np.repeat([0, 5, 6, 7, 9, 11, 12], sizes))
    labels[:4] = [-1, -2, labels[2], labels[3]]
    sizes = [int((labels == label).sum()) for label in (0, 5, 6, 7, 9, 11, 12)]
    x = sphere(rng, len(labels), 4) + 0.5
    groups = geometry.class_rows(labels, len(labels))
    found = metrics.uniformities(
        x, list(groups.values()), 3.0, devices=jax.devices()[:devices], chunk=100
    )
    assert list(groups) == sorted(set(labels.tolist()) - {-1, -2})
    assert [len(rows) for rows in groups.values()] == [size for size in sizes if size]
    for label, estimate in zip(groups, found, strict=True):
        own = x[labels == label]
        if len(own) < 2:
            assert math.isnan(estimate.value)
            continue
        np.testing.assert_allclose(estimate.value, uniformity(own, 3.0), rtol=1e-5)
        if len(own) > 100:  # in several chunks above, and in one here
            alone = metrics.uniformity(own, 3.0)
            np.testing.assert_allclose(estimate.standard_error, alone.standard_error, rtol=1e-3)
    by_class = geometry.uniformity_by_class(x, groups, 3.0, jax.devices()[:devices])
    values = [e.value for e in found if not math.isnan(e.value)]
    np.testing.assert_allclose(by_class.mean, np.mean(values), rtol=1e-6)


def test_class_mates(rng):
    labels = np.array([3] * 4 + [8] * 2 + [5] + [-1] * 3)
    groups = geometry.class_rows(labels, 10)
    drawn = np.array([geometry.class_mates(groups, 10, seed) for seed in range(600)])
    assert (drawn[:, 6:] == -1).all()
    for row in range(6):
        others = np.flatnonzero((labels == labels[row]) & (np.arange(10) != row))
        values, counts = np.unique(drawn[:, row], return_counts=True)
        assert list(values) == list(others) and (counts > 0.7 * 600 / len(others)).all()


def test_prototype_bias(slices, rng):
    draws = [tuple(sphere(rng, 80, 3) for _ in range(2)) for _ in range(2)]
    lengths = np.zeros(80)
    for i in range(80):
        for x, other in draws:
            lengths[i] += math.dist(map(float, x[i]), map(float, other[i])) / 2
    found = geometry.prototype_bias(draws)
    np.testing.assert_allclose(found.value, lengths.mean(), rtol=1e-6)
    np.testing.assert_allclose(found.standard_error, lengths.std(ddof=1) / 80**0.5, rtol=1e-6)


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
