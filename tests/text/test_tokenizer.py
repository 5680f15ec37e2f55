"""Sentences and tokens of English text."""

import itertools

import pytest

from hypersphere_jax.text.tokenizer import split_sentences, tokenize

# Each paragraph with | where sentences end.
PARAGRAPHS = """
He left. | “Why?” | “Because.” | No one spoke.
"Oh!" said he. | "Is it so?" | “Oh!” said he. | “Is it so?” | "Oh!" | Emma said.
"Well..." he began. | "What?" | 'Indeed!' cried the girl; 'you are mistaken.' | 'I am not!'
Mr. and Mrs. Weston came with Dr. Perry of St. Mary's. | They stayed.
J. R. Smith and J.R. Jones met A. B. They talked. | The U.S. Army came. | The army left.
It was I. | He had gone. | In Chapter IV. | The end came.
Did he say no? | No. | She said no. | It cost 3.14 pounds in 1812. | In 1813 it cost 1,000.5.
He came at 3 p.m. | Then he left, e.g. Tuesday.
He waited... and waited . . . and went. | Nothing... | Nobody came.
“What?!” | “Nothing!!!” | (He coughed.) | [Exit.] | Then silence. | He was here.--Where is he?
He was here. | -- Where is he? | He turned--and left. | --Not a word more.
He did not--“Stop!” | So he stopped. | “I--I don’t...” | “Speak!”
_Never!_ she said. | _Never._ | Not once. | He lives at 221b Baker Street, London. | He is well.
all is in lower case . nothing ends here ! does it ?
L'été est fini. | À bientôt. | Élise part. | Is it? | 42 men said so. | A sentence without an end
Ends with spaces.   | And a tab.\t| And more. | The end… | Or not… or so.
"""
# Sentences => their tokens.
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
_emphasis_ un_believ_able o'clock => emphasis unbelievable o'clock
café CAFÉ cafe\u0301 naïve Ça 日本 => café café café naïve ça 日本
£5; (a) [b] *c* soft\u00adhyphen zero\u200bwidth => £ 5 ; ( a ) [ b ] * c * softhyphen zerowidth
etc. Mr. Darcy?! <pad> a\x00b  \t\u00a0 => etc . mr . darcy ? ! < pad > a b
"""


@pytest.mark.parametrize("case", PARAGRAPHS.strip().splitlines())
def test_paragraphs_are_split_into_sentences(case):
    paragraph = case.replace("| ", "").replace("|", "")
    assert split_sentences(paragraph) == [part.strip() for part in case.split("|")]


@pytest.mark.parametrize("case", TOKENS[1:-1].split("\n"))
def test_tokens_are_those_of_the_penn_treebank_and_stay(case):
    sentence, _, tokens = case.partition("=>")
    assert tokenize(sentence) == tokens.split()
    assert tokenize(tokens) == tokens.split()


def test_a_long_paragraph_is_split_like_a_short_one():
    lines = [f"Mr. Number {i} said “no” to J. R. Doe." for i in range(6000)]
    assert split_sentences(" ".join(lines)) == lines


def test_long_runs_of_any_character_take_linear_time():
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
        tokens = [token for part in split_sentences(paragraph) for token in tokenize(part)]
        assert len(tokens) <= n + 3
