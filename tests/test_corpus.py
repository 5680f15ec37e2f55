"""Corpora of text: what is read, numbered and written."""

import collections
import gzip
import json
import pickle
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from corpus_cases import (  # noqa: F401  fixtures
    FILES,
    home_fixture,
    library_fixture,
    made,
    read_back,
)

from hypersphere_jax import data, datasheet
from hypersphere_jax.config import DataConfig, LookedAt, PrepareTextConfig, UserError
from hypersphere_jax.data import text
from hypersphere_jax.data.text import corpus as corpora
from hypersphere_jax.data.text import pieces, reading


def test_corpus_is_what_the_files_hold(library, tmp_path):
    root, documents = library
    train, held_out = made(
        root, tmp_path / "out", vocabulary=40, max_tokens=8, held_out=0.1, form="sentences"
    )
    order = [documents[name] for name in ("a.txt", "b/c.TXT", "b/d.txt.gz", "e.txt")]
    held = [len(document) // 10 for document in order]
    assert held == [7, 4, 6, 0]
    expected = [d[: len(d) - h] for d, h in zip(order, held, strict=True)]
    counts = collections.Counter(w for d in expected for s in d for w in s[:7])
    vocabulary = sorted(counts, key=lambda word: (-counts[word], word))[:40]
    assert train.vocabulary == ("<pad>", "<end>", "<unk>", *vocabulary)
    assert held_out.vocabulary == train.vocabulary

    known = set(vocabulary)
    for corpus, parts in (
        (train, expected),
        (held_out, [d[len(d) - h :] for d, h in zip(order, held, strict=True) if h]),
    ):
        sentences = [s for part in parts for s in part]
        assert read_back(corpus) == [
            " ".join(w if w in known else "<unk>" for w in s[:7]) for s in sentences
        ]
        assert corpus.documents.tolist() == [0, *np.cumsum([len(part) for part in parts])]
        assert corpus.lengths.tolist() == [min(len(s), 7) + 1 for s in sentences]
        assert corpus.counts["cut"] == sum(len(s) > 7 for s in sentences) > 0
        unknown = sum(w not in known for s in sentences for w in s[:7])
        assert corpus.counts["unknown"] == unknown > 0
        assert corpus.counts["documents"] == len(parts)
        assert corpus.counts["tokens"] == corpus.lengths.sum()
    about = json.loads((tmp_path / "out/corpus.json").read_text())
    assert [(f["name"], f["encoding"], f["sentences"]) for f in about["files"]] == [
        ("a.txt", "utf-8", 75),
        ("b/c.TXT", "cp1252", 40),
        ("b/d.txt.gz", "utf-8", 61),
        ("e.txt", "utf-8", 1),
        ("empty.txt", "utf-8", 0),
    ]


def test_source(library, tmp_path):
    train, _ = made(library[0], tmp_path / "out", max_tokens=9)
    assert train.image_shape == (9,) and train.class_names == () and train.max_tokens == 9
    np.testing.assert_array_equal(train.labels, [-1] * len(train))
    assert train.labels.dtype == np.int32 and not train.labels.flags.writeable
    tokens, lengths = train.rows(70, 90)
    assert tokens.dtype == lengths.dtype == np.int32 and type(tokens) is np.ndarray
    ends = np.cumsum(lengths)
    assert len(lengths) == 20 and ends[-1] == len(tokens)
    for i, end, length in zip(range(70, 90), ends, lengths, strict=True):
        sample = train[i]
        assert sample["label"] == -1 and sample["image"].dtype == np.int32
        padded = [*tokens[end - length : end], *[0] * (9 - length)]
        assert sample["image"].tolist() == padded and tokens[end - 1] == 1
        assert 1 not in tokens[end - length : end - 1]
    assert train[-1]["image"].tolist() == train[len(train) - 1]["image"].tolist()
    with pytest.raises(IndexError):
        train[len(train)]
    with pytest.raises(ValueError, match="rows 3 to 2"):
        train.rows(3, 2)
    empty = train.rows(5, 5)
    assert empty[0].size == empty[1].size == 0
    again = pickle.loads(pickle.dumps(train))
    assert read_back(again) == read_back(train) and again.digest == train.digest
    assert len(pickle.dumps(train)) < 1000


def test_a_large_corpus_takes_little_memory(library, tmp_path):
    train, _ = made(library[0], tmp_path / "out")
    lengths = np.random.default_rng(0).integers(1, 60_000, 10**6)
    train._offsets = np.concatenate([[0], np.cumsum(lengths)])
    peaks = []
    for work in (lambda: train.labels, lambda: train.rows(3, 9), lambda: train.lengths):
        tracemalloc.start()
        work()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks[:2]) < 1e6 and peaks[2] < 5e6  # one int32 a sentence
    np.testing.assert_array_equal(train.lengths, lengths)
    assert train.lengths.dtype == np.int32 and train.labels.shape == (10**6,)


