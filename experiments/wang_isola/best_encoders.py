"""Table 1 of Wang & Isola: the best encoders of each kind of loss."""

from collections.abc import Mapping

import numpy as np

from experiments import inference, tables
from experiments.reproduction import Context, Reproduction, Result, planned_row, scale
from experiments.statistics import Rows, by, values
from experiments.sweeps import Planned
from experiments.wang_isola import plane
from experiments.wang_isola.encoder_tables import SELECTIONS, STL10, formula_of, rows_result

TABLE1 = "wang-isola/table1"
FRESH = (3, 4, 5, 6, 7)  # seeds of the selected encoders, none of which the grid has
VALIDATED = "output_logistic_cv"
FINAL = plane.SMALL._replace(layers=("output", "fc7"))


def _paper(context: Context, rows: Rows) -> list[Planned]:
    """The three encoders that the paper selected, or one of them."""
    numbers = (1, 2, 3) if context.row is None else (context.row,)
    return [planned_row(tables.row_of(TABLE1, number), context, STL10) for number in numbers]


def _fresh(context: Context, rows: Rows) -> list[Planned]:
    """The best settings of each kind, trained again with other seeds."""
    return [
        planned_row(tables.row_of(plane.TABLE8, number), context, FINAL, scale="cifar10", seed=seed)
        for number in dict.fromkeys(selected(rows).values())
        for seed in FRESH
    ]


def selected(rows: Rows) -> dict[str, int]:
    """Of each kind of loss the row of Table 8 with the best mean accuracy in validation.

    That is of logistic regression on a held-out part of the training split, over the grid's seeds.
    """
    of_row = by([row for row in rows if row["seed"] in plane.SEEDS], "row")
    validated = {number: np.mean(values(group, VALIDATED)) for number, group in of_row.items()}
    kinds = {number: group[0]["kind"] for number, group in of_row.items()}
    return {
        name: max(candidates, key=lambda number: validated[number])
        for name, takes in SELECTIONS.items()
        if (candidates := [number for number in validated if takes(kinds[number])])
    }


def result(context: Context, rows: Rows) -> Result:
    """The paper's three rows, and ours: at the laptop's scale, mean and interval over seeds."""
    if not context.laptop:
        return rows_result(TABLE1, "Best encoders of STL-10", context, rows)
    columns = ["selection", "loss", "validation (%)", *inference.columns(FINAL.layers)]
    columns += ["paper's loss", "paper: linear", "paper: 5-NN"]
    fresh = by([row for row in rows if row["seed"] in FRESH], "row")
    grid = by([row for row in rows if row["seed"] in plane.SEEDS], "row")
    printed = {row.values["selection"]: row for row in tables.rows(TABLE1)}
    chosen = {name: fresh.get(number, []) for name, number in selected(rows).items()}
    table = []
    for name, number in selected(rows).items():
        paper, validated = printed[name], np.mean(values(grid[number], VALIDATED))
        ours = [name, grid[number][0]["loss"], f"{validated:.2f}"]
        ours += inference.accuracies(chosen[name], FINAL.layers)
        theirs = [paper.values[f"val_output_{score}"] for score in ("linear", "knn5")]
        table.append([*ours, formula_of(paper), *theirs])
    text = [
        "The paper's claim: the best encoder trained with alignment and uniformity alone is better "
        "than the best one trained with the contrastive loss (by 0.69 points on the output, "
        "STL-10).",
        "Of each kind of loss the setting is picked by the accuracy of logistic regression on "
        f"training images that are held out, its mean over {len(plane.SEEDS)} seeds of the "
        f"{len(grid)} encoders of CIFAR-10 in Figure 5a. What is picked is trained again with "
        f"{len(FRESH)} fresh seeds, which alone are in the table's accuracies. ±: 95% intervals "
        "over seeds and test images.",
    ]
    if before_the_head := _compared(chosen, "fc7"):
        text.append(inference.sentences(before_the_head, "fc7"))
    verdict = short = ""
    if on_the_output := _compared(chosen, "output"):
        verdict = inference.sentences(on_the_output, "output")
        short = inference.short({"output": on_the_output})
        config = plane.cifar10(context, [])[0].config
        short += (
            f" They are of cifar10 at {config.image_size} pixels, trained for "
            f"{config.epochs} epochs, all at one rate."
        )
    title = "Best encoders of each kind of loss, picked on training data (Table 1)"
    return Result(title, columns, table, [], text, verdict, short)


def _compared(chosen: Mapping[str, Rows], layer: str) -> dict[str, inference.Comparison]:
    """The comparison of the claim; empty where one of both was not trained again."""
    contrastive, both, _ = (chosen.get(name, []) for name in SELECTIONS)
    if not contrastive or not both:
        return {}
    name = "The best align + uniform encoder against the best contrastive one"
    return {name: inference.compare(both, contrastive, layer)}


REPRODUCTIONS = {
    TABLE1: Reproduction(
        "best encoders of STL-10: contrastive against align and uniform",
        result,
        laptop=scale("cifar10", plane.cifar10, _fresh),
        paper=scale("stl10", _paper),
        by_row=("paper",),
    ),
}
