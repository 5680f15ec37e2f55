"""Figures 5 and 9a of Wang & Isola: encoders in the plane of alignment and uniformity."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import stats

from experiments import items, tables
from experiments.items import Context, Item, Scale
from experiments.measures import Measures, Rows
from experiments.shown import Shown
from experiments.specifications import refusal
from experiments.sweeps import Planned
from experiments.wang_isola.rows import IMAGENET100, NYU, STL10, table_item
from hypersphere_jax import plots

TABLE8, TABLE9, TABLE10 = (f"wang-isola/table{number}" for number in (8, 9, 10))
LAPTOP = Measures()

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


def _rows_of(table: str, measures: Measures) -> Callable[[Context, Rows], list[Planned]]:
    def stage(context: Context, rows: Rows) -> list[Planned]:
        return [items.planned_row(row, context, measures) for row in usable_rows(table)]

    return stage


def _digits(context: Context, rows: Rows) -> list[Planned]:
    large = [row for row in usable_rows() if row.values["batch_size"] >= SMALLEST_BATCH]
    chosen = items.spread(large, DIGITS)
    return [items.planned_row(row, context, LAPTOP) for row in chosen]


def cifar10(context: Context, rows: Rows) -> list[Planned]:
    """The encoders of CIFAR-10 at the laptop's scale."""
    return [
        items.planned_row(tables.row_of(TABLE8, number), context, LAPTOP, scale="cifar10")
        for number in CIFAR10_ROWS
    ]


def _laptop(context: Context, rows: Rows) -> list[Planned]:
    return [*_digits(context, rows), *cifar10(context, rows)]


def rank_correlations(
    rows: Rows, key: str = "output_linear", draws: int = 1000, seed: int = 0
) -> dict[str, tuple[float, float, float, float]]:
    """Spearman's correlation of a score with each metric, and with both together.

    Both together are their sum, L_align + L_uniform; and, fitted, what the ranks of the two make of
    the score's (their multiple correlation, which says little where one metric's rank follows from
    the other's, as along the front of the best). Metrics are better when lower, so of an accuracy
    all but the last are negative where the claim holds.

    Args:
      rows: of at least three encoders.
      key: of the score.
      draws: of the bootstrap.
      seed: of the bootstrap.

    Returns:
      By name (`align`, `uniform`, `sum`, `ranks`): the value; the ends of its 95% interval by the
      bootstrap over encoders; and what chance does not exceed, in absolute value, in 95% of
      permutations of the score: of the fit, that is far from 0 where encoders are few. NaN where
      one of the values is the same for all encoders.
    """
    values = np.array([[row["align"], row["uniform"], row[key]] for row in rows])

    def correlations(sample):
        columns = (*sample.T, sample[:, 0] + sample[:, 1])
        align, uniform, score, both = (stats.rankdata(column) for column in columns)
        design = np.stack([np.ones_like(align), align, uniform], axis=1)
        fitted = design @ np.linalg.lstsq(design, score, rcond=None)[0]
        return [_correlation(each, score) for each in (align, uniform, both, fitted)]

    random = np.random.default_rng(seed)
    n = len(values)
    drawn = np.array([correlations(values[random.integers(0, n, n)]) for _ in range(draws)])
    shuffled = np.array(
        [
            correlations(np.column_stack([values[:, :2], random.permutation(values[:, 2])]))
            for _ in range(draws)
        ]
    )
    found = {}
    for place, name in enumerate(WITH):
        ends = _percentiles(drawn[:, place], (2.5, 97.5))
        (chance,) = _percentiles(np.abs(shuffled[:, place]), (95,))
        found[name] = (correlations(values)[place], *ends, chance)
    return found


def _percentiles(values: np.ndarray, shares: tuple) -> list[float]:
    known = values[np.isfinite(values)]  # a draw may be of one encoder alone
    return np.percentile(known, shares).tolist() if len(known) else [float("nan")] * len(shares)


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    if np.ptp(a) < 1e-9 * len(a) or np.ptp(b) < 1e-9 * len(b):
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def _show(figure: str, score: Score) -> Callable[[Context, Rows], Shown]:
    def show(context: Context, rows: Rows) -> Shown:
        return show_plane(context, rows, figure, score)

    return show


