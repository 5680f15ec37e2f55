"""Labelled sentences: pairs of files and tables."""

import gzip

import numpy as np
import pytest

from hypersphere_jax.configs import UserError
from hypersphere_jax.text.labelled import load_labelled

POSITIVE = ["it 's a gem .", "clichés , but loved ones — all !", "…"]
NEGATIVE = ["don't bother .", "dull"]
VOCABULARY = ("<pad>", "<end>", "<unk>", ".", "'s", "do", "dull", "gem", "it", "n't")


def test_pair_of_files(tmp_path, caplog):
    """Files like MR's: Windows-1252, and a space at the end of lines."""
    positive = " \r\n\r\n".join(POSITIVE) + "\r\n"
    (tmp_path / "rt-polarity.pos").write_bytes(positive.encode("cp1252"))
    (tmp_path / "rt-polarity.neg.gz").write_bytes(gzip.compress("\n".join(NEGATIVE).encode()))
    stem = str(tmp_path / "rt-polarity")
    names = [stem + ending for ending in ("", ".pos", ".neg", ".neg.gz")]
    for name, folder in (*((name, None) for name in names), ("mr", tmp_path)):
        caplog.clear()
        dataset = load_labelled(name, folder, VOCABULARY, 6)
        source = dataset.train
        assert len(caplog.messages) == 1
        assert source.class_names == ("neg", "pos") and dataset.test is None
        assert source.tokens.dtype == source.labels.dtype == np.int32 and len(source) == 5
        assert source.tokens[:2].tolist() == [[5, 9, 2, 3, 1, 0], [6, 1, 0, 0, 0, 0]]
        assert source.tokens[2:4].tolist() == [[8, 4, 2, 7, 3, 1], [2, 2, 2, 2, 2, 1]]  # truncated
        assert source.labels.tolist() == [0, 0, 1, 1, 1]
        assert source[3]["label"] == 1 and source[0]["image"].tolist() == [5, 9, 2, 3, 1, 0]


@pytest.mark.parametrize("header", ["", "Label\tsentence\r\n", "\ufefflabel\ttext\n"])
def test_table(tmp_path, header):
    rows = [("good", "so good"), ("bad", "so bad"), ("ugly", "it 's dull"), ("bad", "dull")]
    content = header + "".join(f"{label} \t{sentence}\n\n" for label, sentence in rows)
    (tmp_path / "a.tsv").write_text(content)
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(content.encode()))
    for name in ("a.tsv", "a.tsv.gz"):
        source = load_labelled(str(tmp_path / name), None, VOCABULARY).train
        assert source.class_names == ("bad", "good", "ugly")
        assert source.labels.tolist() == [1, 0, 2, 0]
        assert source.tokens.tolist() == [[2, 2, 1, 0], [2, 2, 1, 0], [8, 4, 6, 1], [6, 1, 0, 0]]


def test_digest_changes_with_words_and_labels(tmp_path):
    digests = set()
    for content in ("a\tit\nb\tdull", "a\tit\nb\tgem", "b\tit\na\tdull", "a\tit .\nb\tdull"):
        (tmp_path / "a.tsv").write_text(content)
        digests.add(load_labelled(str(tmp_path / "a.tsv"), None, VOCABULARY).digest())
    assert len(digests) == 4


@pytest.mark.parametrize(
    ("name", "folder", "message"),
    [
        ("MR", None, "'mr'"),
        ("mr", None, "data_dir="),
        ("mr", "", "rt-polarity.neg"),
        ("one", "", "one"),
        ("untabbed.tsv", "", "line 2"),
        ("single.tsv", "", "two"),
        ("empty.tsv", "", "two"),
    ],
)
def test_missing_and_malformed_files_are_refused(tmp_path, name, folder, message):
    (tmp_path / "one.pos").write_text("dull")
    (tmp_path / "untabbed.tsv").write_text("good\tit\nbad dull")
    (tmp_path / "single.tsv").write_text("good\tit\ngood\tdull")
    (tmp_path / "empty.tsv").touch()
    if folder is not None and name != "mr":
        name = str(tmp_path / name)
    with pytest.raises(UserError, match=message):
        load_labelled(name, None if folder is None else tmp_path, VOCABULARY)
