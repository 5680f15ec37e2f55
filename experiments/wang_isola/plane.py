"""Figures 5 and 9a of Wang & Isola: encoders in the plane of alignment and uniformity."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from experiments import inference, tables
from experiments.correlations import CURVE, EQUAL, FEWEST, rank_correlations
from experiments.inference import INSTRUMENTS, PAPERS, Estimate
from experiments.plots.planes import Plane, encoder_planes
from experiments.protocols import Evaluation
from experiments.reproduction import Context, Reproduction, Result, Scale, Stage, planned_row, scale
from experiments.specifications import refusal
from experiments.statistics import Rows, by, values
from experiments.sweeps import Planned
from experiments.wang_isola.encoder_tables import DIGITS, IMAGENET100, NYU, STL10
from hypersphere_jax.configs import PretrainConfig

TABLE8, TABLE9, TABLE10 = (f"wang-isola/table{number}" for number in (8, 9, 10))

# At the laptop's scale: seeds of each encoder of digits, and of CIFAR-10.
DIGITS_SEEDS, SEEDS = range(5), (0, 1, 2)
SMALL = Evaluation(folds=None)  # of CIFAR-10; Figure 8 begins with encoders that have it
# Places in `CURVE` that are listed, as weights of alignment and uniformity.
LISTED = {0: "1 : 0", 3: "3 : 1", EQUAL: "1 : 1", 9: "1 : 3", 12: "0 : 1"}
# Contrastive alone; align and uniform; mixtures. The three of Table 1 are among them, and the
# accuracies of the others in the paper span its range. All have 128 dimensions and batch 768 there.
CIFAR10_ROWS = (67, 69, 79, 83, 85, 87, 145, 154, 158, 174, 186, 184, 198, 89, 95, 107, 109)


class Score(NamedTuple):
    """What colours the plane."""

    name: str
    columns: Mapping[str, str]  # of rows, by the name of the instrument
    lower_is_better: bool = False


def _accuracy(layer: str, name: str) -> Score:
    columns = {label: f"{layer}_{key}" for key, label in (INSTRUMENTS | PAPERS).items()}
    return Score(f"accuracy {name} (%)", columns)


ACCURACY = _accuracy("output", "on the output")
TOP1 = _accuracy("backbone", "before the head")
DEPTH = Score("error of depth from conv5", {"mean squared error": "conv5_mse"}, True)


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
    """The encoders of CIFAR-10 at the laptop's scale, with several seeds each."""
    return [
        planned_row(tables.row_of(TABLE8, number), context, SMALL, scale="cifar10", seed=seed)
        for number in CIFAR10_ROWS
        for seed in SEEDS
    ]


def digits(context: Context, rows: Rows) -> list[Planned]:
    """Table 8's encoders of digits that begin at random, with several seeds each.

    What is one setting at this scale is taken once: the table's batches of 2 to 4 pairs, and the
    rows that repeat another one with a seed of their own.
    """
    settings: dict[PretrainConfig, tables.Row] = {}
    for row in usable_rows():
        config = planned_row(row, context, DIGITS).config
        settings.setdefault(dataclasses.replace(config, name="encoder", seed=0), row)
    return [
        planned_row(row, context, DIGITS, seed=seed or None)  # the first is Table 8's own run
        for row in settings.values()
        for seed in DIGITS_SEEDS
    ]


def _laptop(context: Context, rows: Rows) -> list[Planned]:
    return [*digits(context, rows), *cifar10(context, rows)]


