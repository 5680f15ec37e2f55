"""Labelled sentences, to evaluate encoders of sentences on."""

import functools
import hashlib
import logging
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hypersphere_jax.config import require
from hypersphere_jax.data.text.corpus import encode
from hypersphere_jax.data.text.reading import read_lines
from hypersphere_jax.data.text.rules import words

logger = logging.getLogger("hypersphere_jax")

# Sets with a name, and the stem of their files.
NAMED = {"mr": "rt-polarity", "cr": "custrev", "mpqa": "mpqa"}
LABEL_HEADERS = ("label", "labels", "class", "polarity", "sentiment", "target")
TEXT_HEADERS = ("sentence", "text", "review", "sentences")
# Without a header, a column with more different values holds no labels.
MAX_CLASSES = 100
NAME = r"[^\W\d][\w .-]{0,30}(?<![.\s])"  # what may stand above a column
Rows = list[tuple[str, str]]  # sentence and name of its class


class Sentences:
    """A source of labelled sentences in memory; what the protocol calls an image is a sentence.

    Args:
      tokens: int32 `[n, max_tokens]`, each row ended by 1 and padded with 0; see `corpus.encode`.
      labels: integers `[n]`.
      class_names: of label 0, 1, …
      origin: where they came from, for people.
    """

    def __init__(
        self, tokens: np.ndarray, labels: np.ndarray, class_names: Sequence[str], origin: str
    ):
        if tokens.dtype != np.int32 or tokens.ndim != 2:
            raise ValueError(
                f"tokens must be int32 [n, max_tokens], not {tokens.dtype} {tokens.shape}"
            )
        if labels.shape != tokens.shape[:1]:
            raise ValueError(f"labels must be [{len(tokens)}], not {labels.shape}")
        self.tokens = tokens
        self.labels = labels.astype(np.int32)
        self.class_names = tuple(class_names)
        self.origin = origin
        self.image_shape = tokens.shape[1:]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"image": self.tokens[i], "label": int(self.labels[i])}

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each sentence with its end token, int32 `[n]`."""
        return np.sum(self.tokens != 0, axis=1, dtype=np.int32)

    @functools.cached_property
    def digest(self) -> str:
        """Of tokens and labels."""
        digest = hashlib.sha256(repr(self.tokens.shape).encode())
        for array in (self.tokens, self.labels):
            digest.update(np.ascontiguousarray(array, "<i4").tobytes())
        return digest.hexdigest()[:16]


class LabelledText(NamedTuple):
    """Sentences as text."""

    sentences: list[str]
    labels: np.ndarray  # int32 [n]


class Labelled(NamedTuple):
    """Labelled sentences as text; there is no test split where none was made."""

    train: LabelledText
    test: LabelledText | None
    class_names: tuple[str, ...]
    origin: str

    def encoded(
        self, vocabulary: Sequence[str], max_tokens: int
    ) -> tuple[Sentences, Sentences | None]:
        """Both splits as numbers of words, by the rule that made the corpus.

        Args:
          vocabulary: the word of each number, as `Corpus.vocabulary`.
          max_tokens: longer sentences are cut there, which a warning counts.

        Returns:
          The train and the test split, both as wide as the longest sentence of them.
        """
        parts = {"train": self.train, "test": self.test}
        found = {name: list(map(words, part.sentences)) for name, part in parts.items() if part}
        lengths = [len(sentence) + 1 for split in found.values() for sentence in split]
        cut = sum(length > max_tokens for length in lengths)
        if cut:
            logger.warning(
                "%s: %d of %d sentences are cut at %d words",
                self.origin,
                cut,
                len(lengths),
                max_tokens - 1,
            )
        width = min(max_tokens, max(lengths))
        made = {
            name: Sentences(
                encode(split, vocabulary, width),
                parts[name].labels,
                self.class_names,
                f"{self.origin} ({name})" if self.test else self.origin,
            )
            for name, split in found.items()
        }
        return made["train"], made.get("test")


def open_labelled(name: str, data_dir: Path | str | None = None) -> Labelled:
    """Reads labelled sentences.

    Args:
      name: "mr" (rt-polarity.pos and .neg), "cr" (custrev), "mpqa" (mpqa) in `data_dir`; or the
        path of two files STEM.pos and STEM.neg, by the stem or one of them; or of a .tsv or .csv
        file with a label and a sentence in each row, parted by a tab; or of a folder with train.tsv
        and test.tsv. All but the folder also with .gz at the end.
      data_dir: the folder of the sets with a name.

    Raises:
      UserError: when files are missing or cannot be read, a row is not as described, or there is
        only one class.
    """
    if name in NAMED:
        require(data_dir is not None, f"{name} needs the folder of {NAMED[name]}.pos and .neg")
        return _pair(Path(data_dir).expanduser() / NAMED[name])
    path = Path(name).expanduser()
    if path.is_dir():
        return _folder(path)
    plain = re.sub(r"\.gz$", "", path.name)
    if plain.endswith((".tsv", ".csv")):
        require(path.is_file(), f"no file {path} of labelled sentences")
        return _labelled(_table(path), None, str(path))
    if plain.endswith((".pos", ".neg")):
        return _pair(path.with_name(plain[:-4]))
    require(
        any(_found(path, part) for part in ("pos", "neg")),
        f"no labelled sentences {name!r}: a name ({', '.join(NAMED)}), STEM of STEM.pos and "
        "STEM.neg, a .tsv file, or a folder with train.tsv",
    )
    return _pair(path)


def _found(stem: Path, part: str) -> Path | None:
    places = (stem.with_name(f"{stem.name}.{part}{gz}") for gz in ("", ".gz"))
    return next((place for place in places if place.is_file()), None)


def _pair(stem: Path) -> Labelled:
    """Two files, one a class, with a sentence a line."""
    rows: Rows = []
    for part in ("neg", "pos"):
        file = _found(stem, part)
        require(
            file is not None,
            f"no file {stem}.{part} or {stem}.{part}.gz: the sentences of a set are in two files, "
            ".pos and .neg",
        )
        found = [line.strip() for line in read_lines(file) if line.strip()]
        require(bool(found), f"{file} has no sentence in it")
        rows += [(sentence, part) for sentence in found]
    return _labelled(rows, None, str(stem))


def _folder(folder: Path) -> Labelled:
    train, test, other = (folder / f"{name}.tsv" for name in ("train", "test", "dev"))
    require(train.is_file(), f"no file {train}: labelled sentences are train.tsv and test.tsv")
    if other.is_file():
        logger.warning("%s: not used; strengths are chosen by cross-validation", other)
    rows = _table(train)
    known = {name for _, name in rows}
    return _labelled(rows, _table(test, known) if test.is_file() else None, str(folder))


def _table(file: Path, known: Collection[str] = ()) -> Rows:
    """Rows of a file whose columns are parted by tabs.

    Args:
      file: to read.
      known: names of classes that are in another file.
    """
    rows = [
        (number, [cell.strip() for cell in line.split("\t")])
        for number, line in enumerate(read_lines(file), 1)
        if line.strip()
    ]
    require(bool(rows), f"{file} has no sentence in it")
    columns = _header(rows[0][1])
    if columns is not None:
        rows, width = rows[1:], len(rows[0][1])
    else:
        width = 2
        require(
            len(rows[0][1]) == 2,
            f"{file}: line {rows[0][0]} has {len(rows[0][1])} columns (parted by tabs), and no "
            "header with `label` and `sentence`: two are expected, a label and a sentence",
        )
    for number, cells in rows:
        require(
            len(cells) == width,
            f"{file}: line {number} has {len(cells)} columns (parted by tabs), not {width}",
        )
    if columns is None:
        columns, has_header = _two_columns(rows, known, file)
        rows = rows[has_header:]
    label, text = columns
    for number, cells in rows:
        require(bool(cells[label]), f"{file}: line {number} has no label")
    return [(cells[text], cells[label]) for _, cells in rows if cells[text]]


def _header(cells: list[str]) -> tuple[int, int] | None:
    """The columns of label and sentence, if these are their names."""
    label, text = _named(cells)
    return None if label is None or text is None else (label, text)


def _named(cells: list[str]) -> tuple[int | None, int | None]:
    """The columns with a name of labels and with one of sentences."""
    names = [cell.lower() for cell in cells]
    label, text = (
        next((names.index(name) for name in known if name in names), None)
        for known in (LABEL_HEADERS, TEXT_HEADERS)
    )
    return label, text


def _two_columns(
    rows: list[tuple[int, list[str]]], known: Collection[str], file: Path
) -> tuple[tuple[int, int], bool]:
    """The columns of label and sentence, and whether the first row is a header after all.

    It is one if a name in it is known, the other may be a name, and neither comes again below. Else
    a label that comes once, in the first row, is an error: an unknown header would be a class.
    """
    (number, first), *others = rows
    again = [
        cell in known or any(cells[i] == cell for _, cells in others)
        for i, cell in enumerate(first)
    ]
    label, text = _named(first)
    is_half_known = label is not None or text is not None
    if others and is_half_known and not any(again) and all(re.fullmatch(NAME, c) for c in first):
        label = 1 - text if label is None else label
        logger.warning(
            "%s: line %d is taken for the header: labels are below %r, sentences below %r",
            file,
            number,
            first[label],
            first[1 - label],
        )
        return (label, 1 - label), True
    columns = _guess([cells for _, cells in rows], file)
    require(
        # `_labelled` refuses a file of one row, and a class of the test split alone.
        again[columns[0]] or not others or bool(known),
        f"{file}: line {number} has the label {first[columns[0]]!r}, which no other line has: if "
        "that is a header, call its columns `label` and `sentence`; if not, put such a header "
        "above it",
    )
    return columns, False


def _guess(rows: list[list[str]], file: Path) -> tuple[int, int]:
    """The column with fewer different values, or else with the shorter ones, has the labels."""
    sizes = [(len(set(column)), sum(map(len, column))) for column in zip(*rows, strict=True)]
    label = min((0, 1), key=lambda i: sizes[i])
    require(
        sizes[label][0] <= MAX_CLASSES,
        f"{file}: no column is one of labels, as the first has {sizes[0][0]} different values and "
        f"the second {sizes[1][0]}",
    )
    return label, 1 - label


def _labelled(train: Rows, test: Rows | None, origin: str) -> Labelled:
    names = sorted({name for _, name in train})
    if all(re.fullmatch(r"-?\d+", name) for name in names):
        names.sort(key=int)
    require(bool(train), f"{origin} has no sentence in it")
    require(
        len(names) >= 2, f"{origin} has sentences of one class only, {names[0]!r}: two are needed"
    )
    number = {name: i for i, name in enumerate(names)}
    unknown = sorted({name for _, name in test or ()} - set(names))
    require(not unknown, f"{origin}: test.tsv has a class that train.tsv lacks: {unknown[:1]}")
    require(test is None or bool(test), f"{origin}: test.tsv has no sentence in it")

    def made(rows: Rows) -> LabelledText:
        labels = np.array([number[name] for _, name in rows], np.int32)
        return LabelledText([sentence for sentence, _ in rows], labels)

    return Labelled(made(train), None if test is None else made(test), tuple(names), origin)
