"""Figure 9b of Wang & Isola: sentence encoders in the plane of alignment and uniformity."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments import inference
from experiments.correlations import FEWEST, rank_correlations
from experiments.inference import ALPHA, Comparison
from experiments.plots.style import PAGE, printed
from experiments.reproduction import Context, Reproduction, Result, scale
from experiments.statistics import Rows
from experiments.wang_isola.encoder_tables import BOOKCORPUS, OF_TEXT, TEXT, stage_of
from experiments.wang_isola.sentences import (
    HEADS,
    RANDOM_WORDS,
    TABLE11,
    TASKS,
    Right,
    baselines,
    differences,
    encoders_of,
    grid,
    levels,
    rights,
)
from hypersphere_jax.reporting.plots.style import ALIGN_LABEL, DPI, UNIFORM_LABEL, save_figure

FAMILIES = {  # marker and name of the encoders whose losses are these
    "contrastive": ("o", "contrastive"),
    "align+uniform": ("s", "align + uniform"),
}
OTHERS = ("^", "other losses")
# What accuracy is correlated with: the share of uniformity in a weighted sum.
SUM = "L_align + L_uniform"
SHARES = {"L_align": 0, SUM: 0.5, "L_uniform": 1}


def plane_of_tasks(context: Context, rows: Rows) -> Result:
    """Figure 9b: the plane of each task, and accuracies beside the baselines."""
    encoders = encoders_of(rows)
    columns = ["task", "encoders", "accuracy with", *OF_TEXT.values()]
    found = {task: levels(rows, task) for task in TASKS}
    table: list[list] = []
    sums: dict[str, Comparison] = {}
    for task, title in TASKS.items():
        if len(encoders) < FEWEST:
            table.append([title, len(encoders), "too few to rank", *[None] * len(OF_TEXT)])
            continue
        ranked = [
            rank_correlations(encoders, task + ending, np.array([*SHARES.values()]))
            for ending in OF_TEXT
        ]
        for metric, *of in zip(SHARES, *ranked, strict=True):
            table.append([title, len(encoders), metric, *map(str, of)])
            if metric == SUM:
                sums[task] = dict(zip(OF_TEXT.values(), of, strict=True))
    text = [
        "The paper's claim: encoders with low L_align and low L_uniform are the better ones, of "
        "text too, and the best are at the lower left of the plane. It prints no correlation.",
        "Here: the rank correlation (Spearman) of accuracy with each metric and with their sum, "
        "and its 95% interval by the bootstrap over encoders and sentences; and how many encoders, "
        "one of each loss, are above the mean of random word vectors, beyond chance after Holm's "
        "correction. Logistic regression is the paper's protocol; 5-NN has the same folds.",
        "Alignment is of neighbouring sentences of held-out text, f of one with g of the other; "
        "uniformity is the sum of both encoders', as in B.3: its least value is -8 for t = 2.",
    ]
    caption = (
        "Above: alignment and uniformity of each encoder; colour: points above the mean of random "
        "word vectors (blue) or below it (red). Below: accuracy with its 95% interval; lines: "
        "baselines"
    )
    figures = []
    for ending, label in OF_TEXT.items():
        path = context.folder / f"figure{ending}.png"
        draw(encoders, found, ending, path)
        figures.append((path, f"By {label}. {caption}"))
    parts = []
    for (task, of), sign in zip(sums.items(), inference.signs([*sums.values()]), strict=True):
        what = f"On {TASKS[task]} the rank correlation of accuracy with {SUM}"
        parts.append(f"{what} is {inference.told(of)}: {inference.of_claim(sign, -1)}.")
        if RANDOM_WORDS in found[task]:
            parts.append(_above(encoders, task, found[task][RANDOM_WORDS]))
    parts += [f"Holm's correction counts the {len(sums)} correlations."] if sums else []
    title = "Alignment, uniformity and accuracy of sentence encoders (Figure 9b)"
    return Result(title, columns, table, figures, text, " ".join(parts))


def _above(encoders: Rows, task: str, words: Right) -> str:
    """How many of these very encoders, as the grid has one seed, are above word vectors."""
    apart = [[*differences(rights([row], task), words).values()] for row in encoders]
    ahead = np.array([[each.value > 0 for each in of] for of in apart])
    beyond = np.array(inference.holm([max(each.p for each in of) for of in apart])) < ALPHA
    both = ahead.all(axis=1)
    counts = [f"{count} by {label}" for count, label in zip(ahead.sum(axis=0), words, strict=True)]
    return (
        f"Of {len(encoders)} encoders {' and '.join(counts)} are above the {RANDOM_WORDS}; by both "
        f"{both.sum()}, beyond chance {(both & beyond).sum()}."
    )


@printed
def draw(
    encoders: Rows, found: Mapping[str, Mapping[str, Right]], ending: str, path: Path | None
) -> Figure:
    """Figure 9b by an instrument: a column a task; the plane above, accuracies below."""
    instrument = OF_TEXT[ending]
    figure = Figure(figsize=(PAGE, 5.2), dpi=DPI, layout="constrained")
    axes = figure.subplots(2, len(TASKS), sharex="row")
    above = {
        (task, end): scores - (100 * of[RANDOM_WORDS][label].mean() if of else scores.mean())
        for task, of in found.items()
        for end, label in OF_TEXT.items()
        for scores in [np.array([row[task + end] for row in encoders])]
    }
    limit = max((np.abs(values).max(initial=0.1) for values in above.values()), default=1)
    style = {"cmap": "RdBu", "vmin": -limit, "vmax": limit, "edgecolor": "black", "linewidth": 0.5}
    align, uniform = (np.array([row[name] for row in encoders]) for name in ("align", "uniform"))
    for place, (task, title) in enumerate(TASKS.items()):
        plane, below = axes[:, place]
        for (marker, label), mine in _families(encoders).items():
            colours = {"c": above[task, ending][mine], "marker": marker, "zorder": 3}
            spots = plane.scatter(align[mine], uniform[mine], 28, **colours, **style)
            of = [row for row, taken in zip(encoders, mine, strict=True) if taken]
            value, low, high = (
                np.array([row[task + ending + end] for row in of]) for end in ("", "_low", "_high")
            )
            bars, options = (value - low, high - value), {"fmt": marker, "elinewidth": 0.7}
            below.errorbar((align + uniform)[mine], value, bars, label=label, **options)
        for number, (name, of) in enumerate(found[task].items()):
            line = {"color": f"C{number + 3}", "linestyle": ("-", "--", "-.", ":")[number]}
            below.axhline(100 * of[instrument].mean(), label=name, linewidth=1, **line)
        plane.set_title(f"{title}: {len(encoders)} encoders")
        plane.set_xlabel(f"← better    {ALIGN_LABEL}")
        below.set_xlabel("← better    $L_{align} + L_{uniform}$")
        below.set_ylabel(f"accuracy on {title} by {HEADS[instrument]} (%)")
        below.margins(y=0.08)
    axes[0, 0].set_ylabel(f"← better    {UNIFORM_LABEL}")
    if encoders:
        level = "random word vectors" if all(found.values()) else "their mean"
        figure.colorbar(spots, ax=axes[0], label=f"points above {level}")
    handles, labels = axes[1, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return save_figure(figure, path)


def _families(encoders: Rows) -> dict[tuple[str, str], np.ndarray]:
    """Which encoders belong to each family of losses, booleans by marker and name."""
    of = [FAMILIES.get(row["kind"], OTHERS) for row in encoders]
    shown = [family for family in (*FAMILIES.values(), OTHERS) if family in of]
    return {family: np.array([one == family for one in of]) for family in shown}


REPRODUCTIONS = {
    "wang-isola/figure9b": Reproduction(
        "BookCorpus's encoders in the plane of alignment and uniformity",
        plane_of_tasks,
        laptop=scale(TEXT, grid, baselines),
        paper=scale(TEXT, stage_of(TABLE11, BOOKCORPUS)),
    ),
}
