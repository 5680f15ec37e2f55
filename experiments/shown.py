"""What a reproduced item shows: a table, pictures, and sentences about them."""

from pathlib import Path
from typing import NamedTuple


class Shown(NamedTuple):
    """One table or figure of a paper, as it came out here.

    Attributes:
      title: what it is, on one line.
      columns: names of the table's columns.
      rows: one value a column; None where there is none.
      figures: a PNG and its caption, each.
      text: plain sentences, a paragraph each: the claim, what was computed, what was found.
      verdict: whether the claim shows, in a few words; empty where nothing is claimed.
    """

    title: str
    columns: list[str]
    rows: list[list]
    figures: list[tuple[Path, str]]
    text: list[str]
    verdict: str = ""
