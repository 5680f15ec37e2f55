"""Labelled sentences: pairs of files and tables, in the forms that people have."""

import gzip
import logging

import numpy as np
import pytest

from hypersphere_jax.config import UserError
from hypersphere_jax.data import text

POSITIVE = ["it 's a gem .", "clichés , but loved ones — all !", "…"]
NEGATIVE = ["don't bother .", "dull"]
VOCABULARY = ("<pad>", "<end>", "<unk>", ".", "'s", "do", "dull", "gem", "it", "n't")


@pytest.fixture
def pair(tmp_path):
    """As MR is: Latin-1 (Windows'), and a space at the end of lines."""
    positive = " \r\n\r\n".join(POSITIVE) + "\r\n"
    (tmp_path / "rt-polarity.pos").write_bytes(positive.encode("cp1252"))
    with gzip.open(tmp_path / "rt-polarity.neg.gz", "wb") as file:
        file.write(("\n".join(NEGATIVE)).encode())
    return tmp_path


@pytest.mark.parametrize(
    "name", ["mr", "rt-polarity", "rt-polarity.pos", "rt-polarity.neg", "rt-polarity.neg.gz"]
)
def test_pair(pair, name):
    found = text.open_labelled(*((name, pair) if name == "mr" else (str(pair / name),)))
    assert found.train.sentences == NEGATIVE + POSITIVE
    assert found.train.labels.tolist() == [0, 0, 1, 1, 1] and found.train.labels.dtype == np.int32
    assert found.class_names == ("neg", "pos") and found.test is None
    assert found.origin == str(pair / "rt-polarity")


def test_encoded(pair, caplog):
    source, test = text.open_labelled("mr", pair).encoded(VOCABULARY, 6)
    assert caplog.messages == [f"{pair}/rt-polarity: 1 of 5 sentences are cut at 5 words"]
    assert test is None and source.image_shape == (6,) and len(source) == 5
    assert source.tokens.tolist() == [
        [5, 9, 2, 3, 1, 0],
        [6, 1, 0, 0, 0, 0],
        [8, 4, 2, 7, 3, 1],
        [2, 2, 2, 2, 2, 1],  # cut
        [2, 1, 0, 0, 0, 0],
    ]
    assert source.tokens.dtype == np.int32 and source.lengths.tolist() == [5, 2, 6, 6, 2]
    assert source[3]["label"] == 1 and source[0]["image"].tolist() == [5, 9, 2, 3, 1, 0]
    np.testing.assert_array_equal(source.labels, [0, 0, 1, 1, 1])
    other, _ = text.open_labelled("mr", pair).encoded(VOCABULARY, 7)
    flipped = text.Sentences(source.tokens, 1 - source.labels, ("neg", "pos"), "")
    assert len({source.digest, other.digest, flipped.digest}) == 3


def test_encoded_as_wide_as_the_longest(tmp_path, caplog):
    for longer in ("train", "test"):
        for name in ("train", "test"):
            rows = [*ROWS, ("bad", "a b c d e f g h i")] if name == longer else ROWS
            (tmp_path / f"{name}.tsv").write_text(table(rows))
        parts = text.open_labelled(str(tmp_path)).encoded(VOCABULARY, 128)
        assert [part.image_shape for part in parts] == [(10,), (10,)]
        assert max(part.lengths.max() for part in parts) == 10
    text.open_labelled(str(tmp_path)).encoded(VOCABULARY, 10)
    assert not caplog.messages
    train, test = text.open_labelled(str(tmp_path)).encoded(VOCABULARY, 9)
    assert train.image_shape == test.image_shape == (9,) and test.tokens[-1, -1] == 1
    assert caplog.messages == [f"{tmp_path}: 1 of 9 sentences are cut at 8 words"]


