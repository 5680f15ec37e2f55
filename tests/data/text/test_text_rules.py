"""Sentences and words of English text: tables of cases from how novels look."""

import itertools

from corpora import sentences_of

from hypersphere_jax.data.text import rules

# Each paragraph with | where sentences end.
PARAGRAPHS = """
It is a truth universally acknowledged. | However little known it may be.
He left. | “Why?” | “Because.” | No one spoke.
"Oh!" said he. | "Is it so?" | “Oh!” said he. | “Is it so?” | "Oh!" | Emma said.
"Well..." he began. | "What?"
'Indeed!' cried the girl; 'you are mistaken.' | 'I am not!'
Mr. and Mrs. Weston came with Dr. Perry of St. Mary's. | They stayed.
Messrs. Dodson and Fogg. | Capt. Wentworth, Col. Fitzwilliam and Lieut. Price.
J. R. Smith and J.R. Jones met A. B. They talked. | The U.S. Army came. | The army left.
Is that you, Dr? | It is Prof! | “Not a Dr.” | He left.
It was I. | He had gone. | In Chapter IV. | The end came.
See No. 5 and vol. 2 of it, p. 17. | Then stop. | Did he say no? | No. | He did.
She said no. | Then she went. | It cost 3.14 pounds in 1812. | In 1813 it cost 1,000.5.
He came at 3 p.m. | Then he left, e.g. Tuesday.
He waited... and waited . . . and went. | Nothing... | Nobody came.
“What?!” | “Nothing!!!” | (He coughed.) | [Exit.] | Then silence.
He was here.--Where is he?
He was here. | -- Where is he? | He turned--and left. | --Not a word more.
He did not--“Stop!” | So he stopped. | “I--I don’t...” | “Speak!”
_Never!_ she said. | _Never._ | Not once. | He lives at 221b Baker Street, London. | He is well.
1. The first thing. | 2.5 is a number.
12. Twelve. | The clock struck 12. | He woke.
all is in lower case . nothing ends here ! does it ?
L'été est fini. | À bientôt. | Élise part. | Is it? | 42 men said so. | A sentence without an end
Ends with spaces.   | And a tab.\t| And more. | The end… | Or not… or so.
"""
# Of sentences, and their tokens.
TOKENS = """
It's it 's it’s => it 's it 's it 's
Don't do n't DON’T don’t => do n't do n't do n't do n't
can't won't shan't couldn't => ca n't wo n't sha n't could n't
cannot can not scannot => can not can not scannot
I'd've I'm we'll you're they've => i 'd 've i 'm we 'll you 're they 've
'Tis 'twas 't is => 't is 't was 't is
Darcy's boys' books => darcy 's boys ' books
o'clock ma'am O'Brien => o'clock ma'am o'brien
'Oh,' said he: 'Stop!' 'So.' => ' oh , ' said he : ' stop ! ' ' so . '
“Oh!” ‘no’ ``Oh'' said => " oh ! " ' no ' " oh " said
stop--no—yes ---- no well-known => stop -- no -- yes -- no well - known
so... … . . . .... => so ...
a ... b 3.14 1,000 1,000.5 7 => a ... b 3.14 1,000 1,000.5 7
In 1812. 21st mp3s 1920's => in 1812 . 21st mp3s 1920 's
_emphasis_ un_believ_able => emphasis unbelievable
café CAFÉ cafe\u0301 naïve Ça 日本 => café café café naïve ça 日本
£5; (a) [b] *c* => £ 5 ; ( a ) [ b ] * c *
soft\u00adhyphen zero\u200bwidth => softhyphen zerowidth
etc. Mr. Darcy?! <pad> a\x00b => etc . mr . darcy ? ! < pad > a b
 \t\u00a0 =>
"""


def test_sentences():
    for case in PARAGRAPHS.strip().splitlines():
        paragraph = case.replace("| ", "").replace("|", "")
        assert rules.sentences(paragraph) == [part.strip() for part in case.split("|")]
    everything = PARAGRAPHS.replace("|", " ")
    assert "".join("".join(rules.sentences(everything)).split()) == "".join(everything.split())


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