def plane_result(figure: str, score: Score, context: Context, rows: Rows) -> Result:
    """The plane of each data set, and how the score goes with the metrics."""
    sets = by(rows, "data")
    ranked = {name: of for name, of in sets.items() if len(by(of, "row")) >= FEWEST}
    halves = {"all": 0, "better half": -1 if score.lower_is_better else 1}
    found = {
        (name, half): {
            label: rank_correlations(of, column, half=taken)
            for label, column in score.columns.items()
        }
        for name, of in ranked.items()
        for half, taken in halves.items()
    }
    columns = ["data", "encoders", "alignment : uniformity", *score.columns]
    table = [
        [name, _counted(sets[name], half), shown, *(str(of[place]) for of in by_label.values())]
        for (name, half), by_label in found.items()
        for place, shown in LISTED.items()
    ]
    table += [
        [name, f"{len(by(of, 'row'))}, too few to rank", None, *[None] * len(score.columns)]
        for name, of in sets.items()
        if name not in ranked
    ]
    about = (
        "The correlation is Spearman's. It shows where it has the sign of the claim beyond chance "
        "by logistic regression and 5-NN. Intervals: 95%, by the bootstrap over encoders, their "
        f"seeds and test images. {' '.join(_trained(name, of) for name, of in sets.items())}"
    )
    if "digits" in sets:
        about += (
            " Those of digits are the rows of Table 8 that begin at random; what is one setting at "
            "this scale is there once."
        )
    text = [
        "The paper's claim: alignment and uniformity agree with the quality of an encoder, and the "
        "best encoders are those with low L_align and low L_uniform, at the lower left of the "
        "plane. It draws the plane and prints no correlation.",
        f"Here {score.name} is correlated with L_align + L_uniform, over all encoders and over the "
        f"better half of them. {about}",
        "The equal weights of the sum are a choice, which the table and the picture vary. Where "
        "encoders lie along a front, on which one metric is bought with the other, a single "
        "metric cannot tell the middle of the front from its ends; a sum can.",
        *filter(None, (_repeated(name, of, score) for name, of in ranked.items())),
        *(_best(name, of, score) for name, of in ranked.items()),
    ]
    planes = {name: _plane(of, score, name, found) for name, of in sets.items()}
    encoder_planes(planes, context.figure, CURVE, score.lower_is_better)
    caption = (
        f"Encoders in the plane; colour: the rank of {score.name} among them, blue is better; "
        "bars: the range of the seeds. Below: rank correlation with weighted sums of both metrics, "
        "of all encoders (lines, with 95% intervals) and of the better half (dotted, with bars)"
    )
    title = f"Encoders in the plane of alignment and uniformity ({figure})"
    verdict, short = _verdict(found, score, sets)
    return Result(title, columns, table, [(context.figure, caption)], text, verdict, short)


def _counted(rows: Rows, half: str) -> str:
    count = len(by(rows, "row"))
    return f"all {count}" if half == "all" else f"better half of {count}"


def _trained(name: str, rows: Rows) -> str:
    """Of how many encoders and seeds."""
    seeds = [len(group) for group in by(rows, "row").values()]
    most = max(seeds)
    if min(seeds) == most:
        return f"On {name} {len(seeds)} encoders, seeds of each: {most}."
    more = sum(count == most for count in seeds)
    return f"On {name} {len(seeds)} encoders, of which {more} were trained with {most} seeds."


