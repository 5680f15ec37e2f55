"""Table 1 of Wang & Isola: the best encoders of each kind of loss."""

from experiments import tables
from experiments.protocols import Evaluation
from experiments.reproduction import Context, Reproduction, Result, planned_row, scale
from experiments.statistics import Rows, difference, done, values, with_interval
from experiments.sweeps import Planned
from experiments.wang_isola import plane
from experiments.wang_isola.encoder_tables import SELECTIONS, STL10, formula_of, rows_result

TABLE1 = "wang-isola/table1"
SEEDS = (1, 2, 3)  # of the selected encoders; the grid has seed 0


def _paper(context: Context, rows: Rows) -> list[Planned]:
    """The three encoders that the paper selected, or one of them."""
    numbers = (1, 2, 3) if context.row is None else (context.row,)
    return [planned_row(tables.row_of(TABLE1, number), context, STL10) for number in numbers]


def _repeats(context: Context, rows: Rows) -> list[Planned]:
    """The best encoder of each kind by cross-validation, trained again with other seeds."""
    numbers = dict.fromkeys(row["row"] for row in selected(rows).values())
    chosen = [tables.row_of(plane.TABLE8, number) for number in numbers]
    return [
        planned_row(row, context, Evaluation(), scale="cifar10", seed=seed)
        for row in chosen
        for seed in SEEDS
    ]


def selected(rows: Rows) -> dict[str, dict]:
    """The encoder of the grid (seed 0) with the best cross-validation accuracy, of each kind."""
    grid = [row for row in done(rows) if row["seed"] == 0]
    return {
        name: max(candidates, key=lambda row: row["output_linear_cv"])
        for name, takes in SELECTIONS.items()
        if (candidates := [row for row in grid if takes(row["kind"])])
    }


def result(context: Context, rows: Rows) -> Result:
    """The paper's three rows, and ours: at the laptop's scale, mean and interval over seeds."""
    if not context.laptop:
        return rows_result(TABLE1, "Best encoders of STL-10", context, rows)
    columns = ["selection", "loss", "seeds", "linear (%)", "5-NN (%)"]
    columns += ["paper's loss", "paper: linear", "paper: 5-NN"]
    table, accuracies = [], {}
    printed = {row.values["selection"]: row for row in tables.rows(TABLE1)}
    repeats = [row for row in done(rows) if row["seed"] in SEEDS]
    for name, chosen in selected(rows).items():
        group = [row for row in repeats if row["row"] == chosen["row"]]
        if not group:
            continue
        accuracies[name] = values(group, "output_linear")
        nearest, paper = values(group, "output_knn5"), printed[name]
        ours = [name, chosen["loss"], len(group)]
        ours += [with_interval(accuracies[name]), with_interval(nearest)]
        theirs = [paper.values[f"val_output_{score}"] for score in ("linear", "knn5")]
        table.append([*ours, formula_of(paper), *theirs])
    text = [
        "The paper's claim: the best encoder trained with alignment and uniformity alone is better "
        "than the best one trained with the contrastive loss. Encoders are picked by 5-fold "
        "cross-validation on the training split among the grid's (seed 0), then trained again "
        "with the seeds in the table, whose test accuracies are reported: no test label and no "
        "seed that took part in the selection. ±: half of the 95% interval, by Student's t.",
    ]
    title = "Best encoders by cross-validation (Table 1)"
    return Result(title, columns, table, [], text, _verdict(accuracies))


def _verdict(accuracies: dict[str, list[float]]) -> str:
    contrastive, both, _ = (accuracies.get(name, []) for name in SELECTIONS)
    gain = difference(both, contrastive)
    if gain is None:
        return ""
    return (
        f"align and uniform is {gain.value:+.2f} points from contrastive (95% interval "
        f"{gain.low:+.2f} to {gain.high:+.2f}, Welch, over seeds; the paper: +0.69)"
        + ("" if gain.significant else ": the seeds do not tell the two apart")
    )


REPRODUCTIONS = {
    TABLE1: Reproduction(
        "best encoders of STL-10: contrastive against align and uniform",
        result,
        laptop=scale("cifar10", plane.cifar10, _repeats),
        paper=scale("stl10", _paper),
        by_row=("paper",),
    ),
}
