"""Losses: time of value and gradient, and memory, next to dense JAX and PyTorch."""

import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.loss_forms import LOSSES, compile_dense, compile_gradient, torch_form, unit_vectors
from benchmarks.timing import HAS_TORCH, compared, matrix_product, ratio, show, take_turns
from hypersphere_jax.configs import require

OURS, DENSE, TORCH, PRODUCT = "hypersphere_jax", "dense JAX", "PyTorch", "product"
DENSE_LIMIT = 8192  # the largest n of the dense forms, whose memory grows as n^2
NOTE = """
relative: time relative to hypersphere_jax. limit: the matrix products that memory linear in n
cannot avoid, at the measured speed of a matrix product. % of peak: limit / time. temporaries:
memory that XLA allocates in addition to inputs and results.
""".strip()


def run(
    losses: tuple[str, ...] = tuple(LOSSES),
    sizes: tuple[int, ...] = (1024, 2048, 4096, 8192),
    dim: int = 128,
    figures: str | None = None,
    rounds: int = 5,
) -> list[dict[str, Any]]:
    """Value and gradient of the losses: time and memory, compared with dense JAX and PyTorch.

    Args:
      losses: Losses to measure.
      sizes: Numbers of points n: pairs, or queries and negatives.
      dim: Dimension of the points.
      figures: Folder for a figure of each loss. Defaults to none.
      rounds: Rounds to measure, after one that compiles.
    """
    for name in losses:
        require(name in LOSSES, f"losses={name}: must be one of {', '.join(LOSSES)}")
    require(min(sizes) >= 2, f"sizes={min(sizes)}: must be at least 2")
    rows = []
    for name in losses:
        of_loss = []
        for n in sizes:
            of_loss += measure(name, n, dim, rounds)
        title = f"{name}, value and gradient, d = {dim}"
        show(title, of_loss)
        if figures is not None:
            draw(title, of_loss, Path(figures, f"{name}.png"))
        rows += of_loss
    print(NOTE)
    return rows


def measure(name: str, n: int, dim: int, rounds: int) -> list[dict[str, Any]]:
    """Return a row per form of one loss at one size."""
    loss = LOSSES[name]
    arrays = unit_vectors(loss.inputs, n, dim)
    multiply, product_flops = matrix_product()
    programs = {OURS: compile_gradient(loss.ours, loss, n, dim, "float32")}
    if n <= DENSE_LIMIT:
        programs[DENSE] = compile_dense(loss, n, dim)
    inputs = jax.device_put(arrays)
    calls = {form: functools.partial(program, *inputs) for form, program in programs.items()}
    if n <= DENSE_LIMIT and HAS_TORCH:
        calls[TORCH] = torch_form(loss, arrays)
    times = take_turns(calls | {PRODUCT: multiply}, rounds)
    products = loss.products * 2 * n * n * dim / product_flops
    limit_ms = 1e3 * products * np.median(times[PRODUCT])
    rows = []
    for row in compared(times, OURS):
        form = row["form"]
        if form == PRODUCT:
            continue
        share = products * ratio(times, PRODUCT, form)
        row = {"n": n, **row, "% of peak": 100 * share, "limit ms": limit_ms}
        row["temporaries MB"] = None
        if form in programs:
            row["temporaries MB"] = programs[form].memory_analysis().temp_size_in_bytes / 1e6
        rows.append(row)
    print(f"{name}, n = {n}: {rows[0]['ms']:.4g} ms", flush=True)
    return rows


def draw(title: str, rows: list[dict[str, Any]], path: Path) -> None:
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