def _verdict(
    found: Mapping[tuple[str, str], Mapping[str, list[Estimate]]],
    score: Score,
    sets: Mapping[str, Rows],
) -> tuple[str, str]:
    """Of each data set and half, whether the sum with equal weights goes with the score; a line."""
    if not found:
        return "", ""
    equal = {
        key: {label: of[EQUAL] for label, of in by_label.items()} for key, by_label in found.items()
    }
    claimed = 1 if score.lower_is_better else -1
    deciding = [label for label in score.columns if label not in PAPERS.values()]
    parts, shorts = [], []
    for (key, of), sign in zip(equal.items(), inference.signs([*equal.values()]), strict=True):
        counted = _counted(sets[key[0]], key[1])
        who = f"{'' if key[1] == 'all' else 'the '}{counted} encoders of {key[0]}"
        word = inference.of_claim(sign, claimed)
        what = "the rank correlation" + ("" if parts else " with L_align + L_uniform")
        parts.append(f"Over {who}, {what} is {inference.told(of)}: {word}.")
        numbers = " and ".join(f"{of[label].value:.2f}" for label in deciding)
        shorts.append(f"{numbers} over {who} ({word})")
    ranges = {
        f"by {label} on {name}": _range(found[name, "all"][label])
        for name in dict.fromkeys(name for name, _ in found)
        for label in deciding
    }
    lows, highs = zip(*ranges.values(), strict=True)
    others = ", ".join(f"{low:.2f} to {high:.2f} {of}" for of, (low, high) in ranges.items())
    choice = (
        "Equal weights are a choice: with others, from 3 : 1 to 1 : 3, the correlation over all "
        "encoders is"
    )
    holm = f"Holm's correction counts the {len(equal)} comparisons."
    verdict = f"{' '.join(parts)} {holm} {choice} {others}."
    what = f"The rank correlation with L_align + L_uniform by {' and '.join(deciding)} is"
    return verdict, f"{what} {', '.join(shorts)}. {choice} {min(lows):.2f} to {max(highs):.2f}."


def _range(estimates: list[Estimate]) -> tuple[float, float]:
    """The least and the greatest correlation for weights that are not far from equal."""
    near, *_, far = (place for place in LISTED if 0 < CURVE[place] < 1)
    numbers = [estimate.value for estimate in estimates[near : far + 1]]
    return min(numbers), max(numbers)


def _repeated(name: str, rows: Rows, score: Score) -> str:
    """What the noise of single seeds does to the correlation."""
    groups = [group for group in by(rows, "row").values() if len(group) > 1]
    if len(groups) < FEWEST:
        return ""
    several = [row for group in groups for row in group]
    first = [group[0] for group in groups]
    parts = []
    for label, column in score.columns.items():
        means, single = (
            rank_correlations(of, column, CURVE[[EQUAL]], draws=1)[0].value
            for of in (several, first)
        )
        within = np.median([np.std(values(group, column), ddof=1) for group in groups])
        between = np.std([np.mean(values(group, column)) for group in groups], ddof=1)
        parts.append(
            f"{within:.2f} and {between:.2f}, rank correlation {means:.2f} with means over seeds "
            f"and {single:.2f} with one seed each, by {label}"
        )
    return (
        f"The {len(groups)} encoders of {name} with several seeds, standard deviation over seeds "
        f"(median) and over encoders: {'; '.join(parts)}."
    )


def _plane(rows: Rows, score: Score, name: str, found: Mapping) -> Plane:
    """What is drawn of a data set."""
    groups = [*by(rows, "row").values()]
    align, uniform = (
        np.array([[np.mean(of), min(of), max(of)] for of in (values(g, key) for g in groups)])
        for key in ("align", "uniform")
    )
    scores = {
        label: np.array([np.mean(values(group, column)) for group in groups])
        for label, column in score.columns.items()
    }
    curves = {half: found[name, half] for half in ("all", "better half") if (name, half) in found}
    return Plane([group[0]["kind"] for group in groups], align, uniform, scores, curves)


def _best(name: str, rows: Rows, score: Score) -> str:
    """Where the best encoder by each instrument stands in both metrics."""
    groups, parts = [*by(rows, "row").values()], []
    for label, column in score.columns.items():
        if label in PAPERS.values():
            continue
        means = {
            key: [float(np.mean(values(group, key))) for group in groups]
            for key in (column, "align", "uniform")
        }
        best = int((np.argmin if score.lower_is_better else np.argmax)(means[column]))
        align, uniform = (
            1 + sum(x < of[best] for x in of) for of in (means[k] for k in ("align", "uniform"))
        )
        parts.append(
            f"{means[column][best]:.4g} by {label} ({groups[best][0]['loss']}; number {align} in "
            f"alignment, {uniform} in uniformity)"
        )
    return f"The best of the {len(groups)} encoders of {name}: {', '.join(parts)}."


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
