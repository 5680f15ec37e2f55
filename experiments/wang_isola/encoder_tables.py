"""Tables of encoders: each row's numbers in the paper beside ours."""

import functools
from collections.abc import Callable

from experiments import tables
from experiments.evaluation import Evaluation
from experiments.reproduction import Context, Reproduction, Scale, planned_row
from experiments.result import Result, Rows, interval
from experiments.specifications import config_of, formula, initial, refusal
from experiments.sweeps import Planned
from hypersphere_jax.config import require

# What the paper evaluates of its encoders.
STL10 = Evaluation(layers=("output", "fc7"))
NYU = Evaluation(layers=("conv5", "conv4"), depth=True)
IMAGENET100 = Evaluation(layers=("backbone",), protocol="moco_imagenet100", folds=3)
IMAGENET = Evaluation(layers=("backbone",), protocol="moco", folds=None)
BOOKCORPUS = Evaluation(protocol="quick_thought", tasks=("mr", "cr"))

# Column of the papers' tables: column of ours.
OURS = {
    "val_output_linear": "output_linear",
    "val_output_knn5": "output_knn5",
    "val_fc7_linear": "fc7_linear",
    "val_fc7_knn5": "fc7_knn5",
    "cv_output_linear": "output_linear_cv",
    "cv_fc7_linear": "fc7_linear_cv",
    "val_top1": "backbone_linear",
    "val_top5": "backbone_linear_top5",
    "cv_top1": "backbone_linear_cv",
    "val_conv5_mse": "conv5_mse",
    "val_conv4_mse": "conv4_mse",
    "cv_conv5_mse": "conv5_mse_cv",
    "cv_conv4_mse": "conv4_mse_cv",
    "val_mr": "mr",
    "val_cr": "cr",
    "cv_mr": "mr_cv",
    "cv_cr": "cr_cv",
}

# Rows of the tables of the best encoders, and which kinds of loss take part in each.
SELECTIONS = {
    "best contrastive only": lambda kind: kind == "contrastive",
    "best align and uniform only": lambda kind: kind == "align+uniform",
    "best among all encoders": lambda kind: True,
}


def table_of_encoders(number: int, title: str, **scales: Scale) -> dict[str, Reproduction]:
    """A table whose rows are encoders, by its name."""
    table = f"wang-isola/table{number}"
    compute = functools.partial(rows_result, table, title)
    return {table: Reproduction(title, compute, **scales, by_row=tuple(scales))}


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
        for theirs, ours in OURS.items():
            if f"paper_{theirs}" in row and row.get(ours) is not None:
                paper, score, what = row[f"paper_{theirs}"], row[ours], theirs.replace("_", " ")
                lines.append([*about, what, paper, score, interval(row, ours), score - paper])
    text = ["The paper's number of each encoder beside ours, as its columns name them."]
    if failed:
        text.append(f"Failed: {'; '.join(failed)}.")
    if context.laptop:
        text.append(
            "At the laptop's scale other images and a smaller encoder were trained: the paper's "
            "numbers are of its own data, and only their order can be compared."
        )
    return Result(f"{title} ({table})", columns, lines, [], text)