def test_a_book_of_project_gutenberg(tmp_path):
    """Header and licence go, headings and dialogue stay, lines are joined to paragraphs."""
    novel = (
        "The Project Gutenberg EBook\r\n\r\n*** START OF THIS PROJECT GUTENBERG EBOOK X ***\r\n"
        "\r\nCHAPTER I\r\n\r\nEmma was hand-\r\nsome. She was\r\nrich.\r\n   \r\n"
        "“Oh!” said\r\nMr. Knightley.\r\n***\r\n\r\nThe _end_.\r\n"
        "End of Project Gutenberg's X\r\n\r\nLicence. More licence.\r\n"
    )
    assert sentences_of(tmp_path, novel.encode("cp1252"), "auto") == [
        "chapter i",
        "emma was hand - some .",
        "she was rich .",
        '" oh ! " said mr . knightley . * * *',
        "the end .",
    ]


HEADER = ["The Project Gutenberg EBook of Emma", "", "Title: Emma"]
LICENCE = ["Updated editions will replace this one.", "*** START: FULL LICENSE ***", "Sue us not."]
TEXT = ["", "Emma was handsome.", "***", "The start of a project.", "* * *", "She was rich.", ""]
BODY = ["emma was handsome .", "the start of a project .", "she was rich ."]
STARTS = [
    ["*** START OF THIS PROJECT GUTENBERG EBOOK EMMA ***"],
    ["***START OF THE PROJECT GUTENBERG EBOOK EMMA***"],
    ["*** START OF THIS PROJECT GUTENBERG EBOOK THE LIFE", "AND OPINIONS OF EMMA ***"],
    ["*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*"],
    ["*END THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*"],
    ["*END*THE SMALL PRINT!*END*", "Of it.", "*** START OF THE PROJECT GUTENBERG EBOOK EMMA ***"],
]
ENDS = [
    "*** END OF THIS PROJECT GUTENBERG EBOOK EMMA ***",
    "***END OF THE PROJECT GUTENBERG EBOOK EMMA***",
    "End of the Project Gutenberg EBook of Emma",
    "End of Project Gutenberg's Emma, by Jane Austen",
    "End of The Project Gutenberg Etext of Emma",
    None,
]


def test_header_and_licence_go(tmp_path):
    for start, end in itertools.product(STARTS, ENDS):
        lines = [*HEADER, *start, *TEXT, *([end, *LICENCE] if end else [])]
        assert sentences_of(tmp_path, "\n".join(lines), "sentences") == BODY, (start, end)
    book = [*STARTS[0], *TEXT * 300, ENDS[0], *LICENCE]
    two = [*HEADER, *book, *HEADER, *book]
    assert sentences_of(tmp_path, "\n".join(two), "sentences") == BODY * 600


def test_text_without_markers_stays_whole(tmp_path):
    lines = [*TEXT, "The end of the project was near.", "*** END ***", *LICENCE]
    expected = [" ".join(rules.words(line)) for line in lines if rules.has_word(line)]
    assert sentences_of(tmp_path, "\n".join(lines), "sentences") == expected
    assert len(expected) == 8


def test_form():
    wrapped = (
        "Emma Woodhouse, handsome, clever, and rich, with\na comfortable home and happy "
        "disposition, seemed to\nunite some of the best blessings of existence; and had\nlived "
        "nearly twenty-one years.\n\nShe was the youngest.\n\n"
    ).splitlines()
    one_each = ["Usually , he would be there .", '" Why ? "', "she did n't know !", "", "go..."]
    whole_paragraphs = ["She was rich. She knew it. Why not?", "He was poor. He knew that."]
    for lines in (one_each * 3, [*one_each * 3, "a title"]):  # nearly all
        assert rules.form(lines) == "sentences"
    marked = [*STARTS[0], *one_each * 3]
    few = [*one_each, "a title", "another"]
    for lines in (wrapped, few, whole_paragraphs, marked, [], ["", " "]):
        assert rules.form(lines) == "prose", lines
