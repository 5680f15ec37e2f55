"""What an item of the reproduction has to show: on the terminal, as a page, and as text."""

from pathlib import Path
from typing import Any, NamedTuple


class Shown(NamedTuple):
    """A result beside what the paper says.

    Attributes:
      title: one line.
      columns: of the table.
      rows: of the table, one value a column.
      figures: files of pictures, and a caption of each.
      text: what is claimed, what was found, and whether the claim shows.
    """

    title: str
    columns: list[str]
    rows: list[list[Any]]
    figures: list[tuple[Path, str]]
    text: list[str]