def test_digest_changes_with_text_and_options(library, tmp_path):
    digests = set()
    for number, options in enumerate(({}, {"max_tokens": 8}, {"vocabulary": 9}, {"held_out": 0.2})):
        train, held_out = made(library[0], tmp_path / str(number), **options)
        digests |= {train.digest, held_out.digest}
    assert len(digests) == 8
    copy = tmp_path / "copy"
    shutil.copytree(library[0], copy)
    assert made(copy, tmp_path / "same")[0].digest in digests
    (copy / "e.txt").write_text("Another sentence .")
    assert made(copy, tmp_path / "other")[0].digest not in digests


def test_ties_are_in_alphabetical_order(tmp_path):
    (tmp_path / "t.txt").write_text("b b a.\n\nc a d.\n\nzebra zebra zebra.\n\n")
    train, held_out = made(tmp_path / "t.txt", tmp_path / "out", held_out=0.34)
    # The last sentence is held out: its word is not known.
    assert train.vocabulary[3:] == (".", "a", "b", "c", "d")
    assert read_back(train) == ["b b a .", "c a d ."]
    assert held_out is None  # of one sentence
    assert read_back(corpora.Corpus(tmp_path / "out", "held_out")) == ["<unk> <unk> <unk> ."]


@pytest.mark.parametrize("share, held", [(0.05, 5), (0.29, 29), (0.157, 15), (0.009, 0), (0, 0)])
def test_held_out_is_rounded_down(tmp_path, share, held):
    (tmp_path / "t.txt").write_text("\n".join(f"Number {i}." for i in range(100)))
    made(tmp_path / "t.txt", tmp_path / "out", held_out=share)
    assert len(corpora.Corpus(tmp_path / "out", "held_out")) == held


def test_prose(tmp_path):
    novel = (
        "The Project Gutenberg EBook\r\n\r\n*** START OF THIS PROJECT GUTENBERG EBOOK X ***\r\n"
        "\r\nCHAPTER I\r\n\r\nEmma was hand-\r\nsome. She was\r\nrich.\r\n   \r\n"
        "“Oh!” said\r\nMr. Knightley.\r\n***\r\n\r\nThe _end_.\r\n"
        "End of Project Gutenberg's X\r\n\r\nLicence. More licence.\r\n"
    )
    (tmp_path / "x.txt").write_bytes(novel.encode("cp1252"))
    train, _ = made(tmp_path / "x.txt", tmp_path / "out", held_out=0)
    assert read_back(train) == [
        "chapter i",
        "emma was hand - some .",
        "she was rich .",
        '" oh ! " said mr . knightley . * * *',
        "the end .",
    ]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64, 2**16])
