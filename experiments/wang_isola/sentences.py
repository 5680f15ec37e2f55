"""BookCorpus's sentence encoders: Table 4 and Figure 9b of Wang & Isola."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments import inference, tables
from experiments.correlations import FEWEST, rank_correlations
from experiments.inference import ALPHA, Comparison, difference
from experiments.plots.style import PAGE, printed
from experiments.predictions import COLUMN, right
from experiments.protocols import Evaluation
from experiments.reproduction import Context, Reproduction, Result, planned_row, scale
from experiments.statistics import Rows, done
from experiments.sweeps import Planned
from experiments.wang_isola.encoder_tables import (
    BOOKCORPUS,
    OF_TEXT,
    SELECTIONS,
    TEXT,
    formula_of,
    reproduction,
    stage_of,
)
from hypersphere_jax.plots.common import ALIGN_LABEL, DPI, UNIFORM_LABEL, saved

TABLE4, TABLE11 = "wang-isola/table4", "wang-isola/table11"
# At the laptop's scale: Quick-Thought as it was; the contrastive loss over its range of tau;
# alignment and uniformity over their range of weights, with the paper's best (row 47).
LAPTOP_ROWS = (1, 2, 4, 5, 6, 7, 11, 16, 42, 47, 71, 75, 77, 83, 87, 106)
FRESH = (1, 2, 3)  # seeds of the encoders that are picked, and of the baselines; the grid has 0
BASELINES = 6  # the row whose word vectors and whose random initialization are the baselines
MAJORITY, RANDOM_WORDS = "majority class", "mean of random word vectors"
HEADS = {label: label.removesuffix(" regression") for label in OF_TEXT.values()}  # of columns
TASKS = {task: task.upper() for task in BOOKCORPUS.tasks}
FAMILIES = {  # marker and name of the encoders whose losses are these
    "contrastive": ("o", "contrastive"),
    "align+uniform": ("s", "align + uniform"),
}
OTHERS = ("^", "other losses")
# What accuracy is correlated with: the share of uniformity in a weighted sum.
SUM = "L_align + L_uniform"
SHARES = {"L_align": 0, SUM: 0.5, "L_uniform": 1}


def _planned(numbers: Iterable[int], context: Context) -> list[Planned]:
    rows = [tables.row_of(TABLE11, number) for number in numbers]
    return [planned_row(row, context, BOOKCORPUS) for row in rows]


def _grid(context: Context, rows: Rows) -> list[Planned]:
    return _planned(LAPTOP_ROWS, context)


def _rows(context: Context, rows: Rows) -> list[Planned]:
    """Table 11: the same with the baselines, or the row that was asked for."""
    if context.row is not None:
        return stage_of(TABLE11, BOOKCORPUS)(context, rows)
    return [*_grid(context, rows), *baselines(context, rows)]


def _fresh(context: Context, rows: Rows) -> list[Planned]:
    """The encoders that are picked, trained again with other seeds."""
    numbers = dict.fromkeys(row["row"] for row in selected(rows).values())
    chosen = [tables.row_of(TABLE11, number) for number in numbers]
    return [_again(row, context, seed, fresh=True) for row in chosen for seed in FRESH]


def baselines(context: Context, rows: Rows) -> list[Planned]:
    """An encoder with several seeds: its word vectors, and both before the first step."""
    evaluation = BOOKCORPUS._replace(layers=("output", "bag"), initial=True)
    row = tables.row_of(TABLE11, BASELINES)
    return [_again(row, context, seed, evaluation, kind="baseline") for seed in FRESH]


def _again(
    row: tables.Row,
    context: Context,
    seed: int,
    evaluation: Evaluation = BOOKCORPUS,
    **about: str | bool,
) -> Planned:
    """A row of Table 11 with another seed."""
    one = planned_row(row, context, evaluation, seed=seed)
    return one._replace(about={**one.about, **about})


def _best(context: Context, rows: Rows) -> list[Planned]:
    """The encoders that the paper selected: for each row one of MR and one of CR."""
    asked = [row for row in tables.rows(TABLE4) if context.row in (None, row.number)]
    return _planned(dict.fromkeys(number for row in asked for number in _numbers(row)), context)


def _numbers(row: tables.Row) -> list[int]:
    """Rows of Table 11 with the losses that a row of Table 4 has for MR and for CR."""
    numbers = []
    for task in TASKS:
        losses = {
            name.removeprefix(f"{task}_"): value
            for name, value in row.values.items()
            if name.startswith(f"{task}_")
        }
        (number,) = (
            other.number
            for other in tables.rows(TABLE11)
            if other.values["l2_normalized"] and losses.items() <= other.values.items()
        )
        numbers.append(number)
    return numbers


def _encoders(rows: Rows) -> Rows:
    """The grid's, without baselines and what was trained again."""
    return [row for row in done(rows) if row["kind"] != "baseline" and not row.get("fresh")]