def test_sentences_of_a_corpus_and_labelled_ones_have_the_same_numbers(pair, tmp_path):
    (tmp_path / "raw.txt").write_bytes("\n".join(NEGATIVE + POSITIVE[:2]).encode("cp1252"))
    text.prepare_text(
        tmp_path / "raw.txt", tmp_path / "out", max_tokens=12, held_out=0, form="sentences"
    )
    corpus, _ = text.open_corpus(tmp_path / "out")
    source, _ = text.open_labelled("mr", pair).encoded(corpus.vocabulary, 12)
    width = max(source.lengths)
    expected = [corpus[i]["image"][:width] for i in range(4)]
    np.testing.assert_array_equal(source.tokens[:4], expected)
    assert 2 not in source.tokens[:4]


ROWS = [("good", "so good"), ("bad", "so bad"), ("good", 'a "gem" , no less'), ("bad", "dull")]


def table(rows, header=None, order=(0, 1)):
    lines = [header] if header else []
    return "\n".join(["\t".join(row[i] for i in order) for row in [*lines, *rows]]) + "\n"


@pytest.mark.parametrize(
    "content",
    [
        table(ROWS),
        table(ROWS, order=(1, 0)),
        table(ROWS, ("label", "sentence")),
        table(ROWS, ("Label", "Text"), order=(1, 0)),
        table(ROWS).replace("\n", "\r\n"),
        "\ufeff" + table(ROWS, ("label", "sentence")),
        table(ROWS).replace("\n", "\n\n"),
        table([(*row, str(i)) for i, row in enumerate(ROWS)], ("class", "review", "id"), (2, 1, 0)),
    ],
)
@pytest.mark.parametrize("name", ["t.tsv", "t.csv", "t.tsv.gz"])
def test_table(tmp_path, content, name):
    packed = gzip.compress(content.encode()) if name.endswith("gz") else content.encode()
    (tmp_path / name).write_bytes(packed)
    found = text.open_labelled(str(tmp_path / name))
    assert found.train.sentences == [sentence for _, sentence in ROWS]
    assert found.class_names == ("bad", "good") and found.train.labels.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    "header",
    [("polarity", "phrase"), ("Label", "the comment"), ("rating", "text"), ("my class", "Review")],
)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_header_of_which_one_name_is_known(tmp_path, caplog, header, order):
    (tmp_path / "t.tsv").write_text(table(ROWS, header, order))
    found = text.open_labelled(str(tmp_path / "t.tsv"))
    assert found.train.sentences == [sentence for _, sentence in ROWS]
    assert found.class_names == ("bad", "good")
    (told,) = caplog.messages
    assert f"labels are below {header[0]!r}, sentences below {header[1]!r}" in told


def test_a_row_that_only_looks_like_a_header(tmp_path, caplog):
    for first in (("good", "review"), ("bad", "text"), ("good", "class")):
        (tmp_path / "t.tsv").write_text(table([first, *ROWS]))
        assert text.open_labelled(str(tmp_path / "t.tsv")).train.sentences[0] == first[1]
    (tmp_path / "t.tsv").write_text(table([("target", "hit"), ("x", "out"), ("target", "in")]))
    assert text.open_labelled(str(tmp_path / "t.tsv")).class_names == ("target", "x")
    # A class of one sentence, where a header says what is what; and of the test split.
    (tmp_path / "train.tsv").write_text(table([("so so", "oh"), *ROWS], ("label", "text")))
    (tmp_path / "test.tsv").write_text(table([("so so", "well"), *ROWS]))
    found = text.open_labelled(str(tmp_path))
    assert len(found.class_names) == 3 and found.test.labels.tolist() == [2, 1, 0, 1, 0]
    assert not caplog.messages


def test_numbers_of_classes_are_sorted_as_numbers(tmp_path):
    rows = [(str(i), f"sentence {i % 3} .") for i in (10, 9, 1, 10, 9, 1)]
    (tmp_path / "t.tsv").write_text(table(rows, ("label", "sentence")))
    found = text.open_labelled(str(tmp_path / "t.tsv"))
    assert found.class_names == ("1", "9", "10")
    assert found.train.labels.tolist() == [2, 1, 0, 2, 1, 0]


