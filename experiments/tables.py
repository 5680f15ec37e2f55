"""The papers' tables as data: what was printed, as numbers and as text.

    expected(row_of("wang-isola/table8", 57))    # {"val_output_linear": 47.19, …}

They are the .csv files of `paper_tables/`; its README.md says which table each is, and what was
lost when the papers were read. Rows are counted from 1 in the order of the file, which is that of
the paper; but 25 rows of Table 8 are gone, the first of them after row 109.
"""

import contextlib
import csv
import functools
from pathlib import Path
from typing import Any, NamedTuple

from hypersphere_jax.configs import require

FOLDER = Path(__file__).with_name("paper_tables")
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

Value = str | float | int | bool | None


class Row(NamedTuple):
    """A row of a table."""

    table: str
    number: int  # from 1
    values: dict[str, Value]  # numbers, bools and strings by column; None: an empty cell
    lost: tuple[str, ...]  # columns that were printed and can no longer be read
    suspect: tuple[str, ...]  # columns that may be misread, for the reason in `note`


@functools.cache
def rows(table: str) -> tuple[Row, ...]:
    """All rows of a table, also those with lost cells.

    Raises:
      UserError: for an unknown table.
    """
    require(table in TABLES, f"no table {table!r}: there are {', '.join(TABLES)}")
    with (FOLDER / f"{TABLES[table]}.csv").open(newline="") as stream:
        cells = list(csv.DictReader(stream))
    return tuple(_row(table, number, text) for number, text in enumerate(cells, 1))


def row_of(table: str, number: int) -> Row:
    """One row, counted from 1.

    Raises:
      UserError: when the table or the row is unknown.
    """
    count = len(rows(table))
    require(1 <= number <= count, f"--row {number}: {table} has rows 1 to {count}")
    return rows(table)[number - 1]


def expected(row: Row) -> dict[str, float]:
    """Printed results by column: percent, and a mean squared error where the column says `mse`.

    Results that were lost, and those that the paper leaves out, are not in it; those in
    `row.suspect` are.
    """
    return {
        name: value
        for name, value in row.values.items()
        if value is not None and (name.startswith(("cv_", "val_")) or name.endswith("top1"))
    }


def printed(table: str, score: str, *names: str) -> dict[Any, float]:
    """A printed score by the value (or values) of these columns, where it was not lost."""
    values = [row.values for row in rows(table) if row.values[score] is not None]
    return {
        each[names[0]] if len(names) == 1 else tuple(each[name] for name in names): each[score]
        for each in values
    }


def _row(table: str, number: int, cells: dict[str, str]) -> Row:
    lost, suspect = (
        tuple(filter(None, cells.get(column, "").split(";")))
        for column in ("lost_cells", "suspect_cells")
    )
    return Row(table, number, {name: value_of(cell) for name, cell in cells.items()}, lost, suspect)


def value_of(cell: str) -> Value:
    """What a cell of a .csv file says: a number, a truth value, text; None where it is empty."""
    words = {"": None, "yes": True, "no": False, "True": True, "False": False}
    if cell in words:
        return words[cell]
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(cell)
    return cell
