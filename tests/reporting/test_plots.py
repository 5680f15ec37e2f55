"""Figures show the data that they are given."""

import numpy as np
import pytest
from PIL import Image

from hypersphere_jax.reporting import plots
from hypersphere_jax.reporting.plots.images import Tile
from hypersphere_jax.reporting.plots.style import ALIGN_LABEL

HOSTILE = "\x1b[2J new\nline \udcff $_$ $\\frac$ 日本 <b>"


def is_picture(path):
    """Return whether a file is a PNG that is not blank."""
    with Image.open(path) as picture:
        return picture.format == "PNG" and len(np.unique(np.asarray(picture.convert("L")))) > 1


def test_training_curves_show_every_metric(tmp_path):
    nan = float("nan")
    records = [
        {"step": 10, "loss": 3.0, "align": 1.0},
        {"step": 20, "align": 0.9, "mine": 4.0},
        {"step": 30, "loss": None, "align": nan, "eval/knn_top1": 50.0},
    ]
    runs = {"first": records, HOSTILE: [{"step": 10, "loss": 2.0}]}
    figure = plots.training_curves(runs, tmp_path / "new" / "curves.png")
    panels = {axes.get_ylabel(): axes for axes in figure.axes if axes.axison}
    first, second = panels["loss"].lines
    np.testing.assert_array_equal(first.get_xydata(), [[10, 3], [30, nan]])
    np.testing.assert_array_equal(second.get_xydata(), [[10, 2]])
    np.testing.assert_array_equal(panels[ALIGN_LABEL].lines[0].get_ydata(), [1, 0.9, nan])
    assert panels["mine"].lines[0].get_xydata().tolist() == [[20, 4]]
    assert is_picture(tmp_path / "new" / "curves.png")


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_views_are_beside_their_image(channels, tmp_path):
    images = [np.full((4, 6, channels), 0.1 * number) for number in range(3)]
    views = np.random.default_rng(0).random((3, 2, 5, 5, channels))
    tiles = [Tile(image, name) for image, name in zip(images, ("a", "", "c"), strict=True)]
    figure = plots.view_sheet(HOSTILE, tiles, views, tmp_path / "views.png")
    shown = iter([axes.images[0].get_array() for axes in figure.axes if axes.images])
    for image, pair in zip(images, views, strict=True):
        for pixels in (image, *pair):
            colours = pixels[..., :3] if channels >= 3 else pixels[..., 0]
            np.testing.assert_array_equal(next(shown), colours)
    assert is_picture(tmp_path / "views.png")
