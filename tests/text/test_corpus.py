"""Corpora of text: content, splits, damage, and the cache."""

import collections
import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from hypersphere_jax.configs import DataConfig, PretrainConfig, UserError
from hypersphere_jax.text.corpus import Corpus, open_corpus
from hypersphere_jax.text.prepare import load_text


def sentences_of(corpus):
    return [corpus.text(i) for i in range(len(corpus))]


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_corpus_contains_the_sentences_of_the_files(library, prepare, tmp_path):
    """The vocabulary has the most frequent words of the training part."""
    root, documents = library
    options = {"vocabulary": 40, "max_tokens": 8, "held_out": 0.1, "form": "sentences"}
    splits = prepare(root, tmp_path / "out", **options)
    cut = [[words[:7] for words in document] for document in documents.values()]
    train = [document[: len(document) - len(document) // 10] for document in cut]
    held_out = [document[len(document) - len(document) // 10 :] for document in cut]
    counts = collections.Counter(w for document in train for words in document for w in words)
    known = sorted(counts, key=lambda word: (-counts[word], word))[:40]
    for corpus, parts in zip(splits, (train, [*filter(None, held_out)]), strict=True):
        assert corpus.vocabulary == ("<pad>", "<end>", "<unk>", *known)
        sentences = [words for part in parts for words in part]
        shown = [[w if w in known else "<unk>" for w in words] for words in sentences]
        assert sentences_of(corpus) == [" ".join(words) for words in shown]
        assert corpus.documents.tolist() == [0, *np.cumsum([len(part) for part in parts])]
        _, lengths = corpus.rows(0, len(corpus))
        assert lengths.tolist() == [len(words) + 1 for words in sentences]
        assert corpus.statistics()["sentences"] == len(sentences)


def test_words_of_the_held_out_part_are_unknown(prepare, tmp_path):
    (tmp_path / "t.txt").write_text("b b a.\n\nc a d.\n\nzebra zebra zebra.\n\n")
    train, held_out = prepare(tmp_path / "t.txt", tmp_path / "out", held_out=0.34)
    assert train.vocabulary[3:] == (".", "a", "b", "c", "d")  # ties in alphabetical order
    assert sentences_of(train) == ["b b a .", "c a d ."]
    assert held_out is None  # a single sentence
    assert sentences_of(Corpus(tmp_path / "out", "held_out")) == ["<unk> <unk> <unk> ."]


def test_damage_is_detected(library, prepare, tmp_path):
    out = tmp_path / "out"
    prepare(library[0], out)
    for name, whole in contents(out).items():
        middle = len(whole) // 2
        damaged = [whole[:-3]]
        if not name.endswith(".json"):
            damaged.append(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
        for content in damaged:
            (out / name).write_bytes(content)
            with pytest.raises(UserError, match=str(out)):
                open_corpus(out)
        (out / name).write_bytes(whole)
    open_corpus(out)


def test_files_of_users_are_not_replaced(library, prepare, tmp_path):
    (tmp_path / "thesis.pdf").touch()
    with pytest.raises(UserError, match="out="):
        prepare(library[0], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.pdf"]


def test_failed_preparation_leaves_nothing(prepare, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("A sentence.\n" * 99)
    (folder / "b.txt.gz").write_bytes(gzip.compress(b"Another one.\n" * 99)[:-9])
    with pytest.raises(UserError, match=r"b\.txt\.gz"):
        prepare(folder, tmp_path / "out")
    assert list(tmp_path.iterdir()) == [folder]


def test_text_of_a_config(library):
    root = str(library[0])
    config = DataConfig(data="books", data_dir=root, max_tokens=9)
    dataset = load_text(config)
    assert dataset.pretrain is dataset.train
    assert dataset.train.max_tokens == 9 and len(dataset.test) == 8
    folder = str(dataset.train.folder)
    for same in (DataConfig(data=root, max_tokens=9), DataConfig(data=folder)):
        assert load_text(same).digest() == dataset.digest()
    for options in ({"data": folder, "max_tokens": 12}, {"data": root, "fraction": 0.5}):
        with pytest.raises(UserError, match=list(options)[-1]):
            load_text(DataConfig(**options))
    with pytest.raises(UserError, match="digits"):
        load_text(PretrainConfig(model="sentence_gru"))


def test_cache_of_text(library, tmp_path):
    """Text is prepared once, and again for other options, other text and a damaged cache."""
    config = DataConfig(str(library[0]), vocabulary=1000, max_tokens=16)
    folder = load_text(config).train.folder
    assert folder.is_relative_to(Path.home())
    whole = contents(folder)
    modified = os.stat(folder / "corpus.json").st_mtime_ns
    assert load_text(config).train.folder == folder
    assert os.stat(folder / "corpus.json").st_mtime_ns == modified
    changes = ({"vocabulary": 9}, {"max_tokens": 9})
    others = {load_text(config.replace(**change)).train.folder for change in changes}
    assert len({folder} | others) == 3
    text = tmp_path / "t.txt"
    for animal in ("cat", "horse"):
        text.write_text(f"The {animal} sat. The {animal} ate.")
        assert load_text(DataConfig(str(text))).train.text(0) == f"the {animal} sat ."
    for name in whole:
        (folder / name).write_bytes(whole[name][:-5])
        load_text(config)
        assert contents(folder) == whole
