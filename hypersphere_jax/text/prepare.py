"""Corpora of text files: prepared once by a command, or on the fly for a run."""

import array
import collections
import contextlib
import itertools
import json
import logging
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from tyro.conf import Positional, arg

from hypersphere_jax.configs import DataConfig, UserError, base, require
from hypersphere_jax.configs.data import MAX_TOKENS
from hypersphere_jax.data import NAMED, Dataset
from hypersphere_jax.data.layouts import EXTENSIONS
from hypersphere_jax.text import corpus, text_files
from hypersphere_jax.text.corpus import Corpus, open_corpus
from hypersphere_jax.text.packing import END, SPECIAL, UNKNOWN
from hypersphere_jax.text.tokenizer import tokenize
from hypersphere_jax.utils import caches
from hypersphere_jax.utils.files import locked, write_json
from hypersphere_jax.utils.terminal import track

logger = logging.getLogger("hypersphere_jax")

BOOKS = "books"  # name of the text in `data_dir`
CACHE = "~/.cache/hypersphere_jax/text"
FORMAT = 2  # changes with the tokenizer and with the files of a corpus
MAX_LISTED = 10_000  # files of a folder that are listed to distinguish text from images
# Options of `DataConfig` that apply to images only.
IMAGE_OPTIONS = (
    *("channels", "classes", "subset", "subset_size", "fraction", "folds", "bits"),
    *("bad_images", "recipe", "source", "augment", "preprocess"),
)


@dataclass(frozen=True)
class PrepareTextConfig(base.Config):
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
        base.check_range(self, "vocabulary", at_least=1)
        base.check_range(self, "max_tokens", at_least=2, at_most=MAX_TOKENS)
        base.check_range(self, "held_out", at_least=0, below=1)


def load_text(config: DataConfig) -> Dataset:
    """Load the text that a config names. The corpus of text files is kept in `CACHE`.

    Raises:
      UserError: for missing text, and for options that apply to images only or do not fit the
        corpus.
    """
    path = _text_path(config)
    base.refuse(config, IMAGE_OPTIONS, f"is for images, and {path} is text: omit it")
    options = {"vocabulary": config.vocabulary, "max_tokens": config.max_tokens}
    if (path / corpus.RECORD).is_file():
        train, held_out = open_corpus(path)
    else:
        train, held_out = _open_cached(path, options)
    for name, value in options.items():
        prepared = train.options[name]
        require(
            value in (prepared, getattr(DataConfig, name)),
            f"{name}={value}: {path} was prepared with {prepared}; omit the option, or prepare the "
            "text again",
        )
    return Dataset(train, held_out, train, "none")


def _open_cached(path: Path, options: dict[str, int]) -> tuple[Corpus, Corpus | None]:
    """Open the corpus of text files, which is prepared unless it is in the cache."""
    stats = [(str(file.resolve()), file.stat()) for file in text_files.find(path)]
    files = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
    folder = Path(CACHE).expanduser() / caches.fingerprint(json.dumps([FORMAT, files, options]))
    with locked(folder.with_suffix(".lock")):
        with contextlib.suppress(UserError):
            return open_corpus(folder)
        shutil.rmtree(folder, ignore_errors=True)
        logger.info("preparing the text in %s once; its corpus is kept in %s", path, folder)
        prepare_text(PrepareTextConfig(str(path), str(folder), **options))
        return open_corpus(folder)


def find_text(config: DataConfig) -> Path | None:
    """Return the path of the text that a config names, or None if it names images."""
    if config.source is not None or (config.data in NAMED and config.data != BOOKS):
        return None
    path = _text_path(config)
    files = list(itertools.islice(text_files.visible_files(path), MAX_LISTED))
    texts = sum(map(text_files.is_text, files))
    images = sum(file.suffix[1:].lower() in EXTENSIONS for file in files)  # perhaps with labels
    is_mostly_text = 2 * texts > len(files) and 10 * images < texts
    if config.data == BOOKS or is_mostly_text or (path / corpus.RECORD).is_file():
        return path
    return None


def _text_path(config: DataConfig) -> Path:
    if config.data != BOOKS:
        return Path(config.data).expanduser()
    needed = "a folder of .txt or .txt.gz files, or a prepared corpus"
    require(config.data_dir is not None, f"data={BOOKS} needs data_dir=, {needed}")
    return Path(config.data_dir).expanduser()


class Document(NamedTuple):
    """The part of a text file in one split."""

    tokens: np.ndarray  # ids of words, in the order in which words first occurred in the corpus
    lengths: np.ndarray  # tokens of each sentence before truncation


