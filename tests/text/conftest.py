"""A library of small texts, and a home without a cache."""

import gzip
import random

import pytest

from hypersphere_jax.text.corpus import open_corpus
from hypersphere_jax.text.prepare import PrepareTextConfig, prepare_text
from hypersphere_jax.text.tokenizer import tokenize


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Keep corpora out of the user's cache."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def prepare():
    """Return a function that prepares a corpus and opens its training and held-out splits."""

    def prepare_and_open(source, out, **options):
        prepare_text(PrepareTextConfig(str(source), str(out), **options))
        return open_corpus(out)

    return prepare_and_open


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """Return a folder of files of all kinds (read only), and the tokens of their sentences."""
    root = tmp_path_factory.mktemp("library")
    (root / "a").mkdir()
    rng = random.Random(0)
    words = [f"w{'abcdefghij'[i % 10]}{i}" for i in range(60)]

    def sentence():
        chosen = rng.choices(words, range(60, 0, -1), k=rng.randint(1, 14))
        return f"É{' '.join(chosen)[1:]}{rng.choice(' .,!').strip()} ."

    sizes = {"a/c.TXT": 40, "a/z.txt.gz": 61, "a.txt": 75, "e.txt": 1}  # sorted by name
    documents = {name: [sentence() for _ in range(size)] for name, size in sizes.items()}
    (root / "a.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n".join(documents["a.txt"]).encode())
    (root / "a/c.TXT").write_bytes("\r".join(documents["a/c.TXT"]).encode("latin-1"))
    zipped = "\n".join(["", *documents["a/z.txt.gz"], "...", "--", "", ""])
    (root / "a/z.txt.gz").write_bytes(gzip.compress(zipped.encode()))
    (root / "e.txt").write_text(documents["e.txt"][0])
    (root / "empty.txt").touch()
    (root / ".hidden.txt").write_text("Not this.")
    return root, {name: [tokenize(s) for s in found] for name, found in documents.items()}