def test_the_column_with_fewer_values_has_the_labels(tmp_path):
    rows = [(f"a{i}", "a long name of a class" if i % 2 else "another") for i in range(9)]
    (tmp_path / "t.tsv").write_text(table(rows))
    assert text.open_labelled(str(tmp_path / "t.tsv")).class_names == (
        "a long name of a class",
        "another",
    )


def test_folder(tmp_path, caplog):
    (tmp_path / "train.tsv").write_text(table(ROWS, ("label", "sentence")))
    (tmp_path / "test.tsv").write_text(table(ROWS[:1]))
    found = text.open_labelled(str(tmp_path))
    assert found.test.sentences == ["so good"] and found.test.labels.tolist() == [1]
    (tmp_path / "dev.tsv").write_text("damaged")
    with caplog.at_level(logging.WARNING):
        train, test = text.open_labelled(str(tmp_path)).encoded(VOCABULARY, 5)
    assert "dev.tsv: not used" in caplog.text
    assert (len(train), len(test)) == (4, 1) and test.labels.tolist() == [1]
    assert test.class_names == train.class_names and test.origin != train.origin
    (tmp_path / "test.tsv").unlink()
    assert text.open_labelled(str(tmp_path)).test is None


def test_mistakes(tmp_path, pair):
    def refused(message, name, content=None, data_dir=None):
        if content is not None:
            (tmp_path / name).write_bytes(
                content if isinstance(content, bytes) else content.encode()
            )
        name = name if name in ("mr", "cr", "mpqa") else str(tmp_path / name)
        with pytest.raises(UserError, match=message) as error:
            text.open_labelled(name, data_dir)
        assert "\n" not in str(error.value)

    refused("mr needs the folder", "mr")
    refused(r"no file .*custrev\.neg", "cr", data_dir=pair)
    refused(r"no file .*alone\.neg", "alone.pos", "good\n")
    refused(r"no file .*alone\.neg", "alone")
    (tmp_path / "empty.pos").write_text("good\n")
    refused(r"empty\.neg has no sentence", "empty.neg", "\r\n \n")
    refused("no labelled sentences", "nothing")
    refused(r"no file .*nothing\.tsv", "nothing.tsv")
    refused("has no sentence", "t.tsv", "")
    refused("has no sentence", "t.tsv", "label\tsentence\n")
    refused("one class only, 'good'", "t.tsv", table([ROWS[0], ROWS[2]]))
    refused("line 1 has 1 columns", "t.csv", "good,so good\nbad,so bad\n")
    refused("line 1 has 3 columns", "t.tsv", "a\tb\tc\n")
    for first in (("rating", "comment"), ("0", "phrase"), ("class", "is it so ?")):
        refused(
            f"line 1 has the label '{first[0]}', which no other line has: .*`label`",
            "t.tsv",
            table([first, *ROWS]),
        )
    refused("line 3 has 3 columns .*, not 2", "t.tsv", table(ROWS[:2]) + "bad\tso\tbad\n")
    refused("line 5 has no label", "t.tsv", table(ROWS) + "\tfine\n")
    many = [(f"a{i}", f"b{i}") for i in range(200)]
    refused("no column is one of labels", "t.tsv", table(many))
    refused("is damaged", "t.tsv.gz", gzip.compress(table(ROWS).encode())[:-9])
    refused("UTF-16", "t.tsv", table(ROWS).encode("utf-16"))
    (tmp_path / "folder").mkdir()
    refused(r"no file .*train\.tsv", "folder")
    (tmp_path / "folder/train.tsv").write_text(table(ROWS))
    (tmp_path / "folder/test.tsv").write_text(table([("ugly", "so so"), ("bad", "oh")]))
    refused("test.tsv has a class that train.tsv lacks", "folder")
