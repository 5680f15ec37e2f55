"""Text files: which there are, their encoding, and their sentences."""

import contextlib
import gzip
import io
import itertools
import logging
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.data.text import rules
from hypersphere_jax.utils.files import open_file

logger = logging.getLogger("hypersphere_jax")

SUFFIXES = (".txt", ".txt.gz")
UNDECODED = re.compile("[\udc80-\udcff]")  # bytes that are no UTF-8, by `surrogateescape`
WIDE = re.compile(r"[^\x00-\x7f\udc80-\udcff]")  # characters of several bytes in UTF-8
UTF16 = ("\udcff\udcfe", "\udcfe\udcff")  # its marks of byte order
MIN_WIDE_PER_BAD = 4


def text_files(raw: Path) -> list[Path]:
    """The .txt and .txt.gz files in and below a folder, by name; or the file that `raw` is."""
    require(raw.exists(), f"no file or folder {raw}")
    if raw.is_file():
        require(is_text_name(raw.name), f"{raw}: text is expected in a file called .txt or .txt.gz")
        return [raw]
    files = [path for path in sorted(_visible(raw)) if is_text_name(path.name) and path.is_file()]
    require(bool(files), f"{raw} holds no .txt or .txt.gz file")
    return files


def is_text_name(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def has_text(folder: Path, not_beside: tuple[str, ...]) -> bool:
    """Whether there are text files, and none with other endings, among a folder's first 10,000."""
    names = [path.name.lower() for path in itertools.islice(_visible(folder), 10_000)]
    return any(map(is_text_name, names)) and not any(name.endswith(not_beside) for name in names)


def _visible(folder: Path) -> Iterator[Path]:
    """What is in and below a folder, but not what is hidden."""
    for path in folder.rglob("*"):
        if not any(part.startswith(".") for part in path.relative_to(folder).parts):
            yield path


@contextlib.contextmanager
def _opened(path: Path, encoding: str, errors: str = "replace") -> Iterator[TextIO]:
    """A file's text, unpacked if it ends in .gz. Raises UserError when it cannot be read."""
    try:
        with open_file(path) as file:
            unpacked = gzip.GzipFile(fileobj=file) if path.suffix.lower() == ".gz" else file
            yield io.TextIOWrapper(unpacked, encoding, errors)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path} is damaged or cut short: {error}") from error


def encoding_of(path: Path) -> str:
    """The encoding of a file: "utf-8", or "cp1252", which holds Latin-1; a warning where unsure.

    UTF-8 with damage, not Latin-1, has at least `MIN_WIDE_PER_BAD` characters of several bytes for
    each byte that is no UTF-8; Latin-1 has next to none, and only by chance.
    """
    wide = bad = 0
    with _opened(path, "utf-8", "surrogateescape") as stream:
        for number, line in enumerate(stream):
            is_utf16 = number == 0 and line.startswith(UTF16)
            require(not is_utf16, f"{path} is in UTF-16: convert it to UTF-8")
            if not line.isascii():
                wide += len(WIDE.findall(line))
                bad += len(UNDECODED.findall(line))
    is_utf8 = wide >= MIN_WIDE_PER_BAD * bad
    if wide and bad:
        read = "UTF-8 but for them" if is_utf8 else "Latin-1 (Windows')"
        logger.warning("%s has %d bytes that are no UTF-8: it is read as %s", path, bad, read)
    return "utf-8" if is_utf8 else "cp1252"


def read_lines(path: Path) -> list[str]:
    """All lines of a small file, without their ends and the mark of byte order."""
    with _opened(path, encoding_of(path)) as stream:
        return stream.read().removeprefix("\ufeff").split("\n")


def read_head(path: Path, encoding: str, form: str) -> tuple[int, str]:
    """The number of lines of Project Gutenberg's header, and the form if it is "auto"."""
    with _opened(path, encoding) as stream:
        lines = list(itertools.islice(stream, rules.HEADER_LINES))
    return rules.header(lines), rules.form(lines) if form == "auto" else form


def read_sentences(path: Path, encoding: str, start: int, form: str) -> Iterator[str]:
    """The sentences of a file behind its first `start` lines, for `rules.has_word` to sift."""
    split = rules.sentences if form == "prose" else lambda line: [line.strip()]
    inside, paragraph = True, []  # inside: not behind Project Gutenberg's END marker
    with _opened(path, encoding) as stream:
        for line in itertools.islice(stream, start, None):
            mark = rules.border(line)
            if mark is not None or form == "sentences" or not line.strip():
                yield from split(" ".join(paragraph))
                paragraph = []
            if mark is not None:
                inside = mark == "start"
            elif inside:
                paragraph.append(line.rstrip("\n"))
        yield from split(" ".join(paragraph))
