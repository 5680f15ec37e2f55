"""Training curves, and runs in the plane of alignment and uniformity."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from hypersphere_jax.plots.common import ALIGN_LABEL, COLORS, DPI, LINE_STYLES, UNIFORM_LABEL, saved

CURVES = {  # key of a metric record: label of its axis
    "loss": "loss",
    "align": ALIGN_LABEL,
    "uniform": UNIFORM_LABEL,
    "lr": "learning rate",
}


def training_curves(
    runs: Mapping[str, Sequence[Mapping]], path: str | Path | None = None
) -> Figure:
    """Loss, alignment, uniformity, learning rate and evaluations over the steps, one line a run.

    Args:
      runs: name -> records of a metrics.jsonl. A record without a key is passed over; a value
        that is NaN or None leaves a gap in the line.
      path: where the PNG goes; None: nowhere.
    """
    columns = 2 if len(runs) > 3 else max(len(runs), 1)
    legend_rows = -(-len(runs) // columns)
    recorded = {key for records in runs.values() for record in records for key in record}
    evaluated = sorted(key for key in recorded if key.startswith("eval/"))
    named = {key: key.replace("eval/", "evaluated: ").replace("_", " ") for key in evaluated}
    curves = CURVES | named
    rows = -(-len(curves) // 2)
    figure = Figure(figsize=(9, 3 * rows + 0.2 * legend_rows), dpi=DPI, layout="constrained")
    panels = figure.subplots(rows, 2, sharex=True)
    for axes in panels.flat[len(curves) :]:
        axes.set_axis_off()
    styles = list(itertools.product(LINE_STYLES, COLORS))
    for axes, (key, label) in zip(panels.flat, curves.items(), strict=False):
        for index, (name, records) in enumerate(runs.items()):
            points = [(record["step"], record[key]) for record in records if key in record]
            steps, values = np.array(points, dtype=float).reshape(-1, 2).T
            style, color = styles[index % len(styles)]
            marker = "." if len(points) <= 30 else None  # a single point has no line to be seen by
            axes.plot(steps, values, label=name, linestyle=style, color=color, marker=marker)
        if not any(np.isfinite(line.get_ydata()).any() for line in axes.lines):
            axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    for axes in panels[-1]:
        axes.set_xlabel("training step")
    figure.align_ylabels()
    legend = figure.legend(handles=panels[0, 0].lines, ncols=columns, loc="outside lower center")
    for text in legend.get_texts():
        text.set_parse_math(False)  # a dollar in the name of a run is no formula
    return saved(figure, path)


def alignment_uniformity_plane(
    encoders: Sequence[Mapping], optimum: float, path: str | Path | None = None
) -> Figure:
    """Plane of the two metrics, coloured by accuracy: Figure 5 of Wang and Isola, blue is better.

    Both metrics are better when lower, so good encoders gather at the lower left. A name goes where
    it covers nothing, the best encoder's first; where there is no room, a point has none. Encoders
    with a value that is not finite are named above the plane instead.

    Args:
      encoders: each with "name", "align", "uniform" (nats) and "top1" (percent).
      optimum: the least possible uniformity loss for the dimension and the t of `encoders`.
      path: where the PNG goes; None: nowhere.

    Raises:
      ValueError: if no encoder has finite values.
    """
    keys = ("align", "uniform", "top1")
    values = np.array([[encoder[key] for key in keys] for encoder in encoders], dtype=float)
    finite = np.isfinite(values).all(axis=1)
    if not finite.any():
        raise ValueError(f"no encoder has finite values of {', '.join(keys)}")
    best_first = sorted(np.flatnonzero(finite), key=lambda index: -values[index, 2])
    points, top1 = values[best_first, :2], values[best_first, 2]

    figure = Figure(figsize=(9, 6.5), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    color_range = Normalize(top1.min() - 0.5, top1.max() + 0.5)  # of some width, even for one point
    dots = axes.scatter(*points.T, c=top1, cmap="cividis_r", norm=color_range, s=60, zorder=3)
    dots.set_edgecolor("black")
    figure.colorbar(dots, label="linear probe, top-1 accuracy (%)")
    optimum_label = f"optimal uniformity: {optimum:.3f}".replace("-", "−")
    axes.axhline(optimum, linestyle="--", color="black", linewidth=1, label=optimum_label)
    figure.legend(loc="outside upper right", frameon=False)
    axes.margins(x=0.25, y=0.15)  # room for names
    axes.grid(alpha=0.3)
    axes.set_xlabel(f"← better    {ALIGN_LABEL}")
    axes.set_ylabel(f"← better    {UNIFORM_LABEL}")
    if not finite.all():
        left_out = ", ".join(encoders[index]["name"] for index in np.flatnonzero(~finite))
        axes.set_title(f"Not drawn, as not finite: {left_out}", fontsize=9, wrap=True)
    _label_points(axes, points, [encoders[index]["name"] for index in best_first], optimum)
    return saved(figure, path)


def _label_points(axes: Axes, points: np.ndarray, names: Sequence[str], line_y: float) -> None:
    """Write names beside points [n, 2], nowhere over a point, a name or the line at line_y."""
    axes.figure.draw_without_rendering()  # settles the layout: from here on pixels are final
    axes.figure.set_layout_engine("none")
    axes.autoscale(False)
    pixel = axes.figure.dpi / 72  # of a typographic point
    to_data = axes.transData.inverted()
    centres = axes.transData.transform(points)
    frame = axes.bbox.extents  # this and all boxes: (left, bottom, right, top) in pixels
    line_height = axes.transData.transform((0, line_y))[1]
    taken = [*np.hstack((centres - 5 * pixel, centres + 5 * pixel))]
    taken.append((frame[0], line_height, frame[2], line_height))
    beside = itertools.product((1, -1), (0, 0.3, -0.3, 0.6, -0.6))
    around = itertools.product((0, 1, -1), (1, -1))
    places = list(itertools.product((7, 14, 24, 36), (*beside, *around)))  # points away, direction

    for index, (centre, name) in enumerate(zip(centres, names, strict=True)):
        label = axes.text(*points[index], name, ha="center", va="center", fontsize=9, zorder=4)
        half = np.array(label.get_window_extent().size) / 2
        others = np.delete(taken, index, axis=0)
        for distance, direction in places:
            middle = centre + np.array(direction) * (half + distance * pixel)
            box = np.concatenate((middle - half, middle + half))
            inside = (box[:2] >= frame[:2]).all() and (box[2:] <= frame[2:]).all()
            if not inside or _overlap(box[None], others):
                continue
            # Away from its point, a name is tied to it by a line, which may cross nothing either.
            tie = np.linspace(np.clip(centre, box[:2], box[2:]), centre, 32 if distance > 7 else 0)
            tie_boxes = np.hstack((tie - pixel, tie + pixel))
            if not _overlap(tie_boxes, others):
                taken += [box, *tie_boxes]
                label.set_position(to_data.transform(middle))
                axes.plot(*to_data.transform(tie).T, color="gray", linewidth=0.7, zorder=2)
                break
        else:
            label.remove()


def _overlap(boxes: np.ndarray, others: np.ndarray) -> bool:
    """Whether any of the boxes [n, 4] shares area with any of the others [m, 4]."""
    boxes = boxes[:, None]
    shared = (boxes[..., :2] < others[:, 2:]) & (boxes[..., 2:] > others[:, :2])
    return shared.all(axis=-1).any()