def show_plane(context: Context, rows: Rows, figure: str, score: Score) -> Shown:
    """The plane of each data set, and how the score goes with the metrics."""
    groups: dict[str, Rows] = {}
    for row in rows:
        if row["status"] == "done":
            groups.setdefault(row["data"], []).append(row)
    columns = ["data", "encoders", "score with", "rank correlation", "95% interval", "chance"]
    columns += ["lower left", "others"]
    table, verdicts = [], []
    for name, group in groups.items():
        means = lower_left(group, score.key)
        if len(group) < FEWEST:
            table.append([name, len(group), "too few to rank", *[None] * 5])
            continue
        found = rank_correlations(group, score.key)
        for metric, (value, low, high, chance) in found.items():
            line = [name, len(group), WITH[metric], f"{value:.3f}", f"{low:.2f} to {high:.2f}"]
            line.append(f"{chance:.3f}")
            table.append([*line, *(means if metric == "sum" else (None, None))])
        verdicts.append(f"{name}: {_verdict(found, score)}")
    text = [
        "The paper's claim: encoders with low L_align and low L_uniform are the better ones, and "
        "the best stand at the lower left of the plane. It draws the plane and prints no "
        f"correlation. Here the score is {score.name}; its rank correlation (Spearman) with each "
        "metric, with their sum, and the multiple correlation with the ranks of both, which cannot "
        "be negative (intervals by the bootstrap over encoders; chance: what 95% of permutations "
        "of the score stay below, in absolute value); and the mean score of the encoders that are "
        "no worse than the median in both metrics, beside that of all others.",
        "Where encoders lie along a front, on which one metric is bought with the other, a single "
        "metric cannot tell the middle of the front from its ends; the sum can.",
        *(_best(name, group, score) for name, group in groups.items()),
    ]
    path = context.folder / "figure.png"
    plots.metrics_planes(groups, path, *score)
    caption = (
        "Each point is an encoder: its alignment and uniformity on the test split; colour: "
        f"{score.name}. Blue is better"
    )
    title = f"Alignment, uniformity and {score.name} of many encoders ({figure})"
    return Shown(title, columns, table, [(path, caption)], text, "; ".join(verdicts))


def _verdict(found: dict[str, tuple], score: Score) -> str:
    """Which of the correlations have the sign of the claim, and are beyond chance."""
    sign = 1 if score.lower_is_better else -1
    shows = {metric: sign * found[metric][0] > found[metric][3] for metric in WITH}
    alone = [WITH[metric] for metric in ("align", "uniform") if shows[metric]]
    with_sum = f"rank correlation {found['sum'][0]:.2f} with L_align + L_uniform"
    value, *_, chance = found["sum"]
    beyond = "beyond chance" if shows["sum"] else "NOT beyond chance"
    beyond = "beyond chance the OTHER way" if -sign * value > chance else beyond
    return f"{with_sum}, {beyond}; alone, with {' and '.join(alone) or 'neither'} beyond chance"


def lower_left(rows: Rows, key: str) -> tuple[float | None, float | None]:
    """Mean score of the encoders up to the median in both metrics, and of all others."""
    align, uniform, score = (
        np.array([row[name] for row in rows]) for name in ("align", "uniform", key)
    )
    inside = (align <= np.median(align)) & (uniform <= np.median(uniform))
    return tuple(float(score[part].mean()) if part.any() else None for part in (inside, ~inside))


def _best(name: str, rows: Rows, score: Score) -> str:
    best_first = sorted(rows, key=lambda row: row[score.key], reverse=not score.lower_is_better)
    best = best_first[0]
    ranks = {
        metric: 1 + sum(row[metric] < best[metric] for row in rows)
        for metric in ("align", "uniform")
    }
    return (
        f"{name}: the best encoder ({best[score.key]:.4g}; {best['loss']}) is number "
        f"{ranks['align']} of {len(rows)} in alignment and number {ranks['uniform']} in uniformity."
    )


ITEMS = {
    "wang-isola/figure5a": Item(
        "STL-10's encoders in the plane of alignment and uniformity",
        {
            "laptop": Scale(("digits", "cifar10"), 1.0, (_laptop,)),
            "paper": Scale(("stl10",), 90_000, (_rows_of(TABLE8, STL10),)),
        },
        _show("Figure 5a", ACCURACY),
    ),
    "wang-isola/figure5b": Item(
        "NYU-Depth-V2's encoders in that plane",
        {"paper": Scale(("nyu_depth_v2",), 500, (_rows_of(TABLE9, NYU),))},
        _show("Figure 5b", DEPTH),
    ),
    "wang-isola/figure9a": Item(
        "ImageNet-100's encoders in that plane",
        {
            "paper": Scale(
                ("imagenet2012",), 125_000, (_rows_of("wang-isola/table10", IMAGENET100),)
            )
        },
        _show("Figure 9a", TOP1),
    ),
    TABLE8: table_item(
        TABLE8, "all STL-10 encoders, the grid behind Figure 5a", STL10, ("stl10",), 90_000, LAPTOP
    ),
    TABLE9: table_item(
        TABLE9,
        "all NYU-Depth-V2 encoders, the grid behind Figure 5b",
        NYU,
        ("nyu_depth_v2",),
        500,
    ),
    TABLE10: table_item(
        TABLE10,
        "all ImageNet-100 encoders, the grid behind Figure 9a",
        IMAGENET100,
        ("imagenet2012",),
        125_000,
    ),
}
