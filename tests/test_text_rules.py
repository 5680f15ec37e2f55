"""Sentences and words of English text: tables of cases from how novels look."""

import pytest

from hypersphere_jax.data.text import reading, rules

# Each paragraph with | where sentences end.
PARAGRAPHS = """
It is a truth universally acknowledged. | However little known it may be.
He left. | “Why?” | “Because.” | No one spoke.
"Oh!" said he. | "Is it so?"
“Oh!” said he. | “Is it so?”
"Oh!" | Emma said.
"Well..." he began. | "What?"
'Indeed!' cried the girl; 'you are mistaken.' | 'I am not!'
Mr. and Mrs. Weston came with Dr. Perry of St. Mary's. | They stayed.
Messrs. Dodson and Fogg. | Capt. Wentworth, Col. Fitzwilliam and Lieut. Price.
J. R. Smith and J.R. Jones met A. B. They talked.
The U.S. Army came. | The army left.
It was I. | He had gone.
In Chapter IV. | The end came.
See No. 5 and vol. 2 of it, p. 17. | Then stop.
Did he say no? | No. | He did.
She said no. | Then she went.
It cost 3.14 pounds in 1812. | In 1813 it cost 1,000.5.
He came at 3 p.m. | Then he left, e.g. Tuesday.
He waited... and waited . . . and went. | Nothing...
He waited... | Nobody came.
“What?!” | “Nothing!!!” | (He coughed.) | [Exit.] | Then silence.
He was here.--Where is he?
He was here. | -- Where is he?
He turned--and left. | --Not a word more.
He did not--“Stop!” | So he stopped.
“I--I don’t...” | “Speak!”
_Never!_ she said. | _Never._ | Not once.
1. The first thing. | 2.5 is a number.
12. Twelve. | The clock struck 12. | He woke.
He lives at 221b Baker Street, London. | He is well.
all is in lower case . nothing ends here ! does it ?
L'été est fini. | À bientôt. | Élise part.
Is it? | 42 men said so.
A sentence without an end
Ends with spaces.   | And a tab.	| And more.
The end… | Or not… or so.
"""
# The sentence, then its tokens.
SENTENCES = {
    "It's": "it 's",
    "it 's": "it 's",
    "it’s": "it 's",
    "Don't do n't DON’T don’t": "do n't do n't do n't do n't",
    "can't won't shan't couldn't": "ca n't wo n't sha n't could n't",
    "cannot can not scannot": "can not can not scannot",
    "I'd've I'm we'll you're they've": "i 'd 've i 'm we 'll you 're they 've",
    "'Tis 'twas 't is": "'t is 't was 't is",
    "Darcy's boys' books": "darcy 's boys ' books",
    "o'clock ma'am O'Brien": "o'clock ma'am o'brien",
    "'Oh,' said he": "' oh , ' said he",
    "'Stop!' 'So.'": "' stop ! ' ' so . '",
    "“Oh!” ‘no’": "\" oh ! \" ' no '",
    "``Oh'' said": '" oh " said',
    "stop--no—yes ---- no": "stop -- no -- yes -- no",
    "well-known": "well - known",
    "so... … . . . ....": "so ...",  # in a row they are one
    "a ... b": "a ... b",
    "3.14 1,000 1,000.5 7": "3.14 1,000 1,000.5 7",
    "In 1812.": "in 1812 .",
    "21st mp3s 1920's": "21st mp3s 1920 's",
    "_emphasis_ un_believ_able": "emphasis unbelievable",
    "café CAFÉ cafe\u0301 naïve Ça": "café café café naïve ça",
    "£5; (a) [b] *c*": "£ 5 ; ( a ) [ b ] * c *",
    "soft\u00adhyphen zero\u200bwidth": "softhyphen zerowidth",
    "etc.": "etc .",
    "Mr. Darcy?!": "mr . darcy ? !",
    "<pad> <unk>": "< pad > < unk >",
    "a\x00b": "a b",
    "日本": "日本",
    "": "",
    " \t\u00a0 ": "",
}


@pytest.mark.parametrize("case", PARAGRAPHS.strip().splitlines())
def test_sentences(case):
    expected = [part.strip() for part in case.split("|")]
    paragraph = case.replace("| ", "").replace("|", "")
    assert rules.sentences(paragraph) == expected


