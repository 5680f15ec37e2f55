"""Preparation of a corpus from text files."""

import array
import collections
import itertools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from tyro.conf import Positional, arg

from hypersphere_jax.configs import require
from hypersphere_jax.configs.base import Config, check_range
from hypersphere_jax.configs.data import MAX_TOKENS
from hypersphere_jax.text.corpus import (
    RECORD,
    SPLITS,
    VOCABULARY,
    vocabulary_digest,
    write_vocabulary,
)
from hypersphere_jax.text.packing import END, SPECIAL, UNKNOWN
from hypersphere_jax.text.text_files import read_sentences, text_files
from hypersphere_jax.text.tokenizer import tokenize
from hypersphere_jax.utils import caches
from hypersphere_jax.utils.files import write_json
from hypersphere_jax.utils.terminal import track

OPTIONS = ("vocabulary", "max_tokens", "held_out", "form")


@dataclass(frozen=True)
class PrepareTextConfig(Config):
    """Text to turn into a corpus of token ids, once for any number of runs."""

    raw: Annotated[Positional[str], arg(metavar="FOLDER|FILE")]
    """A .txt or .txt.gz file, or a folder of them. Each file is a document."""
    out: str
    """New or empty folder of the corpus."""
    vocabulary: int = 50_000
    """Largest vocabulary: the most frequent words of the training part."""
    max_tokens: int = 64
    """Longest sentence, with its end token; longer ones are truncated."""
    held_out: float = 0.05
    """Share of each document's sentences, the last ones, that are held out from training."""
    form: Literal["auto", "prose", "sentences"] = "auto"
    """A line is a sentence (`sentences`) or a part of a paragraph, with blank lines between
    paragraphs (`prose`). `auto` decides by the first lines of each file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "vocabulary", at_least=1)
        check_range(self, "max_tokens", at_least=2, at_most=MAX_TOKENS)
        check_range(self, "held_out", at_least=0, below=1)


class Document(NamedTuple):
    """A part of a text file.

    Attributes:
      tokens: ids of its words, in the order in which words first occurred in the corpus.
      lengths: tokens of each sentence before truncation.
    """

    tokens: np.ndarray
    lengths: np.ndarray


def prepare_text(config: PrepareTextConfig) -> None:
    """Write a corpus of text files into a new folder, for `open_corpus`.

    The most frequent word of the training part gets the smallest id; ties are in alphabetical
    order. Memory: about 8 bytes per word. An interrupted preparation leaves no corpus.

    Raises:
      UserError: for missing text, or a folder that is not empty.
    """
    raw = Path(config.raw).expanduser()
    out = Path(config.out).expanduser()
    files = text_files(raw)
    is_free = not out.exists() or (out.is_dir() and not any(out.iterdir()))
    require(is_free, f"out={out} exists and is not empty: name another folder")
    is_inside = raw.resolve() in (out.resolve(), *out.resolve().parents)
    require(not is_inside, f"out={out} is in the folder of the text: name another folder")
    ids: dict[str, int] = collections.defaultdict(itertools.count(len(SPECIAL)).__next__)
    splits: dict[str, list[Document]] = {name: [] for name in SPLITS}
    for file in track(files, "reading"):
        document = _encode(file, ids, config)
        for name, part in zip(SPLITS, _split(document, config), strict=True):
            if len(part.lengths):
                splits[name].append(part)
    words = _vocabulary(ids, splits["train"], config.vocabulary)
    require(len(words) > len(SPECIAL), f"{raw} contains no word")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as temporary:
        folder = Path(temporary, "corpus")
        folder.mkdir()
        options = {name: getattr(config, name) for name in OPTIONS}
        record: dict[str, Any] = {"options": options, "vocabulary": vocabulary_digest(words)}
        for name, documents in splits.items():
            file = folder / f"{name}.npy"
            record[name] = _write_split(file, documents, words, ids, config.max_tokens)
        write_vocabulary(folder / VOCABULARY, words)
        write_json(folder / RECORD, record)
        folder.rename(out)


def _encode(file: Path, ids: Mapping[str, int], config: PrepareTextConfig) -> Document:
    tokens = array.array("I")
    lengths = array.array("I")
    for sentence in read_sentences(file, config.form):
        words = tokenize(sentence)
        tokens.extend(map(ids.__getitem__, words[: config.max_tokens - 1]))
        tokens.append(END)
        lengths.append(len(words) + 1)
    return Document(np.array(tokens, np.uint32), np.array(lengths, np.int64))


def _split(document: Document, config: PrepareTextConfig) -> tuple[Document, Document]:
    """Return the training and the held-out part of a document."""
    n = len(document.lengths)
    border = n - int(n * Fraction(str(config.held_out)))
    token = np.minimum(document.lengths[:border], config.max_tokens).sum()
    train = Document(document.tokens[:token], document.lengths[:border])
    return train, Document(document.tokens[token:], document.lengths[border:])


def _vocabulary(ids: Mapping[str, int], documents: Sequence[Document], size: int) -> list[str]:
    counts = np.zeros(len(SPECIAL) + len(ids), np.int64)
    for document in documents:
        counts += np.bincount(document.tokens, minlength=len(counts))
    known = [word for word, index in ids.items() if counts[index]]
    known.sort(key=lambda word: (-counts[ids[word]], word))
    return [*SPECIAL, *known[:size]]


def _write_split(
    file: Path,
    documents: Sequence[Document],
    words: Sequence[str],
    ids: Mapping[str, int],
    max_tokens: int,
) -> dict[str, Any]:
    """Write the arrays of a split, and return its digest and counts."""
    table = np.full(len(SPECIAL) + len(ids), UNKNOWN, np.min_scalar_type(len(words)))
    table[END] = END
    table[[ids[word] for word in words[len(SPECIAL) :]]] = np.arange(len(SPECIAL), len(words))
    tokens = np.concatenate([table[:0], *(table[document.tokens] for document in documents)])
    lengths = np.concatenate([np.zeros(0, np.int64), *(each.lengths for each in documents)])
    offsets = np.append(0, np.cumsum(np.minimum(lengths, max_tokens)))
    borders = np.append(0, np.cumsum([len(each.lengths) for each in documents], dtype=np.int64))
    head = f"{max_tokens} {vocabulary_digest(words)}"
    caches.write(file, tokens, offsets, borders)
    return {
        "digest": caches.fingerprint(head, tokens, offsets, borders),
        "cut": int(np.sum(lengths > max_tokens)),
        "unknown": int(np.sum(tokens == UNKNOWN)),
    }
