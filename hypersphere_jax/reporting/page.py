"""HTML pages of headed sections, each in one file with its figures inside."""

import base64
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from hypersphere_jax.configs.base import WRITER
from hypersphere_jax.reporting.tables import format_value
from hypersphere_jax.utils.files import atomic_write


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of a page; a folded one shows only its title until the reader opens it."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    folded: bool = False


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a page: paragraphs, tables, figures (PNG file to caption), and commands."""

    heading: str = ""
    text: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Mapping[Path, str] = dataclasses.field(default_factory=dict)
    commands: Sequence[str] = ()


def write_page(path: Path, title: str, sections: Sequence[Section]) -> Path:
    """Render sections through `page.html.jinja` into a file, and return its path."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["format"] = format_value
    environment.filters["base64"] = lambda file: base64.b64encode(file.read_bytes()).decode()
    template = environment.get_template("page.html.jinja")
    page = template.render(title=title, sections=sections, generator=WRITER)
    with atomic_write(path) as file:
        file.write(page.encode(errors="backslashreplace"))  # file names may contain surrogates
    return path
