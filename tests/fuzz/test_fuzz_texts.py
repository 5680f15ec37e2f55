"""Texts to train on, and labelled sentences."""

import gzip

from fuzzing import fuzz
from hypothesis import strategies as st
from junk import damage, damaged

PIECES = ".|...|!?|\n|\r\n|\n\n|\r|\x0b|\x0c|\x00|\u2028|\ufeff|\x1b[31m"
PIECES += "|The ship saw the sea. |Mr. Smith|a.b.c.|'|\"|(|-|--|*** START OF|\t| |猫が好き。|١٢٣|e\u0301|\U0001f600|1.5|http://a.b/c?d=e"
pieces = st.sampled_from([*PIECES.split("|"), "x" * 300]) | st.text(max_size=9)
repeated = st.tuples(pieces, st.sampled_from((1, 1, 1, 3, 200, 20_000)))
ENCODINGS = ("utf-8", "utf-8", "utf-8", "latin-1", "utf-16", "utf-8-sig")


@st.composite
def texts(draw):
    """A text's bytes: pieces, some of them many times over."""
    text = "".join(piece * times for piece, times in draw(st.lists(repeated, max_size=6)))[:100_000]
    content = text.encode(draw(st.sampled_from(ENCODINGS)), "replace")
    return damaged(content, draw(damage)) if draw(st.integers(0, 3)) == 0 else content


@fuzz(21, content=texts(), form=st.sampled_from(("auto", "prose", "sentences")), how=damage)
def test_prepare_text(place, content, form, how):
    place.put("books/a.txt", content)
    place.put("books/b.txt", "The ship saw the sea. The king left the hall. " * 5)
    if how[0] in ("cut", "flip"):
        place.put("books/c.txt.gz", damaged(gzip.compress(content, 1, mtime=0), how))
    line = ("data", "prepare-text", "books", "--out", "corpus", "--form", form)
    if place.call(*line).status == 0:
        assert place.call("data", "inspect", "corpus").status == 0
        assert place.call(*line).status == 2  # the folder is not empty


@fuzz(5, content=texts(), data=st.sampled_from(("t", "t.tsv")))
def test_labelled(place, content, data):
    """The files are read, then the protocol is refused without a test split."""
    place.run("text")
    place.put("t.pos", content)
    place.put("t.neg", "a fine ship\nthe king left\n" * 9)
    place.put("t.tsv", b"label\tsentence\n1\t" + content + b"\n2\tThe king left\n1\tA ship\n")
    line = ("probe", "runs/text", "--data", data, "--protocols", "lbfgs", "--devices", "2")
    assert place.call(*line).status == 2
