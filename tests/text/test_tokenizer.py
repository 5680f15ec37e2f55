"""Sentences and tokens of English text."""

import pytest

from hypersphere_jax.text.tokenizer import split_sentences, tokenize

# Each paragraph with | where sentences end.
PARAGRAPHS = """
"Oh!" said he. | "Is it so?" | “Oh!” said he. | “Is it so?” | "Oh!" | Emma said.
"Well..." he began. | "What?" | 'Indeed!' cried the girl; 'you are mistaken.' | 'I am not!'
Mr. and Mrs. Weston came with Dr. Perry of St. Mary's. | They stayed.
J. R. Smith and J.R. Jones met A. B. They talked. | The U.S. Army came. | The army left.
It was I. | He had gone. | In Chapter IV. | The end came.
Did he say no? | No. | She said no. | It cost 3.14 pounds in 1812. | In 1813 it cost 1,000.5.
He waited... and waited . . . and went. | Nothing... | Nobody came.
“What?!” | “Nothing!!!” | (He coughed.) | [Exit.] | Then silence. | He was here.--Where is he?
He did not--“Stop!” | So he stopped. | “I--I don’t...” | “Speak!” | -- Where is he?
_Never!_ she said. | _Never._ | Not once. | He lives at 221b Baker Street, London. | He is well.
L'été est fini. | À bientôt. | Élise part. | Is it? | 42 men said so. | A sentence without an end
Ends with spaces.   | And a tab.\t| And more. | The end… | Or not… or so.
"""
# Sentences => their tokens.
TOKENS = """
It's it 's it’s Don't do n't DON’T don’t => it 's it 's it 's do n't do n't do n't do n't
can't won't shan't cannot scannot => ca n't wo n't sha n't can not scannot
I'd've I'm we'll you're they've => i 'd 've i 'm we 'll you 're they 've
'Tis 'twas 't is Darcy's boys' books => 't is 't was 't is darcy 's boys ' books
“Oh!” ‘no’ ``Oh'' said => " oh ! " ' no ' " oh " said
stop--no—yes ---- no well-known so ... … . . . => stop -- no -- yes -- no well - known so ...
In 1812. 21st 3.14 1,000.5 mp3s 1920's => in 1812 . 21st 3.14 1,000.5 mp3s 1920 's
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
