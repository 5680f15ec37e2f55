import matplotlib.image
import numpy as np
import pytest
from matplotlib.text import Text

from hypersphere_jax import plots
from hypersphere_jax.plots.runs import CURVES

CIRCLE = np.linspace(-np.pi, np.pi, 20_000, endpoint=False)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def unit_circle(angles):
    return np.stack((np.cos(angles), np.sin(angles)), axis=1)


def assert_is_picture(path, figure):
    width, height = (figure.get_size_inches() * figure.dpi).round().astype(int)
    pixels = matplotlib.image.imread(path)
    assert pixels.shape == (height, width, 4)
    assert (pixels[..., :3].min(axis=-1) < 0.9).mean() > 0.005  # some of it is not background


# Densities.


@pytest.mark.parametrize("kappa", [0.0, 0.5, 20.0, 1e3, 1e6])
def test_vmf_kde_integrates_to_one(rng, kappa):
    density = plots.vmf_kde(rng.uniform(-10, 10, 50), CIRCLE, kappa)
    assert density.mean() * 2 * np.pi == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize("kappa", [0.3, 4.0, 100.0])
def test_vmf_kde_is_the_formula(rng, kappa):
    angles, grid = rng.uniform(-np.pi, np.pi, 30), np.linspace(-4, 4, 7)
    expected = [
        sum(np.exp(kappa * np.cos(g - a)) / (2 * np.pi * np.i0(kappa)) for a in angles) / 30
        for g in grid
    ]
    np.testing.assert_allclose(plots.vmf_kde(angles, grid, kappa), expected, rtol=1e-10)


def test_vmf_kde_at_large_kappa_is_a_gaussian_in_the_angle():
    kappa, offset = 1e8, 2e-4  # two standard deviations, where exp(kappa) has long overflowed
    density = plots.vmf_kde(np.zeros(1), np.array([offset]), kappa)
    gaussian = np.sqrt(kappa / (2 * np.pi)) * np.exp(-kappa * offset**2 / 2)
    np.testing.assert_allclose(density, gaussian, rtol=1e-6)


def test_gaussian_kde_is_a_loop_over_points(rng):
    points, grid, width = rng.normal(size=(20, 2)), np.linspace(-2, 2, 5), 0.4
    expected = np.zeros((5, 5))
    for row, y in enumerate(grid):
        for column, x in enumerate(grid):
            squares = (points[:, 0] - x) ** 2 + (points[:, 1] - y) ** 2
            kernels = np.exp(-squares / (2 * width**2)) / (2 * np.pi * width**2)
            expected[row, column] = kernels.mean()
    np.testing.assert_allclose(plots.gaussian_kde_2d(points, grid, width), expected, rtol=1e-10)


def test_many_samples_have_the_density_of_their_parts(rng):
    angles = rng.normal(size=10_000)  # several chunks, the last one short
    grid = np.linspace(-3, 3, 9)
    parts = [plots.vmf_kde(part, grid, 30.0) for part in angles.reshape(10, 1000)]
    np.testing.assert_allclose(plots.vmf_kde(angles, grid, 30.0), np.mean(parts, axis=0))
    points = unit_circle(angles)
    parts = [plots.gaussian_kde_2d(part, grid, 0.1) for part in points.reshape(10, 1000, 2)]
    np.testing.assert_allclose(plots.gaussian_kde_2d(points, grid, 0.1), np.mean(parts, axis=0))


def test_densities_of_nothing_are_refused():
    with pytest.raises(ValueError, match="0 angles"):
        plots.vmf_kde(np.zeros(0), CIRCLE, 1.0)
    with pytest.raises(ValueError, match="kappa=-1"):
        plots.vmf_kde(np.zeros(1), CIRCLE, -1.0)
    with pytest.raises(ValueError, match="0 points"):
        plots.gaussian_kde_2d(np.zeros((0, 2)), CIRCLE, 1.0)
    with pytest.raises(ValueError, match="bandwidth=0"):
        plots.gaussian_kde_2d(np.zeros((1, 2)), CIRCLE, 0.0)


# Training curves.


