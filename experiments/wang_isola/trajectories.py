"""Figure 8 of Wang & Isola: an encoder with too high a temperature, finetuned in three ways."""

import dataclasses

from experiments import items, tables
from experiments.items import Context, Item, Scale
from experiments.shown import Shown
from experiments.sweeps import Measures, Planned, Rows
from hypersphere_jax import plots
from hypersphere_jax.config import ObjectiveConfig

TABLE = "wang-isola/table8"
# The paper: what starts from row 278. Its text says tau = 2.5, and the rows that Table 8 marks as
# such starts have 1, 2 and 3; 2 is the one with finetuned encoders of all three objectives.
PAPER = {"align only": 255, "uniform only": 258, "align + uniform": 265}
# At the laptop's scale: row 87, which has tau = 2.5.
START = 87
OBJECTIVES = {
    "align only": ObjectiveConfig(align_weight=1, uniform_weight=0),
    "uniform only": ObjectiveConfig(align_weight=0, uniform_weight=1),
    "align + uniform": ObjectiveConfig(align_weight=1, uniform_weight=1),
}
EVERY = 65  # steps between two checkpoints that are measured
ALONG = Measures(folds=None, all_steps=True)


def _laptop(context: Context, rows: Rows) -> list[Planned]:
    start = items.planned_row(tables.row_of(TABLE, START), context, Measures(), scale="cifar10")
    planned = [start]
    for name, objective in OBJECTIVES.items():
        config = dataclasses.replace(
            start.config,
            name=f"figure8_{name.replace(' + ', '_').replace(' ', '_')}",
            init_from=f"{context.runs_dir}/{start.config.name}",
            objective=objective,
            optimizer=dataclasses.replace(start.config.optimizer, epochs=1),
            runtime=dataclasses.replace(
                start.config.runtime, checkpoint_every_steps=EVERY, keep_every_steps=EVERY
            ),
        )
        planned.append(Planned(config, items.described(config) | {"panel": name}, ALONG))
    return planned


def _paper(context: Context, rows: Rows) -> list[Planned]:
    measures = Measures(folds=None, all_steps=True)
    planned = [items.planned_row(tables.row_of(TABLE, 278), context, Measures())]
    for name, number in PAPER.items():
        one = items.planned_row(tables.row_of(TABLE, number), context, measures)
        runtime = dataclasses.replace(
            one.config.runtime, checkpoint_every_steps=136, keep_every_steps=136
        )
        config = dataclasses.replace(one.config, runtime=runtime)
        planned.append(one._replace(config=config, about={**one.about, "panel": name}))
    return planned


def show(context: Context, rows: Rows) -> Shown:
    """Metrics and accuracy before and after, and the trajectories as a picture."""
    panels: dict[str, Rows] = {}
    for row in rows:
        if row.get("panel") and row["status"] == "done":
            panels.setdefault(row["panel"], []).append(row)
    columns = ["finetuned by", "steps", "L_align", "L_uniform", "linear (%)", "95% interval"]
    if context.scale == "paper":
        columns.append("paper (%)")
    table = []
    for name, checkpoints in panels.items():
        for row in (checkpoints[0], checkpoints[-1]):
            low, high = row["output_linear_low"], row["output_linear_high"]
            line = [name, row["step"], row["align"], row["uniform"], row["output_linear"]]
            table.append([*line, f"{low:.2f} to {high:.2f}"])
            if context.scale == "paper":
                at_end = row is checkpoints[-1]
                table[-1].append(row.get("paper_val_output_linear") if at_end else 64.19)
    path = context.folder / "figure.png"
    plots.trajectories(panels, path, "finetuning step")
    text = [
        "The paper's claim: with alignment alone, or uniformity alone, the metric that is "
        "optimized improves, while the other one and the accuracy get worse; with both, accuracy "
        "rises steadily."
    ]
    for name, checkpoints in panels.items():
        first, last = checkpoints[0], checkpoints[-1]
        text.append(
            f"{name}: L_align {first['align']:.3f} to {last['align']:.3f}, L_uniform "
            f"{first['uniform']:.3f} to {last['uniform']:.3f}, accuracy "
            f"{first['output_linear']:.2f}% to {last['output_linear']:.2f}%."
        )
    caption = "Checkpoints of encoders finetuned from one with contrastive loss at a high tau"
    title = "Finetuning trajectories from a suboptimal temperature (Figure 8)"
    return Shown(title, columns, table, [(path, caption)], text)


ITEMS = {
    "wang-isola/figure8": Item(
        "finetuning by alignment, uniformity, or both",
        {
            "laptop": Scale(("cifar10",), 0.3, (_laptop,)),
            "paper": Scale(("stl10",), 500, (_paper,)),
        },
        show,
    )
}
