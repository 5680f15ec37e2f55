"""The papers' printed tables as data.

    printed_scores(table_row("wang-isola/table8", 57))    # {"val_output_linear": 47.19, …}

The CSV files in `paper_tables/` are described in its README.md. Rows are numbered from 1 in the
order of the file, which is the paper's order. 25 rows of Table 8 are missing, the first after
row 109.
"""

import csv
import functools
from pathlib import Path
from typing import Any, NamedTuple

from experiments.lib.records import Rows, finished, key_of, parse_cell

FOLDER = Path(__file__).parent.parent / "paper_tables"


class TableRow(NamedTuple):
    """A row of a printed table."""

    table: str
    number: int  # from 1
    values: dict[str, Any]  # numbers, booleans, text; None for an empty cell


@functools.cache
def table_rows(table: str) -> tuple[TableRow, ...]:
    """Return all rows of a table, including rows with lost cells."""
    with (FOLDER / f"{table}.csv").open(newline="") as stream:
        lines = list(csv.DictReader(stream))
    rows = []
    for number, cells in enumerate(lines, 1):
        values = {name: parse_cell(cell) for name, cell in cells.items()}
        rows.append(TableRow(table, number, values))
    return tuple(rows)


def table_row(table: str, number: int) -> TableRow:
    """Return a row by its number, from 1."""
    return table_rows(table)[number - 1]


def printed_scores(row: TableRow) -> dict[str, float]:
    """Return the printed results by column: percent, or a mean squared error for `mse`."""
    return {
        name: float(value)
        for name, value in row.values.items()
        if isinstance(value, int | float)
        and (name.startswith(("cv_", "val_")) or name.endswith("top1"))
    }


def printed_labels(row: TableRow) -> dict[str, Any]:
    """Return the labels of a run of this row, with the printed results as `paper_…`."""
    scores = {f"paper_{name}": value for name, value in printed_scores(row).items()}
    return {"table": row.table, "row": row.number, **scores}


def printed_column(table: str, score: str, *names: str) -> dict[Any, float]:
    """Return a printed score by the values of columns, where it was not lost."""
    return {
        key_of(row.values, names): row.values[score]
        for row in table_rows(table)
        if row.values[score] is not None
    }


def differences(rows: Rows) -> Rows:
    """Return a row per encoder and printed number: the paper's, ours, and the difference."""
    table = []
    for row in finished(rows):
        printed = {name: value for name, value in row.items() if name.startswith("paper_")}
        for name, paper in printed.items():
            score = name.removeprefix("paper_").removeprefix("val_").removeprefix("cv_")
            ours = {"top1": "backbone_linear", "top5": "backbone_linear_top5"}.get(score, score)
            if name.startswith("paper_cv_"):
                ours += "_cv"
            if ours in row:
                line = {label: row[label] for label in ("table", "row", "loss")}
                numbers = {"paper": paper, "ours": row[ours], "effect": row[ours] - paper}
                table.append(line | {"score": ours} | numbers)
    return table
