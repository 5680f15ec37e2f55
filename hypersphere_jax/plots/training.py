"""Training curves."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
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
    curves = CURVES | {key: key.replace("/", ": ").replace("_", " ") for key in evaluated}
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
