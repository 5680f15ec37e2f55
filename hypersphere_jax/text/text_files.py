"""Text files: finding them, decoding their lines, and reading their sentences."""

import gzip
import itertools
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.text.tokenizer import has_word, split_sentences
from hypersphere_jax.utils.files import open_file

SUFFIXES = (".txt", ".txt.gz")
BYTE_ORDER_MARKS_UTF16 = (b"\xff\xfe", b"\xfe\xff")
HEAD = 1000  # lines that are searched for Project Gutenberg's header and for the layout
# Start and end of the text in a file of Project Gutenberg.
START = re.compile(
    r"\s*(\*{3}\s*START OF TH(IS|E) PROJECT GUTENBERG|\*END\*?\s*THE SMALL PRINT)", re.IGNORECASE
)
END = re.compile(r"\s*(\*{3}\s*)?END OF (TH(IS|E) )?PROJECT GUTENBERG", re.IGNORECASE)
CLOSING = "\"'”’»)]}_*` "


def is_text(path: Path) -> bool:
    """Return whether a file has the name of a text file."""
    return path.name.lower().endswith(SUFFIXES)


def visible_files(path: Path) -> Iterator[Path]:
    """Yield a file, or the files in a folder and its subfolders, without hidden ones."""
    if path.is_file():
        yield path
        return
    for file in path.rglob("*"):
        is_hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if file.is_file() and not is_hidden:
            yield file


def find(path: Path) -> list[Path]:
    """Return the text files among `visible_files`, sorted by name; UserError if there is none."""
    require(path.exists(), f"no file or folder {path}")
    files = sorted(filter(is_text, visible_files(path)))
    require(bool(files), f"{path}: no .txt or .txt.gz file")
    return files


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file with any kind of line ends; UserError for a damaged file.

    Each line is decoded as UTF-8, or as Windows-1252 (Latin-1) if it is not valid UTF-8.
    """
    try:
        with open_file(path) as file:
            lines: Iterable[bytes] = file
            if path.suffix.lower() == ".gz":
                lines = gzip.GzipFile(fileobj=file)
            for number, line in enumerate(lines):
                is_utf16 = number == 0 and line.startswith(BYTE_ORDER_MARKS_UTF16)
                require(not is_utf16, f"{path} is UTF-16: convert it to UTF-8")
                yield from _decode(line).replace("\r", "\n").rstrip("\n").split("\n")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path} is damaged or incomplete: {error}") from error


def _decode(line: bytes) -> str:
    try:
        return line.decode("utf-8-sig")
    except UnicodeDecodeError:
        return line.decode("cp1252", "replace")


def read_sentences(path: Path, form: str) -> Iterator[str]:
    """Return the sentences of a text file that contain a word.

    Their form is "sentences", one per line; "prose", paragraphs between blank lines; or "auto".
    """
    lines = strip_gutenberg(read_lines(path))
    head = list(itertools.islice(lines, HEAD))
    lines = itertools.chain(head, lines)
    if form == "auto":
        form = detect_form(head)
    if form == "sentences":
        sentences: Iterable[str] = map(str.strip, lines)
    else:
        sentences = itertools.chain.from_iterable(map(split_sentences, paragraphs(lines)))
    return filter(has_word, sentences)


def strip_gutenberg(lines: Iterator[str]) -> Iterator[str]:
    """Return the lines between the markers of Project Gutenberg, or all lines without markers."""
    head = list(itertools.islice(lines, HEAD))
    starts = [number + 1 for number, line in enumerate(head) if START.match(line)]
    lines = itertools.chain(head[max(starts, default=0) :], lines)
    return itertools.takewhile(lambda line: not END.match(line), lines)


def detect_form(lines: Iterable[str]) -> str:
    """Return "sentences" if the lines of a text are sentences, otherwise "prose".

    At least 80% of the lines must end like sentences, and at most 20% may contain several.
    """
    lines = [line.strip() for line in lines if line.strip()]
    complete = sum(line.rstrip(CLOSING).endswith((".", "!", "?", "…")) for line in lines)
    several = sum(len(split_sentences(line)) > 1 for line in lines)
    is_one_per_line = complete >= 0.8 * len(lines) and several <= 0.2 * len(lines)
    return "sentences" if lines and is_one_per_line else "prose"


def paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Yield the paragraphs of a text, which blank lines separate."""
    for is_paragraph, group in itertools.groupby(lines, lambda line: bool(line.strip())):
        if is_paragraph:
            yield " ".join(group)