def selected(rows: Rows) -> dict[tuple[str, str], dict]:
    """For each selection and task, the grid's encoder that is best by cross-validation."""
    grid = _encoders(rows)
    return {
        (name, task): max(candidates, key=lambda row: row[f"{task}_cv"])
        for name, takes in SELECTIONS.items()
        for task in TASKS
        if (candidates := [row for row in grid if takes(row["kind"])])
    }


Right = Mapping[str, np.ndarray]  # by instrument: right or not, booleans `[seeds, n]`


def _right(rows: Rows, score: str) -> Right:
    return {label: right(rows, score + ending) for ending, label in OF_TEXT.items()}


def _apart(one: Right, other: Right) -> Comparison:
    return {label: difference(of, other[label]) for label, of in one.items()}


def levels(rows: Rows, task: str) -> dict[str, Right]:
    """What an encoder has to be compared with on a task.

    Of the rows of `baselines`; empty without them. Word vectors have as many dimensions as the
    encoders' outputs, and the same words.
    """
    made = [row for row in done(rows) if row["kind"] == "baseline"]
    if not made:
        return {}
    targets = made[0][COLUMN][task].targets
    before = [row for row in made if row["step"] == 0]
    after = [row for row in made if row["step"] > 0]
    return {
        MAJORITY: dict.fromkeys(OF_TEXT.values(), (targets == np.bincount(targets).argmax())[None]),
        RANDOM_WORDS: _right(before, f"{task}_bag"),
        "mean of trained word vectors": _right(after, f"{task}_bag"),
        "random encoder": _right(before, task),
    }


def beside_baselines(made: Reproduction) -> Reproduction:
    """A reproduction of encoders of sentences whose text tells the accuracies of the baselines."""

    def result(context: Context, rows: Rows) -> Result:
        of_encoders = made.result(context, [row for row in rows if row["kind"] != "baseline"])
        parts = []
        for task, title in TASKS.items():
            found = [
                f"{name} {' and '.join(_accuracies(of))}" for name, of in levels(rows, task).items()
            ]
            parts += [f"{title}: {', '.join(found)}"] if found else []
        if not parts:
            return of_encoders
        by = " and ".join(OF_TEXT.values())
        told = f"Baselines, in percent by {by}, on {'; on '.join(parts)}."
        return of_encoders._replace(text=[*of_encoders.text, told])

    return made._replace(result=result)


def best_result(context: Context, rows: Rows) -> Result:
    """Table 4: for each selection and task the encoder that is best by cross-validation."""
    picked = selected(rows)
    measured = {key: _measured(rows, best, key[1]) for key, best in picked.items()}
    columns = ["selection", "task", "loss", "seeds", *(f"{head} (%)" for head in HEADS.values())]
    columns += [*(f"{head}: less words" for head in HEADS.values()), "paper's loss", "paper (%)"]
    table = []
    for printed_row in tables.rows(TABLE4):
        name = printed_row.values["selection"]
        for (task, title), number in zip(TASKS.items(), _numbers(printed_row), strict=True):
            if (best := picked.get((name, task))) is None:
                continue
            of = measured[name, task]
            paper = formula_of(tables.row_of(TABLE11, number)), printed_row.values[f"val_{task}"]
            table.append([name, title, best["loss"], *_cells(of, levels(rows, task)), *paper])
    for task, title in TASKS.items():
        found = levels(rows, task)
        for name, of in found.items():
            table.append([f"baseline: {name}", title, None, *_cells(of, found), None, None])
    text = [
        "The paper's claim: of text, too, optimizing alignment and uniformity alone gives "
        "comparable representations; in its table the contrastive loss is 3.75 (MR) and 2.91 (CR) "
        "points ahead, at a low tau.",
        "Encoders are picked for each task by the cross-validation that also picks the "
        "classifier's L2; accuracies are on sentences that the classifier did not see (10 folds, "
        "each the held-out part once). Logistic regression is the paper's protocol; 5-NN has the "
        f"same folds. Less words: the difference from the {RANDOM_WORDS}.",
    ]
    if context.laptop:
        text[1] += (
            " Those that are picked were trained again with fresh seeds, whose accuracies are in "
            "the table. ±: 95% intervals over seeds and sentences. Fresh seeds renew the encoder "
            "and not the sentences: the folds that picked it cover all of these."
        )
        text.append(
            "At the laptop's scale the encoders have 100 dimensions each and read eight novels "
            "once, 120,529 sentences where the paper has 52,799,513; 9% of the words of MR and of "
            "CR are not in the novels. The rate is four times the paper's. The biases of the "
            "update gates begin so that a state remembers 1 to 63 words (`--init chrono`); "
            "Quick-Thought's are 0, a memory that halves with each word. Word vectors have 200 "
            "dimensions, as the two encoders' outputs, and know the same words; the trained ones "
            "are those of row "
            f"{BASELINES} of Table 11."
        )
    title = "Best sentence encoders by cross-validation (Table 4)"
    return Result(title, columns, table, [], text, *_verdict(rows, measured))


