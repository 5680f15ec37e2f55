"""Labelled sentences, to evaluate encoders of sentences on."""

import dataclasses
import functools
import hashlib
import itertools
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hypersphere_jax.configs import require
from hypersphere_jax.configs.base import did_you_mean
from hypersphere_jax.data.subsets import nfc
from hypersphere_jax.data.text.packing import END, UNKNOWN
from hypersphere_jax.data.text.reading import read_lines
from hypersphere_jax.data.text.rules import words

logger = logging.getLogger("hypersphere_jax")

# Sets with a name, and the stem of their files.
NAMED = {"mr": "rt-polarity", "cr": "custrev", "mpqa": "mpqa", "subj": "subj"}
# Other published names of a file: of SUBJ the authors', and SentEval's.
ALSO = {
    "subj.neg": ("plot.tok.gt9.5000", "subj.objective"),
    "subj.pos": ("quote.tok.gt9.5000", "subj.subjective"),
}
LABEL_HEADERS = ("label", "labels", "class", "polarity", "sentiment", "target")
TEXT_HEADERS = ("sentence", "text", "review", "sentences")


@dataclasses.dataclass(eq=False)
class LabelledSentences:
    """A source of labelled sentences in memory; what the protocol calls an image is a sentence."""

    tokens: np.ndarray  # int32 [n, max_tokens], each row ended by 1 and padded with 0
    labels: np.ndarray  # int32 [n]
    class_names: tuple[str, ...]  # of label 0, 1, …
    origin: str  # where they came from, for people

    @property
    def image_shape(self) -> tuple[int, ...]:
        return self.tokens.shape[1:]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"image": self.tokens[i], "label": int(self.labels[i])}

    @functools.cached_property
    def digest(self) -> str:
        """Of tokens and labels."""
        digest = hashlib.sha256(repr(self.tokens.shape).encode())
        for array in (self.tokens, self.labels):
            digest.update(np.ascontiguousarray(array, "<i4").tobytes())
        return digest.hexdigest()[:16]


def open_labelled(
    name: str, data_dir: Path | None, vocabulary: Sequence[str], max_tokens: int
) -> tuple[LabelledSentences, LabelledSentences | None]:
    """Labelled sentences as numbers of words, by the rule that makes a corpus.

    Args:
      name: "mr", "cr", "mpqa" or "subj" in `data_dir`; or the path of two files STEM.pos and
        STEM.neg, by the stem or one of them; or of a .tsv or .csv file with a label and a sentence
        in each row, parted by a tab; or of a folder with train.tsv and test.tsv. Files may end in
        .gz.
      data_dir: the folder of the sets with a name.
      vocabulary: the word of each number, as `Corpus.vocabulary`.
      max_tokens: longer sentences are cut there, which a warning counts.

    Returns:
      The train and the test split (None: no test.tsv), as wide as the longest sentence of both.
    """
    path = Path(name).expanduser()
    if name in NAMED:
        needs = " and ".join(" or ".join(_names(NAMED[name], label)) for label in ("pos", "neg"))
        require(data_dir is not None, f"{name} needs data_dir=: the folder of {needs}")
        path = Path(data_dir).expanduser() / NAMED[name]
    if path.is_dir():
        splits = {" (train)": _read_table(path / "train.tsv")}
        if (path / "test.tsv").is_file():
            splits[" (test)"] = _read_table(path / "test.tsv")
    elif re.search(r"\.[ct]sv(\.gz)?$", path.name):
        splits = {"": _read_table(path)}
    else:
        path = path.with_name(re.sub(r"\.(pos|neg)(\.gz)?$", "", path.name))
        splits = {"": _read_pair(path)}

    train, *test = splits.values()
    class_names = sorted({label for label, _ in train})
    require(len(class_names) >= 2, f"{path} has one class only, {class_names}: two are needed")
    if all(re.fullmatch(r"-?\d+", label) for label in class_names):
        class_names.sort(key=int)
    for label, _ in itertools.chain(*test):
        require(label in class_names, f"{path}: test.tsv has a class that train.tsv lacks: {label}")

    sentences = {split: [words(text) for _, text in rows] for split, rows in splits.items()}
    lengths = [len(tokens) + 1 for tokens in itertools.chain(*sentences.values())]
    if cut := sum(length > max_tokens for length in lengths):
        message = "%s: %d of %d sentences are cut at %d words"
        logger.warning(message, path, cut, len(lengths), max_tokens - 1)
    width = min(max_tokens, max(lengths))
    number = {word: i for i, word in enumerate(vocabulary)}
    sources = []
    for split, rows in splits.items():
        tokens = np.zeros((len(rows), width), np.int32)
        for row, sentence in zip(tokens, sentences[split], strict=True):
            known = [number.get(word, UNKNOWN) for word in sentence[: width - 1]]
            row[: len(known) + 1] = [*known, END]
        labels = np.array([class_names.index(label) for label, _ in rows], np.int32)
        sources.append(LabelledSentences(tokens, labels, tuple(class_names), f"{path}{split}"))
    return sources[0], sources[1] if len(sources) > 1 else None


def _read_pair(stem: Path) -> list[tuple[str, str]]:
    """Class and sentence of each line of two files, one a class."""
    rows = []
    for label in ("neg", "pos"):
        names = [f"{name}{gz}" for name in _names(stem.name, label) for gz in ("", ".gz")]
        file = next(filter(Path.is_file, map(stem.with_name, names)), None)
        hint = "" if stem.name in NAMED.values() else did_you_mean(stem.name, NAMED)
        require(
            file is not None,
            f"no file {stem.with_name(names[0])} (or {', '.join(names[1:])}){hint}; labelled "
            f"sentences are {', '.join(NAMED)} in data_dir=, STEM of STEM.pos and STEM.neg, a "
            ".tsv file, or a folder with train.tsv",
        )
        rows += [(label, line.strip()) for line in read_lines(file) if line.strip()]
    return rows


def _names(stem: str, label: str) -> list[str]:
    """What the file of a class may be called."""
    name = f"{stem}.{label}"
    return [name, *ALSO.get(name, ())]


def _read_table(file: Path) -> list[tuple[str, str]]:
    """Class and sentence of each row of a file whose columns are parted by tabs."""
    lines = enumerate(read_lines(file), 1)
    rows = [(n, [cell.strip() for cell in line.split("\t")]) for n, line in lines if line.strip()]
    header = [cell.lower() for cell in rows[0][1]] if rows else []
    label, text = (
        next((header.index(name) for name in names if name in header), None)
        for names in (LABEL_HEADERS, TEXT_HEADERS)
    )
    has_header = label is not None and text is not None
    rows, width = rows[has_header:], len(header) if has_header else 2
    require(bool(rows), f"{file} has no sentence in it")
    for number, cells in rows:
        require(
            len(cells) == width,
            f"{file}: line {number} has {len(cells)} columns, not {width}, parted by tabs; name "
            "more than two in a header, with `label` and `sentence`",
        )
    if not has_header:  # labels have fewer different values, or else are shorter
        columns = zip(*(cells for _, cells in rows), strict=True)
        sizes = [(len(set(column)), sum(map(len, column))) for column in columns]
        label = sizes.index(min(sizes))
        text = 1 - label
    return [(nfc(cells[label]), cells[text]) for _, cells in rows if cells[text]]
