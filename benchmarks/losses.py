"""Losses: time of value and gradient, and memory, next to dense JAX and PyTorch."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.loss_forms import (
    DENSE,
    LOSSES,
    OURS,
    TORCH,
    compile_form,
    make_form,
    unit_vectors,
)
from benchmarks.options import LossesOptions
from benchmarks.timing import matrix_product, median, ratio, show, take_turns

PRODUCT = "product"
DENSE_LIMIT = 8192  # the largest n of the dense forms, whose memory grows as n^2
NOTE = """
relative: time relative to hypersphere_jax. % of peak: share of the speed of a matrix product,
counting only the products that a form needs. limit: those products, with memory linear in n, at
that speed. temporaries: memory that XLA allocates in addition to inputs and results.
""".strip()


def run(options: LossesOptions) -> list[dict[str, Any]]:
    """Measure each loss at each size."""
    multiply, product_flops = matrix_product()
    rows = []
    for name in options.losses:
        of_loss = []
        for n in options.sizes:
            forms = [OURS]
            if n <= DENSE_LIMIT:
                forms += [DENSE, TORCH]
            if importlib.util.find_spec("torch") is None:
                forms = forms[:2]
            of_loss += measure(name, n, forms, options, multiply, product_flops)
            print(f"{name}, n = {n}: {of_loss[-len(forms)]['ms']:.4g} ms", flush=True)
        title = f"{name}, value and gradient, d = {options.dim}"
        show(title, of_loss)
        if options.figures is not None:
            draw(title, of_loss, Path(options.figures, f"{name}.png"))
        rows += of_loss
    print(NOTE)
    return rows


def measure(
    name: str, n: int, forms: list[str], options: LossesOptions, multiply: Any, product_flops: float
) -> list[dict[str, Any]]:
    """Return a row per form of one loss at one size."""
    loss = LOSSES[name]
    arrays = unit_vectors(loss.inputs, n, options.dim)
    calls = {form: make_form(loss, form, arrays) for form in forms}
    times = take_turns(calls | {PRODUCT: multiply}, options.rounds)
    products = {form: loss.flops(form, n, options.dim) / product_flops for form in forms}
    rows = []
    for form in forms:
        temporaries = None
        if form != TORCH:
            memory = compile_form(loss, form, n, options.dim).memory_analysis()
            temporaries = memory.temp_size_in_bytes / 1e6
        row = {
            "n": n,
            "form": form,
            "ms": 1e3 * median(times[form]),
            "relative": ratio(times, form, OURS),
            "% of peak": 100 * products[form] * ratio(times, PRODUCT, form),
            "limit ms": 1e3 * products[OURS] * median(times[PRODUCT]),
            "temporaries MB": temporaries,
        }
        rows.append(row)
    return rows


def draw(title: str, rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw time and memory against n, one line per form."""
    from matplotlib.figure import Figure

    from hypersphere_jax.reporting.plots import style

    figure = Figure(figsize=(10, 4.5), dpi=style.DPI, layout="constrained")
    figure.suptitle(title)
    panels = figure.subplots(1, 2)
    forms = dict.fromkeys(row["form"] for row in rows)
    for axes, column in zip(panels, ("ms", "temporaries MB"), strict=True):
        for form, color in zip(forms, style.COLORS, strict=False):
            points = [(r["n"], r[column]) for r in rows if r["form"] == form and r[column]]
            axes.plot(*np.array(points).reshape(-1, 2).T, label=form, color=color, marker="o")
        axes.set(xscale="log", yscale="log", xlabel="points n", ylabel=column)
        axes.grid(alpha=0.3)
    limits = {row["n"]: row["limit ms"] for row in rows}
    panels[0].plot(limits.keys(), limits.values(), "--", color="black", label="limit")
    figure.legend(handles=panels[0].lines, ncols=len(forms) + 1, loc="outside lower center")
    style.save_figure(figure, path)
