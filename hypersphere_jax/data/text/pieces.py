"""The two passes over text: pieces of sentences as numbers, then the files of a corpus."""

import array
import collections
import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import zipfile
from collections.abc import Callable, Generator, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import IO, Any

import numpy as np

from hypersphere_jax.config import require
from hypersphere_jax.data.text import reading, rules
from hypersphere_jax.data.text.corpus import END, SPECIAL, SPLITS, UNKNOWN, token_type

PIECE_BYTES = 2**24  # of the text, at least, to a piece
PROGRESS_BYTES = 2**20
# To look for the encoding of a file, to count the words and to write the corpus each take about
# this part, one in so many, of the time that reading takes; for the bar of progress alone.
LESS = 32
# A counter with more words than this forgets those that it counted least, until half are left.
MAX_WORDS = 5_000_000


class _Piece:
    """Sentences as they are read: numbers of the words of this piece, from 1 on; 0 ends each."""

    def __init__(self):
        self.ids: collections.defaultdict[str, int] = collections.defaultdict()
        self.ids.default_factory = self.ids.__len__
        self.ids["\n"] = 0  # no word is this
        self.tokens, self.lengths, self.cut = (array.array("I") for _ in range(3))
        self.files: list[list[int]] = []  # number of a file, sentences of it here

    def add(self, sentences: list[str], max_tokens: int) -> None:
        number = self.ids.__getitem__
        for sentence in sentences:
            if not rules.has_word(sentence):
                continue
            words = rules.words(sentence)
            if len(words) >= max_tokens:
                self.cut.append(len(self.lengths))
                words = words[: max_tokens - 1]
            self.tokens.extend(map(number, words))
            self.tokens.append(0)
            self.lengths.append(len(words) + 1)
            self.files[-1][1] += 1

    def save(self, file: Path, state: dict[str, Any]) -> None:
        with replacing(file) as stream:
            np.savez(
                stream,
                tokens=np.frombuffer(self.tokens, np.uint32),
                lengths=np.frombuffer(self.lengths, np.uint32).astype(np.uint16),
                cut=np.frombuffer(self.cut, np.uint32),
                files=np.array(self.files, np.int64).reshape(-1, 2),
                words=np.frombuffer("\n".join(list(self.ids)[1:]).encode(), np.uint8),
                state=np.frombuffer(json.dumps(state).encode(), np.uint8),
            )


