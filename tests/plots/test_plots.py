"""Pictures show the data that they are given: densities by loops, curves, planes, grids, sheets.

How they look is free.
"""

import matplotlib.image
import numpy as np
import pytest

from hypersphere_jax import plots
from hypersphere_jax.plots.common import ALIGN_LABEL, UNIFORM_LABEL

CIRCLE = np.linspace(-np.pi, np.pi, 20_000, endpoint=False)
NAN = float("nan")


def unit_circle(angles):
    return np.stack((np.cos(angles), np.sin(angles)), axis=1)


def data_of(axes):
    """Points of each line by its label."""
    return {line.get_label(): line.get_xydata().tolist() for line in axes.lines}


# Densities.


def test_densities_are_loops_over_points(rng):
    angles, grid = rng.uniform(-np.pi, np.pi, 30), np.linspace(-4, 4, 7)
    for kappa in (0.3, 4.0, 100.0):
        kernels = np.exp(kappa * np.cos(grid[:, None] - angles)) / (2 * np.pi * np.i0(kappa))
        found = plots.vmf_kde(angles, grid, kappa)
        np.testing.assert_allclose(found, kernels.mean(axis=1), rtol=1e-10)
    for kappa in (0.0, 20.0, 1e6):
        density = plots.vmf_kde(angles, CIRCLE, kappa)
        assert density.mean() * 2 * np.pi == pytest.approx(1, rel=1e-9)
    # At large kappa a Gaussian in the angle, where exp(kappa) has long overflowed.
    gaussian = np.sqrt(1e8 / (2 * np.pi)) * np.exp(-1e8 * 2e-4**2 / 2)
    assert plots.vmf_kde(np.zeros(1), np.array([2e-4]), 1e8) == pytest.approx(gaussian, rel=1e-6)
    many = rng.normal(size=10_000)  # of several chunks, the last one short
    parts = [plots.vmf_kde(part, grid, 30.0) for part in many.reshape(10, 1000)]
    np.testing.assert_allclose(plots.vmf_kde(many, grid, 30.0), np.mean(parts, axis=0))
    points, grid, width = rng.normal(size=(20, 2)), np.linspace(-2, 2, 5), 0.4
    expected = np.zeros((5, 5))
    for row, y in enumerate(grid):
        for column, x in enumerate(grid):
            squares = (points[:, 0] - x) ** 2 + (points[:, 1] - y) ** 2
            expected[row, column] = np.exp(-squares / (2 * width**2)).mean()
    found = plots.gaussian_kde_2d(points, grid, width)
    np.testing.assert_allclose(found, expected / (2 * np.pi * width**2), rtol=1e-10)


