"""A folder of small texts, and the preparation of corpora."""

import gzip
import random

import pytest

from hypersphere_jax.text.corpus import open_corpus
from hypersphere_jax.text.prepare import PrepareTextConfig, prepare_text
from hypersphere_jax.text.tokenizer import tokenize


@pytest.fixture
def prepare():
    """Return a function that prepares a corpus and opens its training and held-out splits."""

    def prepare_and_open(source, out, **options):
        prepare_text(PrepareTextConfig(str(source), str(out), **options))
        return open_corpus(out)

    return prepare_and_open


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """Return a folder of text files (read only), and the tokens of their sentences by file."""
    root = tmp_path_factory.mktemp("library")
    (root / "a").mkdir()
    rng = random.Random(0)
    words = [f"w{'abcdefghij'[i % 10]}{i}" for i in range(60)]
    sizes = {"a/c.TXT": 40, "a/z.txt.gz": 61, "a.txt": 75, "e.txt": 1}  # sorted by name
    documents = {}
    for name, size in sizes.items():
        drawn = [rng.choices(words, range(60, 0, -1), k=rng.randint(1, 14)) for _ in range(size)]
        content = "\n".join(" ".join(sentence) + " ." for sentence in drawn)
        documents[name] = [tokenize(line) for line in content.split("\n")]
        data = content.encode()
        (root / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    (root / "empty.txt").touch()
    (root / ".hidden.txt").write_text("Not this.")
    return root, documents
