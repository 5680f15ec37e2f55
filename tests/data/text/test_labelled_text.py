"""Labelled sentences: pairs of files and tables, in the forms that people have."""

import gzip
import itertools

import numpy as np
import pytest

from hypersphere_jax import data
from hypersphere_jax.config import UserError
from hypersphere_jax.data import text

POSITIVE = ["it 's a gem .", "clichés , but loved ones — all !", "…"]
NEGATIVE = ["don't bother .", "dull"]
VOCABULARY = ("<pad>", "<end>", "<unk>", ".", "'s", "do", "dull", "gem", "it", "n't")
ROWS = [("good", "so good"), ("bad", "so bad"), ("good", 'a "gem" , no less'), ("bad", "dull")]


def table(rows, header=None, order=(0, 1)):
    lines = [header] if header else []
    return "\n".join(["\t".join(row[i] for i in order) for row in [*lines, *rows]]) + "\n"


@pytest.fixture
def pair(tmp_path):
    """As MR is: Latin-1 (Windows'), and a space at the end of lines."""
    positive = " \r\n\r\n".join(POSITIVE) + "\r\n"
    (tmp_path / "rt-polarity.pos").write_bytes(positive.encode("cp1252"))
    (tmp_path / "rt-polarity.neg.gz").write_bytes(gzip.compress("\n".join(NEGATIVE).encode()))
    return tmp_path


@pytest.fixture
def opened(tmp_path):
    """`opened(content, name)`: what a file with this content holds."""

    def read(content, name="t.tsv"):
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return text.open_labelled(str(tmp_path / name))

    return read


def test_pair(pair):
    stem = str(pair / "rt-polarity")
    names = [stem + ending for ending in ("", ".pos", ".neg", ".neg.gz")]
    for found in (text.open_labelled("mr", pair), *map(text.open_labelled, names)):
        assert found.train.sentences == NEGATIVE + POSITIVE
        assert found.train.labels.tolist() == [0, 0, 1, 1, 1]
        assert found.class_names == ("neg", "pos") and found.test is None and found.origin == stem


def test_encoded(pair, caplog):
    source, test = text.open_labelled("mr", pair).encoded(VOCABULARY, 6)
    assert caplog.messages == [f"{pair}/rt-polarity: 1 of 5 sentences are cut at 5 words"]
    assert test is None and source.image_shape == (6,) and len(source) == 5
    assert source.tokens.dtype == source.labels.dtype == np.int32
    assert source.tokens.tolist() == [
        [5, 9, 2, 3, 1, 0],
        [6, 1, 0, 0, 0, 0],
        [8, 4, 2, 7, 3, 1],
        [2, 2, 2, 2, 2, 1],  # cut
        [2, 1, 0, 0, 0, 0],
    ]
    assert source.lengths.tolist() == [5, 2, 6, 6, 2] and source.labels.tolist() == [0, 0, 1, 1, 1]
    assert source[3]["label"] == 1 and source[0]["image"].tolist() == [5, 9, 2, 3, 1, 0]
    other, _ = text.open_labelled("mr", pair).encoded(VOCABULARY, 7)
    flipped = text.Sentences(source.tokens, 1 - source.labels, ("neg", "pos"), "")
    assert len({source.digest, other.digest, flipped.digest}) == 3


@pytest.mark.parametrize("longer", ["train", "test"])
def test_both_splits_are_as_wide_as_the_longest_sentence(tmp_path, caplog, longer):
    for name in ("train", "test"):
        rows = [*ROWS, ("bad", "a b c d e f g h i")] if name == longer else ROWS
        (tmp_path / f"{name}.tsv").write_text(table(rows))
    for limit, width in ((128, 10), (10, 10), (9, 9)):
        assert not caplog.messages
        parts = text.open_labelled(str(tmp_path)).encoded(VOCABULARY, limit)
        assert [part.image_shape for part in parts] == [(width,), (width,)]
        assert max(part.lengths.max() for part in parts) == width
    assert caplog.messages == [f"{tmp_path}: 1 of 9 sentences are cut at 8 words"]


def test_words_behind_the_128th_are_not_read(tmp_path, opened):
    opened(table([*ROWS, ("bad", "so " * 200)]))
    train = data.load_labelled(str(tmp_path / "t.tsv"), None, VOCABULARY).train
    assert train.image_shape == (128,) and train.lengths[-1] == 128 and train.tokens[-1, -1] == 1


def test_sentences_of_a_corpus_and_labelled_ones_have_the_same_numbers(pair, tmp_path):
    (tmp_path / "raw.txt").write_bytes("\n".join(NEGATIVE + POSITIVE[:2]).encode("cp1252"))
    options = {"max_tokens": 12, "held_out": 0, "form": "sentences"}
    text.prepare_text(tmp_path / "raw.txt", tmp_path / "out", **options)
    corpus, _ = text.open_corpus(tmp_path / "out")
    source, _ = text.open_labelled("mr", pair).encoded(corpus.vocabulary, 12)
    expected = [corpus[i]["image"][: max(source.lengths)] for i in range(4)]
    np.testing.assert_array_equal(source.tokens[:4], expected)
    assert 2 not in source.tokens[:4]