def test_what_cannot_be_drawn_is_refused(rng):
    wide = {"name": "wide", "features": np.zeros((3, 5)), "potential": 1.0}
    encoder = {"name": "a", "features": np.ones((4, 2)), "labels": np.zeros(4, int)}
    encoder["pair_distances"] = np.ones(4)
    for call, message in (
        (lambda: plots.vmf_kde(np.zeros(0), CIRCLE, 1.0), "0 angles"),
        (lambda: plots.vmf_kde(np.zeros(1), CIRCLE, -1.0), "kappa=-1"),
        (lambda: plots.gaussian_kde_2d(np.zeros((0, 2)), CIRCLE, 1.0), "0 points"),
        (lambda: plots.gaussian_kde_2d(np.zeros((1, 2)), CIRCLE, 0.0), "bandwidth=0"),
        (
            lambda: plots.alignment_uniformity_plane([of_plane("a", 0.1, -1.0, NAN)], -4),
            "no encoder",
        ),
        (lambda: plots.potential_sheet([wide]), r"wide: features must be \[n, 2\], got \(3, 5\)"),
        (lambda: plots.potential_sheet([]), "at least one panel"),
        (lambda: plots.bound_sheet({}, []), "at least one encoder"),
        (lambda: plots.circle_figure([encoder | wide], None, "a", [0]), r"\[n, 2\]"),
        (lambda: plots.circle_figure([encoder], None, "ab", [1]), "no features of class 'b'"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


# Runs.


def test_training_curves_show_the_records(tmp_path):
    records = [
        {"step": 10, "loss": 3.0, "align": 1.0, "uniform": -1.0},
        {"step": 20, "align": 0.9, "uniform": -1.5},  # no loss in this record
        {"step": 30, "loss": NAN, "align": 0.8, "uniform": -2.0, "eval/knn_top1": 50.0},
        {"step": 40, "loss": None, "align": 0.7, "uniform": -2.1},
    ]
    names = ["_debug", "$a_$", *(f"sweep_align_weight_{i}_seed_{i}" for i in range(18))]
    runs = {"first": records} | {name: [{"step": 10, "loss": 2.0}] for name in names}
    path = tmp_path / "new" / "curves.png"
    figure = plots.training_curves(runs, path)
    pixels = matplotlib.image.imread(path)
    assert pixels.shape[:2] == tuple((figure.get_size_inches() * figure.dpi).round()[::-1])
    assert (pixels[..., :3].min(axis=-1) < 0.9).mean() > 0.005  # some of it is not background
    loss, align, uniform, rate, evaluated, _ = figure.axes
    np.testing.assert_array_equal(loss.lines[0].get_xydata(), [[10, 3], [30, NAN], [40, NAN]])
    np.testing.assert_array_equal(loss.lines[1].get_xydata(), [[10, 2]])
    assert align.lines[0].get_ydata().tolist() == [1.0, 0.9, 0.8, 0.7]
    assert uniform.lines[0].get_ydata().tolist() == [-1.0, -1.5, -2.0, -2.1]
    assert (align.get_ylabel(), uniform.get_ylabel()) == (ALIGN_LABEL, UNIFORM_LABEL)
    assert evaluated.lines[0].get_xydata().tolist() == [[30, 50]] and rate.texts and not loss.texts
    # Many runs have distinct lines, and a legend inside of the picture.
    assert len({(line.get_color(), line.get_linestyle()) for line in loss.lines}) == 21
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(runs)


def of_plane(name, align, uniform, top1):
    return {"name": name, "align": align, "uniform": uniform, "top1": top1}


def test_plane_places_and_colours_the_encoders():
    encoders = [
        of_plane("poor", 0.9, -1.0, 60.0),
        of_plane("good", 0.2, -3.5, 90.0),
        of_plane("diverged", NAN, NAN, 10.0),
    ]
    axes = plots.alignment_uniformity_plane(encoders, -3.87).axes[0]
    dots = axes.collections[0]
    assert dots.get_offsets().tolist() == [[0.2, -3.5], [0.9, -1.0]]
    (good_red, _, good_blue, _), (poor_red, _, poor_blue, _) = dots.get_facecolor()
    assert good_blue > good_red and poor_blue < poor_red
    assert axes.lines[0].get_ydata() == [-3.87, -3.87]
    places = {text.get_text(): text.get_position() for text in axes.texts}
    assert set(places) == {"good", "poor"} and "diverged" in axes.get_title()
    assert places["good"][1] < places["poor"][1]  # each beside its own point
    same = [of_plane(f"seed {seed}", 0.3, -3.0, 80.0) for seed in range(4)]
    assert len(plots.alignment_uniformity_plane(same, -3.87).axes[0].texts) == 4


def encoder(align, uniform, accuracy, **more):
    ends = {"output_linear_low": accuracy - 2, "output_linear_high": accuracy + 3}
    return {"align": align, "uniform": uniform, "output_linear": accuracy} | ends | more


def test_sweeps_show_their_encoders():
    rows = [encoder(0.1, -3.0, 90.0), encoder(0.5, -1.0, 40.0)]
    for lower_is_better, blue in ((False, 1), (True, 0)):  # the best is drawn last, in blue
        figure = plots.metrics_planes({"a": rows}, lower_is_better=lower_is_better)
        dots = figure.axes[0].collections[0]
        figure.draw_without_rendering()
        assert dots.get_offsets()[-1].tolist() == ([0.1, -3.0] if blue else [0.5, -1.0])
        red, _, other, _ = dots.get_facecolor()[-1]
        assert other > red
    accuracy, metrics = plots.weights_curves(["1 : 0", "0 : 1"], [rows, rows[:1]]).axes
    assert accuracy.lines[-1].get_ydata().tolist() == [65, 90]
    assert [line.get_ydata().tolist() for line in metrics.lines if len(line.get_xdata()) == 2][
        -1
    ] == (pytest.approx([(np.exp(-3) + np.exp(-1)) / 2, np.exp(-3)]))
    means = [line.get_ydata().tolist() for line in metrics.lines]
    assert pytest.approx([0.3, 0.1]) in means
    above, below = plots.trajectories({"a": [row | {"step": 5} for row in rows]}).axes
    assert above.lines[0].get_xydata().tolist() == [[5, 90], [5, 40]]
    drawn = [line.get_ydata().tolist() for line in below.lines]
    assert drawn == [[0.1, 0.5], pytest.approx([np.exp(-3), np.exp(-1)])]
    shade = above.collections[0].get_paths()[0].vertices[:, 1]
    assert (shade.min(), shade.max()) == (38, 93)


# Settings, distributions, bounds.


def test_curves_scatter_and_histograms():
    points = [plots.Point(1, 50.0, 40.0, 70.0), plots.Point(2, 60.0)]
    figure = plots.curves({"p": {"a": points}}, x="bits", y="%", levels={"chance": 10.0})
    (axes,) = figure.axes
    assert data_of(axes)["a"] == [[1, 50], [2, 60]] and axes.lines[1].get_ydata() == [10, 10]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == ("bits", "%", "p")
    whole = [plots.Point(x, 50.0, 40.0, 70.0) for x in (1, 2)]
    (axes,) = plots.curves({"p": {"a": whole}}, x="x", y="y").axes
    shade = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (shade.min(), shade.max()) == (40, 70)
    (axes,) = plots.scatter({"a": points}, x="x", y="y").axes
    bars = axes.collections[0].get_segments()
    assert bars[0].tolist() == [[1, 40], [1, 70]] and bars[1].tolist() == [[2, 60], [2, 60]]
    counts = [[1, 2, 1, 0], [0, 0, 4, 0]]
    figure = plots.projection_sheet({"g": {"e": counts, "f": counts[:1]}}, 4.0)
    stairs = figure.axes[1].patches[0]
    assert stairs.get_data().values.tolist() == [0, 0, 0.5, 0]  # bins are two wide
    assert stairs.get_data().edges.tolist() == [-4, -2, 0, 2, 4]
    peak = figure.axes[0].lines[0].get_ydata().max()
    assert peak == pytest.approx(1 / np.sqrt(2 * np.pi))


def test_heat_maps_have_numbers_a_ridge_and_the_best_framed():
    scores = np.array([[1.0, 2.0], [NAN, 9.0]])
    grid = plots.Grid((0.1, 1.0), (0.01, 0.1), scores, [(0.01, 0.1), (1.0, 1.0)])
    axes = plots.heat_maps({"t": grid}, row="tau", column="lambda", score="%", ridge="r").axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("lambda", "tau")
    found = {text.get_position(): text.get_text() for text in axes.texts}
    assert found == {(0, 0): "1.0", (1, 0): "2.0", (1, 1): "9.0"}
    assert axes.patches[0].get_xy() == (0.5, 0.5)
    np.testing.assert_allclose(axes.lines[0].get_xdata(), [0.0, 2.0])  # a decade beyond the last
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [0.0, 1.0])


def test_bounds_show_both_sides_and_gaps(rng):
    left, right = rng.normal(size=(2, 9))
    kinds = [("x", 1.0, 1.0), ("x", 8.0, 1.0), ("x", 1.0, 2.0), ("y", 8.0, 2.0)]
    encoders = [
        {"loss": loss, "alpha": alpha, "lam": lam, "mean": mean, "least": mean - 1, "largest": 9}
        for mean, (loss, alpha, lam) in enumerate(kinds)
    ]
    sweep = {"alpha": [1.0, 2.0], "left": [1, 2], "right": [3, 4], "slack": [5, 6]}
    sides, gaps, third = plots.bound_sheet({"one": (left, right)}, encoders, sweep=sweep).axes
    np.testing.assert_allclose(data_of(sides)["one"], np.stack([left, right], axis=1))
    named = {line.get_label(): line for line in gaps.lines}
    one, other = named[r"x, $\lambda$ = 1"], named[r"x, $\lambda$ = 2"]
    assert one.get_ydata().tolist() == [0, 1] and other.get_ydata().tolist() == [2]
    assert named[r"y, $\lambda$ = 2"].get_ydata().tolist() == [3]
    assert one.get_xdata()[1] / one.get_xdata()[0] == pytest.approx(8)
    assert 0.7 < one.get_xdata()[0] < other.get_xdata()[0]  # side by side
    segments = [s[:, 1].tolist() for each in gaps.collections for s in each.get_segments()]
    assert segments == [[-1, 9], [0, 9], [1, 9], [2, 9]]
    drawn = {label: [y for _, y in points] for label, points in data_of(third).items()}
    assert drawn["left side"] == [1, 2] and drawn["right side"] == [3, 4]
    assert len(plots.bound_sheet({"one": (left, right)}, encoders).axes) == 2


def test_theory_is_drawn_as_given(rng):
    at = np.array([2.0, 4.0, 8.0])
    for function, key in ((plots.hypergeometric_curves, "z"), (plots.optimum_curves, "t")):
        (axes,) = function(at, {1.0: at + 1, 3.0: at + 3}).axes
        lines = {label: points for label, points in data_of(axes).items() if label.startswith(key)}
        assert list(lines) == [f"{key} = 1", f"{key} = 3"]
        np.testing.assert_array_equal(lines[f"{key} = 3"], np.stack((at, at + 3), axis=1))
    dashed = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert [line.get_ydata()[0] for line in dashed if len(line.get_ydata())] == [-2, -6]
    item = {
        **{"name": "features", "sizes": [16, 64], "rms": [0.2, 0.1], "rms_error": [0.01, 0.01]},
        **{"bias": [-0.04, -0.01], "bias_error": [0.001, 0.001]},
        **{"rms_constant": 0.8, "bias_constant": -0.64},
    }
    both = plots.limit_deviations([item]).axes
    for axes, values in zip(both, ([0.2, 0.1], [0.04, 0.01]), strict=True):
        dots, dashed = axes.lines[0], [line for line in axes.lines if line.get_linestyle() == "--"]
        np.testing.assert_allclose(dots.get_ydata(), values)
        np.testing.assert_allclose(dashed[0].get_ydata(), values)
    curves = [{0.5: (np.arange(1, 4), np.array([0.1, 0.0, -1e-3]) - n)} for n in range(3)]
    descent = {"tau": 0.5, "steps": np.arange(3), "above": np.ones((2, 3)), "least": -1e-3}
    sheet = plots.single_negative_sheet(*curves, descent).axes
    for axes, given in zip(sheet, curves, strict=False):
        np.testing.assert_array_equal(axes.lines[0].get_xydata(), np.stack(given[0.5], axis=1))
    assert sheet[3].lines[2].get_ydata() == [-1e-3, -1e-3]
    panels = [
        {
            "name": f"encoder {i}",
            "features": unit_circle(rng.normal(i, 0.2, 50)),
            "potential": i / 10,
        }
        for i in range(5)
    ]
    figure = plots.potential_sheet(panels)
    assert len(figure.axes) == 10 and "0.3000" in figure.axes[6].get_title()


# Images and features.


def test_circle_figure_shows_distances_features_and_angles(rng):
    labels = rng.integers(0, 5, 400)
    features = unit_circle(labels + 0.1 * rng.normal(size=400)).astype(np.float32)
    one = {"name": "Random", "features": features, "labels": labels}
    one["pair_distances"] = rng.uniform(0, 1.5, 400)
    names, classes = ["ant", "bee", "cat", "dog", "elk"], [0, 1, 2, 4]
    figure = plots.circle_figure([one, one | {"name": "Contrastive"}], None, names, classes)
    assert [row.get_suptitle() for row in figure.subfigs] == ["Random", "Contrastive"]
    distances, *panels = figure.subfigs[0].axes
    planes, angles = panels[::2], panels[1::2]
    assert sum(bar.get_height() for bar in distances.patches) == pytest.approx(100)
    mean = one["pair_distances"].mean()
    assert list(distances.lines[0].get_xdata()) == [mean, mean]
    assert [axes.get_title() for axes in planes] == ["all classes", "ant", "bee", "cat", "elk"]
    # Label 2 lies around an angle of 2: both pictures of that class must have their mode there.
    grid, density = angles[3].lines[0].get_data()
    assert grid[density.argmax()] == pytest.approx(2, abs=0.1)
    image = planes[3].images[0]
    row, column = np.unravel_index(image.get_array().argmax(), image.get_array().shape)
    left, right, bottom, top = image.get_extent()
    pixels = image.get_array().shape[0] - 1
    x, y = left + (right - left) * column / pixels, bottom + (top - bottom) * row / pixels
    assert image.origin == "lower" and np.arctan2(y, x) == pytest.approx(2, abs=0.1)
    for axes in angles:  # one scale a row, and no curve is cut off
        assert axes.get_ylim() == angles[0].get_ylim()
        assert axes.lines[0].get_ydata().max() < axes.get_ylim()[1]


def test_sheets_of_images_show_each_in_its_place(rng):
    images, views = rng.random((3, 4, 4, 3)), rng.random((3, 2, 4, 4, 3))
    axes = plots.view_sheet("t", ["a", "", "c"], list(images), views).axes
    shown = {
        at.get_title() + str(n): at.images[0].get_array() for n, at in enumerate(axes) if at.images
    }
    assert len(shown) == 9
    drawn = list(shown.values())
    for number in range(3):
        expected = (images[number], *views[number])
        for picture, given in zip(drawn[3 * number : 3 * number + 3], expected, strict=True):
            np.testing.assert_allclose(picture, given)
    depths, predicted = np.full((2, 4, 4), 2.0), np.full((2, 4, 4), 3.0)
    depths[0, 0], predicted[0, 0] = 0, 99  # unknown there: no error, and left white
    grid = plots.depth_sheet("t", list(np.uint8(255 * images[:2])), depths, predicted).axes
    _, true, guess, *_ = grid
    assert np.isnan(true.images[0].get_array()[0]).all() or true.images[0].get_array().mask[0].all()
    np.testing.assert_array_equal(guess.images[0].get_array(), predicted[0])
    assert "1.00" in guess.get_xlabel() and true.images[0].get_clim() == guess.images[0].get_clim()
