"""Sentences and words of English text, from files of any encoding, line ends and length."""

import gzip
import itertools

import pytest
from data_cases import made, read_back

from hypersphere_jax.data.text import rules

# Each paragraph with | where sentences end.
PARAGRAPHS = """
He left. | “Why?” | “Because.” | No one spoke.
"Oh!" said he. | "Is it so?" | “Oh!” said he. | “Is it so?” | "Oh!" | Emma said.
"Well..." he began. | "What?" | 'Indeed!' cried the girl; 'you are mistaken.' | 'I am not!'
Mr. and Mrs. Weston came with Dr. Perry of St. Mary's. | They stayed.
J. R. Smith and J.R. Jones met A. B. They talked. | The U.S. Army came. | The army left.
Is that you, Dr? | It is Prof! | “Not a Dr.” | He left.
It was I. | He had gone. | In Chapter IV. | The end came.
See No. 5 and vol. 2 of it, p. 17. | Then stop. | Did he say no? | No. | He did.
She said no. | Then she went. | It cost 3.14 pounds in 1812. | In 1813 it cost 1,000.5.
He came at 3 p.m. | Then he left, e.g. Tuesday.
He waited... and waited . . . and went. | Nothing... | Nobody came.
“What?!” | “Nothing!!!” | (He coughed.) | [Exit.] | Then silence. | He was here.--Where is he?
He was here. | -- Where is he? | He turned--and left. | --Not a word more.
He did not--“Stop!” | So he stopped. | “I--I don’t...” | “Speak!”
_Never!_ she said. | _Never._ | Not once. | He lives at 221b Baker Street, London. | He is well.
1. The first thing. | 2.5 is a number. | 12. Twelve. | The clock struck 12. | He woke.
all is in lower case . nothing ends here ! does it ?
L'été est fini. | À bientôt. | Élise part. | Is it? | 42 men said so. | A sentence without an end
Ends with spaces.   | And a tab.\t| And more. | The end… | Or not… or so.
"""
# Of sentences, and their tokens.
TOKENS = """
It's it 's it’s Don't do n't DON’T don’t => it 's it 's it 's do n't do n't do n't do n't
can't won't shan't couldn't => ca n't wo n't sha n't could n't
cannot can not scannot => can not can not scannot
I'd've I'm we'll you're they've => i 'd 've i 'm we 'll you 're they 've
'Tis 'twas 't is Darcy's boys' books => 't is 't was 't is darcy 's boys ' books
'Oh,' said he: 'Stop!' 'So.' => ' oh , ' said he : ' stop ! ' ' so . '
“Oh!” ‘no’ ``Oh'' said => " oh ! " ' no ' " oh " said
stop--no—yes ---- no well-known so... … . . . .... => stop -- no -- yes -- no well - known so ...
a ... b 3.14 1,000 1,000.5 7 => a ... b 3.14 1,000 1,000.5 7
In 1812. 21st mp3s 1920's => in 1812 . 21st mp3s 1920 's
_emphasis_ un_believ_able => emphasis unbelievable
café CAFÉ cafe\u0301 naïve Ça 日本 => café café café naïve ça 日本
£5; (a) [b] *c* soft\u00adhyphen zero\u200bwidth => £ 5 ; ( a ) [ b ] * c * softhyphen zerowidth
etc. Mr. Darcy?! <pad> a\x00b  \t\u00a0 => etc . mr . darcy ? ! < pad > a b
"""


def sentences_of(folder, content: str | bytes, form="prose"):
    """The words of each sentence of a file with this content, as its corpus has them."""
    file = folder / f"{len(list(folder.iterdir()))}.txt"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    options = {"form": form, "held_out": 0, "max_tokens": 512}
    return read_back(made(file, file.with_suffix(""), **options)[0])


def test_sentences():
    for case in PARAGRAPHS.strip().splitlines():
        paragraph = case.replace("| ", "").replace("|", "")
        assert rules.sentences(paragraph) == [part.strip() for part in case.split("|")]


def test_words():
    for case in TOKENS[1:-1].split("\n"):
        sentence, _, expected = case.partition("=>")
        assert rules.words(sentence) == expected.split(), sentence
        assert rules.words(expected) == expected.split()  # what is in tokens stays as it is


def test_paragraphs_and_lines(tmp_path):
    text = "\nOne\ntwo. \n  \nThree.\n\nFour. Five\nsix\n...\n"
    assert sentences_of(tmp_path, text) == ["one two .", "three .", "four .", "five six ..."]
    lines = ["one", "two .", "three .", "four . five", "six"]
    assert sentences_of(tmp_path, text, "sentences") == lines


HEADER = ["The Project Gutenberg EBook of Emma", "", "Title: Emma"]
LICENCE = ["Updated editions will replace this one.", "*** START: FULL LICENSE ***", "Sue us not."]
TEXT = ["", "Emma was handsome.", "***", "The start of a project.", "* * *", "She was rich.", ""]
BODY = ["emma was handsome .", "the start of a project .", "she was rich ."]
STARTS = [
    ["***START OF THE PROJECT GUTENBERG EBOOK EMMA***"],
    ["*** START OF THIS PROJECT GUTENBERG EBOOK THE LIFE", "AND OPINIONS OF EMMA ***"],
    ["*END*THE SMALL PRINT!*END*", "Of it.", "*** START OF THE PROJECT GUTENBERG EBOOK EMMA ***"],
]
ENDS = ["*** END OF THIS PROJECT GUTENBERG EBOOK EMMA ***", "End of Project Gutenberg's Emma", None]


