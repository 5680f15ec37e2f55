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

from experiments.lib.records import parse_cell
from hypersphere_jax.configs import require

FOLDER = Path(__file__).parent.parent / "paper_tables"
TABLES = {
    "wang-isola/table1": "wang_isola_table1_stl10_best",
    "wang-isola/table2": "wang_isola_table2_nyu_best",
    "wang-isola/table3": "wang_isola_table3_imagenet100_best",
    "wang-isola/table4": "wang_isola_table4_bookcorpus_best",
    "wang-isola/table5": "wang_isola_table5_imagenet",
    "wang-isola/table7": "wang_isola_table7_imagenet100_classes",
    "wang-isola/table8": "wang_isola_table8_stl10_encoders",
    "wang-isola/table8-withdrawn": "wang_isola_table8_stl10_withdrawn",
    "wang-isola/table9": "wang_isola_table9_nyu_encoders",
    "wang-isola/table10": "wang_isola_table10_imagenet100_encoders",
    "wang-isola/table11": "wang_isola_table11_bookcorpus_encoders",
    "chen/tableD1": "chen_tableD1_cifar10",
    "chen/tableD2": "chen_tableD2_imagenet_2layer",
    "chen/tableD3": "chen_tableD3_imagenet_3layer",
    "chen/figureB2": "chen_figB2_decoupled_ntxent_grid",
    "balanced/table1": "balanced_table1_similarity",
    "balanced/table4": "balanced_table4_balanced_vs_longtail",
}


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
    with (FOLDER / f"{TABLES[table]}.csv").open(newline="") as stream:
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
    scores = {}
    for row in table_rows(table):
        if row.values[score] is not None:
            values = tuple(row.values[name] for name in names)
            scores[values if len(names) > 1 else values[0]] = row.values[score]
    return scores
