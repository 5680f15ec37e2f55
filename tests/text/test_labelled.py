"""Labelled sentences: pairs of files."""

import gzip

import pytest

from hypersphere_jax.configs import UserError
from hypersphere_jax.text.labelled import load_labelled

POSITIVE = ["it 's a gem .", "clichés , but loved ones — all !", "…"]
NEGATIVE = ["don't bother .", "dull"]
VOCABULARY = ("<pad>", "<end>", "<unk>", ".", "'s", "do", "dull", "gem", "it", "n't")


@pytest.mark.parametrize("ending", ["", ".pos", ".neg.gz", None])
def test_pair_of_files(tmp_path, ending):
    """The files are like MR's: Windows-1252, and a space at the end of lines."""
    positive = " \r\n\r\n".join(POSITIVE) + "\r\n"
    (tmp_path / "rt-polarity.pos").write_bytes(positive.encode("cp1252"))
    (tmp_path / "rt-polarity.neg.gz").write_bytes(gzip.compress("\n".join(NEGATIVE).encode()))
    name, folder = f"{tmp_path}/rt-polarity{ending}", None
    if ending is None:
        name, folder = "mr", tmp_path
    dataset = load_labelled(name, folder, VOCABULARY, 6)
    source = dataset.train
    assert source.class_names == ("neg", "pos") and dataset.test is None
    assert source.tokens[:2].tolist() == [[5, 9, 2, 3, 1, 0], [6, 1, 0, 0, 0, 0]]
    assert source.tokens[2:4].tolist() == [[8, 4, 2, 7, 3, 1], [2, 2, 2, 2, 2, 1]]  # truncated
    assert source.labels.tolist() == [0, 0, 1, 1, 1]


def test_missing_and_empty_files_are_refused(tmp_path):
    (tmp_path / "one.pos").write_text("dull")
    (tmp_path / "empty.pos").write_text("dull")
    (tmp_path / "empty.neg").write_text("\n")
    for name in ("one", "empty"):
        with pytest.raises(UserError, match=f"{name}.neg"):
            load_labelled(str(tmp_path / name), None, VOCABULARY)
    with pytest.raises(UserError, match="data_dir"):
        load_labelled("mr", None, VOCABULARY)
