"""Figure of the cost of losses over the number of points."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from hypersphere_jax.reporting.plots import style


def loss_scaling(title: str, records: Sequence[Mapping], path: str | Path | None = None) -> Figure:
    """Draw time and peak memory over n, one line per implementation.

    Records have "form" and "n", and if measured "ms", "limit_ms" and "peak_mb".
    """
    labels = {"ms": "time (ms)", "peak_mb": "peak memory (MB of 10⁶ bytes)"}
    measured = [key for key in labels if any(key in record for record in records)]
    figure = Figure(figsize=(5 * len(measured), 4.5), dpi=style.DPI, layout="constrained")
    figure.suptitle(title)
    panels = figure.subplots(1, len(measured), squeeze=False)[0]
    forms = dict.fromkeys(record["form"] for record in records)
    for axes, key in zip(panels, measured, strict=True):
        for form, color in zip(forms, style.COLORS, strict=False):
            points = [(r["n"], r[key]) for r in records if r["form"] == form and key in r]
            sizes, values = np.array(points).reshape(-1, 2).T
            axes.plot(sizes, values, label=form, color=color, marker="o")
        axes.set(xscale="log", yscale="log", xlabel="points n", ylabel=labels[key])
        axes.grid(alpha=0.3)
    limits = {record["n"]: record["limit_ms"] for record in records if "limit_ms" in record}
    panels[0].plot(limits.keys(), limits.values(), "--", color="black", label="physical limit")
    figure.legend(handles=panels[0].lines, ncols=len(forms) + 1, loc="outside lower center")
    return style.save_figure(figure, path)