def _measured(rows: Rows, best: Mapping, task: str) -> Right:
    """What a picked encoder has right with fresh seeds; as it is where there are none."""
    again = [row for row in done(rows) if row.get("fresh") and row["row"] == best["row"]]
    return _right(again or [best], task)


def _accuracies(of: Right) -> list[str]:
    return [inference.cell(difference(each)) for each in of.values()]


def _cells(of: Right, found: Mapping[str, Right]) -> list:
    """Seeds, accuracies and the differences from random word vectors."""
    words = found.get(RANDOM_WORDS)
    shown = words is not None and of is not words
    apart = map(str, _apart(of, words).values()) if shown else [None] * len(of)
    return [len(next(iter(of.values()))), *_accuracies(of), *apart]


def _verdict(rows: Rows, measured: Mapping[tuple[str, str], Right]) -> tuple[str, str]:
    """How the two kinds compare with each other and with random word vectors; and in a line."""
    names = {
        "contrastive": "best contrastive only",
        "align + uniform": "best align and uniform only",
    }
    compared: dict[str, inference.Comparison] = {}
    numbers = []
    for task, title in TASKS.items():
        found = levels(rows, task)
        ours = {name: measured.get((key, task)) for name, key in names.items()}
        if not found or any(of is None for of in ours.values()):
            return "", ""
        accuracies = ours | {name: found[name] for name in (RANDOM_WORDS, MAJORITY)}
        listed = (
            f"{' and '.join(f'{100 * each.mean():.1f}%' for each in of.values())} ({name})"
            for name, of in accuracies.items()
        )
        numbers.append(f"{title}: {', '.join(listed)}")
        compared[f"{' against '.join(ours)} ({title})"] = _apart(*ours.values())
        for name, of in ours.items():
            apart = _apart(of, found[RANDOM_WORDS])
            compared[f"{name} against the {RANDOM_WORDS} ({title})"] = apart
    signs = inference.signs([*compared.values()])
    ahead = [sign for name, sign in zip(compared, signs, strict=True) if RANDOM_WORDS in name]
    reach = f"Of these encoders {ahead.count(1)} of {len(ahead)} are ahead of that mean."
    if max(ahead) < 1:
        reach = (
            "With this text, none of these encoders is shown to be ahead of the "
            f"{RANDOM_WORDS}: their order says little of the claim."
        )
    short = f"By {' and '.join(OF_TEXT.values())}, {'; '.join(numbers)}"
    return f"{short}. {inference.sentences(compared, 'output')} {reach}", f"{short}. {reach}"


def plane_of_tasks(context: Context, rows: Rows) -> Result:
    """Figure 9b: the plane of each task, and accuracies beside the baselines."""
    encoders = _encoders(rows)
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
    apart = [[*_apart(_right([row], task), words).values()] for row in encoders]
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
    return saved(figure, path)


def _families(encoders: Rows) -> dict[tuple[str, str], np.ndarray]:
    """Which encoders belong to each family of losses, booleans by marker and name."""
    of = [FAMILIES.get(row["kind"], OTHERS) for row in encoders]
    shown = [family for family in (*FAMILIES.values(), OTHERS) if family in of]
    return {family: np.array([one == family for one in of]) for family in shown}


REPRODUCTIONS = {
    TABLE4: Reproduction(
        "best sentence encoders of BookCorpus (Quick-Thought)",
        best_result,
        laptop=scale(TEXT, _grid, _fresh, baselines),
        paper=scale(TEXT, _best),
        by_row=("paper",),
    ),
    TABLE11: beside_baselines(reproduction(11, laptop=scale(TEXT, _rows))),
    "wang-isola/figure9b": Reproduction(
        "BookCorpus's encoders in the plane of alignment and uniformity",
        plane_of_tasks,
        laptop=scale(TEXT, _grid, baselines),
        paper=scale(TEXT, stage_of(TABLE11, BOOKCORPUS)),
    ),
}
