"""Figures 5 and 9a of Wang & Isola: encoders in the plane of alignment and uniformity."""

import functools
import warnings
from typing import NamedTuple

import numpy as np
import scipy

from experiments import tables
from experiments.plots.planes import metric_planes
from experiments.protocols import Evaluation
from experiments.reproduction import Context, Reproduction, Result, Scale, Stage, planned_row, scale
from experiments.specifications import refusal
from experiments.statistics import Rows, by, values
from experiments.sweeps import Planned
from experiments.wang_isola.encoder_tables import IMAGENET100, NYU, STL10

TABLE8, TABLE9, TABLE10 = (f"wang-isola/table{number}" for number in (8, 9, 10))

# At the laptop's scale: encoders of digits, and rows whose losses are trained on CIFAR-10.
DIGITS = 64
SMALLEST_BATCH = 16
FEWEST = 5  # encoders that are ranked
# What the score is correlated with.
WITH = {
    "align": "L_align",
    "uniform": "L_uniform",
    "sum": "L_align + L_uniform",
    "ranks": "both, fitted to ranks",
}
# Contrastive alone; align and uniform; mixtures. The three of Table 1 are among them, and the
# accuracies of the others in the paper span its range. All have 128 dimensions and batch 768 there.
CIFAR10_ROWS = (67, 69, 79, 83, 85, 87, 145, 154, 158, 174, 186, 184, 198, 89, 95, 107, 109)


class Score(NamedTuple):
    """What colours the plane."""

    key: str
    name: str
    lower_is_better: bool = False


ACCURACY = Score("output_linear", "linear accuracy on the output (%)")
TOP1 = Score("backbone_linear", "linear accuracy before the head (%)")
DEPTH = Score("conv5_mse", "mean squared error of depth from conv5", lower_is_better=True)


def usable_rows(table: str = TABLE8) -> list[tables.Row]:
    """Rows of a table that were trained from scratch, with settings that are known for certain."""
    return [
        row for row in tables.rows(table) if refusal(row) is None and row.values["init"] == "rand"
    ]


def _from_scratch(table: str, evaluation: Evaluation) -> Stage:
    return lambda context, rows: [
        planned_row(row, context, evaluation) for row in usable_rows(table)
    ]


def cifar10(context: Context, rows: Rows) -> list[Planned]:
    """The encoders of CIFAR-10 at the laptop's scale."""
    return [
        planned_row(tables.row_of(TABLE8, number), context, Evaluation(), scale="cifar10")
        for number in CIFAR10_ROWS
    ]


def _laptop(context: Context, rows: Rows) -> list[Planned]:
    """Encoders of digits, evenly from the first to the last of the table; and of CIFAR-10."""
    large = [row for row in usable_rows() if row.values["batch_size"] >= SMALLEST_BATCH]
    places = [round(place * (len(large) - 1) / (DIGITS - 1)) for place in range(DIGITS)]
    digits = [planned_row(large[place], context, Evaluation()) for place in places]
    return [*digits, *cifar10(context, rows)]


def rank_correlations(
    rows: Rows, key: str = "output_linear", draws: int = 1000
) -> dict[str, tuple[float, float, float, float]]:
    """Spearman's correlation of a score with each metric, and with both together.

    Both together are their sum, and, fitted, what the ranks of the two make of the score's: their
    multiple correlation. Of an accuracy all but the last are negative where the claim holds.

    Returns:
      By name (`align`, `uniform`, `sum`, `ranks`): the value; the ends of its 95% interval by the
      bootstrap over encoders; and what chance does not exceed, in absolute value, in 95% of
      permutations of the score. NaN where one of the values is the same for all encoders.
    """
    table = np.array([[row["align"], row["uniform"], row[key]] for row in rows])

    def correlations(sample):
        columns = (*sample.T, sample[:, 0] + sample[:, 1])
        align, uniform, score, both = map(scipy.stats.rankdata, columns)
        design = np.stack([np.ones_like(align), align, uniform], axis=1)
        fitted = design @ np.linalg.lstsq(design, score, rcond=None)[0]
        with np.errstate(invalid="ignore"):  # a draw may be of one encoder alone
            return np.corrcoef([align, uniform, both, fitted, score])[-1, :-1]

    random, n = np.random.default_rng(0), len(table)
    draw = [correlations(table[random.integers(0, n, n)]) for _ in range(draws)]
    chance = [
        correlations(np.column_stack([table[:, :2], random.permutation(table[:, 2])]))
        for _ in range(draws)
    ]
    with warnings.catch_warnings(action="ignore"):  # where all are NaN
        interval = np.nanpercentile(draw, (2.5, 97.5), axis=0)
        bound = np.nanpercentile(np.abs(chance), 95, axis=0)
    numbers = np.vstack([correlations(table), interval, bound])
    return dict(zip(WITH, numbers.T.tolist(), strict=True))


