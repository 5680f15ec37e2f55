"""Pictures from arrays: training curves, the alignment-uniformity plane, features on the circle.

Each function returns its matplotlib `Figure`, and saves it as a PNG where a path is given. There is
no pyplot here, so no global state and no display.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import LogLocator

DPI = 150
# Okabe and Ito's colours, which colour-blind readers can tell apart, without their pale yellow.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINE_STYLES = ("-", "--", "-.", ":")

ALIGN_LABEL = r"alignment  $\mathcal{L}_{\mathrm{align}}$"
UNIFORM_LABEL = r"uniformity  $\mathcal{L}_{\mathrm{uniform}}$  (nats)"
CURVES = {  # key of a metric record: label of its axis
    "loss": "loss",
    "align": ALIGN_LABEL,
    "uniform": UNIFORM_LABEL,
    "lr": "learning rate",
}

# One smoothing for both densities of the circle: near its mode, a von Mises-Fisher kernel is a
# Gaussian of width 1 / sqrt(kappa).
BANDWIDTH = 0.1
KAPPA = BANDWIDTH**-2
CHUNK = 4096  # samples a kernel matrix holds at once


def vmf_kde(angles: np.ndarray, grid: np.ndarray, kappa: float) -> np.ndarray:
    """Density of angles on the circle, by a von Mises-Fisher kernel around each.

    p(g) = 1/n sum_i exp(kappa cos(g - angle_i)) / (2 pi I_0(kappa)), exact at any kappa: numerator
    and Bessel function are both scaled by exp(-kappa), so that neither overflows.

    Args:
      angles: [n], in radians.
      grid: [g], in radians, where the density is wanted.
      kappa: concentration, at least 0; the kernel's width is about 1 / sqrt(kappa) radians.

    Returns:
      [g], per radian; integrates to one over the circle.

    Raises:
      ValueError: if there are no angles, or kappa is negative.
    """
    if len(angles) == 0 or kappa < 0:
        raise ValueError(f"need angles and kappa >= 0, got {len(angles)} angles, kappa={kappa}")

    def kernel(difference):  # 1 - cos as a square of the sine: no cancellation at small differences
        return np.exp(-2 * kappa * np.sin(difference / 2) ** 2)

    # I_0(kappa) exp(-kappa) is the kernel's mean over the circle. Equal steps give the mean of a
    # periodic function to rounding error once they are finer than the kernel by some margin.
    scaled_bessel = kernel(np.linspace(0, 2 * np.pi, 64 + int(10 * kappa**0.5), False)).mean()
    total = sum(kernel(grid[:, None] - chunk).sum(axis=1) for chunk in _chunks(angles))
    return total / (len(angles) * 2 * np.pi * scaled_bessel)


def gaussian_kde_2d(points: np.ndarray, grid: np.ndarray, bandwidth: float) -> np.ndarray:
    """Density of points of the plane, by an isotropic Gaussian kernel around each.

    Args:
      points: [n, 2].
      grid: [g], the coordinates at which both axes are sampled.
      bandwidth: the kernel's standard deviation, above 0.

    Returns:
      [g, g], per unit area, at (x, y) = (grid[column], grid[row]).

    Raises:
      ValueError: if there are no points, or the bandwidth is not positive.
    """
    if len(points) == 0 or bandwidth <= 0:
        raise ValueError(
            f"need points and bandwidth > 0, got {len(points)} points, bandwidth={bandwidth}"
        )

    def kernel(values):  # [g, chunk]
        return np.exp(-(((grid[:, None] - values) / bandwidth) ** 2) / 2)

    # The kernel is a product over x and y, so the sum over points is a matrix product.
    total = sum(kernel(chunk[:, 1]) @ kernel(chunk[:, 0]).T for chunk in _chunks(points))
    return total / (len(points) * 2 * np.pi * bandwidth**2)


def _chunks(samples: np.ndarray) -> Iterator[np.ndarray]:
    return (samples[start : start + CHUNK] for start in range(0, len(samples), CHUNK))


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
    return _saved(figure, path)


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
    return _saved(figure, path)


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


def circle_figure(
    encoders: Sequence[Mapping],
    path: str | Path | None,
    class_names: Sequence[str],
    classes: Sequence[int],
) -> Figure:
    """Features on the circle, as in Figure 3 of Wang and Isola: one row an encoder.

    From the left: distances within positive pairs; all features; the features of each chosen class.
    Features are drawn in the plane, shaded by Gaussian KDE, above the von Mises-Fisher KDE of their
    angles.

    Args:
      encoders: each with "name", "features" [n, 2] of unit norm, "labels" [n] and
        "pair_distances" [n], the norms ||f(x) - f(y)||.
      path: where the PNG goes; None: nowhere.
      class_names: name of each label.
      classes: the labels to show.

    Raises:
      ValueError: if features are not [n, 2], or a class has none.
    """
    figure = Figure(figsize=(12, 3.7 * len(encoders)), dpi=DPI, layout="constrained")
    rows = figure.subfigures(len(encoders), 1, squeeze=False)[:, 0]
    for row, encoder in zip(rows, encoders, strict=True):
        features, labels = np.asarray(encoder["features"]), np.asarray(encoder["labels"])
        if features.ndim != 2 or features.shape[1] != 2:
            raise ValueError(f"{encoder['name']}: features must be [n, 2], got {features.shape}")
        groups = [("all classes", features)]
        groups += [(class_names[label], features[labels == label]) for label in classes]
        for title, group in groups:
            if len(group) == 0:
                raise ValueError(f"{encoder['name']}: no features of class {title!r}")
        row.suptitle(encoder["name"], x=0.01, ha="left", weight="bold")
        _draw_circle_row(row, groups, np.asarray(encoder["pair_distances"]))
    figure.supxlabel(
        "shading: Gaussian KDE, up to each panel's maximum; "
        "curves: von Mises-Fisher KDE; dashed: the uniform density 1/2π",
        fontsize=10,
    )
    return _saved(figure, path)


def _draw_circle_row(row: SubFigure, groups: Sequence[tuple], distances: np.ndarray) -> None:
    cells = row.add_gridspec(2, 1 + len(groups), height_ratios=(2, 1))
    _draw_distances(row.add_subplot(cells[:, 0]), distances)
    plane = angle = None  # one scale a row, written at its left end
    for column, (title, features) in enumerate(groups, start=1):
        plane = row.add_subplot(cells[0, column], sharey=plane, title=title)
        angle = row.add_subplot(cells[1, column], sharey=angle)
        _draw_plane_density(plane, features)
        _draw_angle_density(angle, features)
        if column == 1:
            plane.set_ylabel("second coordinate")
            angle.set_ylabel("density\n(1/rad)")
        else:
            plane.tick_params(labelleft=False)
            angle.tick_params(labelleft=False)
    angle.set_ylim(bottom=0)


def _draw_distances(axes: Axes, distances: np.ndarray) -> None:
    share = np.full(len(distances), 100 / len(distances))
    axes.hist(distances, bins=50, range=(0, 2), weights=share, color=COLORS[0])
    mean = distances.mean()
    axes.axvline(mean, linestyle="--", color=COLORS[1])
    axes.set_title(f"mean {mean:.2f} (dashed)")
    axes.set_xlabel(r"positive-pair $\ell_2$ distance")
    axes.set_ylabel("pairs (%)")


def _draw_plane_density(axes: Axes, features: np.ndarray) -> None:
    grid = np.linspace(-1.35, 1.35, 136)
    density = gaussian_kde_2d(features, grid, BANDWIDTH)
    axes.imshow(density, cmap="Blues", origin="lower", extent=(grid[0], grid[-1]) * 2, vmin=0)
    circle = np.linspace(-np.pi, np.pi, 361)
    axes.plot(np.cos(circle), np.sin(circle), color="gray", linewidth=0.5)
    axes.plot(*features.T, ",", color="black", alpha=0.2)
    axes.set_xticks((-1, 0, 1))
    axes.set_yticks((-1, 0, 1))
    axes.set_xlabel("first coordinate")


def _draw_angle_density(axes: Axes, features: np.ndarray) -> None:
    grid = np.linspace(-np.pi, np.pi, 361)
    density = vmf_kde(np.arctan2(features[:, 1], features[:, 0]), grid, KAPPA)
    axes.fill_between(grid, density, color=COLORS[0], alpha=0.4, linewidth=0)
    axes.plot(grid, density, color=COLORS[0])
    axes.axhline(1 / (2 * np.pi), linestyle="--", color="gray", linewidth=1)
    axes.set_xlim(-np.pi, np.pi)
    axes.set_xticks((-np.pi, 0, np.pi), ("−π", "0", "π"))
    axes.set_xlabel("angle (rad)")


def loss_scaling(title: str, records: Sequence[Mapping], path: str | Path | None = None) -> Figure:
    """Time and peak memory against n, one line a form, and the least time as a dashed line.

    Args:
      title: of the picture.
      records: each with "form" and "n"; where measured, with "ms", "limit_ms" and "peak_mb".
      path: where the PNG goes; None: nowhere.
    """
    figure = Figure(figsize=(10, 4.5), dpi=DPI, layout="constrained")
    figure.suptitle(title)
    panels = figure.subplots(1, 2)
    forms = list(dict.fromkeys(record["form"] for record in records))
    labels = ("time (ms)", "peak memory (MB of 10⁶ bytes)")
    for axes, key, label in zip(panels, ("ms", "peak_mb"), labels, strict=True):
        for form, color in zip(forms, COLORS, strict=False):
            points = [(r["n"], r[key]) for r in records if r["form"] == form and key in r]
            axes.plot(*np.array(points).reshape(-1, 2).T, label=form, color=color, marker="o")
        axes.set_ylabel(label)
        if any(len(line.get_xdata()) for line in axes.lines):
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("")
        else:
            axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center")
            axes.set_yticks([])
    limit = {record["n"]: record["limit_ms"] for record in records if "limit_ms" in record}
    panels[0].plot(limit.keys(), limit.values(), "--", color="black", label="physical limit")
    sizes = sorted({record["n"] for record in records})
    for axes in panels:
        axes.set(xscale="log", xlabel="points n")
        axes.set_xticks(sizes, sizes, rotation=45)
        axes.set_xticks([], minor=True)
        axes.grid(alpha=0.3)
    figure.legend(handles=panels[0].lines, ncols=len(forms) + 1, loc="outside lower center")
    return _saved(figure, path)


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
    grid = figure.subplots(
        rows, 7, squeeze=False, gridspec_kw={"width_ratios": [1, 1, 1, 0.3, 1, 1, 1]}
    )
    for axes in grid.flat:
        axes.set_axis_off()
    for number, (name, image) in enumerate(zip(names, images, strict=True)):
        row, first = number // 2, 4 * (number % 2)
        shown = zip(
            (name or f"image {number}", "view 1", "view 2"), (image, *views[number]), strict=True
        )
        for column, (label, picture) in enumerate(shown):
            axes = grid[row, first + column]
            picture = np.clip(picture, 0, 1)
            picture = picture[..., :3] if picture.shape[-1] >= 3 else picture[..., 0]
            axes.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axes.set_title(label, fontsize="x-small", pad=2)
    return _saved(figure, path)


def _saved(figure: Figure, path: str | Path | None) -> Figure:
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="png")
    return figure
