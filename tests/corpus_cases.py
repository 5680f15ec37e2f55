"""A library of small texts, what a corpus holds, and work that is stopped."""

import gzip
import random

import pytest

from hypersphere_jax.data import text
from hypersphere_jax.data.text import pieces, reading, rules

ARRAYS = ("tokens.bin", "offsets.npy", "documents.npy")
FILES = [f"{split}/{name}" for split in ("train", "held_out") for name in ARRAYS]
FILES += ["vocabulary.txt", "corpus.json"]


def made(raw, out, **options):
    assert text.prepare_text(raw, out, **options)
    return text.open_corpus(out)


def read_back(corpus):
    return [text.text(corpus, i) for i in range(len(corpus))]


def contents(folder):
    return {name: (folder / name).read_bytes() for name in FILES}


@pytest.fixture(autouse=True, name="home")
def home_fixture(tmp_path, monkeypatch):
    """Nothing is put into the user's cache."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="module", name="library")
def library_fixture(tmp_path_factory):
    """Sentences of made-up words in files of all kinds, and those sentences as tokens."""
    root = tmp_path_factory.mktemp("library")
    rng = random.Random(0)
    words = [f"w{'abcdefghij'[i % 10]}{i}" for i in range(60)]

    def sentence():
        count = rng.randint(1, 14)
        return " ".join(rng.choices(words, range(60, 0, -1), k=count)) + rng.choice(" .,!").strip()

    documents = {}
    for name, count in (("a.txt", 75), ("b/c.TXT", 40), ("b/d.txt.gz", 61), ("e.txt", 1)):
        documents[name] = [f"É{sentence()[1:]} ." for _ in range(count)]
    (root / "b").mkdir()
    lines = documents["a.txt"]
    (root / "a.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n".join(lines).encode())
    (root / "b/c.TXT").write_bytes("\r".join(documents["b/c.TXT"]).encode("latin-1"))
    with gzip.open(root / "b/d.txt.gz", "wb") as file:
        file.write("\n".join(["", *documents["b/d.txt.gz"], "...", "--", "", ""]).encode())
    (root / "e.txt").write_text(documents["e.txt"][0], encoding="utf-8")
    (root / "empty.txt").touch()
    (root / "notes.md").write_text("Not this.")
    (root / ".hidden.txt").write_text("Not this.")
    return root, {name: [rules.words(s) for s in found] for name, found in documents.items()}


class Stop(Exception):
    pass


def stopping(after):
    """A progress that stops the work after so many steps."""

    def track(items, count):
        for number, item in enumerate(items):
            if number == after:
                raise Stop
            yield item

    return track


@pytest.fixture(name="in_pieces")
def in_pieces_fixture(monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES", 700)
    monkeypatch.setattr(pieces, "PROGRESS_BYTES", 100)
    monkeypatch.setattr(reading, "CHUNK_BYTES", 64)
