"""BookCorpus's sentence encoders: Tables 4 and 11 of Wang & Isola."""

from collections.abc import Iterable, Mapping

import numpy as np

from experiments import inference, tables
from experiments.inference import Comparison, difference
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

TABLE4, TABLE11 = "wang-isola/table4", "wang-isola/table11"
# At the laptop's scale: Quick-Thought as it was; the contrastive loss over its range of tau;
# alignment and uniformity over their range of weights, with the paper's best (row 47).
LAPTOP_ROWS = (1, 2, 4, 5, 6, 7, 11, 16, 42, 47, 71, 75, 77, 83, 87, 106)
FRESH = (1, 2, 3)  # seeds of the encoders that are picked, and of the baselines; the grid has 0
BASELINES = 6  # the row whose word vectors and whose random initialization are the baselines
MAJORITY, RANDOM_WORDS = "majority class", "mean of random word vectors"
HEADS = {label: label.removesuffix(" regression") for label in OF_TEXT.values()}  # of columns
TASKS = {task: task.upper() for task in BOOKCORPUS.tasks}


def _planned(numbers: Iterable[int], context: Context) -> list[Planned]:
    rows = [tables.row_of(TABLE11, number) for number in numbers]
    return [planned_row(row, context, BOOKCORPUS) for row in rows]


def grid(context: Context, rows: Rows) -> list[Planned]:
    return _planned(LAPTOP_ROWS, context)


def _rows(context: Context, rows: Rows) -> list[Planned]:
    """Table 11: the same with the baselines, or the row that was asked for."""
    if context.row is not None:
        return stage_of(TABLE11, BOOKCORPUS)(context, rows)
    return [*grid(context, rows), *baselines(context, rows)]


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


def encoders_of(rows: Rows) -> Rows:
    """The grid's, without baselines and what was trained again."""
    return [row for row in done(rows) if row["kind"] != "baseline" and not row.get("fresh")]


def selected(rows: Rows) -> dict[tuple[str, str], dict]:
    """For each selection and task, the grid's encoder that is best by cross-validation."""
    encoders = encoders_of(rows)
    return {
        (name, task): max(candidates, key=lambda row: row[f"{task}_cv"])
        for name, takes in SELECTIONS.items()
        for task in TASKS
        if (candidates := [row for row in encoders if takes(row["kind"])])
    }


Right = Mapping[str, np.ndarray]  # by instrument: right or not, booleans `[seeds, n]`


def rights(rows: Rows, score: str) -> Right:
    return {label: right(rows, score + ending) for ending, label in OF_TEXT.items()}


def differences(one: Right, other: Right) -> Comparison:
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
        RANDOM_WORDS: rights(before, f"{task}_bag"),
        "mean of trained word vectors": rights(after, f"{task}_bag"),
        "random encoder": rights(before, task),
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
    return rights(again or [best], task)


def _accuracies(of: Right) -> list[str]:
    return [inference.cell(difference(each)) for each in of.values()]


def _cells(of: Right, found: Mapping[str, Right]) -> list:
    """Seeds, accuracies and the differences from random word vectors."""
    words = found.get(RANDOM_WORDS)
    shown = words is not None and of is not words
    apart = map(str, differences(of, words).values()) if shown else [None] * len(of)
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
        compared[f"{' against '.join(ours)} ({title})"] = differences(*ours.values())
        for name, of in ours.items():
            apart = differences(of, found[RANDOM_WORDS])
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


REPRODUCTIONS = {
    TABLE4: Reproduction(
        "best sentence encoders of BookCorpus (Quick-Thought)",
        best_result,
        laptop=scale(TEXT, grid, _fresh, baselines),
        paper=scale(TEXT, _best),
        by_row=("paper",),
    ),
    TABLE11: beside_baselines(reproduction(11, laptop=scale(TEXT, _rows))),
}
