"""Numbers and verdicts of the results page and the README against the recorded analyses."""

import re

import pytest
from processes import ROOT

from experiments import reproduce
from experiments.lib.records import read_csv

DOCS = ROOT / "docs"
LINE = re.compile(r"^\|.*results/([\w.-]+)/analysis\.csv\).*\|$", re.MULTILINE)
INTERVAL = re.compile(r"([+-][\d.]+) \(([+-][\d.]+) to ([+-][\d.]+)\)")


def shows(row, printed):
    """Return whether printed numbers are a row's effect, low and high, rounded."""
    for name, text in zip(("effect", "low", "high"), printed, strict=False):
        decimals = len(text.partition(".")[2])
        if f"{row.get(name, 0.0):+.{decimals}f}" != text:
            return False
    return True


@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "results.md"])
def test_pages_show_recorded_numbers(page):
    lines = [*LINE.finditer(page.read_text())]
    assert lines
    for line in lines:
        *_, effect, verdict = line[0].strip("| ").split(" | ")
        rows = read_csv(DOCS / "results" / line[1] / "analysis.csv")
        for printed in INTERVAL.findall(effect) or [(effect,)]:
            verdicts = {row["verdict"] for row in rows if shows(row, printed)}
            assert verdict in verdicts, (line[0], printed)


def test_every_recorded_item_is_on_the_page():
    page = (DOCS / "results.md").read_text()
    for item in reproduce.item_names():
        for scale in reproduce.find(item).SCALES:
            folder = reproduce.recorded_folder(item, scale)
            assert not folder.is_dir() or f"results/{folder.name}/analysis.csv" in page
