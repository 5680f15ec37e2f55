"""A prepared corpus: consecutive sentences of documents, as numbers of words on disk."""

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.configs.base import program
from hypersphere_jax.data.text.packing import END
from hypersphere_jax.utils.arrays import open_array
from hypersphere_jax.utils.files import open_file, read_json

FORMAT = 1  # of the files; another number is another layout, or other rules
SPLITS = ("train", "held_out")
FILES = ("tokens.bin", "offsets.npy", "documents.npy")  # of a split
# Options of `prepare_text` that corpus.json records.
OPTIONS = ("vocabulary", "max_tokens", "held_out", "form")


class Corpus:
    """A source over one split ("train" or "held_out") of what `prepare_text` put into a folder.

    What the protocol calls an image is a sentence: its words' numbers in the vocabulary, 2 for
    every other word, and the end token 1. The tokens stay on disk, memory-mapped.

    Attributes:
      vocabulary: the word of each number.
      documents: int64 `[d + 1]`, the first sentence of each document, then the number of all.
      max_tokens: of a sentence, with its end token.
      counts: documents, sentences, tokens, and how many sentences were cut and words are unknown.
      options: of `prepare_text`.
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
        damaged = f"{self.folder} is damaged: remove it, and prepare the text anew"
        try:
            with open_file(self.folder / "vocabulary.txt") as stream:
                words = stream.read().decode()
            self.documents = open_array(place / "documents.npy")
            self._offsets = open_array(place / "offsets.npy")
            with open_file(place / "tokens.bin") as stream:  # without any it cannot be mapped
                tokens = self.counts["tokens"]
                self._tokens = np.memmap(stream, kind, "r") if tokens else np.zeros(0)
        except (UserError, ValueError) as error:
            raise UserError(f"{damaged} ({error})") from error
        self.vocabulary = tuple(words.split("\n")[:-1])
        sizes = len(self.vocabulary), len(self), len(self._tokens)
        expected = about["words"], self.counts["sentences"], self.counts["tokens"]
        rest = self.max_tokens, self.vocabulary, self.documents.tolist()
        found = digest_of(self._offsets, hashlib.sha256(self._tokens).digest(), *rest)
        require(sizes == expected and found == self.digest, damaged)

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
        """Tokens `[total]` of sentences `start` to `stop` - 1, and how many each has; int32."""
        offsets = np.asarray(self._offsets[start : stop + 1])
        tokens = np.array(self._tokens[offsets[0] : offsets[-1]], np.int32)
        return tokens, np.diff(offsets).astype(np.int32)

    def text(self, i: int) -> str:
        """A sentence as words with spaces between them."""
        tokens, _ = self.rows(i, i + 1)
        return " ".join(self.vocabulary[token] for token in tokens if token != END)

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each sentence with its end token, int32 `[n]`."""
        return np.diff(self._offsets).astype(np.int32)

    @property
    def labels(self) -> np.ndarray:
        """-1 for each sentence, int32 `[n]`, read-only."""
        return np.broadcast_to(np.int32(-1), len(self))

    @property
    def digest(self) -> str:
        """Of tokens, borders and words."""
        return self.counts["digest"]


def open_corpus(folder: Path) -> tuple[Corpus, Corpus | None]:
    """The training and the held-out split; None where that has fewer than two sentences."""
    train, held_out = (Corpus(folder, split) for split in SPLITS)
    return train, held_out if len(held_out) >= 2 else None


def digest_of(offsets: np.ndarray, tokens: bytes, *rest: Any) -> str:
    """Of a split; the SHA-256 of its tokens, and `max_tokens`, words and documents are given."""
    borders = json.dumps(rest).encode()
    return hashlib.sha256(borders + offsets.tobytes() + tokens).hexdigest()[:16]


def token_type(words: int) -> np.dtype:
    """Of tokens on disk, for a vocabulary of so many words."""
    return np.dtype("<u2" if words <= 2**16 else "<u4")


def read_about(folder: Path) -> dict[str, Any]:
    """The content of corpus.json."""
    advice = f"{program()} data prepare-text makes a corpus of text"
    keys = ("format", "words", "options", "files", *SPLITS)
    about = read_json(folder / "corpus.json", keys, advice)
    require(about["format"] == FORMAT, f"{folder} has another format: {advice}")
    return about
