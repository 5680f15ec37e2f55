"""Time and memory of losses over the number of points."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from hypersphere_jax.plots.common import COLORS, DPI, saved


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
    return saved(figure, path)
