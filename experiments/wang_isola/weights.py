"""Figure 7 of Wang & Isola: what the weights of alignment and uniformity do to an encoder."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments import inference, tables
from experiments.inference import INSTRUMENTS, PAPERS
from experiments.plots.instruments import draw_accuracies, draw_metrics, finish
from experiments.plots.style import PAGE, printed
from experiments.protocols import Evaluation
from experiments.reproduction import Context, Reproduction, Result, planned_row, run, scale
from experiments.specifications import config_of, refusal
from experiments.statistics import Rows, by, done, values
from experiments.sweeps import Planned
from hypersphere_jax.reporting.plots.style import DPI, save_figure

TABLE = "wang-isola/table8"
ROW = 191  # align + uniform, weights of 1: all else is as here
# Weights of alignment and uniformity, the larger one 1, from alignment alone to uniformity alone.
WEIGHTS = (
    *((1, weight) for weight in (0, 1 / 64, 1 / 16, 1 / 8, 1 / 4, 1 / 2)),
    (1, 1),
    *((weight, 1) for weight in (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 64, 0)),
)
FEW = ((1, 0), (1, 1 / 4), (1, 1), (1 / 4, 1), (0, 1))
# At the laptop's scale, by the data: weights, seeds, evaluation.
LAPTOP = {
    "digits": (WEIGHTS, range(5), Evaluation()),
    "cifar10": (FEW, range(3), Evaluation(folds=None)),
}
LAYERS = ("output",)
# What equal weights are compared with: the ends of the U, and those of its middle.
ENDS = {"alignment alone": (1, 0), "uniformity alone": (0, 1)}
WITHIN = {"4 : 1": (4, 1), "1 : 4": (1, 4)}
Groups = Mapping[tuple[float, float], Rows]  # the seeds of each pair of weights


def _laptop(context: Context, rows: Rows) -> list[Planned]:
    planned = []
    for images, (pairs, seeds, evaluation) in LAPTOP.items():
        base = config_of(tables.row_of(TABLE, ROW), "laptop" if images == "digits" else images)
        for align, uniform in pairs:
            weights = {"align_weight": align, "uniform_weight": uniform}
            for seed in seeds:
                name = f"figure7_{images}_align{align:g}_uniform{uniform:g}_seed{seed}"
                config = base.replace(name=name, seed=seed, **weights)
                planned.append(run(config, context, evaluation, weights))
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
            loss = one.config
            weights = {"align_weight": loss.align_weight, "uniform_weight": loss.uniform_weight}
            planned.append(one._replace(about=one.about | weights))
    return planned


def result(context: Context, rows: Rows) -> Result:
    """Metrics and accuracies of each pair of weights, and whether equal ones are ahead."""
    rows = sorted(done(rows), key=lambda row: _angle((row["align_weight"], row["uniform_weight"])))
    sets = {
        images: by(of, "align_weight", "uniform_weight") for images, of in by(rows, "data").items()
    }
    table = []
    for images, groups in sets.items():
        for weights, group in groups.items():
            metrics = values(group, "align"), np.exp(values(group, "uniform"))
            line = [images, _label(weights), *(float(np.mean(of)) for of in metrics)]
            line += [*inference.accuracies(group, LAYERS), len(group)]
            line += [] if context.laptop else [group[0].get("paper_val_output_linear")]
            table.append(line)
    draw_weights(sets, context.figure)
    seeds = " and ".join(f"{len(next(iter(of.values())))} of {name}" for name, of in sets.items())
    text = [
        "The paper's claim: accuracy is an inverted U over the weights, so both properties are "
        "needed; with too much alignment all images become one point (exp L_uniform = 1), and "
        "while neither weight is more than 4 times the other, accuracy is good and does not "
        "depend on them.",
        "Encoders that differ in the two weights alone, of which the larger one is 1; seeds of "
        f"each pair: {seeds}. The inverted U is taken to show where encoders with equal weights, "
        "which nothing has chosen, are ahead of those trained for alignment alone and of those "
        "trained for uniformity alone. Within a ratio of 4, accuracy is taken to depend on the "
        "weights where 4 : 1 or 1 : 4 is told apart from equal ones. ± and bars: 95% intervals "
        "over seeds and test images.",
        *(_extremes(images, groups) for images, groups in sets.items()),
    ]
    columns = ["data", "align : uniform", "L_align", "exp L_uniform"]
    columns += [*inference.columns(LAYERS), "seeds", *([] if context.laptop else ["paper (%)"])]
    caption = (
        "From alignment alone (left) to uniformity alone (right), alpha 2, t 2; dotted: chance; "
        "in the middle row each axis is cut to its curves"
    )
    title = "Weights of alignment and uniformity (Figure 7)"
    figures = [(context.figure, caption)]
    return Result(title, columns, table, figures, text, *_verdict([*sets], _against_equal(rows)))


def _against_equal(rows: Rows) -> dict[tuple[str, str], inference.Comparison]:
    """Equal weights against `ENDS` and `WITHIN`, by these and the data set; those that exist."""

    def of_ratio(of: Rows, align: float, uniform: float) -> Rows:
        return [r for r in of if r["align_weight"] * uniform == r["uniform_weight"] * align]

    pairs = {
        (name, images): (of_ratio(of, 1, 1), of_ratio(of, *ratio))
        for images, of in by(rows, "data").items()
        for name, ratio in (ENDS | WITHIN).items()
    }
    return {key: inference.compare(*pair, LAYERS[0]) for key, pair in pairs.items() if all(pair)}


def _verdict(
    sets: Sequence[str], compared: Mapping[tuple[str, str], inference.Comparison]
) -> tuple[str, str]:
    """Of each data set, whether equal weights are ahead of both ends, and alike in between."""
    if not compared:
        return "", ""
    signs = dict(zip(compared, inference.signs([*compared.values()]), strict=True))
    named = {f"Equal weighting against {n} ({i})": of for (n, i), of in compared.items()}
    numbers = inference.sentences(named, LAYERS[0])
    if not all((end, images) in signs for end in ENDS for images in sets):
        return numbers, ""
    shows = {images: all(signs[end, images] == 1 for end in ENDS) for images in sets}
    told = [f"{'shows' if both else 'does not show'} on {images}" for images, both in shows.items()]
    short = f"The inverted U {' and '.join(told)}"
    if not any(name in WITHIN for name, _ in signs):
        return f"{short}. {numbers}", f"{short}."
    differ = [
        f"{'ahead of' if sign == 1 else 'behind'} {name} on {images}"
        for (name, images), sign in signs.items()
        if name in WITHIN and sign
    ]
    within = f"equal weighting is {' and '.join(differ)}" if differ else "no difference shows"
    short = f"{short}; within a ratio of 4, {within}."
    return f"{short} {numbers}", short


def _extremes(images: str, groups: Groups) -> str:
    """Where each instrument has its highest and its lowest mean."""
    parts = []
    for key, name in (INSTRUMENTS | PAPERS).items():
        means = {w: float(np.mean(values(of, f"{LAYERS[0]}_{key}"))) for w, of in groups.items()}
        ends = max(means, key=means.get), min(means, key=means.get)
        parts.append(f"{' and '.join(map(_label, ends))} by {name}")
    return f"The highest and the lowest mean on {images} are at {', '.join(parts)}."


@printed
def draw_weights(sets: Mapping[str, Groups], path: Path | None) -> Figure:
    """Accuracies, those of the two instruments nearer, and metrics: a column for each data set."""
    figure = Figure(figsize=(PAGE, 5.6), dpi=DPI, layout="constrained")
    grid = figure.subplots(3, len(sets), sharex=True, squeeze=False)
    for row in (grid[0], grid[2]):
        for axes in row[1:]:
            axes.sharey(row[0])
    shown = {weights for groups in sets.values() for weights in groups}
    order = sorted(shown, key=_angle)
    for (above, near, below), (images, groups) in zip(grid.T, sets.items(), strict=True):
        places = [order.index(weights) for weights in groups]
        draw_accuracies(above, places, [*groups.values()], LAYERS[0])
        draw_accuracies(near, places, [*groups.values()], LAYERS[0], papers=False)
        draw_metrics(below, places, [*groups.values()])
        above.set_title(images)
        every = -(-len(order) // 16)  # labels that there is room for
        below.set_xticks(range(0, len(order), every), map(_label, order[::every]), rotation=90)
        below.set_xlabel("weights, alignment : uniformity")
    grid[1, 0].set_ylabel("the two, enlarged (%)")
    finish(figure, grid[0, 0], grid[2, 0], LAYERS[0])
    return save_figure(figure, path)


def _angle(weights: tuple[float, float]) -> float:
    """0 for alignment alone, pi / 2 for uniformity alone."""
    align, uniform = weights
    return math.atan2(uniform, align)


def _label(weights: tuple[float, float]) -> str:
    return " : ".join(f"{weight:.3g}" for weight in weights)


REPRODUCTIONS = {
    "wang-isola/figure7": Reproduction(
        "effect of the weights of alignment and uniformity",
        result,
        laptop=scale("digits, cifar10", _laptop),
        paper=scale("stl10", _paper),
    )
}
