"""Tables of encoders: each row's numbers in the paper beside ours."""

import functools
from collections.abc import Callable

from experiments import tables
from experiments.protocols import Evaluation
from experiments.reproduction import Context, Reproduction, Result, planned_row, scale
from experiments.specifications import config_of, formula, initial, refusal
from experiments.statistics import Rows, interval
from experiments.sweeps import Planned
from hypersphere_jax.config import require

# What the paper evaluates of its encoders.
STL10 = Evaluation(layers=("output", "fc7"))
NYU = Evaluation(layers=("conv5", "conv4"), depth=True)
IMAGENET100 = Evaluation(layers=("backbone",), protocol="moco_imagenet100", folds=3)
IMAGENET = Evaluation(layers=("backbone",), protocol="moco", folds=None)
BOOKCORPUS = Evaluation(protocol="quick_thought", tasks=("mr", "cr"))
TEXT = "books, sentiment"
# Tables whose rows are encoders: title; data and evaluation at the paper's scale.
TABLES = {
    2: ("best encoders of NYU-Depth-V2", "nyu_depth_v2", NYU),
    3: ("best encoders of ImageNet-100 (MoCo)", "imagenet2012", IMAGENET100),
    5: ("encoders of ImageNet (MoCo v2)", "imagenet2012", IMAGENET),
    8: ("all STL-10 encoders, the grid behind Figure 5a", "stl10", STL10),
    9: ("all NYU-Depth-V2 encoders, the grid behind Figure 5b", "nyu_depth_v2", NYU),
    10: (
        "all ImageNet-100 encoders, the grid behind Figure 9a",
        "imagenet2012",
        IMAGENET100,
    ),
    11: (
        "all sentence encoders of BookCorpus, the grid behind Figure 9b",
        TEXT,
        BOOKCORPUS,
    ),
}
LAPTOP = {8: ("digits", Evaluation()), 11: (TEXT, BOOKCORPUS)}

# Rows of the tables of the best encoders, and which kinds of loss take part in each.
SELECTIONS = {
    "best contrastive only": lambda kind: kind == "contrastive",
    "best align and uniform only": lambda kind: kind == "align+uniform",
    "best among all encoders": lambda kind: True,
}


def stage_of(table: str, evaluation: Evaluation) -> Callable[[Context, Rows], list[Planned]]:
    """The encoders of a table's rows, or of the one that was asked for, and their initial ones."""

    def stage(context: Context, rows: Rows) -> list[Planned]:
        if context.row is None:
            chosen = [row for row in tables.rows(table) if refusal(row) is None]
        else:
            chosen = [tables.row_of(table, context.row)]
            reason = refusal(chosen[0])
            require(reason is None, f"--row {context.row}: {reason}")
        planned = {}
        for row in (*filter(None, map(initial, chosen)), *chosen):
            one = planned_row(row, context, evaluation)
            planned.setdefault(one.config.name, one)
        return list(planned.values())

    return stage


def our_column(printed: str) -> str:
    """Our column of what the papers print as `val_output_linear` or `cv_top1`."""
    split, _, score = printed.partition("_")
    score = {"top1": "backbone_linear", "top5": "backbone_linear_top5"}.get(score, score)
    return f"{score}_cv" if split == "cv" else score


def formula_of(row: tables.Row) -> str:
    """The loss of a row as its table prints it."""
    return formula(config_of(row).objective)


def rows_result(table: str, title: str, context: Context, rows: Rows) -> Result:
    """Each row and each of its printed numbers: paper, ours, difference."""
    columns = ["row", "loss", "d", "seed", "what", "paper", "ours", "95% interval", "difference"]
    lines, failed = [], []
    for row in rows:
        if row["status"] == "failed":
            as_there = ", as in the paper" if row.get("paper_diverged") else ""
            failed.append(f"row {row['row']}: {row['reason']}{as_there}")
            continue
        about = [row[name] for name in ("row", "loss", "dim", "seed")]
        if row.get("paper_diverged"):
            lines.append([*about, "training", "NaN", "none", None, None])
        for name in (name for name in row if name.startswith("paper_")):
            printed = name.removeprefix("paper_")
            ours, paper = our_column(printed), row[name]
            if (score := row.get(ours)) is not None:
                what, ends = printed.replace("_", " "), interval(row, ours)
                lines.append([*about, what, paper, score, ends, score - paper])
    text = ["The paper's number of each encoder beside ours, as its columns name them."]
    if failed:
        text.append(f"Failed: {'; '.join(failed)}.")
    if context.laptop:
        text.append(
            "At the laptop's scale other images and a smaller encoder were trained: the paper's "
            "numbers are of its own data, and only their order can be compared."
        )
    return Result(f"{title} ({table})", columns, lines, [], text)


def _table(number: int) -> Reproduction:
    table, (title, *paper) = f"wang-isola/table{number}", TABLES[number]
    scales = {"paper": paper} | ({"laptop": LAPTOP[number]} if number in LAPTOP else {})
    stages = {name: scale(*needs, stage_of(table, of)) for name, (*needs, of) in scales.items()}
    compute = functools.partial(rows_result, table, title)
    return Reproduction(title, compute, **stages, by_row=tuple(scales))


REPRODUCTIONS = {f"wang-isola/table{number}": _table(number) for number in TABLES}
