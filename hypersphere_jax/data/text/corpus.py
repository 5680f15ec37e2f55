"""A prepared corpus: consecutive sentences of documents, as numbers of words on disk."""

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

from hypersphere_jax.config import UserError, require
from hypersphere_jax.packing import END

FORMAT = 1  # of the files; another number is another layout, or other rules
SPLITS = ("train", "held_out")


class Corpus:
    """A source over one split of a prepared corpus; what the protocol calls an image is a sentence.

    A sentence is its words' numbers in the vocabulary, with the end token 1 as the last; 2 is
    every word outside the vocabulary. The tokens stay on disk, memory-mapped.

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
      UserError: when files are missing, cut short or of another format.
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
        place, kind = self.folder / split, token_type(about["words"])
        try:
            words = (self.folder / "vocabulary.txt").read_text(encoding="utf-8")
            self.documents = np.load(place / "documents.npy")
            self._offsets = np.load(place / "offsets.npy", mmap_mode="r")
            tokens = self.counts["tokens"]  # a file without any cannot be mapped
            self._tokens = np.memmap(place / "tokens.bin", kind, "r") if tokens else np.zeros(0)
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"{_damaged(self.folder)} ({error})") from error
        self.vocabulary = tuple(words.split("\n")[:-1])
        sizes = len(self.vocabulary), len(self.documents) - 1, len(self), len(self._tokens)
        expected = about["words"], *(self.counts[k] for k in ("documents", "sentences", "tokens"))
        require(
            sizes == expected,
            f"{_damaged(self.folder)} ({split}: {sizes} words, documents, sentences and tokens "
            f"in place of {expected})",
        )

    def __reduce__(self):
        return Corpus, (self.folder, self.split)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, i: int) -> dict[str, Any]:
        """`{"image": int32 [max_tokens], zero padded; "label": -1}`."""
        i = range(len(self))[i]
        tokens = self._tokens[self._offsets[i] : self._offsets[i + 1]]
        image = np.zeros(self.max_tokens, np.int32)
        image[: len(tokens)] = tokens
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

    def text(self, i: int) -> str:
        """A sentence as words with spaces between them, for people."""
        tokens, _ = self.rows(i, i + 1)
        return " ".join(self.vocabulary[token] for token in tokens if token != END)

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each sentence with its end token, int32 `[n]`, in memory; see also `rows`."""
        lengths = np.empty(len(self), np.int32)
        return np.subtract(self._offsets[1:], self._offsets[:-1], out=lengths, casting="unsafe")

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
      UserError: when files are missing, cut short or of another format.
    """
    train, held_out = (Corpus(folder, split) for split in SPLITS)
    return train, held_out if len(held_out) >= 2 else None


def token_type(words: int) -> np.dtype:
    """The type of tokens on disk, for a vocabulary of so many words."""
    return np.dtype("<u2" if words <= 2**16 else "<u4")


def read_about(folder: Path) -> dict[str, Any]:
    """The content of corpus.json.

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


def _damaged(folder: Path) -> str:
    return f"{folder} is damaged: remove it, and prepare the text anew"
