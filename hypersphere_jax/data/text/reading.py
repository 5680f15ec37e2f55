"""Text files: which there are, their encoding, and their sentences in bounded memory."""

import contextlib
import functools
import gzip
import itertools
import logging
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from hypersphere_jax.config import UserError, require
from hypersphere_jax.data.text import rules

logger = logging.getLogger("hypersphere_jax")

SUFFIXES = (".txt", ".txt.gz")
UNDECODED = re.compile("[\udc80-\udcff]")  # bytes that are no UTF-8, by `surrogateescape`
UTF16 = ("\udcff\udcfe", "\udcfe\udcff")  # its marks of byte order
# A file is UTF-8 with damage, and not Latin-1, if it has so many characters of several bytes for
# each byte that is no UTF-8. Latin-1 has next to no such characters, and only by chance.
MIN_WIDE_PER_BAD = 4
# Numbers of characters: read at once; at a file's head, for its form and header; of a paragraph
# before it is split; and kept then of its last sentence, which may go on.
BLOCK, HEAD, MAX_PARAGRAPH, MAX_SENTENCE = 2**15, 2**18, 2**16, 2**15


def text_files(raw: Path) -> list[Path]:
    """The .txt and .txt.gz files in and below a folder, by name; or the file that `raw` is.

    Raises:
      UserError: when there is none.
    """
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
    """Whether there are text files among the first 10,000 entries of a folder and those below it.

    Beside files with the endings `not_beside`, text does not count.
    """
    names = [path.name for path in itertools.islice(_visible(folder), 10_000)]
    is_mixed = any(name.lower().endswith(not_beside) for name in names)
    return not is_mixed and any(map(is_text_name, names))


def _visible(folder: Path) -> Iterator[Path]:
    """What is in and below a folder, but not what is hidden."""
    for path in folder.rglob("*"):
        if not any(part.startswith(".") for part in path.relative_to(folder).parts):
            yield path


@contextlib.contextmanager
def _opened(
    path: Path, encoding: str, errors: str = "replace", newline: str | None = None
) -> Iterator[TextIO]:
    """A file's text, unpacked if it ends in .gz. Raises UserError when it cannot be read."""
    open_text = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with open_text(path, "rt", encoding=encoding, errors=errors, newline=newline) as stream:
            yield stream
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path} is damaged or cut short: {error}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error


def encoding_of(path: Path) -> str:
    """The encoding of a file: "utf-8", or "cp1252", which holds Latin-1.

    UTF-8 where all bytes are that, or where its characters of several bytes are at least four times
    as many as the bytes that are no UTF-8, which become U+FFFD. A warning names a file that is
    partly the one and partly the other.

    Raises:
      UserError: when the file cannot be read, or is in UTF-16.
    """
    position = wide = bad = 0
    first_bad = None
    with _opened(path, "utf-8", "surrogateescape", newline="") as stream:
        while block := stream.read(BLOCK):
            is_utf16 = position == 0 and block.startswith(UTF16)
            require(not is_utf16, f"{path} is in UTF-16: convert it to UTF-8")
            if match := UNDECODED.search(block):
                if first_bad is None:
                    first_bad = position + len(block[: match.start()].encode())
                bad += len(UNDECODED.findall(block))
            wide += len(block) - len(block.encode("ascii", "ignore"))
            position += len(block.encode(errors="surrogateescape"))
    if first_bad is None:
        return "utf-8"
    wide -= bad
    if wide >= MIN_WIDE_PER_BAD * bad:
        message = "%s is UTF-8 but for %d bytes, the first at %d: they are read as U+FFFD"
        logger.warning(message, path, bad, first_bad)
        return "utf-8"
    if wide:  # plain Latin-1 has next to nothing that could be UTF-8
        logger.warning("%s is read as Latin-1 (Windows'): byte %d is no UTF-8", path, first_bad)
    return "cp1252"


def read_lines(path: Path) -> list[str]:
    """All lines of a small file, without their ends and the mark of byte order."""
    with _opened(path, encoding_of(path)) as stream:
        return stream.read().removeprefix("\ufeff").split("\n")


def read_head(path: Path, encoding: str, form: str) -> tuple[int, str]:
    """The number of characters of Project Gutenberg's header, and the form if it is "auto"."""
    with _opened(path, encoding) as stream:
        lines = stream.read(HEAD).split("\n")[: rules.HEADER_LINES]
    start = sum(len(line) + 1 for line in lines[: rules.header(lines)])
    return start, rules.form(lines) if form == "auto" else form


def read_sentences(path: Path, encoding: str, start: int, form: str) -> Iterator[str]:
    """The sentences of a file behind its first `start` characters, for `rules.has_word` to sift.

    Memory does not grow with the file, nor with a line, paragraph or sentence of any length.
    """
    split = rules.sentences if form == "prose" else lambda line: [line.strip()]
    inside, ended, text = True, True, ""  # inside: not behind Project Gutenberg's END marker
    with _opened(path, encoding) as stream:
        stream.read(start)
        for part in iter(functools.partial(stream.readline, BLOCK), ""):
            begins, ended = ended, part.endswith("\n")  # of a line, which may have many parts
            mark = rules.border(part) if begins else None
            is_border = mark is not None or (begins and ended and not part.strip())
            if is_border or (begins and form == "sentences"):
                yield from split(text)
                text = ""
            if mark is not None:
                inside = mark == "start"
            elif inside and not is_border:
                text += part.replace("\n", " ")
            if len(text) >= MAX_PARAGRAPH:
                *whole, last = split(text) or [""]
                yield from whole
                text = last[:MAX_SENTENCE] + (" " if text[-1].isspace() else "")
        yield from split(text)
