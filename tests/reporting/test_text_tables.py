"""Tables on the terminal, and values as text."""

import re

import numpy as np
import pytest

from hypersphere_jax.reporting import tables


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(97.2, "97.20"), (-1234.5678, "-1235"), (None, "-"), ((96.25, 98.0), "96.25, 98.00")],
        *[("name", "name"), (float("nan"), "nan"), (np.float32(9.5), "9.500"), (np.int64(7), "7")],
    ],
)
def test_values_have_four_significant_digits(value, text):
    assert tables.format_value(value) == text


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        *[(-3.69712, 0.0021, "-3.6971 ± 0.0021"), (82.333, 2.08, "82.33 ± 2.08")],
        *[(2.0, None, "2.000"), (2.0, 0.0, "2.000"), (2.0, float("nan"), "2.000")],
        (None, 0.1, "-"),
    ],
)
def test_errors_set_the_number_of_digits(value, error, text):
    assert tables.with_error(value, error) == text


def test_pipe_has_one_line_per_row(capsys):
    name = "a_long_name_of_a_run_" * 10
    rows = [[f"{name}{number}", "[b]\x1b[2J\n", 12.5, None] for number in range(2)]
    tables.print_table(["run", "note", "score", "n"], rows, title="Table [1]")
    out = capsys.readouterr().out
    cells = [re.split(r" {2,}", line.strip()) for line in out.splitlines()[-2:]]
    assert cells == [[f"{name}{number}", r"[b]\x1b[2J\n", "12.50", "-"] for number in range(2)]
    assert "\x1b" not in out
