"""Labelled sentences, on which encoders of sentences are evaluated."""

import dataclasses
import functools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hypersphere_jax.configs import require
from hypersphere_jax.configs.base import did_you_mean
from hypersphere_jax.data import Dataset
from hypersphere_jax.text.packing import END, UNKNOWN
from hypersphere_jax.text.text_files import read_lines
from hypersphere_jax.text.tokenizer import tokenize
from hypersphere_jax.utils.caches import fingerprint

logger = logging.getLogger("hypersphere_jax")

TASKS = {"mr": "rt-polarity", "cr": "custrev"}  # file stems of the tasks in Table 4
CLASSES = ("neg", "pos")
LONGEST = 128  # tokens; longer sentences are truncated


@dataclasses.dataclass(eq=False)
class LabelledSentences:
    """Source of labelled sentences in memory.

    Attributes:
      tokens: int32 `[n, t]`, each row with END and then padding.
      labels: int32 `[n]`.
      class_names: name of each label.
      origin: place of the files, for messages.
    """

    tokens: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...]
    origin: str

    @property
    def image_shape(self) -> tuple[int, ...]:
        return self.tokens.shape[1:]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"image": self.tokens[i], "label": int(self.labels[i])}

    @functools.cached_property
    def digest(self) -> str:
        """Fingerprint of tokens and labels."""
        return fingerprint(repr(self.tokens.shape), self.tokens, self.labels)


def load_labelled(
    name: str, data_dir: Path | None, vocabulary: Sequence[str], max_tokens: int = LONGEST
) -> Dataset:
    """Load labelled sentences as token ids.

    Args:
      name: "mr" or "cr" in `data_dir`; or the path STEM of two files STEM.pos and STEM.neg with a
        sentence per line, or of two compressed files STEM.pos.gz and STEM.neg.gz.
      data_dir: folder of the named tasks.
      vocabulary: word of each token id, as `Corpus.vocabulary`.
      max_tokens: longest sentence; longer ones are truncated with a warning.

    Returns:
      A dataset without a test split.

    Raises:
      UserError: for missing or empty files.
    """
    path = Path(name).expanduser()
    if name in TASKS:
        require(data_dir is not None, f"{name} needs data_dir=, the folder of {TASKS[name]}.pos")
        path = Path(data_dir).expanduser() / TASKS[name]
    lines = [_read_class(path, label) for label in CLASSES]
    labels = np.repeat(np.arange(len(CLASSES), dtype=np.int32), [len(part) for part in lines])
    sentences = [tokenize(line) for part in lines for line in part]
    longest = max(map(len, sentences)) + 1
    if longest > max_tokens:
        logger.warning("%s: sentences are truncated to %d words", path, max_tokens - 1)
    tokens = _token_ids(sentences, vocabulary, min(max_tokens, longest))
    source = LabelledSentences(tokens, labels, CLASSES, str(path))
    return Dataset(source, None, source, "none")


def _token_ids(
    sentences: Sequence[Sequence[str]], vocabulary: Sequence[str], width: int
) -> np.ndarray:
    """Return the token ids of sentences with END and padding, int32 `[n, width]`."""
    ids = {word: index for index, word in enumerate(vocabulary)}
    tokens = np.zeros((len(sentences), width), np.int32)
    for row, sentence in zip(tokens, sentences, strict=True):
        known = [ids.get(word, UNKNOWN) for word in sentence[: width - 1]]
        row[: len(known) + 1] = [*known, END]
    return tokens


def _read_class(path: Path, label: str) -> list[str]:
    """Return the sentences of a class, given the stem of its file or the file of any class."""
    stem = path.name.removesuffix(".gz").removesuffix(".pos").removesuffix(".neg")
    files = [path.with_name(f"{stem}.{label}{ending}") for ending in ("", ".gz")]
    file = next(filter(Path.is_file, files), None)
    require(
        file is not None,
        f"no file {files[0]} or {files[1].name}{did_you_mean(stem, TASKS)}; name "
        f"{' or '.join(TASKS)} with data_dir=, or the STEM of STEM.pos and STEM.neg",
    )
    lines = [line for line in read_lines(file) if line.strip()]
    require(bool(lines), f"{file} contains no sentence")
    return lines
