"""Corpora of text: content, splits, damage, and the cache."""

import collections
import os
import pickle
import shutil
from concurrent import futures

import numpy as np
import pytest
from corpora import made, read_back

from hypersphere_jax.configs import DataConfig, PretrainConfig, UserError
from hypersphere_jax.text import prepare
from hypersphere_jax.text.corpus import Corpus, open_corpus
from hypersphere_jax.text.prepare import PrepareTextConfig, prepare_text
from hypersphere_jax.text.text_data import find_text, load_corpus, load_text


def contents(folder):
    """Return the bytes of each file of a corpus."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {file.relative_to(folder): file.read_bytes() for file in files}


def test_corpus_contains_the_sentences_of_the_files(library, tmp_path):
    root, documents = library
    options = {"vocabulary": 40, "max_tokens": 8, "held_out": 0.1, "form": "sentences"}
    splits = made(root, tmp_path / "out", **options)
    borders = [(d, len(d) - len(d) // 10) for d in documents.values()]
    expected = [d[:border] for d, border in borders], [d[b:] for d, b in borders if d[b:]]
    counts = collections.Counter(w for d in expected[0] for s in d for w in s[:7])
    known = sorted(counts, key=lambda word: (-counts[word], word))[:40]
    for corpus, parts in zip(splits, expected, strict=True):
        assert corpus.vocabulary == ("<pad>", "<end>", "<unk>", *known)
        sentences = [s for part in parts for s in part]
        shown = [[w if w in known else "<unk>" for w in s[:7]] for s in sentences]
        assert read_back(corpus) == [" ".join(words) for words in shown]
        assert corpus.documents.tolist() == [0, *np.cumsum([len(part) for part in parts])]
        lengths = [len(words) + 1 for words in shown]
        assert corpus.lengths.tolist() == lengths
        counted = {"documents": len(parts), "sentences": len(sentences), "tokens": sum(lengths)}
        unknown = sum(words.count("<unk>") for words in shown)
        counted |= {
            "words_mean": np.mean(lengths) - 1,
            "words_95": np.quantile(lengths, 0.95) - 1,
            "unknown_share": unknown / (sum(lengths) - len(lengths)),
            "cut_share": np.mean([len(s) > 7 for s in sentences]),
        }
        assert corpus.statistics() == pytest.approx(counted) and min(counted.values()) > 0


def test_corpus_is_a_source(library, tmp_path):
    train, _ = made(library[0], tmp_path / "out", max_tokens=9)
    assert train.image_shape == (9,) and train.class_names == () and len(pickle.dumps(train)) < 1000
    assert train.labels.dtype == train.lengths.dtype == np.int32 and (train.labels == -1).all()
    for corpus in (train, pickle.loads(pickle.dumps(train))):
        tokens, lengths = corpus.rows(70, 90)
        assert lengths.tolist() == train.lengths[70:90].tolist()
        for i, words in zip(range(70, 90), np.split(tokens, np.cumsum(lengths)[:-1]), strict=True):
            sample = corpus[i]
            assert sample["label"] == -1 and sample["image"].dtype == words.dtype == np.int32
            assert sample["image"].tolist() == [*words, *[0] * (9 - len(words))]
            assert words[-1] == 1 and 1 not in words[:-1]


def test_digest_changes_with_text_and_options(library, tmp_path):
    shutil.copytree(library[0], tmp_path / "copy")
    (tmp_path / "copy/e.txt").write_text("Another sentence .")
    digests = {part.digest for part in made(tmp_path / "copy", tmp_path / "other")}
    for number, options in enumerate(({}, {"max_tokens": 8}, {"vocabulary": 9}, {"held_out": 0.2})):
        digests |= {part.digest for part in made(library[0], tmp_path / str(number), **options)}
    assert len(digests) == 10
    assert made(library[0], tmp_path / "same")[0].digest in digests


def test_vocabulary_is_that_of_the_training_part(tmp_path):
    (tmp_path / "t.txt").write_text("b b a.\n\nc a d.\n\nzebra zebra zebra.\n\n")
    train, held_out = made(tmp_path / "t.txt", tmp_path / "out", held_out=0.34)
    assert train.vocabulary[3:] == (".", "a", "b", "c", "d")  # ties in alphabetical order
    assert read_back(train) == ["b b a .", "c a d ."]
    assert held_out is None  # a single sentence
    assert read_back(Corpus(tmp_path / "out", "held_out")) == ["<unk> <unk> <unk> ."]


@pytest.mark.parametrize(("share", "held"), [(0.05, 5), (0.29, 29), (0.157, 15), (0, 0)])
def test_held_out_part_is_rounded_down(tmp_path, share, held):
    (tmp_path / "t.txt").write_text("\n".join(f"Number {i}." for i in range(100)))
    train, _ = made(tmp_path / "t.txt", tmp_path / "out", held_out=share)
    assert len(Corpus(tmp_path / "out", "held_out")) == held == 100 - len(train)


def test_more_words_than_two_bytes_can_number(tmp_path):
    words = [f"w{i}" for i in range(66_000)]
    (tmp_path / "t.txt").write_text(
        "\n".join(" ".join(words[i : i + 60]) for i in range(0, 66_000, 60))
    )
    options = {"held_out": 0, "vocabulary": 100_000, "form": "sentences"}
    train, _ = made(tmp_path / "t.txt", tmp_path / "out", **options)
    assert " ".join(read_back(train)).split() == words


def test_damage_is_detected(library, tmp_path):
    out = tmp_path / "out"
    made(library[0], out)
    for name, whole in contents(out).items():
        (out / name).write_bytes(whole[:-3])
        with pytest.raises(UserError, match=str(out)):
            open_corpus(out)
        if name.suffix in (".npy", ".txt"):
            middle = len(whole) // 2
            flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
            (out / name).write_bytes(flipped)
            with pytest.raises(UserError, match=str(out)):
                open_corpus(out)
        (out / name).write_bytes(whole)
    open_corpus(out)


def test_other_files_are_left_alone(library, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.pdf").touch()
    for out in (tmp_path / "full", library[0] / "a/out"):
        with pytest.raises(UserError, match="out="):
            prepare_text(PrepareTextConfig(str(library[0]), str(out)))
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.pdf"]


def test_an_interrupted_preparation_leaves_nothing(library, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    for name in ("tokenize", "write_json"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(prepare, name, interrupt)
            prepare_text(PrepareTextConfig(str(library[0]), str(tmp_path / "out")))
        assert not list(tmp_path.iterdir())


def test_text_of_a_config(library, tmp_path):
    root = str(library[0])
    config = DataConfig(data="books", data_dir=root, max_tokens=9)
    dataset = load_text(config)
    assert dataset.pretrain is dataset.train
    assert dataset.train.max_tokens == 9 and len(dataset.test) == 8
    kept = str(dataset.train.folder)
    for same in (DataConfig(data=root, max_tokens=9), DataConfig(data=kept), config):
        assert load_text(same).digest() == dataset.digest()
        assert find_text(same) is not None
    other = load_text(DataConfig(data=f"{root}/a.txt"))
    assert other.train.max_tokens == 64 and other.train.folder != dataset.train.folder
    refused = ({"data": kept, "max_tokens": 12}, {"data": root, "fraction": 0.5}, {"data": "books"})
    for options in refused:
        with pytest.raises(UserError, match=list(options)[-1]):
            load_text(DataConfig(**options))
    with pytest.raises(UserError, match="digits"):
        load_text(PretrainConfig(model="sentence_gru"))


def test_folders_of_images_with_a_list_are_not_text(tmp_path):
    (tmp_path / "labels.txt").write_text("A cat.")
    assert find_text(DataConfig(data=str(tmp_path))) == tmp_path
    (tmp_path / "1.jpg").touch()
    assert find_text(DataConfig(data=str(tmp_path))) is None
    assert find_text(DataConfig()) is None


def test_text_is_prepared_once(library, tmp_path, home, caplog):
    options = (50_000, 64)
    caplog.set_level("INFO", "hypersphere_jax")
    train, _ = load_corpus(library[0], *options)
    assert str(train.folder) in caplog.text and train.folder.is_relative_to(home)
    modified = os.stat(train.folder / "corpus.json").st_mtime_ns
    again, _ = load_corpus(library[0], *options)
    assert os.stat(again.folder / "corpus.json").st_mtime_ns == modified
    folders = {load_corpus(library[0], *some)[0].folder for some in ((9, 64), (50_000, 9))}
    assert len({train.folder} | folders) == 3
    for animal in ("cat", "horse"):
        (tmp_path / "t.txt").write_text(f"The {animal} sat. The {animal} ate.")
        assert load_corpus(tmp_path / "t.txt", *options)[0].text(0) == f"the {animal} sat ."


def test_a_damaged_cache_is_replaced(library):
    train, _ = load_corpus(library[0], 1000, 16)
    whole = contents(train.folder)
    for name in whole:
        (train.folder / name).write_bytes(whole[name][:-5])
        assert load_corpus(library[0], 1000, 16)[0].folder == train.folder
        assert contents(train.folder) == whole


def test_processes_prepare_text_once(library, monkeypatch):
    prepared = []

    def counted(config):
        prepared.append(config)
        prepare_text(config)

    monkeypatch.setattr("hypersphere_jax.text.text_data.prepare_text", counted)
    with futures.ThreadPoolExecutor() as pool:
        corpora = [pool.submit(load_corpus, library[0], 1000, 16) for _ in range(3)]
        assert len({corpus.result()[0].digest for corpus in corpora}) == len(prepared) == 1
