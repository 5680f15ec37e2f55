"""Text files: which there are, their encoding, and their sentences in bounded memory."""

import codecs
import contextlib
import dataclasses
import gzip
import io
import logging
import os
import re
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from hypersphere_jax.config import UserError, require
from hypersphere_jax.data.text import rules

logger = logging.getLogger("hypersphere_jax")

SUFFIXES = (".txt", ".txt.gz")
CHUNK_BYTES = 2**16  # are read at a time
LOOK_BYTES = 2**18  # at a time when the encoding is looked for
UNFIT = re.compile("[\udc80-\udcff]")  # bytes that fit into no character, by `surrogateescape`
# A file is UTF-8 with damage, and not Latin-1, if so many characters of several bytes come to each
# byte that fits into none. Latin-1 has next to no such characters, and only by chance.
MORE_WIDE = 4
HEAD_BYTES = 2**18  # are looked at for the form and for Project Gutenberg's header
# A paragraph is split when it has grown to so many characters, and of its last sentence, which
# may go on, so many are kept.
PARAGRAPH_LIMIT, SENTENCE_LIMIT = 2**16, 2**15
PARAGRAPH_LINES = 512  # the length is looked at so often

# Windows' extension of Latin-1, and Latin-1 where that has no character: never an error.
LATIN = "".join(bytes([i]).decode("cp1252", "ignore") or chr(i) for i in range(256))


@dataclasses.dataclass
class Cursor:
    """Where the reading of a file stands: all that is needed to go on from there."""

    encoding: str  # "utf-8" or "cp1252"
    form: str  # "prose" or "sentences"
    offset: int  # bytes of the unpacked text that are done
    carry: list[str] = dataclasses.field(default_factory=list)  # what is open of a paragraph
    in_line: bool = False  # whether the last line goes on
    inside: bool = True  # and not behind the end that Project Gutenberg marks

    def feed(self, data: bytes) -> list[str]:
        """The sentences that end in the next bytes, which end with a whole character."""
        found: list[str] = []
        text = decoded(data, self.encoding).replace("\r\n", "\n").replace("\r", "\n")
        *lines, rest = text.split("\n")
        for line in lines:
            self._add(line, True, found)
        if rest:
            self._add(rest, False, found)
        return found

    def close(self) -> list[str]:
        """The last sentences of the file."""
        found: list[str] = []
        self._flush(found)
        return found

    def _add(self, text: str, ended: bool, found: list[str]) -> None:
        """A line; or a part of one, with its end or without."""
        is_blank = ended and not self.in_line and not text.strip()
        if not self.in_line:
            mark = rules.border(text)
            if mark is not None:
                self._flush(found)
                self.inside, text = mark == "start", ""
            elif self.carry:
                text = f" {text}"
        self.in_line = not ended
        if not self.inside:
            return
        if self.form == "sentences":
            if sum(map(len, self.carry)) < SENTENCE_LIMIT:
                self.carry.append(text[:SENTENCE_LIMIT])
            if ended:
                self._flush(found)
        elif is_blank:
            self._flush(found)
        else:
            self.carry.append(text)
            self._shorten(found)

    def _shorten(self, found: list[str]) -> None:
        """Takes the whole sentences from a paragraph that has grown long."""
        if len(self.carry) % PARAGRAPH_LINES and len(self.carry[-1]) < SENTENCE_LIMIT:
            return
        text = "".join(self.carry)
        if len(text) >= PARAGRAPH_LIMIT:
            *whole, last = rules.sentences(text) or [""]
            found += whole
            text = last[:SENTENCE_LIMIT] + (" " if text[-1:].isspace() else "")
        self.carry = [text]

    def _flush(self, found: list[str]) -> None:
        text = "".join(self.carry).strip()
        if text:
            found += [text] if self.form == "sentences" else rules.sentences(text)
        self.carry = []


def text_files(raw: Path) -> list[Path]:
    """The .txt and .txt.gz files of a folder and those below it, in the order of their names.

    A file stands for itself. What is hidden does not count.

    Raises:
      UserError: when there is none.
    """
    require(raw.exists(), f"no file or folder {raw}")
    if raw.is_file():
        require(is_text_name(raw.name), f"{raw}: text is expected in a file called .txt or .txt.gz")
        return [raw]
    found = sorted(_walk(raw), key=lambda path: path.relative_to(raw).parts)
    require(bool(found), f"{raw} holds no .txt or .txt.gz file")
    return found


def is_text_name(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def _walk(folder: Path) -> Iterator[Path]:
    for top, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(top) / name for name in sorted(names) if is_text_name(name))


def has_text(folder: Path, not_beside: tuple[str, ...], entries: int = 10_000) -> bool:
    """Whether there are text files among the first entries of a folder and those below it.

    Args:
      folder: to look through.
      not_beside: endings of files beside which text does not count.
      entries: how many to look at.
    """
    found = False
    for _, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if any(name.lower().endswith(not_beside) for name in names):
            return False
        found = found or any(map(is_text_name, names))
        entries -= len(names) + 1
        if entries <= 0:
            break
    return found


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """The unpacked bytes of a file, and the file itself, whose position shows how far they are.

    Raises:
      UserError: when it cannot be read, here or in the block.
    """
    try:
        with open(path, "rb") as file:
            if path.suffix.lower() == ".gz":
                with gzip.GzipFile(fileobj=file) as unpacked:
                    yield io.BufferedReader(unpacked, 2**20), file
            else:
                yield file, file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path} is damaged or cut short: {error}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error


