"""Sheets of augmented images."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from hypersphere_jax.plots.common import DPI, saved


def view_sheet(
    title: str,
    names: Sequence[str],
    images: Sequence[np.ndarray],
    views: np.ndarray,
    path: str | Path | None = None,
) -> Figure:
    """Images, each with its two views beside it, two images a row.

    Args:
      title: of the picture.
      names: `[n]`, written above the images.
      images: n arrays `[h, w, c]` with values in [0, 1]; of more than 3 channels the first 3 show.
      views: `[n, 2, h, w, c]`.
      path: where the PNG goes; None: nowhere.
    """
    rows = -(-len(images) // 2)
    figure = Figure(figsize=(9, 1.55 * rows + 0.5), dpi=DPI, layout="constrained")
    figure.suptitle(title, fontsize="medium")
    # A narrow empty column parts the left triple from the right one.
    widths = [1, 1, 1, 0.3, 1, 1, 1]
    grid = figure.subplots(rows, 7, squeeze=False, width_ratios=widths)
    for axes in grid.flat:
        axes.set_axis_off()
    for number, (name, image) in enumerate(zip(names, images, strict=True)):
        row, first = number // 2, 4 * (number % 2)
        labels = name or f"image {number}", "view 1", "view 2"
        pictures = zip(labels, (image, *views[number]), strict=True)
        for column, (label, picture) in enumerate(pictures):
            axes = grid[row, first + column]
            picture = np.clip(picture, 0, 1)
            picture = picture[..., :3] if picture.shape[-1] >= 3 else picture[..., 0]
            axes.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axes.set_title(label, fontsize="x-small", pad=2)
    return saved(figure, path)
