"""Toy runs of the GPU checks."""

import json

from platforms import LEVEL
from processes import environment, python


def read_rows(folder, name):
    """Return the rows that a check has written."""
    (path,) = folder.glob(f"{name}-*.json")
    return json.loads(path.read_text())["rows"]


def run_toy(name, folder):
    """Run a check at toy size and return its rows."""
    command = ["-m", "benchmarks.gpu", name, "--toy", "--minutes", "60", "--out", str(folder)]
    done = python(*command, env=environment(XLA_FLAGS=f"{LEVEL}=0"))
    assert done.returncode == 0, done.stderr
    rows = read_rows(folder, name)
    assert not any("failure" in row for row in rows)
    return rows
