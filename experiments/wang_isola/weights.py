"""Figure 7 of Wang & Isola: what the weights of alignment and uniformity do to an encoder."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments import tables
from experiments.protocols import Evaluation
from experiments.reproduction import Context, Reproduction, Result, planned_row, run, scale
from experiments.specifications import config_of, refusal
from experiments.statistics import Rows, by, values
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
    base, planned = config_of(tables.row_of(TABLE, 191), "laptop"), []
    for align, uniform in WEIGHTS:
        objective = ObjectiveConfig(align_weight=align, uniform_weight=uniform)
        weights = {"align_weight": align, "uniform_weight": uniform}
        for seed in SEEDS:
            name = f"figure7_align{align:g}_uniform{uniform:g}_seed{seed}"
            config = dataclasses.replace(base, name=name, seed=seed, objective=objective)
            planned.append(run(config, context, Evaluation(), weights))
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
            loss = one.config.objective
            weights = {"align_weight": loss.align_weight, "uniform_weight": loss.uniform_weight}
            planned.append(one._replace(about=one.about | weights))
    return planned


def result(context: Context, rows: Rows) -> Result:
    """Metrics and accuracy of each pair of weights, the mean over seeds."""
    rows = sorted(rows, key=lambda row: math.atan2(row["uniform_weight"], row["align_weight"]))
    groups = by(rows, "align_weight", "uniform_weight")
    columns = ["align : uniform", "L_align", "exp L_uniform", "linear (%)", "95% interval", "seeds"]
    columns += [] if context.laptop else ["paper (%)"]
    table = []
    for weights, group in groups.items():
        metrics = values(group, "align"), np.exp(values(group, "uniform"))
        line = [_label(weights), *(float(np.mean(of)) for of in metrics)]
        line.append(round(float(np.mean(values(group, "output_linear"))), 2))
        line += ["{:.2f} to {:.2f}".format(*_interval(group)), len(group)]
        line += [] if context.laptop else [group[0].get("paper_val_output_linear")]
        table.append(line)
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
    for axes, name, color, marker, label in (
        (accuracy, "output_linear", COLORS[0], "o", "linear accuracy on the output (%)"),
        (metrics, "align", COLORS[1], "s", r"$\mathcal{L}_{\mathrm{align}}$"),
        (metrics, "uniform", COLORS[2], "^", r"$\exp\,\mathcal{L}_{\mathrm{uniform}}$"),
    ):
        scores = [np.array(values(group, name)) for group in groups.values()]
        scores = [np.exp(of) for of in scores] if name == "uniform" else scores
        for place, of in enumerate(scores):
            axes.plot([place] * len(of), of, marker, color=color, alpha=0.5, markersize=4)
        means = [of.mean() for of in scores]
        axes.plot(range(len(means)), means, "-", color=color, marker=marker, label=label)
        axes.grid(alpha=0.3)
    accuracy.set_ylabel("linear accuracy on the output (%)")
    metrics.set_ylabel("metric (lower is better)")
    metrics.legend(frameon=False)
    metrics.set_xticks(range(len(groups)), map(_label, groups), rotation=45, ha="right")
    metrics.set_xlabel("weight of alignment : weight of uniformity")
    return saved(figure, path)


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


def _label(weights: tuple[float, float]) -> str:
    return " : ".join(f"{weight:.3g}" for weight in weights)


REPRODUCTIONS = {
    "wang-isola/figure7": Reproduction(
        "effect of the weights of alignment and uniformity",
        result,
        laptop=scale("digits", _laptop),
        paper=scale("stl10", _paper),
    )
}
