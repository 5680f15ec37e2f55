"""Grids of images: augmented views, nearest neighbours, and depth maps."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hypersphere_jax.reporting.plots.style import COLORS, DPI, save_figure
from hypersphere_jax.utils.terminal import printable

LETTERS = 14  # in a label


class Tile(NamedTuple):
    """An image of a grid, `[h, w, c]`, uint8 or with values in [0, 1], and the text above it."""

    image: np.ndarray
    text: str
    label: int = -1  # class; -1: unknown
    cosine: float | None = None  # similarity to the query


def view_sheet(
    title: str, tiles: Sequence[Tile], views: np.ndarray, path: str | Path | None = None
) -> Figure:
    """Draw n images, each with its two views `[n, 2, h, w, c]`, two images per row."""
    shown = []
    for tile, (first, second) in zip(tiles, views, strict=True):
        shown += [tile, Tile(first, "view 1"), Tile(second, "view 2")]
    rows = [shown[start : start + 6] for start in range(0, len(shown), 6)]
    return neighbour_sheet(title, rows, path)


def neighbour_sheet(
    title: str, rows: Sequence[Sequence[Tile]], path: str | Path | None = None
) -> Figure:
    """Draw rows of images, each row with a query and its neighbours.

    A neighbour of the query's class has a solid blue frame, one of another class a dashed orange
    frame and a cross.
    """
    columns = max(map(len, rows))
    height = 1.55 * len(rows) + 0.6
    figure = Figure(figsize=(1.3 * columns, height), dpi=DPI)
    figure.suptitle(title, fontsize="medium", parse_math=False)
    margins = {"left": 0.01, "right": 0.99, "bottom": 0.05 / height, "top": 1 - 0.6 / height}
    grid = figure.subplots(len(rows), columns, squeeze=False, gridspec_kw=margins)
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[], frame_on=False)
    for axes_of_row, tiles in zip(grid, rows, strict=True):
        for axes, tile in zip(axes_of_row, tiles, strict=False):
            _draw_tile(axes, tile, tiles[0])
    return save_figure(figure, path)


def _draw_tile(axes: Axes, tile: Tile, query: Tile) -> None:
    image = tile.image
    if image.dtype == np.uint8:
        image = image / 255
    channels = slice(0, 3) if image.shape[-1] >= 3 else 0
    axes.imshow(np.clip(image, 0, 1)[..., channels], cmap="gray", vmin=0, vmax=1)
    text = printable(tile.text, LETTERS)
    if tile.cosine is not None:
        text += f"  {tile.cosine:.2f}"
        if min(tile.label, query.label) >= 0:
            axes.set_frame_on(True)
            axes.spines[:].set(color=COLORS[0], linewidth=2)
            if tile.label != query.label:
                text = f"✗ {text}"
                axes.spines[:].set(color=COLORS[1], linestyle="--")
    axes.set_title(text, fontsize="small", pad=3, parse_math=False)


def depth_sheet(
    title: str,
    images: Sequence[np.ndarray],
    depths: np.ndarray,
    predicted: np.ndarray,
    path: str | Path | None = None,
) -> Figure:
    """Draw k images with true and predicted depth `[k, h, w]`, in metres, on one colour scale.

    Images are uint8 `[h, w, c]`. A true depth of 0 is unknown and stays white.
    """
    figure = Figure(figsize=(6.6, 1.9 * len(images) + 0.9), dpi=DPI, layout="constrained")
    figure.suptitle(title, fontsize="medium", parse_math=False)
    grid = figure.subplots(len(images), 3, squeeze=False)
    true = np.where(depths > 0, depths, np.nan)
    low, high = np.nanpercentile(true, (0.5, 99.5))  # without outliers
    scale = {"cmap": "viridis", "vmin": low, "vmax": high}
    for row, image in enumerate(images):
        grid[row, 0].imshow(image if image.shape[-1] == 3 else image[..., 0], cmap="gray")
        grid[row, 1].imshow(true[row], **scale)
        drawn = grid[row, 2].imshow(predicted[row], **scale)
        error = np.sqrt(np.nanmean(np.square(predicted[row] - true[row])))
        grid[row, 2].set_xlabel(f"RMSE {error:.2f} m", fontsize="x-small")
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[])
    for axes, label in zip(grid[0], ("image", "true depth", "predicted depth"), strict=True):
        axes.set_title(label, fontsize="small")
    bar = figure.colorbar(drawn, ax=grid[:, 1:], shrink=min(1.0, 2.5 / len(images)), extend="both")
    bar.set_label("depth (m)")
    return save_figure(figure, path)