def test_table(opened):
    with_id = [(*row, str(i)) for i, row in enumerate(ROWS)]
    for content in (
        table(ROWS),
        table(ROWS, order=(1, 0)),
        table(ROWS, ("label", "sentence")),
        table(ROWS, ("Label", "Text"), order=(1, 0)),
        table(ROWS).replace("\n", "\r\n"),
        "\ufeff" + table(ROWS, ("label", "sentence")),
        table(ROWS).replace("\n", "\n\n"),
        table(with_id, ("class", "review", "id"), (2, 1, 0)),
    ):
        zipped = gzip.compress(content.encode())
        for found in (opened(content), opened(content, "t.csv"), opened(zipped, "t.tsv.gz")):
            assert found.train.sentences == [sentence for _, sentence in ROWS], content
            assert found.class_names == ("bad", "good"), content
            assert found.train.labels.tolist() == [1, 0, 1, 0], content


def test_a_header_of_which_one_name_is_known(opened, caplog):
    headers = "polarity/phrase", "Label/the comment", "rating/text", "my class/Review"
    for header, order in itertools.product(headers, ((0, 1), (1, 0))):
        caplog.clear()
        label, sentence = header.split("/")
        found = opened(table(ROWS, (label, sentence), order))
        assert found.train.sentences == [sentence for _, sentence in ROWS]
        assert found.class_names == ("bad", "good")
        (told,) = caplog.messages
        assert f"labels are below {label!r}, sentences below {sentence!r}" in told


def test_a_row_that_only_looks_like_a_header(tmp_path, opened, caplog):
    for first in (("good", "review"), ("bad", "text"), ("good", "class")):
        assert opened(table([first, *ROWS])).train.sentences[0] == first[1]
    found = opened(table([("target", "hit"), ("x", "out"), ("target", "in")]))
    assert found.class_names == ("target", "x")
    # A class of one sentence, where a header says what is what; and of the test split.
    opened(table([("so so", "oh"), *ROWS], ("label", "text")), "train.tsv")
    (tmp_path / "test.tsv").write_text(table([("so so", "well"), *ROWS]))
    found = text.open_labelled(str(tmp_path))
    assert len(found.class_names) == 3 and found.test.labels.tolist() == [2, 1, 0, 1, 0]
    assert not caplog.messages


def test_columns_and_classes(opened):
    rows = [(str(i), f"sentence {i % 3} .") for i in (10, 9, 1, 10, 9, 1)]
    found = opened(table(rows, ("label", "sentence")))
    assert found.class_names == ("1", "9", "10")  # sorted as numbers
    assert found.train.labels.tolist() == [2, 1, 0, 2, 1, 0]
    # The column with fewer values has the labels, however long they are.
    rows = [(f"a{i}", "a long name of a class" if i % 2 else "another") for i in range(9)]
    assert opened(table(rows)).class_names == ("a long name of a class", "another")


def test_folder(tmp_path, caplog):
    (tmp_path / "train.tsv").write_text(table(ROWS, ("label", "sentence")))
    assert text.open_labelled(str(tmp_path)).test is None
    (tmp_path / "test.tsv").write_text(table(ROWS[:1]))
    found = text.open_labelled(str(tmp_path))
    assert found.test.sentences == ["so good"] and found.test.labels.tolist() == [1]
    (tmp_path / "dev.tsv").write_text("damaged")
    train, test = text.open_labelled(str(tmp_path)).encoded(VOCABULARY, 5)
    assert "dev.tsv: not used" in caplog.text
    assert (len(train), len(test)) == (4, 1) and test.labels.tolist() == [1]
    assert test.class_names == train.class_names and test.origin != train.origin


def test_mistakes(tmp_path, pair, opened):
    def refused(message, work, *arguments):
        with pytest.raises(UserError, match=message) as error:
            work(*arguments)
        assert "\n" not in str(error.value)

    refused("mr needs the folder", text.open_labelled, "mr")
    refused(r"no file .*custrev\.neg", text.open_labelled, "cr", pair)
    refused("no labelled sentences", text.open_labelled, str(tmp_path / "nothing"))
    refused(r"no file .*nothing\.tsv", text.open_labelled, str(tmp_path / "nothing.tsv"))
    refused(r"no file .*alone\.neg", opened, "good\n", "alone.pos")
    refused(r"no file .*alone\.neg", text.open_labelled, str(tmp_path / "alone"))
    refused(r"alone\.neg has no sentence", opened, "\r\n \n", "alone.neg")
    refused("has no sentence", opened, "")
    refused("has no sentence", opened, "label\tsentence\n")
    refused("one class only, 'good'", opened, table([ROWS[0], ROWS[2]]))
    refused("line 1 has 1 columns", opened, "good,so good\nbad,so bad\n", "t.csv")
    refused("line 1 has 3 columns", opened, "a\tb\tc\n")
    for first in (("rating", "comment"), ("0", "phrase"), ("class", "is it so ?")):
        message = f"line 1 has the label '{first[0]}', which no other line has: .*`label`"
        refused(message, opened, table([first, *ROWS]))
    refused("line 3 has 3 columns .*, not 2", opened, table(ROWS[:2]) + "bad\tso\tbad\n")
    refused("line 5 has no label", opened, table(ROWS) + "\tfine\n")
    refused("no column is one of labels", opened, table([(f"a{i}", f"b{i}") for i in range(101)]))
    refused("is damaged", opened, gzip.compress(table(ROWS).encode())[:-9], "t.tsv.gz")
    refused("UTF-16", opened, table(ROWS).encode("utf-16"))
    (tmp_path / "folder").mkdir()
    refused(r"no file .*train\.tsv", text.open_labelled, str(tmp_path / "folder"))
    (tmp_path / "folder/train.tsv").write_text(table(ROWS))
    (tmp_path / "folder/test.tsv").write_text(table([("ugly", "so so"), ("bad", "oh")]))
    refused("a class that train.tsv lacks", text.open_labelled, str(tmp_path / "folder"))