def test_blocks_change_nothing(tmp_path, monkeypatch, end, chunk):
    """Blocks end within characters of many bytes, within line ends, and anywhere else."""
    lines = ["Él. “Ça va?”", "日本 𝄞 is", "here.", "", "Then—so. Ωmega.", "", "", "*** x", "Ende."]
    expected = ["Él.", "“Ça va?”", "日本 𝄞 is here.", "Then—so.", "Ωmega.", "*** x Ende."]
    path = tmp_path / "t.txt"
    path.write_bytes(end.join(lines).encode())
    monkeypatch.setattr(reading, "CHUNK_BYTES", chunk)
    cursor = reading.begin(path, "utf-8", "prose")
    found = []
    for sentences, _ in reading.read(path, cursor):
        found += sentences
        # Any state can be left and taken up.
        saved = json.loads(json.dumps(cursor.__dict__ | {"carry": ["".join(cursor.carry)]}))
        rest = [s for part, _ in reading.read(path, reading.Cursor(**saved)) for s in part]
        assert found + rest == expected
    assert found == expected


def test_a_long_paragraph_is_split_as_a_short_one(tmp_path):
    parts = [f"Mr. Number {i} said “no” to J. R. Doe." for i in range(6000)]
    for number, joint in enumerate((" ", "\n")):
        path = tmp_path / f"{number}.txt"
        path.write_text(joint.join(parts))
        assert path.stat().st_size > 3 * reading.PARAGRAPH_LIMIT
        cursor = reading.begin(path, "utf-8", "prose")
        found = [s for part, _ in reading.read(path, cursor) for s in part]
        assert found == parts


GOOD = "Él. “Ça va?” 日本 𝄞 is here.\n" * 3
ENCODED = {  # bytes; encoding; the first bad byte
    "whole": (GOOD.encode(), "utf-8", None),
    "one bad byte": (GOOD.encode() + b"\xff" + GOOD.encode(), "utf-8", 120),
    "cut inside a character": (GOOD.encode() * 2 + b"\xe6\x97", "utf-8", 240),
    "a character of two halves": (b"a\xed\xa0\xb4" + GOOD.encode() * 3, "utf-8", 1),
    "Latin-1": ("Él. Ça va?\n".encode("cp1252") * 3, "cp1252", None),
    "Latin-1 with some UTF-8": (b"plain " + "Él".encode() * 3 + b"\xe9", "cp1252", 15),
    "all bytes": (bytes(range(256)) * 2, "cp1252", None),
}


@pytest.mark.parametrize("block", [1, 2, 3, 5, 2**18])
@pytest.mark.parametrize("case", ENCODED)
def test_encoding(tmp_path, monkeypatch, caplog, case, block):
    monkeypatch.setattr(reading, "LOOK_BYTES", block)
    data, encoding, first = ENCODED[case]
    for path in (tmp_path / "t.txt", tmp_path / "t.txt.gz"):
        caplog.clear()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        assert reading.encoding_of(path) == encoding
        positions = list(reading.look_through(path))
        assert positions == sorted(positions) and positions[-1] == path.stat().st_size
        if first is None:
            assert not caplog.messages
        else:
            assert len(caplog.messages) == 2 and len(set(caplog.messages)) == 1
            words = caplog.messages[0].replace(":", " ").replace(",", " ").split()
            assert str(path) in words and str(first) in words


def test_one_bad_byte_is_one_bad_character(tmp_path):
    (tmp_path / "t.txt").write_bytes("Le café — l’été".encode() + b"\x80" + " à Paris.".encode())
    train, _ = made(tmp_path / "t.txt", tmp_path / "out", held_out=0)
    assert read_back(train) == ["le café -- l'été \ufffd à paris ."]


def test_memory_does_not_grow_while_the_encoding_is_found(tmp_path):
    (tmp_path / "t.txt").write_bytes("日本 é".encode() * 2**20 + b"\xff")
    tracemalloc.start()
    assert reading.encoding_of(tmp_path / "t.txt") == "utf-8"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4e6


