"""Tables on the terminal, and values as text."""

import re

import numpy as np
import pytest
from rich.cells import cell_len
from rich.text import Text

from hypersphere_jax.reporting import tables

LONG = "a_long_name_of_a_run_" * 10


VALUES = {97.2: "97.20", 100.0: "100.0", -1234.5678: "-1235", 10_000: "10000", None: "-"}
VALUES |= {(96.25, 98.0): "96.25, 98.00", "name": "name", float("nan"): "nan"}
VALUES |= {np.float32(9.5): "9.500", np.int64(7): "7", True: "True"}


@pytest.mark.parametrize("value", VALUES)
def test_values_have_four_significant_digits(value):
    assert tables.format_value(value) == VALUES[value]
    assert tables.format_value({"C": [value]}).startswith("C=")


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (-3.69712, 0.0021, "-3.6971 ± 0.0021"),
        (82.333, 2.08, "82.33 ± 2.08"),
        (2.0, None, "2.000"),
        (2.0, 0.0, "2.000"),
        (2.0, float("nan"), "2.000"),
        (None, 0.1, "-"),
    ],
)
def test_errors_set_the_number_of_digits(value, error, text):
    assert tables.with_error(value, error) == text


def test_a_pipe_has_one_line_per_row(capsys):
    rows = [[f"{LONG}{number}", "[b]\x1b[2J\n", 12.5, None] for number in range(2)]
    tables.print_table(["run", "note", "score", "n"], rows, title="Table [1]")
    out = capsys.readouterr().out
    title, _, _, *lines = out.splitlines()
    assert title == "Table [1]" and "\x1b" not in out
    cells = [re.split(r" {2,}", line.strip()) for line in lines]
    assert cells == [[f"{LONG}{number}", r"[b]\x1b[2J\n", "12.50", "-"] for number in range(2)]


@pytest.mark.parametrize("width", [20, 60, 400])
def test_a_terminal_cuts_nothing(width, capsys, monkeypatch):
    monkeypatch.setattr(tables.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(width))
    name = "".join(map(chr, range(0x4E00, 0x4E00 + 90)))
    tables.print_table(["run", "steps"], [[name, 1234567]])
    out = Text.from_ansi(capsys.readouterr().out).plain
    assert set(name) <= set(out) and out.count("7") == 1
    assert max(map(cell_len, out.splitlines())) <= width
