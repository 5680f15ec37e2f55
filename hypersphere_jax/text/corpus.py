"""Prepared text: consecutive sentences of documents as token ids on disk."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hypersphere_jax.configs import require
from hypersphere_jax.configs.base import program
from hypersphere_jax.text.packing import END
from hypersphere_jax.utils import caches
from hypersphere_jax.utils.files import atomic_write, read_json

RECORD = "corpus.json"
VOCABULARY = "vocabulary.txt"
SPLITS = ("train", "held_out")


class Corpus:
    """Source of the sentences in one split of a prepared corpus, memory-mapped.

    Where image sources have an image, a sentence has its token ids: the ids of its words in the
    vocabulary, UNKNOWN for other words, then END.

    Attributes:
      vocabulary: word of each token id.
      documents: first sentence of each document, then the number of sentences, int64 `[d + 1]`.
      max_tokens: longest possible sentence, with END.
      options: options of `prepare_text`.
      digest: fingerprint of tokens, words and documents.

    Raises:
      UserError: for a folder that is not a corpus, or is damaged.
    """

    class_names: tuple[str, ...] = ()

    def __init__(self, folder: Path, split: str):
        advice = f"{program()} data prepare-text prepares text"
        record = read_json(folder / RECORD, ("options", "vocabulary", *SPLITS), advice)
        arrays = caches.read(folder / f"{split}.npy") or []
        self.vocabulary = read_vocabulary(folder / VOCABULARY)
        is_intact = len(arrays) == 3 and vocabulary_digest(self.vocabulary) == record["vocabulary"]
        require(is_intact, f"{folder} is damaged: remove it and prepare the text again")
        self._tokens, self._offsets, self.documents = arrays
        self._counts: dict[str, int] = record[split]
        self.folder = folder
        self.options: dict[str, Any] = record["options"]
        self.digest: str = record[split]["digest"]
        self.max_tokens: int = self.options["max_tokens"]
        self.image_shape = (self.max_tokens,)
        self.labels = np.broadcast_to(np.int32(-1), len(self))
        self.origin = f"{folder} ({split.replace('_', ' ')})"

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, i: int) -> dict[str, Any]:
        """Return a sentence as `{"image": int32 [max_tokens], "label": -1}`."""
        i = range(len(self))[i]
        tokens, _ = self.rows(i, i + 1)
        image = np.zeros(self.max_tokens, np.int32)
        image[: len(tokens)] = tokens
        return {"image": image, "label": -1}

    def rows(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the concatenated tokens of sentences `start` to `stop - 1`, and their lengths."""
        offsets = np.asarray(self._offsets[start : stop + 1])
        tokens = np.array(self._tokens[offsets[0] : offsets[-1]], np.int32)
        return tokens, np.diff(offsets).astype(np.int32)

    def text(self, i: int) -> str:
        """Return a sentence as words separated by spaces."""
        tokens, _ = self.rows(i, i + 1)
        return " ".join(self.vocabulary[token] for token in tokens if token != END)

    def statistics(self) -> dict[str, float]:
        """Return counts, sentence lengths in words, and shares of unknown and truncated text."""
        words = len(self._tokens) - len(self)
        return {
            "documents": len(self.documents) - 1,
            "sentences": len(self),
            "tokens": len(self._tokens),
            "words_mean": words / len(self),
            "words_95": float(np.quantile(np.diff(self._offsets), 0.95)) - 1,
            "unknown_share": self._counts["unknown"] / words,
            "cut_share": self._counts["cut"] / len(self),
        }


def open_corpus(folder: Path) -> tuple[Corpus, Corpus | None]:
    """Open the train and held-out splits; the latter is None with fewer than two sentences."""
    train, held_out = (Corpus(folder, split) for split in SPLITS)
    if len(held_out) < 2:
        return train, None
    return train, held_out


def write_vocabulary(file: Path, words: Sequence[str]) -> None:
    """Write words to a file, one per line."""
    with atomic_write(file) as stream:
        stream.write("".join(f"{word}\n" for word in words).encode())


def vocabulary_digest(words: Sequence[str]) -> str:
    """Return a fingerprint of words and their order."""
    return caches.fingerprint("\n".join(words))


def read_vocabulary(file: Path) -> tuple[str, ...]:
    """Return the words in a file, none if it does not exist."""
    if not file.is_file():
        return ()
    text = file.read_text(encoding="utf-8", errors="replace")
    return tuple(text.split("\n")[:-1])
