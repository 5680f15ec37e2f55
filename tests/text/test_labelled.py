"""Labelled sentences: pairs of files and tables, in the forms that occur."""

import gzip

import numpy as np
import pytest

from hypersphere_jax.configs import UserError
from hypersphere_jax.data import text

POSITIVE = ["it 's a gem .", "clichés , but loved ones — all !", "…"]
NEGATIVE = ["don't bother .", "dull"]
VOCABULARY = ("<pad>", "<end>", "<unk>", ".", "'s", "do", "dull", "gem", "it", "n't")
ROWS = [("good", "so good"), ("bad", "so bad"), ("good", 'a " gem " , no less'), ("bad", "dull")]
WORDS = ("<pad>", "<end>", "<unk>", "a", "gem", '"', ",", "no", "less", "so", "good", "bad", "dull")


def table(*rows, order=(0, 1)):
    return "".join("\t".join(row[i] for i in order) + "\n" for row in rows)


def opened(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return text.open_labelled(str(path), None, WORDS, 9)[0]


def read_back(source):
    return [" ".join(WORDS[token] for token in row if token > 1) for row in source.tokens]


def test_pair(tmp_path, caplog):
    """As MR is: Latin-1 (Windows'), and a space at the end of lines."""
    stem, positive = str(tmp_path / "rt-polarity"), " \r\n\r\n".join(POSITIVE) + "\r\n"
    (tmp_path / "rt-polarity.pos").write_bytes(positive.encode("cp1252"))
    (tmp_path / "rt-polarity.neg.gz").write_bytes(gzip.compress("\n".join(NEGATIVE).encode()))
    names = [stem + ending for ending in ("", ".pos", ".neg", ".neg.gz")]
    for name, folder in (*((name, None) for name in names), ("mr", tmp_path)):
        caplog.clear()
        source, test = text.open_labelled(name, folder, VOCABULARY, 6)
        assert caplog.messages == [f"{stem}: 1 of 5 sentences are cut at 5 words"]
        assert source.class_names == ("neg", "pos") and test is None and source.origin == stem
        assert source.tokens.dtype == source.labels.dtype == np.int32 and len(source) == 5
        assert source.tokens[:2].tolist() == [[5, 9, 2, 3, 1, 0], [6, 1, 0, 0, 0, 0]]
        assert source.tokens[2:4].tolist() == [[8, 4, 2, 7, 3, 1], [2, 2, 2, 2, 2, 1]]  # cut
        assert source.labels.tolist() == [0, 0, 1, 1, 1]
        assert source[3]["label"] == 1 and source[0]["image"].tolist() == [5, 9, 2, 3, 1, 0]


@pytest.mark.parametrize(
    ("subjective", "objective"),
    [
        ("subj.pos", "subj.neg.gz"),
        ("quote.tok.gt9.5000", "plot.tok.gt9.5000"),
        ("subj.subjective", "subj.objective"),
    ],
)
def test_subj_under_its_published_names(tmp_path, subjective, objective):
    (tmp_path / subjective).write_bytes("\n".join(POSITIVE).encode("cp1252"))
    content = "\n".join(NEGATIVE).encode()
    (tmp_path / objective).write_bytes(gzip.compress(content) if "gz" in objective else content)
    source, _ = text.open_labelled("subj", tmp_path, VOCABULARY, 6)
    assert source.labels.tolist() == [0, 0, 1, 1, 1] and source.tokens[1].tolist()[:2] == [6, 1]


def test_a_task_that_is_not_there(tmp_path):
    for name, folder, said in (
        ("sbuj", None, "did you mean 'subj'"),
        ("MR", None, "did you mean 'mr'"),
        ("subj", None, "quote.tok.gt9.5000 or subj.subjective and subj.neg or plot.tok.gt9.5000"),
        ("subj", tmp_path, r"no file .*/subj\.neg \(or subj\.neg\.gz, plot\.tok\.gt9\.5000,"),
        ("mr", tmp_path, r"rt-polarity\.neg \(or rt-polarity\.neg\.gz\); labelled"),
    ):
        with pytest.raises(UserError, match=said):
            text.open_labelled(name, folder, VOCABULARY, 6)


def test_table(tmp_path):
    columns = [("class", "review", "id"), *((*row, str(i)) for i, row in enumerate(ROWS))]
    for content in (
        table(*ROWS),
        table(*ROWS, order=(1, 0)),
        table(("label", "sentence"), *ROWS),
        "\ufeff" + table(("Label", "Text"), *ROWS, order=(1, 0)),
        table(*ROWS).replace("\n", "\r\n\r\n"),
        table(*columns, order=(2, 1, 0)),
    ):
        for name, packed in (("t.tsv", content), ("t.tsv.gz", gzip.compress(content.encode()))):
            source = opened(tmp_path / name, packed)
            assert read_back(source) == [sentence for _, sentence in ROWS], content
            assert source.class_names == ("bad", "good"), content
            assert source.labels.tolist() == [1, 0, 1, 0], content
    assert len(opened(tmp_path / "t.tsv", table(("good", "review"), *ROWS))) == 5  # no header
    rows = [(str(i % 11), "so .") for i in range(33)]  # classes are sorted as numbers
    source = opened(tmp_path / "t.tsv", table(("label", "text"), *rows))
    assert source.class_names == tuple(map(str, range(11)))
    assert source.labels.tolist() == [*range(11)] * 3


@pytest.mark.parametrize("longer", ["train", "test"])
def test_folder(tmp_path, caplog, longer):
    """Both splits are as wide as the longest sentence."""
    for name, rows in (("train", ROWS), ("test", ROWS[:1])):
        more = [("bad", "a b c d e f g h i")] if name == longer else []
        (tmp_path / f"{name}.tsv").write_text(table(*rows, *more, ("bad", "sad")))
    for limit, width in ((128, 10), (10, 10), (9, 9)):
        train, test = text.open_labelled(str(tmp_path), None, WORDS, limit)
        assert train.image_shape == test.image_shape == (width,)
    assert caplog.messages == [f"{tmp_path}: 1 of 8 sentences are cut at 8 words"]
    assert read_back(test)[0] == "so good" and test.labels[0] == 1
    assert len(train) + len(test) == 8 and test.origin != train.origin


def test_refused(tmp_path):
    (tmp_path / "train.tsv").write_text(table(*ROWS))
    (tmp_path / "test.tsv").write_text(table(("ugly", "so so"), ("bad", "oh")))
    with pytest.raises(UserError, match=r"a class that train\.tsv lacks"):
        text.open_labelled(str(tmp_path), None, WORDS, 9)
