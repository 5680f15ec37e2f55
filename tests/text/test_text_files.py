"""Sentences of text files of any encoding, line ends and layout."""

import gzip
import itertools

import pytest

from hypersphere_jax.configs import UserError
from hypersphere_jax.text.text_files import detect_form, read_lines, read_sentences, text_files
from hypersphere_jax.text.tokenizer import tokenize

HEADER = ["The Project Gutenberg EBook of Emma", "", "Title: Emma"]
LICENCE = ["Updated editions will replace this one.", "*** START: FULL LICENSE ***", "Sue us not."]
TEXT = ["", "Emma was handsome.", "***", "The start of a project.", "* * *", "She was rich.", ""]
BODY = ["Emma was handsome.", "The start of a project.", "She was rich."]
STARTS = [
    ["***START OF THE PROJECT GUTENBERG EBOOK EMMA***"],
    ["*** START OF THIS PROJECT GUTENBERG EBOOK EMMA ***"],
    ["*END*THE SMALL PRINT!*END*", "Of it.", "*** START OF THE PROJECT GUTENBERG EBOOK EMMA ***"],
]
ENDS = ["*** END OF THIS PROJECT GUTENBERG EBOOK EMMA ***", "End of Project Gutenberg's Emma", None]


def sentences_of(folder, content: str | bytes, form="prose", name="a.txt"):
    file = folder / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(read_sentences(file, form))


def test_layouts(tmp_path):
    text = "\nOne\ntwo. \n  \nThree.\n\nFour. Five\nsix\n...\n"
    assert sentences_of(tmp_path, text) == ["One two.", "Three.", "Four.", "Five six ..."]
    lines = ["One", "two.", "Three.", "Four. Five", "six"]
    assert sentences_of(tmp_path, text, "sentences") == lines


@pytest.mark.parametrize(("start", "end"), list(itertools.product(STARTS, ENDS)))
def test_header_and_licence_of_project_gutenberg_are_omitted(tmp_path, start, end):
    lines = [*HEADER, *start, *TEXT, *([end, *LICENCE] if end else [])]
    assert sentences_of(tmp_path, "\n".join(lines), "sentences") == BODY
    novel = "\nCHAPTER I\n\nEmma was hand-\nsome.\n   \n“Oh!” said\nMr. Knightley.\n***\n"
    lines = [*HEADER, *start, *novel.split("\n"), *([end, "", *LICENCE] if end else [])]
    expected = ["CHAPTER I", "Emma was hand- some.", "“Oh!” said Mr. Knightley. ***"]
    assert sentences_of(tmp_path, "\r\n".join(lines).encode("cp1252"), "auto") == expected


def test_text_without_markers_is_read_whole(tmp_path):
    lines = [*TEXT, "The end of the project was near.", "*** END ***", *LICENCE]
    assert len(sentences_of(tmp_path, "\n".join(lines), "sentences")) == 8


def test_form_is_detected():
    wrapped = ["Emma Woodhouse, clever, and", "rich, with a comfortable home.", "", "She."]
    one_each = ["Usually , he would be there .", '" Why ? "', "she did n't know !", "", "go..."]
    several = ["She was rich. She knew it. Why not?", "He was poor. He knew that."]
    assert detect_form([*one_each * 3, "a title"]) == "sentences"
    for lines in (wrapped, [*one_each, "a title", "another"], several, [], ["", " "]):
        assert detect_form(lines) == "prose", lines


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
        ("Él 日本 𝄞\nça".encode(), ["Él 日本 𝄞", "ça"]),
        ("\ufeffÉl\nça".encode(), ["Él", "ça"]),
        ("Él\n“Œuvre” — €5\nça".encode("cp1252"), ["Él", "“Œuvre” — €5", "ça"]),
        # Each line has an encoding of its own.
        ("Él 日本\n".encode() + "ça\n".encode("latin-1") + "ça".encode(), ["Él 日本", "ça", "ça"]),
        (b"a\x81\xff", ["a\ufffdÿ"]),
    ],
)
def test_encodings(tmp_path, content, lines):
    (tmp_path / "a.txt").write_bytes(content)
    assert list(read_lines(tmp_path / "a.txt")) == lines


def test_damaged_and_missing_files_are_refused(tmp_path, library):
    content = (library[0] / "a/z.txt.gz").read_bytes()
    for number, damaged in enumerate((content[:-20], content[:100] + b"x" + content[101:], b"x")):
        file = tmp_path / f"{number}.txt.gz"
        file.write_bytes(damaged)
        with pytest.raises(UserError, match=file.name):
            list(read_lines(file))
    (tmp_path / "wide.txt").write_bytes("Él".encode("utf-16"))
    with pytest.raises(UserError, match="UTF-16"):
        list(read_lines(tmp_path / "wide.txt"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.pdf").touch()
    for name in ("other", "missing", "other/thesis.pdf"):
        with pytest.raises(UserError, match=name):
            text_files(tmp_path / name)


def test_files_of_a_folder_are_sorted_and_visible(library):
    root, documents = library
    names = [file.relative_to(root).as_posix() for file in text_files(root)]
    assert names == [*documents, "empty.txt"]
    for name, expected in documents.items():
        found = [tokenize(sentence) for sentence in read_sentences(root / name, "sentences")]
        assert found == expected
