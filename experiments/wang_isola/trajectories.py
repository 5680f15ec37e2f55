"""Figure 8 of Wang & Isola: an encoder with too high a temperature, finetuned in three ways."""

import dataclasses

from experiments import items, tables
from experiments.items import Context, Item, Scale
from experiments.measures import Measures, Rows
from experiments.shown import Shown
from experiments.sweeps import Planned
from hypersphere_jax import plots
from hypersphere_jax.config import ObjectiveConfig, PretrainConfig, require

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
# Steps between two checkpoints that are measured; in the paper's runs, an epoch.
EVERY, PAPER_EVERY = 65, 136
ALONG = Measures(folds=None, all_steps=True)


def _laptop(context: Context, rows: Rows) -> list[Planned]:
    start = items.planned_row(tables.row_of(TABLE, START), context, Measures(), scale="cifar10")
    planned = [start]
    for name, objective in OBJECTIVES.items():
        config = dataclasses.replace(
            start.config,
            init_from=f"{context.runs_dir}/{start.config.name}",
            objective=objective,
            optimizer=dataclasses.replace(start.config.optimizer, epochs=1),
        )
        about = items.described(config) | {"panel": name}
        planned.append(_along(config, name, EVERY, about))
    return planned


def _paper(context: Context, rows: Rows) -> list[Planned]:
    start = items.planned_row(tables.row_of(TABLE, PAPER_START), context, Measures())
    planned = [start]
    for name, number in PAPER.items():
        one = items.planned_row(tables.row_of(TABLE, number), context, ALONG)
        # Under a name of their own: in Table 8 the same runs keep fewer checkpoints.
        planned.append(_along(one.config, name, PAPER_EVERY, {**one.about, "panel": name}))
    return planned


def _along(config: PretrainConfig, name: str, every: int, about: dict) -> Planned:
    """A run whose checkpoints are measured, so many steps apart."""
    runtime = dataclasses.replace(
        config.runtime, checkpoint_every_steps=every, keep_every_steps=every
    )
    name = f"figure8_{name.replace(' + ', '_').replace(' ', '_')}"
    return Planned(dataclasses.replace(config, name=name, runtime=runtime), about, ALONG)


def show(context: Context, rows: Rows) -> Shown:
    """Metrics and accuracy before and after, and the trajectories as a picture."""
    panels: dict[str, Rows] = {}
    for row in rows:
        if row.get("panel") and row["status"] == "done":
            panels.setdefault(row["panel"], []).append(row)
    require(bool(panels), "none of the finetuned encoders is done: nothing to draw")
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
                begun = tables.row_of(TABLE, PAPER_START).values["val_output_linear"]
                ended = row.get("paper_val_output_linear")
                table[-1].append(ended if row is checkpoints[-1] else begun)
    path = context.folder / "figure.png"
    plots.trajectories(panels, path, "finetuning step")
    text = [
        "The paper's claim: with alignment alone, or uniformity alone, the metric that is "
        "optimized improves, while the other one and the accuracy get worse; with both, accuracy "
        "rises steadily."
    ]
    for name, checkpoints in panels.items():
        accuracies = [row["output_linear"] for row in checkpoints]
        text.append(f"{name}: accuracy {', '.join(f'{value:.2f}' for value in accuracies)}%.")
    caption = (
        "Checkpoints of three encoders, finetuned from one that was trained with the contrastive "
        "loss at a high tau"
    )
    title = "Finetuning trajectories from a suboptimal temperature (Figure 8)"
    return Shown(title, columns, table, [(path, caption)], text, _verdict(panels))


def _verdict(panels: dict[str, Rows]) -> str:
    """What becomes of the accuracy, where the intervals of beginning and end lie apart."""
    found = []
    for name, checkpoints in panels.items():
        first, last = checkpoints[0], checkpoints[-1]
        change = last["output_linear"] - first["output_linear"]
        apart = (
            last["output_linear_low"] > first["output_linear_high"]
            or last["output_linear_high"] < first["output_linear_low"]
        )
        word = ("better" if change > 0 else "worse") if apart else "not clearly changed"
        found.append(f"{name}: {word} ({change:+.2f} points)")
    return f"{'; '.join(found)}; one encoder each"


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
