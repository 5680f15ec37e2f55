"""Tables on the terminal, and values as text."""

import re

import numpy as np

from hypersphere_jax.reporting import tables


def test_values_have_four_significant_digits():
    values = (97.2, -1234.5678, None, (96.25, 98.0), "name", np.float32(9.5), np.int64(7))
    texts = ["97.20", "-1235", "-", "96.25, 98.00", "name", "9.500", "7"]
    assert list(map(tables.format_value, values)) == texts


def test_errors_set_the_number_of_digits():
    assert tables.with_error(-3.69712, 0.0021) == "-3.6971 ± 0.0021"
    assert tables.with_error(82.333, 2.08) == "82.33 ± 2.08"
    assert [tables.with_error(2.0, error) for error in (None, 0.0, float("nan"))] == ["2.000"] * 3


def test_pipe_has_one_line_per_row(capsys):
    name = "a_long_name_of_a_run_" * 10
    rows = [[f"{name}{number}", "[b]\x1b[2J\n", 12.5, None] for number in range(2)]
    tables.print_table(["run", "note", "score", "n"], rows, title="Table [1]")
    out = capsys.readouterr().out
    cells = [re.split(r" {2,}", line.strip()) for line in out.splitlines()[-2:]]
    assert cells == [[f"{name}{number}", r"[b]\x1b[2J\n", "12.50", "-"] for number in range(2)]
    assert "\x1b" not in out