def encoding_of(path: Path) -> str:
    """Either "utf-8" or "cp1252", see `look_through`."""
    looking = look_through(path)
    while True:
        try:
            next(looking)
        except StopIteration as found:
            return found.value


def look_through(path: Path) -> Generator[int, None, str]:
    """Finds the encoding of a file; yields the position in it, now and then.

    "utf-8" where all bytes are that, or where its characters of several bytes are at least four
    times as many as the bytes that fit into none, which become U+FFFD. Else "cp1252", which holds
    Latin-1. A file that is partly the one and partly the other is told of in a warning.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    fed = wide = bad = 0
    first = None
    with opened(path) as (stream, file):
        block = stream.read(LOOK_BYTES)
        require(
            not block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)),
            f"{path} is in UTF-16: convert it to UTF-8",
        )
        while True:
            before = fed - len(decoder.getstate()[0])
            text = decoder.decode(block, final=not block)
            fed += len(block)
            if not text.isascii():
                try:
                    codes = text.encode("utf-32-le")
                except UnicodeEncodeError as error:
                    if first is None:
                        first = before + len(text[: error.start].encode())
                    good = UNFIT.sub("", text)
                    bad += len(text) - len(good)
                    codes = good.encode("utf-32-le")
                wide += int(np.count_nonzero(np.frombuffer(codes, np.uint32) >= 0x80))
            if not block:
                break
            yield file.tell()
            block = stream.read(LOOK_BYTES)
    if first is None:
        return "utf-8"
    if wide >= MORE_WIDE * bad:
        logger.warning(
            "%s is UTF-8 but for %d bytes, the first at %d: they are read as U+FFFD",
            path,
            bad,
            first,
        )
        return "utf-8"
    if wide:  # plain Latin-1 has next to nothing that could be UTF-8
        logger.warning("%s is read as Latin-1 (Windows'): byte %d is no UTF-8", path, first)
    return "cp1252"


def decoded(data: bytes, encoding: str) -> str:
    if encoding == "utf-8":
        return data.decode(errors="replace")
    return codecs.charmap_decode(data, "strict", LATIN)[0]


def read_lines(path: Path) -> list[str]:
    """All lines of a small file, without their ends and the mark of byte order."""
    encoding = encoding_of(path)
    with opened(path) as (stream, _):
        text = decoded(stream.read(), encoding)
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")


def begin(path: Path, encoding: str, form: str) -> Cursor:
    """The start of a file's text, behind a mark of byte order and Project Gutenberg's header.

    Args:
      path: the file.
      encoding: as found by `encoding_of`.
      form: "prose" or "sentences"; "auto": as `rules.form` says of its beginning.
    """
    with opened(path) as (stream, _):
        head = stream.read(HEAD_BYTES)
    offset = len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0
    lines = head[offset:].splitlines(keepends=True)
    if len(head) == HEAD_BYTES and len(lines) > 1:
        lines.pop()  # which may go on
    texts = [decoded(line, encoding) for line in lines[: rules.HEADER_LINES]]
    offset += sum(map(len, lines[: rules.header(texts)]))
    if form == "auto":
        form = rules.form(texts)
    return Cursor(encoding, form, offset)


def read(path: Path, cursor: Cursor) -> Iterator[tuple[list[str], int]]:
    """The sentences of a file from a cursor on.

    Yields the sentences that ended in the last block, and the position in the file. At each of them
    the cursor, which is changed in place, says how to go on.
    """
    with opened(path) as (stream, file):
        stream.seek(cursor.offset)
        pending, offset = b"", cursor.offset
        # Blocks end where they would without an interruption, so that very long lines are cut at
        # the same place: what is pending began in the block before.
        size = (-(-offset // CHUNK_BYTES) + 1) * CHUNK_BYTES - offset
        while block := stream.read(size):
            size = CHUNK_BYTES
            data = pending + block
            end = _whole(data, cursor.encoding)
            pending = data[end:]
            found = cursor.feed(data[:end])
            offset += len(block)
            cursor.offset = offset - len(pending)
            yield found, file.tell()
        found = cursor.feed(pending) + cursor.close()
        cursor.offset = offset
        yield found, file.tell()


def _whole(data: bytes, encoding: str) -> int:
    """Length of the whole lines; of a line longer than the data, of its whole characters."""
    # A last \r may be the first half of \r\n.
    end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1)) + 1
    if end:
        return end
    if data.endswith(b"\r"):
        return len(data) - 1
    for back in range(1, min(4, len(data) + 1)) if encoding == "utf-8" else ():
        byte = data[-back]
        if byte >= 0xC0:  # the first of a character of two, three or four bytes
            return len(data) - (back if back < 2 + (byte >= 0xE0) + (byte >= 0xF0) else 0)
    return len(data)