@pytest.mark.parametrize("form", ["auto", "sentences", "prose"])
def test_a_line_of_100_000_characters(tmp_path, form):
    (tmp_path / "t.txt").write_text(f"First one.\n\n{'word ' * 20_000}.\n\nLast one.\n")
    train, _ = made(tmp_path / "t.txt", tmp_path / "out", form=form, held_out=0)
    assert read_back(train) == ["first one .", " ".join(["word"] * 63), "last one ."]
    assert train.counts["cut"] == 1


@pytest.mark.parametrize("form", ["sentences", "prose"])
def test_memory_does_not_grow_with_a_line(tmp_path, monkeypatch, form):
    monkeypatch.setattr(pieces, "PIECE_BYTES", 2**18)
    with open(tmp_path / "t.txt", "wb") as file:
        for _ in range(128):
            file.write(b"endless " * 2**13)  # 8 MB without a line's end
    tracemalloc.start()
    train, _ = made(tmp_path / "t.txt", tmp_path / "out", form=form)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(train) == 1 and peak < 4e6


def test_large_vocabularies_take_four_bytes(tmp_path):
    assert corpora.token_type(2**16) == np.uint16 and corpora.token_type(2**16 + 1) == np.uint32
    words = [f"w{i:05}" for i in range(66_000)]
    (tmp_path / "t.txt").write_text(
        "\n".join(" ".join(words[i : i + 60]) for i in range(0, 66_000, 60))
    )
    options = {"vocabulary": 10**6, "held_out": 0, "form": "sentences"}
    train, _ = made(tmp_path / "t.txt", tmp_path / "out", **options)
    assert train._tokens.dtype == np.uint32 and len(train.vocabulary) == 66_003
    assert " ".join(read_back(train)) == " ".join(words)


@pytest.mark.parametrize("name", FILES)
def test_damage(library, tmp_path, name):
    out = tmp_path / "out"
    made(library[0], out)
    whole = (out / name).read_bytes()
    for damaged in (whole[:-3], b"", None):
        (out / name).unlink() if damaged is None else (out / name).write_bytes(damaged)
        with pytest.raises(
            UserError, match=f"{Path(name).name}.*(damaged|cannot be read)"
        ) as error:
            text.open_corpus(out)
        assert str(out / name) in str(error.value) and "\n" not in str(error.value)
    (out / name).write_bytes(whole)
    text.open_corpus(out)


def test_another_format(library, tmp_path):
    made(library[0], tmp_path / "out")
    about = json.loads((tmp_path / "out/corpus.json").read_text())
    (tmp_path / "out/corpus.json").write_text(json.dumps(about | {"format": 99}))
    with pytest.raises(UserError, match="format 99"):
        text.open_corpus(tmp_path / "out")


def test_mistakes(tmp_path, library):
    def refused(message, raw, **options):
        with pytest.raises(UserError, match=message) as error:
            text.prepare_text(raw, options.pop("out", tmp_path / "out"), **options)
        assert "\n" not in str(error.value)
        assert not (tmp_path / "out/corpus.json").exists()

    (tmp_path / "folder").mkdir()
    refused("no .txt or .txt.gz file", tmp_path / "folder")
    refused("no file or folder", tmp_path / "nowhere")
    (tmp_path / "x.pdf").touch()
    refused("called .txt or .txt.gz", tmp_path / "x.pdf")
    (tmp_path / "none.txt").write_text("...\n\n--\n")
    refused("no sentence with a word", tmp_path / "none.txt")
    (tmp_path / "wide.txt").write_bytes("Wide.".encode("utf-16"))
    shutil.rmtree(tmp_path / "out")
    refused("UTF-16", tmp_path / "wide.txt")
    whole = (library[0] / "b/d.txt.gz").read_bytes()
    for damaged in (whole[:-20], whole[:60] + b"?????" + whole[65:], b"no gzip at all", whole[:5]):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        (tmp_path / "cut.txt.gz").write_bytes(damaged)
        refused("cut.txt.gz is damaged or cut short", tmp_path / "cut.txt.gz")
    refused("lies in", library[0], out=library[0] / "b" / "out")
    for options in ({"vocabulary": 0}, {"max_tokens": 1}, {"held_out": 1.0}, {"form": "verse"}):
        flag = next(iter(options)).replace("_", "-")
        refused(f"--{flag} ", library[0], **options)


