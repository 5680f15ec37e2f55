"""Figure 7 of Wang & Isola: what the weights of alignment and uniformity do to an encoder."""

import dataclasses

import numpy as np

from experiments import items, tables
from experiments.items import Context, Item, Scale
from experiments.measures import Measures, Rows
from experiments.shown import Shown
from experiments.specifications import config_of, refusal
from experiments.sweeps import Planned
from hypersphere_jax import plots
from hypersphere_jax.config import ObjectiveConfig

TABLE = "wang-isola/table8"
# Weights of alignment and uniformity, the larger one 1, from alignment alone to uniformity alone.
WEIGHTS = (
    *((1, weight) for weight in (0, 1 / 64, 1 / 16, 1 / 8, 1 / 4, 1 / 2)),
    (1, 1),
    *((weight, 1) for weight in (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 64, 0)),
)
SEEDS = (0, 1)


def _laptop(context: Context, rows: Rows) -> list[Planned]:
    planned = []
    for align, uniform in WEIGHTS:
        for seed in SEEDS:
            config = dataclasses.replace(
                config_of(tables.row_of(TABLE, 191), "laptop"),
                name=f"figure7_align{align:g}_uniform{uniform:g}_seed{seed}",
                seed=seed,
                objective=ObjectiveConfig(align_weight=align, uniform_weight=uniform),
            )
            about = items.described(config) | _weights(config.objective)
            planned.append(Planned(items.located(config, context), about, Measures()))
    return planned


def _paper(context: Context, rows: Rows) -> list[Planned]:
    """Rows of Table 8 that differ from the best align+uniform one in the two weights alone."""
    planned = []
    best = tables.row_of(TABLE, 174).values
    same = ("contrastive_weight", "init", "epochs", "batch_size", "dim")
    for row in tables.rows(TABLE):
        values = row.values
        alike = all(values[name] == best[name] for name in same)
        options = values["align_alpha"] in (2, None) and values["uniform_t"] in (2, None)
        if refusal(row) is None and alike and options:
            one = items.planned_row(row, context, Measures())
            weights = _weights(one.config.objective)
            planned.append(one._replace(about={**one.about, **weights}))
    return planned


def _weights(objective: ObjectiveConfig) -> dict[str, float]:
    names = ("align_weight", "uniform_weight")
    return {name: getattr(objective, name) for name in names}


def show(context: Context, rows: Rows) -> Shown:
    """Metrics and accuracy of each pair of weights, the mean over seeds."""
    groups: dict[tuple[float, float], Rows] = {}
    for row in sorted(rows, key=_share):
        if row["status"] == "done":
            groups.setdefault((row["align_weight"], row["uniform_weight"]), []).append(row)
    columns = ["align : uniform", "L_align", "exp L_uniform", "linear (%)", "95% interval", "seeds"]
    columns += ["paper (%)"] if context.scale == "paper" else []
    table = []
    for weights, group in groups.items():
        accuracies = [row["output_linear"] for row in group]
        line = [
            _label(weights),
            float(np.mean([row["align"] for row in group])),
            float(np.mean(np.exp([row["uniform"] for row in group]))),
            round(float(np.mean(accuracies)), 2),
            "{:.2f} to {:.2f}".format(*_interval(group)),
            len(group),
        ]
        if context.scale == "paper":
            line.append(group[0].get("paper_val_output_linear"))
        table.append(line)
    path = context.folder / "figure.png"
    plots.weights_curves([_label(weights) for weights in groups], list(groups.values()), path)
    text = [
        "The paper's claim: accuracy is an inverted U over the weights, so both properties are "
        "needed; with too much alignment all images become one point (exp L_uniform = 1), and "
        "while neither weight is more than 4 times the other, accuracy is good and does not "
        "depend on them."
    ]
    text.append(
        "Accuracies are means over seeds. Their intervals are those of the bootstrap over test "
        "images, averaged over the seeds."
    )
    return Shown(
        "Weights of alignment and uniformity (Figure 7)",
        columns,
        table,
        [(path, "From alignment alone (left) to uniformity alone (right), alpha 2, t 2")],
        text,
        _verdict(groups),
    )


def _interval(group: Rows) -> tuple[float, float]:
    return tuple(
        float(np.mean([row[f"output_linear_{end}"] for row in group])) for end in ("low", "high")
    )


def _verdict(groups: dict[tuple[float, float], Rows]) -> str:
    if len(groups) < 3:
        return ""
    means = {
        weights: np.mean([row["output_linear"] for row in group])
        for weights, group in groups.items()
    }
    first, *_, last = groups
    best = max(means, key=means.get)
    shows = all(_interval(groups[end])[1] < _interval(groups[best])[0] for end in (first, last))
    numbers = ", ".join(f"{means[key]:.2f}% at {_label(key)}" for key in (best, first, last))
    return f"the inverted U {'shows' if shows else 'does not show'} ({numbers})"


def _share(row: dict) -> float:
    return row["uniform_weight"] / (row["uniform_weight"] + row["align_weight"])


def _label(weights: tuple[float, float]) -> str:
    return " : ".join(f"{weight:.3g}" for weight in weights)


ITEMS = {
    "wang-isola/figure7": Item(
        "effect of the weights of alignment and uniformity",
        {
            "laptop": Scale(("digits",), 0.3, (_laptop,)),
            "paper": Scale(("stl10",), 25_000, (_paper,)),
        },
        show,
    )
}
