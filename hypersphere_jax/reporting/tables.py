"""Tables on the terminal, and values as tables show them."""

import math
import sys
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hypersphere_jax.utils.terminal import LONGEST, printable

PIPE_WIDTH = 10_000  # a pipe has no width to fit into


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None = None
) -> None:
    """Print a table of values to stdout; long values wrap on a terminal, and nothing is cut."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    console = Console(width=width)
    if title:
        console.print(Text(printable(title, LONGEST), style="bold"))
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for index, column in enumerate(columns):
        values = [row[index] for row in rows if row[index] is not None]
        is_numeric = bool(values) and all(map(is_number, values))
        justify = "right" if is_numeric else "left"
        table.add_column(Text(column), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(format_value(value), LONGEST)) for value in row))
    console.print(table)


def is_number(value: Any) -> bool:
    """Return whether a value is a real number; booleans are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def format_value(value: Any) -> str:
    """Return a value as text: floats with four significant digits, None as "-"."""
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(format_value, value))
    if not isinstance(value, Real) or isinstance(value, Integral):
        return str(value)
    if abs(float(value)) < 1000:
        return f"{value:#.4g}"
    return f"{value:.0f}"


def with_error(value: float | None, error: float | None) -> str:
    """Return a value with its standard error or deviation, e.g. `-3.697 ± 0.002`."""
    if value is None or error is None or not 0 < error < math.inf:
        return format_value(value)
    digits = min(6, max(2, 1 - math.floor(math.log10(error))))
    return f"{value:.{digits}f} ± {error:.{digits}f}"
