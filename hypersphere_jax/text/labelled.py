"""Labelled sentences, on which encoders of sentences are evaluated."""

import dataclasses
import functools
import hashlib
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

logger = logging.getLogger("hypersphere_jax")

TASKS = {"mr": "rt-polarity", "cr": "custrev"}  # file stems of the tasks in Table 4
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
        """Changes with any token or label."""
        digest = hashlib.sha256(repr(self.tokens.shape).encode())
        digest.update(self.tokens.tobytes() + self.labels.tobytes())
        return digest.hexdigest()[:16]


def load_labelled(
    name: str, data_dir: Path | None, vocabulary: Sequence[str], max_tokens: int = LONGEST
) -> Dataset:
    """Load labelled sentences as token ids.

    Args:
      name: "mr" or "cr" in `data_dir`; or the path STEM of two files STEM.pos and STEM.neg with a
        sentence per line; or a .tsv file with a label, a tab and a sentence per line. Files may be
        compressed (.gz).
      data_dir: folder of the named tasks.
      vocabulary: word of each token id, as `Corpus.vocabulary`.
      max_tokens: longest sentence; longer ones are truncated with a warning.

    Returns:
      A dataset without a test split.

    Raises:
      UserError: for missing or malformed files, or a single class.
    """
    path = Path(name).expanduser()
    if name in TASKS:
        require(data_dir is not None, f"{name} needs data_dir=, the folder of {TASKS[name]}.pos")
        path = Path(data_dir).expanduser() / TASKS[name]
    is_table = path.name.endswith((".tsv", ".tsv.gz"))
    rows = _read_table(path) if is_table else _read_pair(path)
    class_names = sorted({label for label, _ in rows})
    require(len(class_names) > 1, f"{path} has the classes {class_names}: two are needed")
    labels = np.array([class_names.index(label) for label, _ in rows], np.int32)
    sentences = [tokenize(sentence) for _, sentence in rows]
    longest = max(map(len, sentences)) + 1
    if longest > max_tokens:
        logger.warning("%s: sentences are truncated to %d words", path, max_tokens - 1)
    tokens = _token_ids(sentences, vocabulary, min(max_tokens, longest))
    source = LabelledSentences(tokens, labels, tuple(class_names), str(path))
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


def _read_pair(path: Path) -> list[tuple[str, str]]:
    """Return class and sentence of each line in two files, given by their stem or one of them."""
    stem = path.name.removesuffix(".gz").removesuffix(".pos").removesuffix(".neg")
    rows = []
    for label in ("neg", "pos"):
        files = [path.with_name(f"{stem}.{label}{ending}") for ending in ("", ".gz")]
        file = next(filter(Path.is_file, files), None)
        hint = did_you_mean(stem, TASKS)
        require(
            file is not None,
            f"no file {files[0]} or {files[1].name}{hint}; name {' or '.join(TASKS)} with "
            "data_dir=, the STEM of STEM.pos and STEM.neg, or a .tsv file",
        )
        rows += [(label, line) for line in read_lines(file) if line.strip()]
    return rows


def _read_table(file: Path) -> list[tuple[str, str]]:
    """Return class and sentence of each line in a table, which may have a header."""
    rows = []
    for number, line in enumerate(read_lines(file), 1):
        label, tab, sentence = line.partition("\t")
        is_header = number == 1 and label.strip().lower() == "label"
        if line.strip() and not is_header:
            message = f"{file}: line {number} is not a label, a tab and a sentence"
            require(bool(tab) and "\t" not in sentence, message)
            rows.append((label.strip(), sentence))
    return rows