def test_training_curves_show_the_records(tmp_path):
    nan = float("nan")
    runs = {
        "first": [
            {"step": 10, "loss": 3.0, "align": 1.0, "uniform": -1.0},
            {"step": 20, "align": 0.9, "uniform": -1.5},  # no loss in this record
            {"step": 30, "loss": nan, "align": 0.8, "uniform": -2.0},
            {"step": 40, "loss": None, "align": 0.7, "uniform": -2.1},
        ],
        "second": [{"step": 10, "loss": 2.0}],
    }
    figure = plots.training_curves(runs, tmp_path / "new" / "curves.png")
    assert_is_picture(tmp_path / "new" / "curves.png", figure)
    loss, align, uniform, rate = figure.axes
    np.testing.assert_array_equal(loss.lines[0].get_xydata(), [[10, 3], [30, nan], [40, nan]])
    np.testing.assert_array_equal(loss.lines[1].get_xydata(), [[10, 2]])
    np.testing.assert_array_equal(align.lines[0].get_ydata(), [1.0, 0.9, 0.8, 0.7])
    assert [axes.get_ylabel() for axes in figure.axes] == list(CURVES.values())
    assert uniform.get_xlabel() == rate.get_xlabel() == "training step"
    assert [text.get_text() for text in rate.texts] == ["not recorded"]
    assert not loss.texts
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["first", "second"]


def test_many_runs_have_distinct_lines_and_a_legend_inside_the_picture():
    names = ["_debug", "$a_$", *(f"sweep_align_weight_{i}_seed_{i}" for i in range(18))]
    figure = plots.training_curves({name: [{"step": 0, "loss": 1.0}] for name in names})
    lines = figure.axes[0].lines
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 20
    figure.draw_without_rendering()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == names
    legend = figure.legends[0].get_window_extent()
    assert figure.bbox.x0 <= legend.x0 and legend.x1 <= figure.bbox.x1
    assert all(legend.y1 <= axes.get_tightbbox().y0 for axes in figure.axes)


# The plane.


def encoder(name, align, uniform, top1):
    return {"name": name, "align": align, "uniform": uniform, "top1": top1}


def test_plane_places_and_colours_the_encoders(tmp_path):
    encoders = [
        encoder("poor", 0.9, -1.0, 60.0),
        encoder("good", 0.2, -3.5, 90.0),
        encoder("diverged", float("nan"), float("nan"), 10.0),
    ]
    figure = plots.alignment_uniformity_plane(encoders, -3.87, tmp_path / "plane.png")
    assert_is_picture(tmp_path / "plane.png", figure)
    axes, bar = figure.axes
    dots = axes.collections[0]
    np.testing.assert_array_equal(dots.get_offsets(), [[0.2, -3.5], [0.9, -1.0]])
    (good_red, _, good_blue, _), (poor_red, _, poor_blue, _) = dots.get_facecolor()
    assert good_blue > good_red and poor_blue < poor_red
    assert axes.lines[0].get_ydata() == [-3.87, -3.87]
    assert "−3.870" in figure.legends[0].get_texts()[0].get_text()
    assert "align" in axes.get_xlabel() and "uniform" in axes.get_ylabel()
    assert "(%)" in bar.get_ylabel()
    assert {text.get_text() for text in axes.texts} == {"good", "poor"}
    assert axes.get_title().endswith("diverged")


def test_plane_of_nothing_finite_is_refused():
    with pytest.raises(ValueError, match="no encoder has finite values"):
        plots.alignment_uniformity_plane([encoder("a", 0.1, -1.0, float("nan"))], -3.9)


def test_names_on_the_plane_cover_nothing(rng):
    align, uniform = rng.uniform(0.1, 0.9, 60), rng.uniform(-3.85, -2.5, 60)
    top1 = rng.permutation(60)
    places = zip(align, uniform, top1, strict=True)
    encoders = [encoder(f"an encoder of rank {x[2]}", *x) for x in places]
    figure = plots.alignment_uniformity_plane(encoders, -3.87)
    axes = figure.axes[0]
    boxes = [text.get_window_extent() for text in axes.texts]
    centres = axes.transData.transform(axes.collections[0].get_offsets())
    line = axes.transData.transform((0, -3.87))[1]
    assert len(boxes) > 15
    assert axes.texts[0].get_text() == "an encoder of rank 59"  # the best one has its name
    for index, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:index])
        assert not any(box.contains(*centre) for centre in centres)
        assert not box.y0 < line < box.y1
        assert axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1