def prepare_text(config: PrepareTextConfig) -> None:
    """Write a corpus of text files into a new folder, for `open_corpus`.

    The most frequent word of the training part gets the smallest id; ties are in alphabetical
    order. Memory: about 8 bytes per word. An interrupted preparation leaves no corpus.

    Raises:
      UserError: for missing text, or a folder that is not empty.
    """
    raw = Path(config.raw).expanduser()
    out = Path(config.out).expanduser()
    files = text_files.find(raw)
    is_free = not out.exists() or (out.is_dir() and not any(out.iterdir()))
    require(is_free, f"out={out} exists and is not empty: name another folder")
    is_inside = raw.resolve() in (out.resolve(), *out.resolve().parents)
    require(not is_inside, f"out={out} is in the folder of the text: name another folder")
    ids: dict[str, int] = collections.defaultdict(itertools.count(len(SPECIAL)).__next__)
    documents = [_read_document(file, ids, config) for file in track(files, "reading")]
    splits = dict(zip(corpus.SPLITS, zip(*documents, strict=True), strict=True))
    words = _vocabulary(ids, splits["train"], config.vocabulary)
    require(len(words) > len(SPECIAL), f"{raw} contains no word")
    digest = corpus.vocabulary_digest(words)
    options = {name: value for name, value in vars(config).items() if name not in ("raw", "out")}
    record: dict[str, Any] = {"options": options, "vocabulary": digest}
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as temporary:
        folder = Path(temporary, "corpus")
        folder.mkdir()
        for name, parts in splits.items():
            arrays, counts = _split_arrays(parts, words, ids, config.max_tokens)
            caches.write(folder / f"{name}.npy", *arrays)
            fingerprint = caches.fingerprint(f"{config.max_tokens} {digest}", *arrays)
            record[name] = {"digest": fingerprint, **counts}
        corpus.write_vocabulary(folder / corpus.VOCABULARY, words)
        write_json(folder / corpus.RECORD, record)
        folder.rename(out)


def _read_document(
    file: Path, ids: Mapping[str, int], config: PrepareTextConfig
) -> tuple[Document, Document]:
    """Return the training and the held-out part of a text file."""
    tokens = array.array("I")
    lengths = array.array("I")
    for sentence in text_files.read_sentences(file, config.form):
        words = tokenize(sentence)
        tokens.extend(map(ids.__getitem__, words[: config.max_tokens - 1]))
        tokens.append(END)
        lengths.append(len(words) + 1)
    whole = Document(np.array(tokens, np.uint32), np.array(lengths, np.int64))
    border = len(lengths) - int(len(lengths) * Fraction(str(config.held_out)))
    token = np.minimum(whole.lengths[:border], config.max_tokens).sum()
    train = Document(whole.tokens[:token], whole.lengths[:border])
    return train, Document(whole.tokens[token:], whole.lengths[border:])


def _vocabulary(ids: Mapping[str, int], documents: Sequence[Document], size: int) -> list[str]:
    """Return the special tokens and the most frequent words."""
    counts = np.zeros(len(SPECIAL) + len(ids), np.int64)
    for document in documents:
        counts += np.bincount(document.tokens, minlength=len(counts))
    known = [word for word, index in ids.items() if counts[index]]
    known.sort(key=lambda word: (-counts[ids[word]], word))
    return [*SPECIAL, *known[:size]]


def _split_arrays(
    documents: Sequence[Document], words: Sequence[str], ids: Mapping[str, int], max_tokens: int
) -> tuple[list[np.ndarray], dict[str, int]]:
    """Return tokens, first tokens of sentences and first sentences of documents, and counts."""
    table = np.full(len(SPECIAL) + len(ids), UNKNOWN, np.min_scalar_type(len(words)))
    table[END] = END
    table[[ids[word] for word in words[len(SPECIAL) :]]] = np.arange(len(SPECIAL), len(words))
    tokens = np.concatenate([table[document.tokens] for document in documents])
    lengths = np.concatenate([document.lengths for document in documents])
    offsets = np.append(0, np.cumsum(np.minimum(lengths, max_tokens)))
    sizes = [len(document.lengths) for document in documents if len(document.lengths)]
    borders = np.append(0, np.cumsum(sizes, dtype=np.int64))
    cut = int(np.sum(lengths > max_tokens))
    return [tokens, offsets, borders], {"cut": cut, "unknown": int(np.sum(tokens == UNKNOWN))}
