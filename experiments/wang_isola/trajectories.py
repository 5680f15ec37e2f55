"""Figure 8 of Wang & Isola: an encoder with too high a temperature, finetuned in three ways."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments import tables
from experiments.protocols import Evaluation
from experiments.reproduction import Context, Reproduction, Result, planned_row, run, scale
from experiments.statistics import Rows, by, interval, values
from experiments.sweeps import Planned
from hypersphere_jax.config import ObjectiveConfig, require
from hypersphere_jax.plots.common import COLORS, DPI, saved

TABLE = "wang-isola/table8"
# The paper: what starts from row 278. Its text says tau = 2.5, and the rows that Table 8 marks as
# such starts have 1, 2 and 3; 2 is the one with finetuned encoders of all three objectives.
PAPER_START = 278
PAPER = {"align only": 255, "uniform only": 258, "align + uniform": 265}
# At the laptop's scale: row 87, which has tau = 2.5.
START = 87
OBJECTIVES = {
    "align only": ObjectiveConfig(align_weight=1, uniform_weight=0),
    "uniform only": ObjectiveConfig(align_weight=0, uniform_weight=1),
    "align + uniform": ObjectiveConfig(align_weight=1, uniform_weight=1),
}
# Steps between two checkpoints that are evaluated; in the paper's runs, an epoch.
EVERY, PAPER_EVERY = 65, 136
ALONG = Evaluation(folds=None, all_steps=True)


def _plan(context: Context, rows: Rows) -> list[Planned]:
    number, every = (START, EVERY) if context.laptop else (PAPER_START, PAPER_EVERY)
    scale = "cifar10" if context.laptop else None
    start = planned_row(tables.row_of(TABLE, number), context, Evaluation(), scale=scale)
    planned = [start]
    for panel, objective in OBJECTIVES.items():
        if context.laptop:
            config = dataclasses.replace(
                start.config,
                init_from=f"{context.runs_dir}/{start.config.name}",
                objective=objective,
                optimizer=dataclasses.replace(start.config.optimizer, epochs=1),
            )
            about = {"panel": panel}
        else:
            config, about, _ = planned_row(tables.row_of(TABLE, PAPER[panel]), context, ALONG)
            about |= {"panel": panel}
        # A name of its own: in Table 8 it keeps fewer checkpoints.
        config = dataclasses.replace(
            config,
            name=f"figure8_{panel.replace(' + ', '_').replace(' ', '_')}",
            runtime=dataclasses.replace(
                config.runtime, checkpoint_every_steps=every, keep_every_steps=every
            ),
        )
        planned.append(run(config, context, ALONG, about))
    return planned


def result(context: Context, rows: Rows) -> Result:
    """Metrics and accuracy before and after, and the trajectories as a picture."""
    panels = by([row for row in rows if row.get("panel")], "panel")
    require(bool(panels), "none of the finetuned encoders is done: nothing to draw")
    columns = ["finetuned by", "steps", "L_align", "L_uniform", "linear (%)", "95% interval"]
    columns += [] if context.laptop else ["paper (%)"]
    table = []
    text = [
        "The paper's claim: with alignment alone, or uniformity alone, the metric that is "
        "optimized improves, while the other one and the accuracy get worse; with both, accuracy "
        "rises steadily."
    ]
    begun = tables.row_of(TABLE, PAPER_START).values["val_output_linear"]
    for name, checkpoints in panels.items():
        ends = checkpoints[0], checkpoints[-1]
        for row, paper in zip(ends, (begun, ends[1].get("paper_val_output_linear")), strict=True):
            line = [row[key] for key in ("step", "align", "uniform", "output_linear")]
            line += [interval(row, "output_linear"), *([] if context.laptop else [paper])]
            table.append([name, *line])
        accuracies = ", ".join(f"{value:.2f}" for value in values(checkpoints, "output_linear"))
        text.append(f"{name}: accuracy {accuracies}%.")
    draw_trajectories(panels, context.figure)
    caption = (
        "Checkpoints of three encoders, finetuned from one that was trained with the contrastive "
        "loss at a high tau"
    )
    title = "Finetuning trajectories from a suboptimal temperature (Figure 8)"
    return Result(title, columns, table, [(context.figure, caption)], text, _verdict(panels))


def draw_trajectories(panels: Mapping[str, Rows], path: Path | None) -> Figure:
    """Metrics and accuracy of a run's checkpoints, a column a run."""
    figure = Figure(figsize=(4 * len(panels), 6), dpi=DPI, layout="constrained")
    grid = figure.subplots(2, len(panels), sharex="col", sharey="row", squeeze=False)
    for (above, below), (title, rows) in zip(grid.T, panels.items(), strict=True):
        steps = values(rows, "step")
        above.plot(steps, values(rows, "output_linear"), "o-", color=COLORS[0])
        low, high = (values(rows, f"output_linear_{end}") for end in ("low", "high"))
        above.fill_between(steps, low, high, color=COLORS[0], alpha=0.2, linewidth=0)
        label = r"$\mathcal{L}_{\mathrm{align}}$"
        below.plot(steps, values(rows, "align"), "s-", color=COLORS[1], label=label)
        label = r"$\exp\,\mathcal{L}_{\mathrm{uniform}}$"
        below.plot(steps, np.exp(values(rows, "uniform")), "^-", color=COLORS[2], label=label)
        above.set_title(title)
        below.set_xlabel("finetuning step")
        for axes in (above, below):
            axes.grid(alpha=0.3)
    grid[0, 0].set_ylabel("linear accuracy on the output (%),\n95% interval shaded")
    grid[1, 0].set_ylabel("metric (lower is better)")
    grid[1, 0].legend(frameon=False)
    return saved(figure, path)


def _verdict(panels: Mapping[str, Rows]) -> str:
    """What becomes of the accuracy, where the intervals of beginning and end lie apart."""
    parts = []
    for name, checkpoints in panels.items():
        first, last = checkpoints[0], checkpoints[-1]
        change = last["output_linear"] - first["output_linear"]
        worse, better = sorted((first, last), key=lambda row: row["output_linear"])
        apart = worse["output_linear_high"] < better["output_linear_low"]
        word = ("better" if change > 0 else "worse") if apart else "not clearly changed"
        parts.append(f"{name}: {word} ({change:+.2f} points)")
    return f"{'; '.join(parts)}; one encoder each"


REPRODUCTIONS = {
    "wang-isola/figure8": Reproduction(
        "finetuning by alignment, uniformity, or both",
        result,
        laptop=scale("cifar10", _plan),
        paper=scale("stl10", _plan),
    )
}
