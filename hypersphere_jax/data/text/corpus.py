"""A prepared corpus: consecutive sentences of documents, as numbers of words on disk."""

import functools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hypersphere_jax.config import UserError, require
from hypersphere_jax.packing import END, SPECIAL, UNKNOWN

FORMAT = 1  # of the files; another number is another layout, or other rules
SPLITS = ("train", "held_out")


class Corpus:
    """A source over one split of a prepared corpus; what the protocol calls an image is a sentence.

    A sentence is its words' numbers in the vocabulary, with the end token 1 as the last; 2 stands
    for words outside the vocabulary. The tokens stay on disk, memory-mapped.

    Args:
      folder: where `prepare_text` put the corpus.
      split: "train" or "held_out".

    Attributes:
      vocabulary: the word of each number.
      documents: int64 `[d + 1]`, the first sentence of each document, then the number of all.
      max_tokens: of a sentence, with its end token.
      counts: documents, sentences, tokens, and how many sentences were cut and words are unknown.
      options: of `prepare_text`.

    Raises:
      UserError: when files are missing, cut short or not as described.
    """

    class_names: tuple[str, ...] = ()

    def __init__(self, folder: Path, split: str):
        self.folder, self.split = Path(folder), split
        about = read_about(self.folder)
        self.counts: dict[str, Any] = about[split]
        self.options: dict[str, Any] = about["options"]
        self.max_tokens: int = self.options["max_tokens"]
        self.image_shape = (self.max_tokens,)
        self.origin = f"{self.folder} ({split.replace('_', ' ')})"
        self.vocabulary = _read_vocabulary(self.folder, about["words"])
        n, tokens = self.counts["sentences"], self.counts["tokens"]
        place = self.folder / split
        self._tokens = _map_tokens(place / "tokens.bin", tokens, len(self.vocabulary))
        self._offsets = _map_array(place / "offsets.npy", n, tokens)
        self.documents = np.array(
            _map_array(place / "documents.npy", self.counts["documents"], n), np.int64
        )

    def __reduce__(self):
        return Corpus, (self.folder, self.split)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, i: int) -> dict[str, Any]:
        """`{"image": int32 [max_tokens], zero padded; "label": -1}`."""
        i = range(len(self))[i]
        found = self._tokens[self._offsets[i] : self._offsets[i + 1]]
        image = np.zeros(self.max_tokens, np.int32)
        image[: len(found)] = found
        return {"image": image, "label": -1}

    def rows(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Consecutive sentences without padding.

        Args:
          start: the first.
          stop: the one behind the last; 0 <= start <= stop <= n.

        Returns:
          Their tokens one after another, int32 `[total]`, and how many each has, int32
          `[stop - start]`.
        """
        if not 0 <= start <= stop <= len(self):
            raise ValueError(f"rows {start} to {stop} of {len(self)}")
        offsets = np.asarray(self._offsets[start : stop + 1])
        tokens = np.array(self._tokens[offsets[0] : offsets[-1]], np.int32)
        return tokens, np.diff(offsets).astype(np.int32)

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each sentence with its end token, int32 `[n]`, in memory; see also `rows`."""
        found = np.empty(len(self), np.int32)
        return np.subtract(self._offsets[1:], self._offsets[:-1], out=found, casting="unsafe")

    @property
    def labels(self) -> np.ndarray:
        """-1 for each sentence, int32 `[n]`: a view, read-only, of one number."""
        return np.broadcast_to(np.int32(-1), len(self))

    @property
    def digest(self) -> str:
        """Of tokens, borders and words, as they were written."""
        return self.counts["digest"]


def open_corpus(folder: Path) -> tuple[Corpus, Corpus | None]:
    """The training and the held-out split; None where that has fewer than two sentences.

    Raises:
      UserError: when files are missing, cut short or not as described.
    """
    train, held_out = (Corpus(folder, split) for split in SPLITS)
    return train, held_out if len(held_out) >= 2 else None


def text(corpus: Corpus, i: int) -> str:
    """A sentence as words with spaces between them, for people."""
    tokens, _ = corpus.rows(i, i + 1)
    return " ".join(corpus.vocabulary[token] for token in tokens if token != END)


def encode(
    sentences: Iterable[Sequence[str]], vocabulary: Sequence[str], max_tokens: int
) -> np.ndarray:
    """Sentences as numbers of words.

    Args:
      sentences: the words of each.
      vocabulary: the word of each number, with those of `SPECIAL` first.
      max_tokens: longer sentences are cut there, so that each has its end token.

    Returns:
      int32 `[n, max_tokens]`, zero padded.
    """
    number = {word: i for i, word in enumerate(vocabulary)}
    rows = [
        [number.get(word, UNKNOWN) for word in words[: max_tokens - 1]] + [END]
        for words in sentences
    ]
    tokens = np.zeros((len(rows), max_tokens), np.int32)
    for row, found in zip(tokens, rows, strict=True):
        row[: len(found)] = found
    return tokens


def token_type(words: int) -> np.dtype:
    """How tokens lie on disk, for a vocabulary of so many words."""
    return np.dtype("<u2" if words <= 2**16 else "<u4")


def read_about(folder: Path) -> dict[str, Any]:
    """What corpus.json says of a prepared corpus.

    Raises:
      UserError: when it is not there, or of another version.
    """
    file = folder / "corpus.json"
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
        version = about["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{folder} is no prepared corpus, as {file} cannot be read: "
            "python run.py data prepare-text makes one"
        ) from error
    require(
        version == FORMAT,
        f"{folder} is a corpus of format {version}, not {FORMAT}: prepare the text anew",
    )
    return about


def _read_vocabulary(folder: Path, words: int) -> tuple[str, ...]:
    file = folder / "vocabulary.txt"
    try:
        found = file.read_text(encoding="utf-8").split("\n")[:-1]
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(file, str(error)) from error
    if len(found) != words or tuple(found[:3]) != SPECIAL:
        raise _damaged(file, f"{len(found)} words, not {words}")
    return tuple(found)


def _map_tokens(file: Path, count: int, words: int) -> np.ndarray:
    kind = token_type(words)
    try:
        size = file.stat().st_size
        if size != count * kind.itemsize:
            raise _damaged(file, f"{size} bytes, not {count * kind.itemsize}")
        return np.memmap(file, kind, "r") if count else np.zeros(0, kind)
    except OSError as error:
        raise _damaged(file, error.strerror or str(error)) from error


def _map_array(file: Path, count: int, last: int) -> np.ndarray:
    """Offsets `[count + 1]`, of which the last is known."""
    try:
        array = np.load(file, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise _damaged(file, str(error)) from error
    if array.shape != (count + 1,) or array.dtype != np.int64 or array[-1] != last:
        raise _damaged(file, f"{array.dtype} {array.shape}, not {count + 1} offsets up to {last}")
    return array


def _damaged(file: Path, why: str) -> UserError:
    return UserError(f"{file} is damaged ({why}): prepare the text anew into another folder")