def test_header_and_licence_go(tmp_path):
    for start, end in itertools.product(STARTS, ENDS):
        lines = [*HEADER, *start, *TEXT, *([end, *LICENCE] if end else [])]
        assert sentences_of(tmp_path, "\n".join(lines), "sentences") == BODY, (start, end)
    two = [*HEADER, *STARTS[0], *TEXT * 300, ENDS[0], *LICENCE] * 2
    assert sentences_of(tmp_path, "\n".join(two), "sentences") == BODY * 600
    # Headings and dialogue stay; lines are joined to paragraphs.
    novel = "\nCHAPTER I\n\nEmma was hand-\nsome.\n   \n“Oh!” said\nMr. Knightley.\n***\n"
    lines = [*HEADER, *STARTS[1], *novel.split("\n"), ENDS[1], "", *LICENCE]
    expected = ["chapter i", "emma was hand - some .", '" oh ! " said mr . knightley . * * *']
    assert sentences_of(tmp_path, "\r\n".join(lines).encode("cp1252"), "auto") == expected
    # Without markers, it is all text.
    lines = [*TEXT, "The end of the project was near.", "*** END ***", *LICENCE]
    assert len(sentences_of(tmp_path, "\n".join(lines), "sentences")) == 8


def test_form():
    wrapped = ["Emma Woodhouse, clever, and", "rich, with a comfortable home.", "", "She."]
    one_each = ["Usually , he would be there .", '" Why ? "', "she did n't know !", "", "go..."]
    several = ["She was rich. She knew it. Why not?", "He was poor. He knew that."]
    assert rules.form([*one_each * 3, "a title"]) == "sentences"  # nearly all
    few, marked = [*one_each, "a title", "another"], [*STARTS[0], *one_each * 3]
    for lines in (wrapped, few, several, marked, [], ["", " "]):
        assert rules.form(lines) == "prose", lines


def test_line_ends_of_any_kind(tmp_path):
    text = "Él. “Ça va?”\n日本 𝄞 is\nhere.\n\nThen—so. Ωmega.\n\n\n*** x\nEnde.\n\n" * 9
    expected = ["Él.", "“Ça va?”", "日本 𝄞 is here.", "Then—so.", "Ωmega.", "*** x Ende."]
    words = [" ".join(rules.words(sentence)) for sentence in expected]
    for end in ("\n", "\r\n", "\r"):
        assert sentences_of(tmp_path, text.replace("\n", end)) == words * 9


def test_a_long_paragraph_is_split_as_a_short_one(tmp_path):
    lines = [f"Mr. Number {i}\nsaid “no” to J. R. Doe." for i in range(6000)]
    expected = [f'mr . number {i} said " no " to j . r . doe .' for i in range(6000)]
    assert sentences_of(tmp_path, " ".join(lines)) == expected


GOOD, READ = "Él. “Ça va?” 日本 𝄞 is here.\n\n" * 2, ["él .", '" ça va ? "', "日本 𝄞 is here ."] * 2
ENCODED = (  # bytes; sentences; bytes that are no UTF-8
    (GOOD.encode(), READ, None),
    (GOOD.encode() + b"a\xff", [*READ, "a \ufffd"], 1),
    (GOOD.encode() + b"a\xe6\x97", [*READ, "a \ufffd"], 2),  # cut inside a character
    ("“Œuvre” — €5.".encode("cp1252"), ['" œuvre " -- € 5 .'], None),
    (b"pl\xe9n " + "Él".encode(), ["plén ã ‰ l"], 1),
)


@pytest.mark.parametrize("content, sentences, bad", ENCODED)
def test_encoding(tmp_path, caplog, content, sentences, bad):
    """Told of in one warning where it is in doubt."""
    for name, packed in (("t.txt", content), ("t.txt.gz", gzip.compress(content))):
        caplog.clear()
        (tmp_path / name).write_bytes(packed)
        train, _ = made(tmp_path / name, tmp_path / f"{name}.out", held_out=0, form="prose")
        assert read_back(train) == sentences
        assert len(caplog.messages) == (bad is not None)
        assert all(name in message and f" {bad} bytes" in message for message in caplog.messages)


def test_long_runs_of_any_character():
    """Rules that backtrack would take hours."""
    n = 10_000
    units = [
        *".!?…\"'“”‘’«»()[]{}_*- \t—–aA1é日,:;`´&",
        "\u00ad",
        "\u0301",
        "\0",
        ". ",
        "! ",
        ".' ",
    ]
    units += ["Mr. ", "1. ", "A. ", "n't ", "can", "'s", "''", "a'", "1,", "1.1", "* ", "- ", "(."]
    for unit, around in itertools.product(units, (". {}", "A {}. B")):
        paragraph = around.format(unit * (n // len(unit)))
        tokens = [word for part in rules.sentences(paragraph) for word in rules.words(part)]
        assert len(tokens) <= n + 3 and rules.border(f"*{paragraph}") is None
