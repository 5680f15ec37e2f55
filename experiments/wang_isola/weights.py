"""Figure 7 of Wang & Isola: what the weights of alignment and uniformity do to an encoder."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments import tables
from experiments.evaluation import Evaluation
from experiments.reproduction import Context, Reproduction, planned_row, run, scale
from experiments.result import Result, Rows, by, values
from experiments.specifications import config_of, refusal
from experiments.sweeps import Planned
from hypersphere_jax.config import ObjectiveConfig
from hypersphere_jax.plots.common import COLORS, DPI, saved

TABLE = "wang-isola/table8"
# Weights of alignment and uniformity, the larger one 1, from alignment alone to uniformity alone.
WEIGHTS = (
    *((1, weight) for weight in (0, 1 / 64, 1 / 16, 1 / 8, 1 / 4, 1 / 2)),
    (1, 1),
    *((weight, 1) for weight in (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 64, 0)),
)
SEEDS = (0, 1)
Groups = Mapping[tuple[float, float], Rows]  # the seeds of each pair of weights


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
            planned.append(run(config, context, Evaluation(), _weights(config.objective)))
    return planned


def _paper(context: Context, rows: Rows) -> list[Planned]:
    """Rows of Table 8 that differ from the best align+uniform one in the two weights alone."""
    planned = []
    best = tables.row_of(TABLE, 174).values
    same = ("contrastive_weight", "init", "epochs", "batch_size", "dim")
    for row in tables.rows(TABLE):
        alike = all(row.values[name] == best[name] for name in same)
        options = [row.values[name] in (2, None) for name in ("align_alpha", "uniform_t")]
        if refusal(row) is None and alike and all(options):
            one = planned_row(row, context, Evaluation())
            planned.append(one._replace(about={**one.about, **_weights(one.config.objective)}))
    return planned


def _weights(objective: ObjectiveConfig) -> dict[str, float]:
    return {name: getattr(objective, name) for name in ("align_weight", "uniform_weight")}


def result(context: Context, rows: Rows) -> Result:
    """Metrics and accuracy of each pair of weights, the mean over seeds."""
    groups = by(sorted(rows, key=_share), "align_weight", "uniform_weight")
    columns = ["align : uniform", "L_align", "exp L_uniform", "linear (%)", "95% interval", "seeds"]
    columns += [] if context.laptop else ["paper (%)"]
    table = []
    for weights, group in groups.items():
        line = [
            _label(weights),
            float(np.mean(values(group, "align"))),
            float(np.mean(np.exp(values(group, "uniform")))),
            round(float(np.mean(values(group, "output_linear"))), 2),
            "{:.2f} to {:.2f}".format(*_interval(group)),
            len(group),
        ]
        theirs = [] if context.laptop else [group[0].get("paper_val_output_linear")]
        table.append([*line, *theirs])
    draw_weights(groups, context.figure)
    text = [
        "The paper's claim: accuracy is an inverted U over the weights, so both properties are "
        "needed; with too much alignment all images become one point (exp L_uniform = 1), and "
        "while neither weight is more than 4 times the other, accuracy is good and does not "
        "depend on them.",
        "Accuracies are means over seeds. Their intervals are those of the bootstrap over test "
        "images, averaged over the seeds.",
    ]
    caption = "From alignment alone (left) to uniformity alone (right), alpha 2, t 2"
    title = "Weights of alignment and uniformity (Figure 7)"
    return Result(title, columns, table, [(context.figure, caption)], text, _verdict(groups))


def draw_weights(groups: Groups, path: Path | None) -> Figure:
    """Metrics and accuracy over the weights: lines through the means, points are the encoders."""
    figure = Figure(figsize=(9, 6), dpi=DPI, layout="constrained")
    accuracy, metrics = figure.subplots(2, 1, sharex=True)
    rows = list(groups.values())
    label = "linear accuracy on the output (%)"
    _draw(accuracy, rows, lambda row: row["output_linear"], COLORS[0], "o", label)
    accuracy.set_ylabel(label)
    label = r"$\mathcal{L}_{\mathrm{align}}$"
    _draw(metrics, rows, lambda row: row["align"], COLORS[1], "s", label)
    label = r"$\exp\,\mathcal{L}_{\mathrm{uniform}}$"
    _draw(metrics, rows, lambda row: np.exp(row["uniform"]), COLORS[2], "^", label)
    metrics.set_ylabel("metric (lower is better)")
    metrics.legend(frameon=False)
    metrics.set_xticks(range(len(rows)), map(_label, groups), rotation=45, ha="right")
    metrics.set_xlabel("weight of alignment : weight of uniformity")
    for axes in (accuracy, metrics):
        axes.grid(alpha=0.3)
    return saved(figure, path)


def _draw(
    axes: Axes, groups: list[Rows], value: Callable, color: str, marker: str, label: str
) -> None:
    for place, group in enumerate(groups):
        points = [value(row) for row in group]
        axes.plot([place] * len(group), points, marker, color=color, alpha=0.5, markersize=4)
    means = [np.mean([value(row) for row in group]) for group in groups]
    axes.plot(range(len(means)), means, "-", color=color, marker=marker, label=label)


def _interval(group: Rows) -> tuple[float, float]:
    return tuple(float(np.mean(values(group, f"output_linear_{end}"))) for end in ("low", "high"))


def _verdict(groups: Groups) -> str:
    if len(groups) < 3:
        return ""
    means = {weights: np.mean(values(rows, "output_linear")) for weights, rows in groups.items()}
    first, *_, last = groups
    best = max(means, key=means.get)
    shows = all(_interval(groups[end])[1] < _interval(groups[best])[0] for end in (first, last))
    numbers = ", ".join(f"{means[key]:.2f}% at {_label(key)}" for key in (best, first, last))
    return f"the inverted U {'shows' if shows else 'does not show'} ({numbers})"


def _share(row: dict) -> float:
    return row["uniform_weight"] / (row["uniform_weight"] + row["align_weight"])


def _label(weights: tuple[float, float]) -> str:
    return " : ".join(f"{weight:.3g}" for weight in weights)


REPRODUCTIONS = {
    "wang-isola/figure7": Reproduction(
        "effect of the weights of alignment and uniformity",
        result,
        laptop=scale("digits", 0.3, _laptop),
        paper=scale("stl10", 25_000, _paper),
    )
}
