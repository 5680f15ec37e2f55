"""Tables 1, 2, 3 and 5 of Wang & Isola: the best encoders of each kind of loss."""

from experiments import items, tables
from experiments.items import Context, Item, Scale
from experiments.measures import Rows
from experiments.shown import Shown, difference, with_interval
from experiments.specifications import config_of, formula
from experiments.sweeps import Planned
from experiments.wang_isola import plane
from experiments.wang_isola.rows import IMAGENET, IMAGENET100, NYU, STL10, show_rows, table_item

TABLE1 = "wang-isola/table1"
SEEDS = (1, 2, 3)  # of the selected encoders; the grid has seed 0
# The rows of the table, and what may take part in each.
SELECTIONS = {
    "best contrastive only": lambda kind: kind == "contrastive",
    "best align and uniform only": lambda kind: kind == "align+uniform",
    "best among all encoders": lambda kind: True,
}


def _paper(context: Context, rows: Rows) -> list[Planned]:
    """The three encoders that the paper's own selection found, or one of them."""
    numbers = (1, 2, 3) if context.row is None else (context.row,)
    chosen = [tables.row_of(TABLE1, number) for number in numbers]
    return [items.planned_row(row, context, STL10) for row in chosen]


def _repeats(context: Context, rows: Rows) -> list[Planned]:
    """The best encoder of each kind by cross-validation, trained again with other seeds."""
    planned = {}
    for row in selected(rows).values():
        for seed in SEEDS:
            chosen = tables.row_of(plane.TABLE8, row["row"])
            one = items.planned_row(chosen, context, plane.LAPTOP, scale="cifar10", seed=seed)
            planned[one.config.name] = one
    return list(planned.values())


def selected(rows: Rows) -> dict[str, dict]:
    """The encoder of the grid (seed 0) with the best cross-validation accuracy, of each kind."""
    grid = [row for row in rows if row["status"] == "done" and row["seed"] == 0]
    return {
        name: max(candidates, key=lambda row: row["output_linear_cv"])
        for name, takes in SELECTIONS.items()
        if (candidates := [row for row in grid if takes(row["kind"])])
    }


def show(context: Context, rows: Rows) -> Shown:
    """The paper's three rows, and ours: at the laptop's scale, mean and interval over seeds."""
    if context.scale == "paper":
        return show_rows(TABLE1, "Best encoders of STL-10", rows, context.scale)
    columns = ["selection", "loss", "seeds", "linear (%)", "5-NN (%)"]
    columns += ["paper's loss", "paper: linear", "paper: 5-NN"]
    table, accuracies = [], {}
    printed = {row.values["selection"]: row for row in tables.rows(TABLE1)}
    for name, chosen in selected(rows).items():
        repeats = [
            row
            for row in rows
            if row["row"] == chosen["row"] and row["seed"] in SEEDS and row["status"] == "done"
        ]
        if not repeats:
            continue
        accuracies[name] = [row["output_linear"] for row in repeats]
        paper = printed[name].values
        table.append(
            [
                name,
                chosen["loss"],
                len(repeats),
                with_interval(accuracies[name]),
                with_interval([row["output_knn5"] for row in repeats]),
                _loss(printed[name]),
                paper["val_output_linear"],
                paper["val_output_knn5"],
            ]
        )
    text = [
        "The paper's claim: the best encoder trained with alignment and uniformity alone is better "
        "than the best one trained with the contrastive loss. Encoders are picked by 5-fold "
        "cross-validation on the training split among the grid's (seed 0), then trained again "
        "with the seeds in the table, whose test accuracies are reported: no test label and no "
        "seed that took part in the selection. ±: half of the 95% interval, by Student's t.",
    ]
    return Shown(
        "Best encoders by cross-validation (Table 1)",
        columns,
        table,
        [],
        text,
        _verdict(accuracies),
    )


def _verdict(accuracies: dict[str, list[float]]) -> str:
    contrastive, both = (accuracies.get(name) for name in list(SELECTIONS)[:2])
    found = difference(both or [], contrastive or [])
    if found is None:
        return ""
    return (
        f"align and uniform is {found.value:+.2f} points from contrastive (95% interval "
        f"{found.low:+.2f} to {found.high:+.2f}, Welch, over seeds; the paper: +0.69)"
        + ("" if found.sure else ": the seeds do not tell the two apart")
    )


def _loss(row: tables.Row) -> str:
    return formula(config_of(row).objective)


ITEMS = {
    TABLE1: Item(
        "best encoders of STL-10: contrastive against align and uniform",
        {
            "laptop": Scale(("cifar10",), 0.7, (plane.cifar10, _repeats)),
            "paper": Scale(("stl10",), 1_500, (_paper,)),
        },
        show,
        by_row=("paper",),
    ),
    "wang-isola/table2": table_item(
        "wang-isola/table2", "best encoders of NYU-Depth-V2", NYU, ("nyu_depth_v2",), 16
    ),
    "wang-isola/table3": table_item(
        "wang-isola/table3",
        "best encoders of ImageNet-100 (MoCo)",
        IMAGENET100,
        ("imagenet2012",),
        8_000,
    ),
    "wang-isola/table5": table_item(
        "wang-isola/table5", "encoders of ImageNet (MoCo v2)", IMAGENET, ("imagenet2012",), 47_000
    ),
}
