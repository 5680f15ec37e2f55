"""Tables on the terminal, and values as tables print them."""

import math
import sys
import textwrap
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from hypersphere_jax.terminal import FIXED, LONGEST, printable

WRAPPED = 8  # characters of a cell that stay in one line on a narrow terminal
INDENTED = {"initial_indent": "  ", "subsequent_indent": "  ", "break_on_hyphens": False}


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None = None
) -> None:
    """Print a table; on a narrow terminal long texts wrap, or the columns of each row do.

    Nothing is cut: not the names, which are there to be typed.
    """
    # A file or a pipe has no width to fit into.
    console = Console(width=None if sys.stdout.isatty() else 10_000)
    texts = [[printable(text_of(cell), LONGEST) for cell in row] for row in rows]
    if title:
        console.print(Text(printable(title, LONGEST), style="bold"))
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    numeric = numeric_columns(columns, rows)
    for column, is_number in zip(columns, numeric, strict=True):
        table.add_column(Text(column), justify="right" if is_number else "left")
    for row in texts:
        table.add_row(*map(Text, row))
    wide = console.options.update_width(10_000)
    excess = Measurement.get(console, wide, table).maximum - console.width
    widths = _widths(columns, texts, excess)
    if widths is not None:
        for column, width in zip(table.columns, widths, strict=True):
            column.width = width
        console.print(table)
        return
    for name, *row in texts:
        if name:
            console.print(Text(name, style="bold", overflow="fold"))
        pairs = map(" ".join, zip(columns[1:], row, strict=True))
        # A value stays beside its column's name where there is room for both.
        joined = (p.replace(" ", FIXED) if len(p) < console.width - 4 else p for p in pairs)
        lines = textwrap.wrap(", ".join(joined), console.width, **INDENTED)
        for line in lines:
            console.print(Text(line.replace(FIXED, " "), overflow="fold"))


def _widths(
    columns: Sequence[str], texts: Sequence[Sequence[str]], excess: int
) -> list[int] | None:
    """Widths of a table's columns, this much less in all; None where that would cut words."""
    widths, least = [], []
    for i, column in enumerate(columns):
        cells = [row[i] for row in texts]
        longest, words = (
            max(map(cell_len, each), default=0) for each in (cells, " ".join(cells).split())
        )
        header = max(map(cell_len, column.split()), default=0)
        widths.append(max(longest, cell_len(column)))
        least.append(max(header, words, min(longest, WRAPPED)))
    for i in sorted(range(len(widths)), key=lambda i: least[i] - widths[i]):
        off = min(max(excess, 0), widths[i] - least[i])
        widths[i], excess = widths[i] - off, excess - off
    return None if excess > 0 else widths


def with_error(value: float | None, standard_error: float | None) -> str:
    """A measured value as text, such as `-3.697 ± 0.002`."""
    if value is None:
        return "-"
    if not standard_error:
        return f"{value:.4f}"
    digits = min(6, max(2, 1 - math.floor(math.log10(standard_error))))
    return f"{value:.{digits}f} ± {standard_error:.{digits}f}"


def text_of(value: Any) -> str:
    """A value as tables print it: four digits, "-" for None."""
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(text_of, value))
    if isinstance(value, Real) and not isinstance(value, Integral):
        return f"{value:#.4g}" if abs(float(value)) < 1000 else f"{value:.0f}"
    return str(value)


def numeric_columns(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[bool]:
    """Whether each column holds numbers, and perhaps gaps."""
    kinds = [{type(row[i]) for row in rows} - {type(None)} for i in range(len(columns))]
    return [
        bool(each) and all(issubclass(k, Real) and k is not bool for k in each) for each in kinds
    ]
