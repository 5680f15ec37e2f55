"""Figure 8 of Wang & Isola: an encoder with too high a temperature, finetuned in three ways."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments import inference, tables
from experiments.plots.instruments import draw_accuracies, draw_metrics, finish
from experiments.plots.style import PAGE, printed
from experiments.protocols import Evaluation
from experiments.reproduction import Context, Reproduction, Result, planned_row, run, scale
from experiments.statistics import Rows, by, values
from experiments.sweeps import Planned
from hypersphere_jax.configs import ObjectiveConfig, PretrainConfig, require, section
from hypersphere_jax.reporting.plots.style import DPI, save_figure

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
CONTROL = "contrastive"  # goes on with the loss of the start, at its tau
SEEDS = (0, 1, 2)  # at the laptop's scale, each with a start of its own
# Steps between two checkpoints that are evaluated; in the paper's runs, an epoch.
EVERY, PAPER_EVERY = 130, 136
LAYERS, METRICS = ("output",), ("align", "uniform")
ALONG = Evaluation(folds=None, all_steps=True)


def _laptop(context: Context, rows: Rows) -> list[Planned]:
    planned = []
    for seed in SEEDS:
        row = tables.row_of(TABLE, START)
        start = planned_row(row, context, Evaluation(folds=None), scale="cifar10", seed=seed)
        base = dataclasses.replace(
            start.config,
            init_from=f"{context.runs_dir}/{start.config.name}",
            epochs=1,
        )
        planned.append(start)
        for panel, objective in {
            CONTROL: section(start.config, ObjectiveConfig),
            **OBJECTIVES,
        }.items():
            config = base.replace(**vars(objective))
            planned.append(_along(config, context, f"{panel} seed{seed}", EVERY, {"panel": panel}))
    return planned


def _paper(context: Context, rows: Rows) -> list[Planned]:
    start = planned_row(tables.row_of(TABLE, PAPER_START), context, Evaluation())
    finetuned = {
        panel: planned_row(tables.row_of(TABLE, number), context, ALONG)
        for panel, number in PAPER.items()
    }
    both = finetuned["align + uniform"].config
    control = both.replace(**vars(section(start.config, ObjectiveConfig)))
    return [
        start,
        _along(control, context, CONTROL, PAPER_EVERY, {"panel": CONTROL}),
        *(
            _along(one.config, context, panel, PAPER_EVERY, one.about | {"panel": panel})
            for panel, one in finetuned.items()
        ),
    ]


def _along(
    config: PretrainConfig, context: Context, name: str, every: int, about: Mapping[str, Any]
) -> Planned:
    """A run that keeps checkpoints, under another name than in Table 8, where it keeps fewer."""
    config = dataclasses.replace(
        config,
        name=f"figure8_{name.replace(' + ', '_').replace(' ', '_')}",
        keep_every_steps=every,
    )
    return run(config, context, ALONG, about)


def result(context: Context, rows: Rows) -> Result:
    """Metrics and accuracies before and after, and the trajectories as a picture."""
    panels = by([row for row in rows if row.get("panel")], "panel")
    require(bool(panels), "none of the finetuned encoders is done: nothing to draw")
    starts = [row for row in next(iter(panels.values())) if row["step"] == 0]
    ends = {}
    for panel, checkpoints in panels.items():
        last = max(values(checkpoints, "step"))
        ends[panel] = [row for row in checkpoints if row["step"] == last]
    begun = tables.row_of(TABLE, START if context.laptop else PAPER_START).values
    table = []
    for name, group in {"start": starts, **ends}.items():
        line = [name, group[0]["step"], *(float(np.mean(values(group, of))) for of in METRICS)]
        line += inference.accuracies(group, LAYERS)
        of_paper = begun if name == "start" else group[0]
        accuracy = of_paper.get("paper_val_output_linear", of_paper.get("val_output_linear"))
        table.append([*line, *([] if context.laptop else [accuracy])])
    draw_trajectories(panels, context.figure)
    tau = f"tau {begun['contrastive_tau']:g}"
    text = [
        "The paper's claim: with alignment alone, or uniformity alone, the metric that is "
        "optimized improves, while the other one and the accuracy get worse; with both, accuracy "
        "rises steadily.",
        f"{len(starts)} encoders, each trained with the contrastive loss at {tau} from an "
        "initialization of its own, and finetuned from there by four objectives with the same "
        "rate and number of steps: the paper's three, and as a control the contrastive loss that "
        "it began with. Accuracy at the end is compared with that at the start, and with that of "
        "the control, which tells the objective from longer training; each is compared with the "
        "one from the same start. ± and bars: 95% intervals over encoders and test images. "
        f"With {len(starts)} starts only large differences can show.",
    ]
    columns = ["finetuned by", "steps", "L_align", "L_uniform", *inference.columns(LAYERS)]
    columns += [] if context.laptop else ["paper (%)"]
    caption = (
        f"Finetuned from encoders that were trained with the contrastive loss at {tau}; "
        "dotted: chance"
    )
    title = "Finetuning trajectories from a suboptimal temperature (Figure 8)"
    figures = [(context.figure, caption)]
    return Result(title, columns, table, figures, text, *_verdict(starts, ends))


@printed
def draw_trajectories(panels: Mapping[str, Rows], path: Path | None) -> Figure:
    """Accuracies and metrics of checkpoints over the steps, a column an objective."""
    figure = Figure(figsize=(PAGE, 4), dpi=DPI, layout="constrained")
    grid = figure.subplots(2, len(panels), sharex=True, sharey="row", squeeze=False)
    for (above, below), (title, rows) in zip(grid.T, panels.items(), strict=True):
        checkpoints = by(rows, "step")
        steps, groups = [*checkpoints], [*checkpoints.values()]
        draw_accuracies(above, steps, groups, LAYERS[0])
        draw_metrics(below, steps, groups)
        above.set_title(title)
        below.set_xlabel("finetuning step")
    finish(figure, *grid[:, 0], LAYERS[0])
    return save_figure(figure, path)


def _verdict(starts: Rows, ends: Mapping[str, Rows]) -> tuple[str, str]:
    """Each end against the start and the control; the one first that should be ahead; in short."""
    if ends.keys() != {CONTROL, *OBJECTIVES}:
        return "", ""
    groups = {"the start": starts, "the control": ends[CONTROL]}
    groups |= {panel: ends[panel] for panel in OBJECTIVES}
    align, uniform, both = OBJECTIVES
    pairs = [("the control", "the start"), (both, "the start"), (both, "the control")]
    pairs += [(level, one) for one in (align, uniform) for level in ("the start", "the control")]
    compared = {
        f"{a} against {b}": inference.compare(groups[a], groups[b], LAYERS[0], paired=True)
        for a, b in pairs
    }
    return inference.sentences(compared, LAYERS[0]), inference.short({LAYERS[0]: compared})


REPRODUCTIONS = {
    "wang-isola/figure8": Reproduction(
        "finetuning by alignment, uniformity, or both",
        result,
        laptop=scale("cifar10", _laptop),
        paper=scale("stl10", _paper),
    )
}