def by_megabyte(positions: Generator[int, None, None]) -> Iterator[None]:
    """Yields once for each MiB that a position has come further."""
    shown = 0
    with contextlib.closing(positions):
        for position in positions:
            yield from itertools.repeat(None, position // PROGRESS_BYTES - shown)
            shown = max(shown, position // PROGRESS_BYTES)


def megabytes(total: int) -> int:
    """How often `by_megabyte` yields, about, in both passes over files of so many bytes."""
    return (total + 2 * total // LESS) // PROGRESS_BYTES + 1


def read_all(
    files: list[Path], work: Path, max_tokens: int, form: str
) -> Generator[int, None, None]:
    """The first pass; yields the position in bytes of all files, now and then.

    Args:
      files: of text.
      work: the folder for the pieces; those that are there are not made again.
      max_tokens: as for `prepare_text`.
      form: as for `prepare_text`.
    """
    # Where the next piece begins: in which file, and where in it; and bytes before that file.
    state = {"file": 0, "cursor": None, "before": 0}
    with contextlib.closing(_Reader(files, form)) as reader:
        for number in itertools.count():
            if state["file"] == len(files):
                return
            file = _piece_file(work, number)
            done = _read_state(file)
            if done is None:
                done = yield from _make_piece(reader, state, file, max_tokens)
            yield done["position"]
            state = done


class _Reader:
    """The file that is read, which stays open from one piece to the next.

    To find a position in a packed file, all before it is unpacked: so that is done only where an
    earlier run left off.

    Attributes:
      cursor: where the reading stands; None where no file is open.
      blocks: as `reading.read` yields them.
    """

    def __init__(self, files: list[Path], form: str):
        self.files, self.form = files, form
        self.index = -1
        self.cursor: reading.Cursor | None = None
        self.blocks: Generator[tuple[list[str], int], None, None] | None = None

    def is_at(self, index: int, cursor: dict[str, Any] | None) -> bool:
        is_open = self.cursor is not None and self.index == index
        return is_open and dataclasses.asdict(self.cursor) == cursor

    def open(self, index: int, cursor: reading.Cursor) -> None:
        self.close()
        self.index, self.cursor = index, cursor
        self.blocks = reading.read(self.files[index], cursor)

    def close(self) -> None:
        if self.blocks is not None:
            self.blocks.close()
        self.cursor = self.blocks = None


def _make_piece(
    reader: _Reader, state: dict[str, Any], file: Path, max_tokens: int
) -> Generator[int, None, dict[str, Any]]:
    """Makes one piece; yields the position in bytes of all files, returns where the next begins."""
    piece, begun, done = _Piece(), [], 0
    index, before, stands = state["file"], state["before"], state["cursor"]
    position = before
    while index < len(reader.files) and done < PIECE_BYTES:
        path = reader.files[index]
        size = path.stat().st_size
        if stands is None:
            looking = reading.look_through(path)
            encoding = yield from _further(looking, lambda here, start=before: start + here // LESS)
            cursor = reading.begin(path, encoding, reader.form)
            begun.append([index, encoding, cursor.form])
            reader.open(index, cursor)
        elif not reader.is_at(index, stands):
            reader.open(index, reading.Cursor(**stands))
        piece.files.append([index, 0])
        start = reader.cursor.offset - done
        for sentences, here in reader.blocks:
            piece.add(sentences, max_tokens)
            done = reader.cursor.offset - start
            position = before + size // LESS + here - here // LESS
            yield position
            if done >= PIECE_BYTES:
                break
        else:
            reader.close()
            before += size
            index, stands, position = index + 1, None, before
    cursor = reader.cursor
    if cursor is not None:
        cursor.carry = ["".join(cursor.carry)] if cursor.carry else []
    state = {
        "file": index,
        "cursor": cursor and dataclasses.asdict(cursor),
        "before": before,
        "position": position,
        "begun": begun,
    }
    piece.save(file, state)
    return state


def _further(
    work: Generator[int, None, str], position: Callable[[int], int]
) -> Generator[int, None, str]:
    """The same, with another position in place of each."""
    with contextlib.closing(work):
        while True:
            try:
                yield position(next(work))
            except StopIteration as done:
                return done.value


def write_all(
    sizes: list[int], work: Path, vocabulary: int, max_tokens: int, held_out: float
) -> Generator[int, None, tuple[list[str], dict[str, Any]]]:
    """The second pass: all files of a corpus but corpus.json, in the folder of the pieces.

    Yields positions that go on behind those of `read_all`.

    Args:
      sizes: bytes of each file of text.
      work: as for `read_all`.
      vocabulary: as for `prepare_text`.
      max_tokens: as for `prepare_text`.
      held_out: as for `prepare_text`.

    Returns:
      Names of what was written, and what corpus.json has to say of it.
    """
    count, total = len(sizes), sum(sizes)
    totals = np.zeros(count, np.int64)
    known: list[dict[str, Any]] = [{} for _ in range(count)]
    for piece in _pieces(work, count, ("files", "state")):
        np.add.at(totals, piece["files"][:, 0], piece["files"][:, 1])
        for index, encoding, form in _json(piece["state"])["begun"]:
            known[index] = {"encoding": encoding, "form": form}
    require(totals.any(), "there is no sentence with a word in this text")
    share = Fraction(str(held_out))
    held = np.array([int(total * share) for total in totals.tolist()], np.int64)
    parts = dict(zip(SPLITS, (totals - held, held), strict=True))
    for entry, sentences in zip(known, totals.tolist(), strict=True):
        entry["sentences"] = sentences

    found = yield from _count(work, parts["train"], vocabulary, total)
    words = [*SPECIAL, *found]
    (work / "vocabulary.txt").write_text("".join(f"{w}\n" for w in words), encoding="utf-8")
    number = {word: i for i, word in enumerate(words)}
    seed = hashlib.sha256(json.dumps([max_tokens, words]).encode())
    writers = {name: _Writer(work / name, parts[name], len(words), seed.copy()) for name in SPLITS}
    with contextlib.ExitStack() as stack:
        for writer in writers.values():
            stack.enter_context(writer)
        for piece, is_train in _with_split(work, parts["train"]):
            table = [END, *(number.get(word, UNKNOWN) for word in _words(piece))]
            tokens = np.array(table, np.uint32)[piece["tokens"]]
            is_cut = np.zeros(len(is_train), bool)
            is_cut[piece["cut"]] = True
            for name, rows in (("train", is_train), ("held_out", ~is_train)):
                lengths = piece["lengths"]
                writers[name].add(
                    tokens[np.repeat(rows, lengths)], lengths[rows], int(is_cut[rows].sum())
                )
            yield total + (total + _json(piece["state"])["position"]) // LESS
    about = {name: writer.about for name, writer in writers.items()}
    return ["vocabulary.txt", *SPLITS], {"files": known, "words": len(words), **about}


class _Writer:
    """The files of one split; a context."""

    def __init__(self, folder: Path, sizes: np.ndarray, words: int, digest):
        folder.mkdir(exist_ok=True)
        documents = np.concatenate([[0], np.cumsum(sizes[sizes > 0])]).astype(np.int64)
        np.save(folder / "documents.npy", documents)
        self._folder, self._kind = folder, token_type(words)
        self._sentences, self._digests = int(documents[-1]), (digest, hashlib.sha256())
        digest.update(documents.tobytes())
        self.about = {"documents": len(documents) - 1, "sentences": self._sentences}
        self.about |= {"tokens": 0, "cut": 0, "unknown": 0}

    def __enter__(self):
        self._tokens = open(self._folder / "tokens.bin", "wb")
        self._offsets = open(self._folder / "offsets.npy", "wb")
        shape = {"descr": "<i8", "fortran_order": False, "shape": (self._sentences + 1,)}
        np.lib.format.write_array_header_1_0(self._offsets, shape)
        self._offsets.write(np.zeros(1, "<i8").tobytes())

    def add(self, tokens: np.ndarray, lengths: np.ndarray, cut: int) -> None:
        offsets = self.about["tokens"] + np.cumsum(lengths, dtype=np.int64)
        data = tokens.astype(self._kind).tobytes()
        for digest, part in zip(self._digests, (data, offsets.tobytes()), strict=True):
            digest.update(part)
        self._tokens.write(data)
        self._offsets.write(offsets.tobytes())
        self.about["tokens"] += len(tokens)
        self.about["cut"] += cut
        self.about["unknown"] += int(np.sum(tokens == UNKNOWN))

    def __exit__(self, *_):
        self._tokens.close()
        self._offsets.close()
        digest, offsets = self._digests
        digest.update(offsets.digest())
        self.about["digest"] = digest.hexdigest()[:16]


def _count(
    work: Path, train: np.ndarray, vocabulary: int, start: int
) -> Generator[int, None, list[str]]:
    """The most frequent words of the training sentences, ties in alphabetical order.

    Yields positions from `start` on.
    """
    counts: collections.Counter[str] = collections.Counter()
    least = 0
    for piece, is_train in _with_split(work, train):
        words = _words(piece)
        tokens = piece["tokens"][np.repeat(is_train, piece["lengths"])]
        found = np.bincount(tokens, minlength=len(words) + 1)[1:].tolist()
        counts.update({word: n for word, n in zip(words, found, strict=True) if n})
        while len(counts) > MAX_WORDS:
            least += 1
            kept = {word: n for word, n in counts.items() if n > least}
            counts = collections.Counter(kept)
            if len(counts) <= MAX_WORDS // 2:
                break
        yield start + _json(piece["state"])["position"] // LESS
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [word for word, _ in order[:vocabulary]]


def _with_split(work: Path, train: np.ndarray) -> Iterator[tuple[Any, np.ndarray]]:
    """Pieces, and which of their sentences are of the training split.

    Args:
      work: the folder of the pieces.
      train: how many sentences of each file are, int64 `[files]`.
    """
    left = train.copy()
    for piece in _pieces(work, len(train)):
        parts = [np.zeros(0, bool)]
        for index, count in piece["files"].tolist():
            parts.append(np.arange(count) < left[index])
            left[index] = max(0, left[index] - count)
        yield piece, np.concatenate(parts)


def _pieces(
    work: Path, count: int, names: Sequence[str] | None = None
) -> Iterator[dict[str, np.ndarray]]:
    """The pieces, or the named arrays of each, up to that which ends the last of `count` files."""
    for number in itertools.count():
        with np.load(_piece_file(work, number)) as file:
            piece = {name: file[name] for name in names or file}
        yield piece
        if _json(piece["state"])["file"] == count:
            return


def _words(piece: dict[str, np.ndarray]) -> list[str]:
    text = piece["words"].tobytes().decode()
    return text.split("\n") if text else []


def _json(array: np.ndarray) -> Any:
    return json.loads(array.tobytes())


def _read_state(file: Path) -> dict[str, Any] | None:
    try:
        # NumPy would leave a damaged file open.
        with open(file, "rb") as stream, np.load(stream) as piece:
            return _json(piece["state"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def _piece_file(work: Path, number: int) -> Path:
    return work / f"{number:06d}.npz"


@contextlib.contextmanager
def replacing(file: Path) -> Iterator[IO[bytes]]:
    """A file to write that takes its place when it is whole."""
    part = file.with_name(f"{file.name}.part")
    with open(part, "wb") as stream:
        yield stream
    os.replace(part, file)


def write_json(file: Path, value: Any) -> None:
    with replacing(file) as stream:
        stream.write(json.dumps(value, indent=1, ensure_ascii=False).encode())
