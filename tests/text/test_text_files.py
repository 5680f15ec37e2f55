"""Sentences of text files of any encoding, line ends and layout."""

import gzip

import pytest

from hypersphere_jax.configs import UserError
from hypersphere_jax.text.text_files import find, read_lines, read_sentences

STARTS = [
    "***START OF THE PROJECT GUTENBERG EBOOK EMMA***",
    "*END*THE SMALL PRINT!*END*\nOf it.\n*** START OF THIS PROJECT GUTENBERG EBOOK EMMA ***",
]
ENDS = ["*** END OF THIS PROJECT GUTENBERG EBOOK EMMA ***", "End of Project Gutenberg's Emma"]
LICENCE = "\n\nUpdated editions will replace this one.\n*** START: FULL LICENSE ***\nSue us not."


def sentences_of(folder, content, form="prose", name="a.txt"):
    file = folder / name
    file.write_bytes(content)
    return list(read_sentences(file, form))


def test_prose_and_one_sentence_per_line(tmp_path):
    text = b"\nOne\ntwo. \n  \nThree.\n\nFour. Five\nsix\n...\n"
    assert sentences_of(tmp_path, text) == ["One two.", "Three.", "Four.", "Five six ..."]
    lines = ["One", "two.", "Three.", "Four. Five", "six"]
    assert sentences_of(tmp_path, text, "sentences") == lines
    assert sentences_of(tmp_path, b"He left. She\nstayed.\n", "auto") == ["He left.", "She stayed."]
    assert sentences_of(tmp_path, b"He left.\nShe stayed!\n", "auto") == ["He left.", "She stayed!"]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("end", [f"{end}{LICENCE}" for end in ENDS] + [""])
def test_header_and_licence_of_project_gutenberg_are_omitted(tmp_path, start, end):
    novel = "\nCHAPTER I\n\nEmma was hand-\nsome.\n   \n“Oh!” said\nMr. Knightley.\n***\n"
    text = f"The Project Gutenberg EBook of Emma\n\nTitle: Emma\n{start}\n{novel}\n{end}"
    expected = ["CHAPTER I", "Emma was hand- some.", "“Oh!” said Mr. Knightley. ***"]
    content = text.replace("\n", "\r\n").encode("cp1252")
    assert sentences_of(tmp_path, content, "auto") == expected


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_line_ends_and_compression(tmp_path, end, name):
    text = "Él. “Ça va?”\n日本 𝄞 is\nhere.\n\nThen—so. Ωmega.\n\n\n*** x\nEnde.\n\n" * 9
    expected = ["Él.", "“Ça va?”", "日本 𝄞 is here.", "Then—so.", "Ωmega.", "*** x Ende."]
    content = text.replace("\n", end).encode()
    if name.endswith(".gz"):
        content = gzip.compress(content)
    assert sentences_of(tmp_path, content, name=name) == expected * 9


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("\ufeffÉl 日本 𝄞\nça".encode(), ["Él 日本 𝄞", "ça"]),
        ("Él\n“Œuvre” — €5\nça".encode("cp1252"), ["Él", "“Œuvre” — €5", "ça"]),
        ("Él 日本\n".encode() + "ça".encode("latin-1"), ["Él 日本", "ça"]),  # line by line
        (b"a\x81\xff", ["a\ufffdÿ"]),
    ],
)
def test_encodings(tmp_path, content, lines):
    (tmp_path / "a.txt").write_bytes(content)
    assert list(read_lines(tmp_path / "a.txt")) == lines


def test_damaged_and_missing_files_are_refused(tmp_path, library):
    content = (library[0] / "a/z.txt.gz").read_bytes()
    files = {"short.txt.gz": content[:-20], "flipped.txt.gz": content[:100] + b"x" + content[101:]}
    files |= {"plain.txt.gz": b"x", "wide.txt": "Él".encode("utf-16")}
    for name, damaged in files.items():
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(UserError, match=name):
            list(read_lines(tmp_path / name))
    (tmp_path / "thesis.pdf").touch()
    for name in ("missing", "thesis.pdf"):
        with pytest.raises(UserError, match=name):
            find(tmp_path / name)
