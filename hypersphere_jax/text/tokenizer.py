"""English text to sentences and tokens: pure functions on strings."""

import re
import unicodedata

# A period after one of these words does not end a sentence.
ABBREVIATIONS = """
mr mrs ms messrs mme mlle mons m dr st prof rev hon gen col capt lieut lt maj sergt sgt adm gov sen
rep supt mt ft e.g i.e viz cf vs
"""
KNOWN_ABBREVIATIONS = frozenset(ABBREVIATIONS.split())
LONGEST_ABBREVIATION = 20
# Possessive quantifiers (`++`) and the lookbehind keep the search linear.
SENTENCE_END = re.compile(
    r"(?<![.!?…])(?P<mark>[.!?…]++)(?P<closing>[\"'”’»)\]}_*]*+)\s++"
    r"(?=[\"'“‘«(\[{_*\s—–-]*+(?P<next>[^\W_]))"
)
LAST_WORD = re.compile(r"[^\W_]+(?:\.[^\W_]+)*\Z")
INITIALS = re.compile(r"[A-Z](?:\.[A-Z])*")
WORD_CHARACTER = re.compile(r"[^\W_]")

# Typographic characters as ASCII; characters without width disappear.
TO_ASCII = str.maketrans(
    {
        **dict.fromkeys("‘’‚‛′´ʼ", "'"),
        **dict.fromkeys("“”„‟″«»", '"'),
        **dict.fromkeys("–‐‑‒−", "-"),
        **dict.fromkeys("—―", "--"),
        "…": "...",
        **dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff"),
    }
)
# The ends of don't and cannot. A literal first character makes the search fast.
NEGATION = re.compile(r"n(?:'t(?<=[^\W\d_]n't)|ot(?<=\bcannot))(?![^\W_])")
DASHES = re.compile(r"-{3,}")
DOTS = re.compile(r"\.(?:\s*\.)+")
CLITIC = r"'(?:s|m|d|t|ll|re|ve|em)(?![^\W_])"
TOKEN = re.compile(
    rf"""\d+(?:[.,]\d+)+                        # a number such as 1,000.5
    | n't(?![^\W_])
    | {CLITIC}
    | 't(?=(?:is|was|were|will)(?![^\W_]))      # the first part of 'tis
    | [^\W_]+(?:(?!{CLITIC})'[^\W\d_]+)*        # a word such as o'clock
    | --
    | \.\.\.
    | [^\w\s\x00-\x1f\x7f-\x9f]                 # any other punctuation mark
    """,
    re.VERBOSE,
)


def split_sentences(paragraph: str) -> list[str]:
    """Return the sentences of a paragraph.

    A sentence ends at `.`, `!`, `?` or `…` with closing quotes and brackets, if space and an
    upper-case letter or a digit follow. A period after an abbreviation (`Mr.`) or initials
    (`J. R.`, `U.S.`) does not end a sentence.

    >>> split_sentences("“Why?” said Mr. Weston. He left.")
    ['“Why?” said Mr. Weston.', 'He left.']
    """
    sentences = []
    start = 0
    for match in SENTENCE_END.finditer(paragraph):
        is_period = match["mark"] == "." and not match["closing"]
        if match["next"].islower():
            continue
        if is_period and _ends_with_abbreviation(paragraph, start, match.start()):
            continue
        sentences.append(paragraph[start : match.end()].strip())
        start = match.end()
    sentences.append(paragraph[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _ends_with_abbreviation(text: str, start: int, end: int) -> bool:
    match = LAST_WORD.search(text, max(start, end - LONGEST_ABBREVIATION), end)
    if match is None:
        return False
    word = match[0]
    is_initial = INITIALS.fullmatch(word) is not None and word != "I"
    return is_initial or word.lower() in KNOWN_ABBREVIATIONS


def has_word(sentence: str) -> bool:
    """Return whether a sentence contains a letter or a digit."""
    return WORD_CHARACTER.search(sentence) is not None


def tokenize(sentence: str) -> list[str]:
    """Return the tokens of a sentence in lower case: words, numbers and punctuation marks.

    English clitics are tokens, as in the Penn Treebank. Tokenized text keeps its tokens. Quotes
    become straight, dashes `--`, and dots in a row `...`.

    >>> tokenize("“It’s _not_ 3.50,” he said—don't!")
    ['"', 'it', "'s", 'not', '3.50', ',', '"', 'he', 'said', '--', 'do', "n't", '!']
    """
    text = sentence.lower()
    if not text.isascii():
        text = unicodedata.normalize("NFC", text).translate(TO_ASCII)
    text = text.replace("_", "").replace("`", "'").replace("''", '"')
    text = NEGATION.sub(r" \g<0>", text)
    text = DOTS.sub("...", text)
    text = DASHES.sub("--", text)
    return TOKEN.findall(text)
