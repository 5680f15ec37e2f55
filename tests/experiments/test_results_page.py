"""Numbers and verdicts of docs/results.md and the README against the recorded analyses."""

import re

import pytest
from processes import ROOT

from experiments import reproduce
from experiments.lib.records import read_csv

DOCS = ROOT / "docs"
LINE = re.compile(r"^\|.*results/([\w.-]+)/analysis\.csv\).*\|$", re.MULTILINE)
INTERVAL = re.compile(r"([+-][\d.]+) \(([+-][\d.]+) to ([+-][\d.]+)\)")
VERDICTS = ("supported", "not supported", "inconclusive")


def shown(value, text):
    """Return a value with the sign and the decimals of a printed number."""
    return f"{value:+.{len(text.partition('.')[2])}f}"


@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "results.md"])
def test_pages_show_recorded_numbers(page):
    lines = [*LINE.finditer(page.read_text())]
    assert lines
    for line in lines:
        *_, effect, verdict = line[0].strip("| ").split(" | ")
        rows = read_csv(DOCS / "results" / line[1] / "analysis.csv")
        assert verdict in VERDICTS
        numbers = INTERVAL.findall(effect) or [(effect,)]
        for printed in numbers:
            matching = [
                row
                for row in rows
                if all(
                    shown(row.get(name, 0.0), text) == text
                    for name, text in zip(("effect", "low", "high"), printed, strict=False)
                )
            ]
            assert verdict in {row["verdict"] for row in matching}, (line[0], printed)


def test_every_recorded_item_is_on_the_page():
    page = (DOCS / "results.md").read_text()
    for item in reproduce.item_names():
        for scale in reproduce.find(item).SCALES:
            folder = reproduce.recorded_folder(item, scale)
            assert not folder.is_dir() or f"results/{folder.name}/analysis.csv" in page


def test_page_is_short():
    assert len((DOCS / "results.md").read_text().splitlines()) <= 400
