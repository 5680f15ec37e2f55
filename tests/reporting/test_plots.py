"""Figures show the data that they are given, with labels on every axis."""

import numpy as np
import pytest
from PIL import Image

from hypersphere_jax.reporting import plots
from hypersphere_jax.reporting.plots.images import Tile
from hypersphere_jax.reporting.plots.style import ALIGN_LABEL, UNIFORM_LABEL

NAN = float("nan")
HOSTILE = "\x1b[2J new\nline \udcff $_$ $\\frac$ 日本 <b>"


def is_picture(path):
    """Return whether a file is a PNG that is not blank."""
    with Image.open(path) as picture:
        return picture.format == "PNG" and len(np.unique(np.asarray(picture.convert("L")))) > 1


def panels(figure):
    """Return the axes with data by their label of the y axis."""
    return {axes.get_ylabel(): axes for axes in figure.axes if axes.axison}


def all_labelled(figure):
    return all(axes.get_xlabel() and axes.get_ylabel() for axes in panels(figure).values())


def test_training_curves_show_every_metric(tmp_path):
    records = [
        {"step": 10, "loss": 3.0, "align": 1.0, "images_per_s": 9.0},
        {"step": 20, "align": 0.9, "mine": 4.0},
        {"step": 30, "loss": None, "align": NAN, "eval/knn_top1": 50.0},
    ]
    runs = {"first": records, "_$b$": [{"step": 10, "loss": 2.0}]}
    figure = plots.training_curves(runs, tmp_path / "new" / "curves.png")
    found = panels(figure)
    assert (found[ALIGN_LABEL], found[UNIFORM_LABEL]) == tuple(figure.axes[1:3])
    first, second = found["loss"].lines
    np.testing.assert_array_equal(first.get_xydata(), [[10, 3], [30, NAN]])
    np.testing.assert_array_equal(second.get_xydata(), [[10, 2]])
    assert found["eval: knn top1"].lines[0].get_xydata().tolist() == [[30, 50]]
    assert found["mine"].lines[0].get_xydata().tolist() == [[20, 4]]
    np.testing.assert_array_equal(figure.axes[1].lines[0].get_ydata(), [1, 0.9, NAN])
    assert "images per s" not in found and all_labelled(figure)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(runs)
    assert is_picture(tmp_path / "new" / "curves.png")


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_views_stand_beside_their_image(channels, tmp_path):
    images = [np.full((4, 6, channels), 0.1 * number) for number in range(3)]
    views = np.random.default_rng(0).random((3, 2, 5, 5, channels))
    figure = plots.view_sheet("t", ["a", "", "c"], images, views, tmp_path / "views.png")
    shown = [axes for axes in figure.axes if axes.images]
    assert len(shown) == 9 and is_picture(tmp_path / "views.png")
    for number, image in enumerate(images):
        expected = (image, *views[number])
        for axes, pixels in zip(shown[3 * number : 3 * number + 3], expected, strict=True):
            colours = pixels[..., :3] if channels >= 3 else pixels[..., 0]
            np.testing.assert_array_equal(axes.images[0].get_array(), colours)
    titles = [axes.get_title() for axes in shown]
    assert titles[0] == "a" and "1" in titles[3] and titles[6] == "c"


def test_neighbours_have_cosines_and_marks(tmp_path):
    image = np.full((4, 4, 1), 0.5)
    row = [Tile(image, "cat", 0), Tile(image, "cat", 0, 0.9), Tile(image, "dog", 1, -0.25)]
    row.append(Tile(image, "image 7", -1, 0.125))
    figure = plots.neighbour_sheet("t", [row, row[:2]], tmp_path / "sheet.png")
    shown = [axes for axes in figure.axes if axes.images]
    assert len(shown) == 6 and is_picture(tmp_path / "sheet.png")
    titles = [axes.get_title() for axes in shown[:4]]
    cosines = ("cat", "0.90", "-0.25", "0.12")
    assert all(cosine in title for cosine, title in zip(cosines, titles, strict=True))
    assert ["✗" in title for title in titles] == [False, False, True, False]
    frames = [axes.spines["top"].get_edgecolor() for axes in shown[1:3]]
    assert frames[0] != frames[1] and [axes.get_frame_on() for axes in shown[:4]] == [
        False,
        True,
        True,
        False,
    ]


def test_depth_maps_share_one_scale(tmp_path):
    true = np.linspace(1, 9, 32).reshape(2, 4, 4)
    true[0, 0] = 0  # unknown
    images = [np.zeros((4, 4, channels), np.uint8) for channels in (1, 3)]
    figure = plots.depth_sheet("t", images, true, true + 0.5, tmp_path / "depth.png")
    maps = [axes.images[0] for axes in figure.axes[:6]]
    assert len({maps[i].get_clim() for i in (1, 2, 4, 5)}) == 1
    assert np.ma.getmaskarray(maps[1].get_array())[0].all() and figure.axes[6].get_ylabel()
    assert all("0.50" in figure.axes[i].get_xlabel() for i in (2, 5))
    assert is_picture(tmp_path / "depth.png")


def metrics(classes=3, **more):
    """Return a result of `metrics` with every part that is drawn."""
    counts = [1] * 8 + [6] * 2
    direction = {"counts": counts, "ks_sphere": 0.1}
    result = {
        "run": HOSTILE,
        "n": 4,
        "d": 2,
        "pair_distance_counts": counts,
        "pair_distance": 0.5,
        "classes": [f"{number} {HOSTILE}" for number in range(classes)],
        "uniform_by_class": [-1.0] * (classes - 1) + [None],
        "uniform_by_class_standard_error": [0.1] * (classes - 1) + [None],
        "uniform_by_class_mean": -1.0,
        "uniform": -1.5,
        "uniform_optimum": -2.0,
        "singular_values": [0.9, 0.1, 0.0],
        "effective_rank": 1.4,
        "projections": [direction] * 3,
        "projection_half_width": 3.0,
    }
    return result | more


@pytest.mark.parametrize("classes", [3, 40])
def test_metrics_figure_shows_every_part(classes, tmp_path):
    figure = plots.metrics_figure(metrics(classes), tmp_path / "metrics.png")
    distances, by_class, spectrum, *projections = (axes for axes in figure.axes if axes.axison)
    np.testing.assert_allclose(distances.patches[0].get_data().values[-1], 100 * 6 / 20)
    (points,) = (line for line in by_class.lines if len(line.get_xdata()) == classes)
    assert points.get_xdata()[0] == -1 and np.isnan(points.get_xdata()[-1])
    assert list(spectrum.lines[0].get_ydata()) == [0.9, 0.1]
    assert len(projections) == 3 and all_labelled(figure) and is_picture(tmp_path / "metrics.png")
    density = projections[0].patches[0].get_data().values
    assert density.sum() * 6 / len(density) == pytest.approx(1)
    parts = metrics(classes)
    for key in ("pair_distance_counts", "uniform_by_class", "singular_values", "projections"):
        del parts[key]
    assert plots.metrics_figure(parts) is None


def test_hostile_names_are_drawn(tmp_path):
    views = np.random.default_rng(0).random((2, 2, 2, 2, 3))
    plots.view_sheet(HOSTILE, [HOSTILE] * 2, list(views[:, 0]), views, tmp_path / "views.png")
    curves = {HOSTILE: [{"step": 1, "loss": 1.0, f"eval/{HOSTILE}": 2.0}]}
    plots.training_curves(curves, tmp_path / "curves.png")
    assert all(map(is_picture, tmp_path.glob("*.png"))) and len(list(tmp_path.iterdir())) == 2