def test_encoders_at_one_place_all_have_names():
    encoders = [encoder(f"seed {seed}", 0.3, -3.0, 80.0) for seed in range(4)]
    figure = plots.alignment_uniformity_plane(encoders, -3.87)
    assert len(figure.axes[0].texts) == 4


# The circle.


@pytest.fixture
def circle_encoder(rng):
    labels = rng.integers(0, 5, 400)
    return {
        "name": "Random initialization",
        "features": unit_circle(labels + 0.1 * rng.normal(size=400)).astype(np.float32),
        "labels": labels,
        "pair_distances": rng.uniform(0, 1.5, 400),
    }


def test_circle_figure_shows_distances_features_and_angles(tmp_path, circle_encoder):
    encoders = [circle_encoder, circle_encoder | {"name": "Contrastive"}]
    names, classes = ["ant", "bee", "cat", "dog", "elk"], [0, 1, 2, 4]
    figure = plots.circle_figure(encoders, tmp_path / "circle.png", names, classes)
    assert_is_picture(tmp_path / "circle.png", figure)
    assert [row.get_suptitle() for row in figure.subfigs] == [
        "Random initialization",
        "Contrastive",
    ]
    distances, *panels = figure.subfigs[0].axes
    planes, angles = panels[::2], panels[1::2]

    assert sum(bar.get_height() for bar in distances.patches) == pytest.approx(100)
    mean = circle_encoder["pair_distances"].mean()
    assert list(distances.lines[0].get_xdata()) == [mean, mean]
    assert f"{mean:.2f}" in distances.get_title()

    assert [axes.get_title() for axes in planes] == ["all classes", "ant", "bee", "cat", "elk"]
    # Label 2 lies around an angle of 2: both pictures of that class must have their mode there.
    grid, density = angles[3].lines[0].get_data()
    assert grid[density.argmax()] == pytest.approx(2, abs=0.1)
    image = planes[3].images[0]
    assert image.origin == "lower"
    row, column = np.unravel_index(image.get_array().argmax(), image.get_array().shape)
    left, right, bottom, top = image.get_extent()
    pixels = image.get_array().shape[0] - 1
    x, y = left + (right - left) * column / pixels, bottom + (top - bottom) * row / pixels
    assert np.arctan2(y, x) == pytest.approx(2, abs=0.1)

    assert all(axes.get_xlabel() for axes in figure.axes)
    assert all("rad" in axes.get_xlabel() for axes in angles)
    assert all(axes.get_ylabel() for axes in (distances, planes[0], angles[0]))
    for axes in angles:  # one scale a row, and no curve is cut off
        assert axes.get_ylim() == angles[0].get_ylim()
        assert axes.lines[0].get_ydata().max() < axes.get_ylim()[1]


def test_circle_figure_is_legible_and_inside_the_picture(circle_encoder):
    names = ["airplane", "automobile", "bird", "cat", "deer"]
    figure = plots.circle_figure([circle_encoder], None, names, [0, 1, 2, 3])
    figure.draw_without_rendering()
    texts = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    assert min(text.get_fontsize() for text in texts) >= 9
    titles = [axes.title.get_window_extent() for axes in figure.axes if axes.get_title()]
    for index, title in enumerate(titles):
        assert not any(title.overlaps(other) for other in titles[:index])
        assert title.x0 >= 0 and title.x1 <= figure.bbox.x1


def test_circle_figure_names_what_is_wrong(circle_encoder):
    with pytest.raises(ValueError, match=r"\[n, 2\], got \(400, 3\)"):
        plots.circle_figure([circle_encoder | {"features": np.ones((400, 3))}], None, "abcde", [0])
    with pytest.raises(ValueError, match="no features of class 'f'"):
        plots.circle_figure([circle_encoder], None, "abcdef", [5])
