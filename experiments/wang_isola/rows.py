"""Items that are tables of encoders: each row's number in the paper beside ours."""

from collections.abc import Callable

from experiments import items, tables
from experiments.items import Context, Item, Scale
from experiments.measures import Measures, Rows
from experiments.shown import Shown
from experiments.specifications import initial, refusal
from experiments.sweeps import Planned
from hypersphere_jax.config import require

# What the paper measures of its encoders.
STL10 = Measures(layers=("output", "fc7"))
NYU = Measures(layers=("conv5", "conv4"), depth=True)
IMAGENET100 = Measures(layers=("backbone",), protocol="moco_imagenet100", folds=3)
IMAGENET = Measures(layers=("backbone",), protocol="moco", folds=None)
BOOKCORPUS = Measures(protocol="quick_thought", tasks=("mr", "cr"))

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


def table_item(
    table: str,
    title: str,
    measures: Measures,
    data: tuple[str, ...],
    hours: float,
    laptop: Measures | None = None,
) -> Item:
    """The item of a table whose rows are encoders; with `laptop`, also on digits."""
    scales = {"paper": Scale(data, hours, (stage_of(table, measures),))}
    if laptop is not None:
        scales["laptop"] = Scale(("digits",), 2.0, (stage_of(table, laptop),))
    return Item(
        title,
        scales,
        lambda context, rows: show_rows(table, title, rows, context.scale),
        by_row=tuple(scales),
    )


def stage_of(table: str, measures: Measures) -> Callable[[Context, Rows], list[Planned]]:
    """Trains the encoders of a table's rows, or of the one that was asked for."""

    def stage(context: Context, rows: Rows) -> list[Planned]:
        if context.row is None:
            chosen = [row for row in tables.rows(table) if refusal(row) is None]
        else:
            chosen = [tables.row_of(table, context.row)]
            reason = refusal(chosen[0])
            require(reason is None, f"--row {context.row}: {reason}")
        return with_initial(chosen, context, measures)

    return stage


def with_initial(chosen: list, context: Context, measures: Measures) -> list[Planned]:
    """The runs of some rows, and of those that they begin from."""
    sources = [initial(row) for row in chosen]
    numbers = {}
    for row in (*filter(None, sources), *chosen):
        planned = items.planned_row(row, context, measures)
        numbers.setdefault(planned.config.name, planned)
    return list(numbers.values())


def show_rows(table: str, title: str, rows: Rows, scale: str) -> Shown:
    """Each row and each of its printed numbers: paper, ours, difference."""
    columns = ["row", "loss", "d", "seed", "what", "paper", "ours", "95% interval", "difference"]
    lines, failed = [], []
    for row in rows:
        if row["status"] == "failed":
            theirs = ", as in the paper" if row.get("paper_diverged") else ""
            failed.append(f"row {row['row']}: {row['reason']}{theirs}")
            continue
        if row.get("paper_diverged"):
            about = [row["row"], row["loss"], row["dim"], row["seed"]]
            lines.append([*about, "training", "NaN", "none", None, None])
        for theirs, ours in OURS.items():
            if f"paper_{theirs}" not in row or row.get(ours) is None:
                continue
            paper, found = row[f"paper_{theirs}"], row[ours]
            low, high = row.get(f"{ours}_low"), row.get(f"{ours}_high")
            interval = f"{low:.2f} to {high:.2f}" if low is not None else None
            about = [row["row"], row["loss"], row["dim"], row["seed"]]
            what = theirs.replace("_", " ")
            lines.append([*about, what, paper, found, interval, found - paper])
    text = ["The paper's number of each encoder beside ours, as its columns name them."]
    if failed:
        text.append(f"Failed: {'; '.join(failed)}.")
    if scale == "laptop":
        text.append(
            "At the laptop's scale other images and a smaller encoder were trained: the paper's "
            "numbers are of its own data, and only their order can be compared."
        )
    return Shown(f"{title} ({table})", columns, lines, [], text)
