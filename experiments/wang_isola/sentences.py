"""BookCorpus's sentence encoders: Table 4 and Figure 9b of Wang & Isola."""

import itertools
from collections.abc import Iterable

from experiments import tables
from experiments.reproduction import Context, Reproduction, Result, planned_row, scale
from experiments.statistics import Rows, by, done, interval
from experiments.sweeps import Planned
from experiments.wang_isola.encoder_tables import (
    BOOKCORPUS,
    SELECTIONS,
    TEXT,
    formula_of,
    stage_of,
)
from experiments.wang_isola.plane import Score, plane_result

TABLE4, TABLE11 = "wang-isola/table4", "wang-isola/table11"
# At the laptop's scale: Quick-Thought as it was; the contrastive loss over its range of tau;
# alignment and uniformity over their range of weights, with the paper's best (row 47).
LAPTOP_ROWS = (1, 2, 4, 5, 6, 7, 11, 16, 42, 47, 71, 75, 77, 83, 87, 106)
BASELINES = 6  # the row whose embeddings and whose random initialization are the baselines
TASKS = {task: task.upper() for task in BOOKCORPUS.tasks}
ACCURACY = Score("accuracy", "accuracy (%)")


def _planned(numbers: Iterable[int], context: Context) -> list[Planned]:
    rows = [tables.row_of(TABLE11, number) for number in numbers]
    return [planned_row(row, context, BOOKCORPUS) for row in rows]


def _grid(context: Context, rows: Rows) -> list[Planned]:
    return _planned(LAPTOP_ROWS, context)


def _baselines(context: Context, rows: Rows) -> list[Planned]:
    """One encoder of the grid: its word embeddings, and both before the first step."""
    (one,) = _planned([BASELINES], context)
    evaluation = one.evaluation._replace(layers=("output", "bag"), initial=True)
    return [one._replace(about={**one.about, "kind": "baseline"}, evaluation=evaluation)]


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


def best_result(context: Context, rows: Rows) -> Result:
    """Table 4: for each selection and task the encoder that is best by cross-validation."""
    encoders = [row for row in done(rows) if row["kind"] != "baseline"]
    columns = ["selection", "task", "loss", "accuracy (%)", "95% interval"]
    columns += ["paper's loss", "paper (%)"]
    table = []
    for printed in tables.rows(TABLE4):
        name = printed.values["selection"]
        candidates = [row for row in encoders if SELECTIONS[name](row["kind"])]
        if not candidates:
            continue
        for (task, title), number in zip(TASKS.items(), _numbers(printed), strict=True):
            best = max(candidates, key=lambda row: row[f"{task}_cv"])
            ours = [best["loss"], best[task], interval(best, task)]
            paper = [formula_of(tables.row_of(TABLE11, number)), printed.values[f"val_{task}"]]
            table.append([name, title, *ours, *paper])
    table += _baseline_lines(rows)
    text = [
        "The paper's claim: of text, too, optimizing alignment and uniformity alone gives "
        "comparable representations; in its table the contrastive loss is 3.75 (MR) and 2.91 (CR) "
        "points ahead, at a low tau. Encoders are picked "
        "for each task by the cross-validation that also picks the classifier's L2; the accuracy "
        "is on sentences that the classifier did not see (10 folds, each the held-out part once). "
        "The choice of the encoder did see them, as those of other folds: the best of several is "
        "a little too good.",
    ]
    if context.laptop:
        text.append(
            "At the laptop's scale the encoders have 100 dimensions each and read eight novels "
            "twice, 120,529 sentences where the paper has 52,799,513, at four times the "
            "paper's rate (0.002; a few encoders were tried with it and with less): the paper's "
            "accuracies cannot be reached, and the order is what can be compared. Baselines: mean "
            f"word embeddings of the encoder of row {BASELINES}, and both before training."
        )
    title = "Best sentence encoders by cross-validation (Table 4)"
    return Result(title, columns, table, [], text, _verdict(table))


def _verdict(table: list[list]) -> str:
    """The accuracies of the selections, and of the best baseline, on each task."""
    names, parts = list(SELECTIONS)[:2], []
    for title in TASKS.values():
        accuracy = {line[0]: line[3] for line in table if line[1] == title}
        baselines = [name for name in accuracy if name.startswith("baseline")]
        if baselines and all(name in accuracy for name in names):
            best = max(baselines, key=accuracy.get)
            numbers = (f"{accuracy[name]:.2f}% ({name.removeprefix('best ')})" for name in names)
            parts.append(f"{title}: {', '.join(numbers)}, {accuracy[best]:.2f}% ({best})")
    return "; ".join(parts)


def _baseline_lines(rows: Rows) -> list[list]:
    lines = []
    for row in by(rows, "kind").get("baseline", []):
        name = "baseline: trained" if row["step"] else "baseline: random"
        layers = {"_bag": f"{name} word embeddings, their mean"}
        if row["step"] == 0:  # the trained encoder is one of the grid
            layers[""] = f"{name} encoder"
        for (layer, what), (task, title) in itertools.product(layers.items(), TASKS.items()):
            score = f"{task}{layer}"
            lines.append([what, title, None, row[score], interval(row, score), None, None])
    return lines


def plane_of_tasks(context: Context, rows: Rows) -> Result:
    """Figure 9b: the plane, coloured by the accuracy on each of the tasks."""
    of_tasks = [
        {**row, "data": title, "accuracy": row[task]}
        for task, title in TASKS.items()
        for row in done(rows)
    ]
    result = plane_result("Figure 9b", ACCURACY, context, of_tasks)
    more = (
        "Alignment is of neighbouring sentences of held-out text, f of one with g of the other; "
        "uniformity is the sum of both encoders', as in B.3: its least value is -8 for t = 2.",
    )
    return result._replace(text=[*result.text, *more])


REPRODUCTIONS = {
    TABLE4: Reproduction(
        "best sentence encoders of BookCorpus (Quick-Thought)",
        best_result,
        laptop=scale(TEXT, _grid, _baselines),
        paper=scale(TEXT, _best),
        by_row=("paper",),
    ),
    "wang-isola/figure9b": Reproduction(
        "BookCorpus's encoders in the plane of alignment and uniformity",
        plane_of_tasks,
        laptop=scale(TEXT, _grid),
        paper=scale(TEXT, stage_of(TABLE11, BOOKCORPUS)),
    ),
}