def test_load(library, tmp_path, home):
    root, _ = library
    config = DataConfig(name="books", data_dir=str(root), max_tokens=9)
    dataset = data.load(config)
    assert dataset.recipe == "sentences" and dataset.pretrain is dataset.train
    assert dataset.class_names == () and dataset.train.max_tokens == 9
    assert len(dataset.test) == 8
    (kept,) = (home / ".cache/hypersphere_jax/text").iterdir()
    assert dataset.train.folder == kept
    stamp = (kept / "corpus.json").stat().st_mtime_ns
    for same in (DataConfig(name=str(root), max_tokens=9), DataConfig(name=str(kept)), config):
        assert data.load(same).digest() == dataset.digest()
    assert (kept / "corpus.json").stat().st_mtime_ns == stamp
    other = data.load(DataConfig(name=str(root / "a.txt"), recipe="sentences"))
    assert len(list(kept.parent.iterdir())) == 2 and other.train.max_tokens == 64
    located = data.located(DataConfig(name="books", data_dir=str(root)))
    assert located["name"] == "books" and located["data_dir"] == str(root.resolve())
    with pytest.raises(UserError, match=r"--max-tokens 12: .* was prepared with 9"):
        data.load(DataConfig(name=str(kept), max_tokens=12))
    for options in (
        {"classes": "x"},
        {"subset": "uniform"},
        {"fraction": 0.5},
        {"folds": 2},
        {"bits": 1},
        {"recipe": "moco"},
        {"bad_images": "skip"},
    ):
        flag = next(iter(options)).replace("_", "-")
        with pytest.raises(UserError, match=f"--{flag} .*is for images"):
            data.load(DataConfig(name=str(root), **options))
    with pytest.raises(UserError, match="books needs --data-dir"):
        data.load(DataConfig(name="books"))
    with pytest.raises(UserError, match="no file or folder"):
        data.load(DataConfig(name="books", data_dir=str(tmp_path / "nowhere")))
    with pytest.raises(UserError, match="no file or folder"):
        data.load(DataConfig(name="nowhere.txt"))
    for options in ({"vocabulary": 0}, {"vocabulary": 2**31}, {"max_tokens": 1}):
        with pytest.raises(UserError, match=f"--{next(iter(options)).replace('_', '-')}"):
            DataConfig(**options)


def test_verbs(library, tmp_path, capsys):
    root, out = library[0], tmp_path / "out"
    datasheet.prepare_text(PrepareTextConfig(raw=str(root), out=str(out), max_tokens=8))
    assert f"prepared: {out}" in capsys.readouterr().out
    datasheet.prepare_text(PrepareTextConfig(raw=str(root), out=str(out), max_tokens=8))
    assert "nothing to do" in capsys.readouterr().out
    datasheet.inspect(LookedAt(name="books", data_dir=str(out)), out=tmp_path / "found.json")
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 100
    train, held_out = text.open_corpus(out)
    assert f"{len(train):,}" in printed and text.text(train, 35) in " ".join(printed.split())
    assert all(word in printed for word in train.vocabulary[:20])
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["train"]["words_mean"] == pytest.approx(train.lengths.mean() - 1)
    assert found["test"]["sentences"] == len(held_out)
    with pytest.raises(UserError, match="is text, of which there is no picture"):
        datasheet.show(LookedAt(name=str(root)))
    datasheet.known(str(root))
    assert any(line.split()[:1] == ["books"] for line in capsys.readouterr().out.splitlines())
    for options in ({"held_out": 1.0}, {"vocabulary": 0}):
        with pytest.raises(UserError, match=f"--{next(iter(options)).replace('_', '-')} "):
            PrepareTextConfig(raw="x", out="y", **options)