def plane_result(figure: str, score: Score, context: Context, rows: Rows) -> Result:
    """The plane of each data set, and how the score goes with the metrics."""
    groups = by(rows, "data")
    columns = ["data", "encoders", "score with", "rank correlation", "95% interval", "chance"]
    columns += ["lower left", "others"]
    table, verdicts = [], []
    for name, group in groups.items():
        if len(group) < FEWEST:
            table.append([name, len(group), "too few to rank", *[None] * 5])
            continue
        correlations, means = rank_correlations(group, score.key), lower_left(group, score.key)
        for metric, (value, low, high, chance) in correlations.items():
            numbers = [f"{value:.3f}", f"{low:.2f} to {high:.2f}", f"{chance:.3f}"]
            numbers += means if metric == "sum" else (None, None)
            table.append([name, len(group), WITH[metric], *numbers])
        verdicts.append(f"{name}: {_verdict(correlations, score)}")
    text = [
        "The paper's claim: encoders with low L_align and low L_uniform are the better ones, and "
        "the best are at the lower left of the plane. It draws the plane and prints no "
        f"correlation. Here the score is {score.name}; its rank correlation (Spearman) with each "
        "metric, with their sum, and the multiple correlation with the ranks of both, which cannot "
        "be negative (intervals by the bootstrap over encoders; chance: what 95% of permutations "
        "of the score stay below, in absolute value); and the mean score of the encoders that are "
        "no worse than the median in both metrics, beside that of all others.",
        "Where encoders lie along a front, on which one metric is bought with the other, a single "
        "metric cannot tell the middle of the front from its ends; the sum can.",
        *(_best(name, group, score) for name, group in groups.items()),
    ]
    metric_planes(groups, context.figure, *score)
    caption = (
        "Each point is an encoder: its alignment and uniformity on the test split; colour: "
        f"{score.name}. Blue is better"
    )
    title = f"Alignment, uniformity and {score.name} of many encoders ({figure})"
    return Result(title, columns, table, [(context.figure, caption)], text, "; ".join(verdicts))


def _verdict(correlations: dict[str, tuple], score: Score) -> str:
    """Which of the correlations have the sign of the claim, and are beyond chance."""
    sign = 1 if score.lower_is_better else -1
    shows = {name: sign * value > chance for name, (value, *_, chance) in correlations.items()}
    alone = [WITH[metric] for metric in ("align", "uniform") if shows[metric]]
    value, *_, chance = correlations["sum"]
    beyond = "beyond chance" if shows["sum"] else "NOT beyond chance"
    beyond = "beyond chance the OTHER way" if -sign * value > chance else beyond
    return (
        f"rank correlation {value:.2f} with L_align + L_uniform, {beyond}; alone, with "
        f"{' and '.join(alone) or 'neither'} beyond chance"
    )


def lower_left(rows: Rows, key: str) -> tuple[float | None, float | None]:
    """Mean score of the encoders up to the median in both metrics, and of all others."""
    align, uniform, score = (np.array(values(rows, name)) for name in ("align", "uniform", key))
    inside = (align <= np.median(align)) & (uniform <= np.median(uniform))
    return tuple(float(score[part].mean()) if part.any() else None for part in (inside, ~inside))


def _best(name: str, rows: Rows, score: Score) -> str:
    best = (min if score.lower_is_better else max)(rows, key=lambda row: row[score.key])
    align, uniform = (
        1 + sum(row[metric] < best[metric] for row in rows) for metric in ("align", "uniform")
    )
    return (
        f"{name}: the best encoder ({best[score.key]:.4g}; {best['loss']}) is number "
        f"{align} of {len(rows)} in alignment and number {uniform} in uniformity."
    )


def _figure(number: str, title: str, score: Score, **scales: Scale) -> dict[str, Reproduction]:
    compute = functools.partial(plane_result, f"Figure {number}", score)
    return {f"wang-isola/figure{number}": Reproduction(title, compute, **scales)}


REPRODUCTIONS = {
    **_figure(
        "5a",
        "STL-10's encoders in the plane of alignment and uniformity",
        ACCURACY,
        laptop=scale("digits, cifar10", _laptop),
        paper=scale("stl10", _from_scratch(TABLE8, STL10)),
    ),
    **_figure(
        "5b",
        "NYU-Depth-V2's encoders in that plane",
        DEPTH,
        paper=scale("nyu_depth_v2", _from_scratch(TABLE9, NYU)),
    ),
    **_figure(
        "9a",
        "ImageNet-100's encoders in that plane",
        TOP1,
        paper=scale("imagenet2012", _from_scratch(TABLE10, IMAGENET100)),
    ),
}
