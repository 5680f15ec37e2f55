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
from hypersphere_jax.configs import require

FOLDER = Path(__file__).parent.parent / "paper_tables"
TABLES = sorted(f"{file.parent.name}/{file.stem}" for file in FOLDER.glob("*/*.csv"))


class TableRow(NamedTuple):
    """A row of a printed table."""

    table: str
    number: int  # from 1
    values: dict[str, Any]  # numbers, booleans, text; None for an empty cell
    lost: tuple[str, ...]  # columns that were printed but are no longer legible
    suspect: tuple[str, ...]  # columns that may be misread; `note` has the reason


@functools.cache
def table_rows(table: str) -> tuple[TableRow, ...]:
    """Return all rows of a table, including rows with lost cells.

    Raises:
      UserError: for an unknown table.
    """
    require(table in TABLES, f"no table {table!r}: there are {', '.join(TABLES)}")
    with (FOLDER / f"{table}.csv").open(newline="") as stream:
        lines = list(csv.DictReader(stream))
    rows = []
    for number, cells in enumerate(lines, 1):
        values = {name: parse_cell(cell) for name, cell in cells.items()}
        lost = tuple(filter(None, cells.get("lost_cells", "").split(";")))
        suspect = tuple(filter(None, cells.get("suspect_cells", "").split(";")))
        rows.append(TableRow(table, number, values, lost, suspect))
    return tuple(rows)


def table_row(table: str, number: int) -> TableRow:
    """Return a row by its number, from 1.

    Raises:
      UserError: for an unknown table or row.
    """
    count = len(table_rows(table))
    require(1 <= number <= count, f"row {number}: {table} has rows 1 to {count}")
    return table_rows(table)[number - 1]


def printed_scores(row: TableRow) -> dict[str, float]:
    """Return the printed results by column: percent, or a mean squared error for `mse`."""
    return {
        name: float(value)
        for name, value in row.values.items()
        if isinstance(value, int | float)
        and (name.startswith(("cv_", "val_")) or name.endswith("top1"))
    }


def printed_column(table: str, score: str, *names: str) -> dict[Any, float]:
    """Return a printed score by the values of columns, where it was not lost."""
    return {
        key_of(row.values, names): row.values[score]
        for row in table_rows(table)
        if row.values[score] is not None
    }


def our_column(printed: str) -> str:
    """Return our column of a printed one, e.g. `val_output_linear` or `cv_top1`."""
    score = printed.removeprefix("cv_").removeprefix("val_")
    score = {"top1": "backbone_linear", "top5": "backbone_linear_top5"}.get(score, score)
    return f"{score}_cv" if printed.startswith("cv_") else score


def differences(rows: Rows) -> Rows:
    """Return a row per encoder and printed number: the paper's, ours, and the difference."""
    table = []
    for row in finished(rows):
        for printed, paper in row.items():
            ours = our_column(printed.removeprefix("paper_"))
            if printed.startswith("paper_") and ours in row:
                line = {name: row[name] for name in ("table", "row", "loss")}
                numbers = {"paper": paper, "ours": row[ours], "effect": row[ours] - paper}
                table.append(line | {"score": ours} | numbers)
    return table