@pytest.mark.parametrize("sentence", SENTENCES)
def test_words(sentence):
    found = rules.words(sentence)
    assert found == SENTENCES[sentence].split()
    # What is in tokens stays as it is.
    assert rules.words(" ".join(found)) == found


def test_sentences_lose_nothing():
    paragraph = PARAGRAPHS.replace("|", " ")
    assert "".join("".join(rules.sentences(paragraph)).split()) == "".join(paragraph.split())


def read(folder, lines, form):
    """The sentences of a file with these lines."""
    file = folder / "t.txt"
    file.write_text("\n".join(lines))
    cursor = reading.begin(file, "utf-8", form)
    return [sentence for found, _ in reading.read(file, cursor) for sentence in found]


def test_paragraphs(tmp_path):
    lines = ["", "One", "two. ", "  ", "", "Three.", "", "Four. Five", "six"]
    assert read(tmp_path, lines, "prose") == ["One two.", "Three.", "Four.", "Five six"]
    assert read(tmp_path, [], "prose") == read(tmp_path, [" ", ""], "prose") == []


HEADER = ["The Project Gutenberg EBook of Emma", "", "Title: Emma"]
LICENCE = ["Updated editions will replace this one.", "*** START: FULL LICENSE ***", "Sue us not."]
TEXT = ["", "Emma was handsome.", "***", "The start of a project.", "* * *", "She was rich.", ""]


@pytest.mark.parametrize(
    "start",
    [
        ["*** START OF THIS PROJECT GUTENBERG EBOOK EMMA ***"],
        ["***START OF THE PROJECT GUTENBERG EBOOK EMMA***"],
        ["*** START OF THIS PROJECT GUTENBERG EBOOK THE LIFE", "AND OPINIONS OF EMMA ***"],
        ["*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*"],
        ["*END THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*"],
        ["*END*THE SMALL PRINT!*END*", "", "*** START OF THE PROJECT GUTENBERG EBOOK EMMA ***"],
    ],
)
@pytest.mark.parametrize(
    "end",
    [
        "*** END OF THIS PROJECT GUTENBERG EBOOK EMMA ***",
        "***END OF THE PROJECT GUTENBERG EBOOK EMMA***",
        "End of the Project Gutenberg EBook of Emma",
        "End of Project Gutenberg's Emma, by Jane Austen",
        "End of The Project Gutenberg Etext of Emma",
        None,
    ],
)
def test_body(tmp_path, start, end):
    """Without the header and the licence that Project Gutenberg puts around a text."""
    after = [] if end is None else [end, *LICENCE]
    assert read(tmp_path, [*HEADER, *start, *TEXT, *after], "sentences") == list(filter(None, TEXT))


def test_body_without_markers_is_all(tmp_path):
    lines = [*TEXT * 400, "The end of the project was near.", "*** END ***", *LICENCE]
    assert read(tmp_path, lines, "sentences") == list(filter(None, lines))
    assert read(tmp_path, [], "sentences") == []


def test_body_of_two_books_in_a_row(tmp_path):
    book = [
        "*** START OF THIS PROJECT GUTENBERG EBOOK EMMA ***",
        *TEXT * 300,
        "*** END OF THIS PROJECT GUTENBERG EBOOK EMMA ***",
        *LICENCE,
    ]
    lines = [*HEADER, *book, *HEADER, *book]
    assert read(tmp_path, lines, "sentences") == list(filter(None, TEXT)) * 600


def test_form():
    wrapped = (
        "Emma Woodhouse, handsome, clever, and rich, with\na comfortable home and happy "
        "disposition, seemed to\nunite some of the best blessings of existence; and had\nlived "
        "nearly twenty-one years.\n\nShe was the youngest.\n\n"
    ).splitlines()
    one_each = ["Usually , he would be there .", '" Why ? "', "she did n't know !", "", "go..."]
    whole_paragraphs = ["She was rich. She knew it. Why not?", "He was poor. He knew that."]
    assert rules.form(wrapped) == "prose"
    assert rules.form(one_each * 3) == "sentences"
    assert rules.form([*one_each * 3, "a title"]) == "sentences"  # nearly all
    assert rules.form([*one_each, "a title", "another"]) == "prose"
    assert rules.form(whole_paragraphs) == "prose"
    assert rules.form(["*** START OF THE PROJECT GUTENBERG EBOOK ***", *one_each * 3]) == "prose"
    assert rules.form([]) == rules.form(["", " "]) == "prose"
