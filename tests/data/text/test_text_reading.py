"""How text files are read: encodings, line ends, and any length in bounded memory."""

import gzip
import tracemalloc

import pytest
from corpora import made, read_back, sentences_of

from hypersphere_jax.data.text import pieces, reading, rules


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_blocks_change_nothing(tmp_path, monkeypatch, end):
    """They end within characters of many bytes, within line ends, and anywhere else."""
    lines = ["Él. “Ça va?”", "日本 𝄞 is", "here.", "", "Then—so. Ωmega.", "", "", "*** x", "Ende."]
    expected = ["Él.", "“Ça va?”", "日本 𝄞 is here.", "Then—so.", "Ωmega.", "*** x Ende."]
    for size in (1, 2, 3, 7, 64, 2**16):
        monkeypatch.setattr(reading, "CHUNK_BYTES", size)
        found = sentences_of(tmp_path, end.join(lines))
        assert found == [" ".join(rules.words(sentence)) for sentence in expected], size


@pytest.mark.parametrize("joint", [" ", "\n"])
def test_a_long_paragraph_is_split_as_a_short_one(tmp_path, joint):
    paragraph = joint.join(f"Mr. Number {i} said “no” to J. R. Doe." for i in range(6000))
    assert len(paragraph) > 3 * reading.PARAGRAPH_LIMIT
    expected = [f'mr . number {i} said " no " to j . r . doe .' for i in range(6000)]
    assert sentences_of(tmp_path, paragraph) == expected


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


@pytest.mark.parametrize("case", ENCODED)
def test_encoding(tmp_path, monkeypatch, caplog, case):
    """Found whatever the blocks, and told of in one warning where it is in doubt."""
    data, encoding, first = ENCODED[case]
    (tmp_path / "t.txt").write_bytes(data)
    (tmp_path / "t.txt.gz").write_bytes(gzip.compress(data))
    for block in (1, 2, 3, 5, 2**18):
        monkeypatch.setattr(reading, "LOOK_BYTES", block)
        for path in (tmp_path / "t.txt", tmp_path / "t.txt.gz"):
            caplog.clear()
            assert reading.encoding_of(path) == encoding
            told = [message.replace(":", " ").replace(",", " ") for message in caplog.messages]
            assert len(told) == (first is not None)
            assert all(str(path) in words and f" {first} " in words for words in told)
            positions = list(reading.look_through(path))
            assert positions == sorted(positions) and positions[-1] == path.stat().st_size


def test_bad_bytes_are_one_character_each_and_windows_latin_is_read(tmp_path):
    damaged = "Le café — l’été".encode() + b"\x80" + " à Paris.".encode()
    assert sentences_of(tmp_path, damaged) == ["le café -- l'été \ufffd à paris ."]
    windows = "“Œuvre” — €5.".encode("cp1252") + b" \x81"
    assert sentences_of(tmp_path, windows) == ['" œuvre " -- € 5 .']


@pytest.mark.parametrize("form", ["auto", "sentences", "prose"])
def test_a_line_of_100_000_characters(tmp_path, form):
    (tmp_path / "t.txt").write_text(f"First one.\n\n{'word ' * 20_000}.\n\nLast one.\n")
    train, _ = made(tmp_path / "t.txt", tmp_path / "out", form=form, held_out=0)
    assert read_back(train) == ["first one .", " ".join(["word"] * 63), "last one ."]
    assert train.counts["cut"] == 1


@pytest.mark.parametrize("form", ["sentences", "prose"])
def test_memory_does_not_grow_with_a_file(tmp_path, monkeypatch, form):
    """8 MB without a line's end, and a byte that puts the encoding in doubt."""
    monkeypatch.setattr(pieces, "PIECE_BYTES", 2**18)
    with open(tmp_path / "t.txt", "wb") as file:
        for _ in range(128):
            file.write("endless é ".encode() * 6000)
        file.write(b"\xff")
    tracemalloc.start()
    train, _ = made(tmp_path / "t.txt", tmp_path / "out", form=form)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(train) == 1 and peak < 4e6
