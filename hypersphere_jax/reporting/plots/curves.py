"""Curves of metrics over training steps."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hypersphere_jax.reporting.plots import style

LABELS = {"loss": "loss", "align": style.ALIGN_LABEL, "uniform": style.UNIFORM_LABEL}
LABELS |= {"lr": "learning rate"}
NOT_DRAWN = {"step", "epoch", "data_wait", "images_per_s", "sentences_per_s"}


def training_curves(
    runs: Mapping[str, Sequence[Mapping]], path: str | Path | None = None
) -> Figure:
    """Draw each metric over the training steps, one line per run.

    Runs are records of metrics.jsonl by name. A NaN or None leaves a gap in the line.
    """
    recorded = {key for records in runs.values() for record in records for key in record}
    keys = [*LABELS, *sorted(recorded - {*LABELS, *NOT_DRAWN})]
    rows = -(-len(keys) // 2)
    height = 3 * rows + 0.1 * len(runs)
    figure = Figure(figsize=(9, height), dpi=style.DPI, layout="constrained")
    grid = figure.subplots(rows, 2, squeeze=False)
    for axes, key in itertools.zip_longest(grid.flat, keys):
        if key is None:
            axes.set_axis_off()
        else:
            _draw_metric(axes, key, runs)
    lines = grid[0, 0].lines
    legend = figure.legend(lines, list(runs), ncols=2, loc="outside lower center")
    for text in legend.get_texts():
        text.set_parse_math(False)
    return style.save_figure(figure, path)


def _draw_metric(axes: Axes, key: str, runs: Mapping[str, Sequence[Mapping]]) -> None:
    styles = itertools.cycle(itertools.product(style.LINE_STYLES, style.COLORS))
    for records, (line_style, color) in zip(runs.values(), styles, strict=False):
        points = [(record["step"], record[key]) for record in records if key in record]
        steps, values = np.array(points, dtype=float).reshape(-1, 2).T
        axes.plot(steps, values, linestyle=line_style, color=color, marker=".", markersize=3)
    axes.set_xlabel("training step")
    label = LABELS.get(key, key.replace("/", ": ").replace("_", " "))
    axes.set_ylabel(label, parse_math=key in LABELS)
    axes.grid(alpha=0.3)
