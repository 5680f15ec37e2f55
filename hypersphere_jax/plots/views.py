"""Sheets of images: augmented views, and nearest neighbours."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from hypersphere_jax.configs.base import WRITER
from hypersphere_jax.plots.common import COLORS, saved
from hypersphere_jax.terminal import printable

WIDTH, DPI, PALETTE = 9, 112, 256  # inches, pixels an inch, colours
GAP, LABEL = 0.08, 0.22  # between images and above them, in widths of an image
LETTERS = 14  # of a label
RIGHT, WRONG = {"color": COLORS[0]}, {"color": COLORS[1], "linestyle": (0, (3, 2))}


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
    lefts = _lefts(6, wide_before=(3,))
    figure, axes = _sheet(title, lefts, -(-len(images) // 2))
    for number, (name, image) in enumerate(zip(names, images, strict=True)):
        row, half = divmod(number, 2)
        labels = name or f"image {number}", "view 1", "view 2"
        pictures = zip(lefts[3 * half :], labels, (image, *views[number]), strict=False)
        for left, label, picture in pictures:
            _show(axes, row, left, picture, label)
    return _saved(figure, path)


def neighbour_sheet(
    title: str,
    rows: Sequence[Sequence[tuple[np.ndarray, str, bool | None, float | None]]],
    path: str | Path | None = None,
) -> Figure:
    """A row for each query: its image, and its neighbours with their cosines, nearest first.

    Those of the query's class have a blue frame, those of another a dashed orange one and a cross.

    Args:
      title: of the picture.
      rows: of pictures: the image `[h, w, c]` with values in [0, 1], its name, whether it is of the
        query's class (None: not known), and its cosine (None: it is the query).
      path: where the PNG goes; None: nowhere.
    """
    lefts = _lefts(max(map(len, rows)), wide_before=(1,))
    figure, axes = _sheet(title, lefts, len(rows))
    for row, line in enumerate(rows):
        for left, (picture, name, right, cosine) in zip(lefts, line, strict=False):
            _show(axes, row, left, picture, f"✗ {name}" if right is False else name)
            if cosine is not None:
                box = {"boxstyle": "square,pad=0.15", "color": "black", "alpha": 0.6}
                place = {"x": left + 0.95, "y": _top(row) + 0.94, "ha": "right", "bbox": box}
                axes.text(**place, s=f"{cosine:.2f}", color="white", fontsize="small")
            if right is not None:
                place = (left, _top(row)), 1, 1
                frame = RIGHT if right else WRONG
                axes.add_patch(Rectangle(*place, fill=False, linewidth=2, clip_on=False, **frame))
    return _saved(figure, path)


def _lefts(count: int, wide_before: Sequence[int]) -> list[float]:
    """Where the columns begin, in widths of an image."""
    return [i * (1 + GAP) + sum(0.25 for each in wide_before if i >= each) for i in range(count)]


def _top(row: int) -> float:
    return row * (1 + LABEL + GAP) + LABEL


def _sheet(title: str, lefts: Sequence[float], rows: int) -> tuple[Figure, Axes]:
    """A figure with one axes, whose unit is the width of an image and whose y points down."""
    right, bottom = lefts[-1] + 1, _top(rows - 1) + 1
    above = 0.35  # inches, for the title
    side = (WIDTH - 0.2) / right
    figure = Figure(figsize=(WIDTH, bottom * side + above + 0.1), dpi=DPI)
    height = figure.get_figheight()
    axes = figure.add_axes((0.1 / WIDTH, 0.1 / height, 1 - 0.2 / WIDTH, bottom * side / height))
    axes.set_axis_off()
    figure.text(0.5, 1 - 0.08 / height, title, ha="center", va="top", parse_math=False)
    axes.set(xlim=(0, right), ylim=(bottom, 0))
    return figure, axes


def _show(axes: Axes, row: int, left: float, picture: np.ndarray, label: str) -> None:
    """An image in its place, within a square, with a label above."""
    picture = np.clip(picture, 0, 1)
    picture = picture[..., :3] if picture.shape[-1] >= 3 else picture[..., 0]
    height, width = np.array(picture.shape[:2]) / max(picture.shape[:2])
    top, middle = _top(row) + (1 - height) / 2, left + 0.5
    place = (middle - width / 2, middle + width / 2, top + height, top)
    options = {"cmap": "gray", "vmin": 0, "vmax": 1, "interpolation": "nearest", "aspect": "auto"}
    limits = axes.get_xlim(), axes.get_ylim()
    axes.imshow(picture, extent=place, **options)
    axes.set(xlim=limits[0], ylim=limits[1])
    label = printable(label, LETTERS)
    axes.text(middle, _top(row) - 0.03, label, ha="center", fontsize="medium", parse_math=False)


def _saved(figure: Figure, path: str | Path | None) -> Figure:
    """As `saved`, with a palette: photographs are a third as large, and look much the same."""
    if path is None:
        return figure
    saved(figure, path)
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(PALETTE)
    info = PngInfo()
    info.add_text("Software", WRITER)
    small.save(path, optimize=True, pnginfo=info)
    return figure
