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
    console = Console()
    if not sys.stdout.isatty():
        console.width = PIPE_WIDTH
    if title:
        console.print(Text(printable(title, LONGEST), style="bold"))
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for index, column in enumerate(columns):
        has_text = any(isinstance(row[index], str) for row in rows)
        table.add_column(Text(column), justify="left" if has_text else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(format_value(value), LONGEST)) for value in row))
    console.print(table)


def print_metrics(result: Mapping[str, Any], others: Sequence[tuple]) -> None:
    """Print a result of `metrics`, and the rows of `measure_runs.metrics_rows`."""
    where = [key for key in ("split", "step") if key in result]
    columns = [*where, "n", "d", "L_align", "L_uniform", "its optimum", "bound at n"]
    row = [result[key] for key in (*where, "n", "d")]
    row += [with_error(result[k], result[f"{k}_standard_error"]) for k in ("align", "uniform")]
    row += [f"{result[f'uniform_{key}']:.6f}" for key in ("optimum", "lower_bound")]
    title = f"alpha = {result['align_alpha']:g}, t = {result['uniform_t']:g}"
    print_table(columns, [row], title)
    if others:
        print()
        rows = [[name, with_error(*value), uniform] for name, *value, uniform in others]
        print_table(["", "measured", "uniform sphere"], rows)


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
