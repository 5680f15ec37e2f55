"""Corpora of text: what the files hold, in splits, stopped and continued, kept in a cache."""

import collections
import itertools
import json
import pickle
import shutil
from concurrent import futures
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
from data_cases import made, read_back, write

from hypersphere_jax import data
from hypersphere_jax.configs import DataConfig, PrepareTextConfig, UserError
from hypersphere_jax.data import text
from hypersphere_jax.data.text import prepare as prepare_module
from hypersphere_jax.data.text import rules
from hypersphere_jax.data.text.corpus import Corpus
from hypersphere_jax.utils import files


def test_corpus_is_what_the_files_hold(library, tmp_path):
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
        said = {"documents": len(parts), "sentences": len(sentences), "tokens": sum(lengths)}
        unknown = sum(words.count("<unk>") for words in shown)
        said |= {"cut": sum(len(s) > 7 for s in sentences), "unknown": unknown}
        assert {name: corpus.counts[name] for name in said} == said and min(said.values()) > 0
    files = json.loads((tmp_path / "out/corpus.json").read_text())["files"]
    assert [name for name, _ in files] == [*documents, "empty.txt"]


def test_source(library, tmp_path):
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


def test_words_are_counted_in_the_training_part(tmp_path):
    (tmp_path / "t.txt").write_text("b b a.\n\nc a d.\n\nzebra zebra zebra.\n\n")
    train, held_out = made(tmp_path / "t.txt", tmp_path / "out", held_out=0.34)
    assert train.vocabulary[3:] == (".", "a", "b", "c", "d")  # ties in alphabetical order
    assert read_back(train) == ["b b a .", "c a d ."]
    assert held_out is None  # of one sentence
    assert read_back(Corpus(tmp_path / "out", "held_out")) == ["<unk> <unk> <unk> ."]


def test_held_out_is_rounded_down(tmp_path):
    (tmp_path / "t.txt").write_text("\n".join(f"Number {i}." for i in range(100)))
    for share, held in ((0.05, 5), (0.29, 29), (0.157, 15), (0, 0)):
        train, _ = made(tmp_path / "t.txt", tmp_path / str(share), held_out=share)
        assert len(Corpus(tmp_path / str(share), "held_out")) == held == 100 - len(train)


def test_damage(library, tmp_path):
    out = tmp_path / "out"
    made(library[0], out)
    for name, whole in contents(out).items():
        middle = len(whole) // 2
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        for content in (whole[:-3], flipped):
            (out / name).write_bytes(content)
            with pytest.raises(UserError, match=f"{out}.* (damaged|no prepared corpus|not JSON)"):
                text.open_corpus(out)
        (out / name).write_bytes(whole)
    cut = (library[0] / "a/z.txt.gz").read_bytes()[:-20]
    write(tmp_path, {"full/thesis.pdf": b"", "cut.txt.gz": cut})
    for message, raw, folder in (
        ("no .txt or .txt.gz file", "full", "a"),
        ("damaged or cut short", "cut.txt.gz", "d"),
        ("lies in", library[0], library[0] / "a/out"),
        ("something else", library[0], "full"),
    ):
        with pytest.raises(UserError, match=message):
            prepare(tmp_path / raw, tmp_path / folder)
    assert (tmp_path / "full/thesis.pdf").exists()


def test_load(library, tmp_path, caplog):
    root = str(library[0])
    config = DataConfig(data="books", data_dir=root, max_tokens=9)
    dataset = data.load(config)
    assert dataset.recipe == "sentences" and dataset.pretrain is dataset.train
    assert dataset.train.max_tokens == 9 and len(dataset.test) == 8
    kept = str(dataset.train.folder)
    for same in (DataConfig(data=root, max_tokens=9), DataConfig(data=kept), config):
        assert data.load(same).digest() == dataset.digest()
    tokens = dataset.train.folder / "train" / "tokens.bin"
    tokens.unlink()
    tokens.write_bytes(bytes(dataset.train.rows(0, len(dataset.train))[0].nbytes // 2))
    again = data.load(config)
    assert "is damaged" in caplog.text and "it is prepared again" in caplog.text
    assert again.train.text(0) == dataset.train.text(0) and again.digest() == dataset.digest()
    other = data.load(DataConfig(data=f"{root}/a.txt", recipe="sentences"))
    assert other.train.max_tokens == 64 and other.train.folder != dataset.train.folder
    for options in ({"data": kept, "max_tokens": 12}, {"data": root, "fraction": 0.5}):
        with pytest.raises(UserError, match=r"was prepared with 9|is for images"):
            data.load(DataConfig(**options))
    # Images beside text are images.
    for file, found in (("labels.txt", tmp_path), ("1.JPG", None)):
        (tmp_path / file).write_text("A cat.")
        assert data.text_folder(DataConfig(data=str(tmp_path))) == found


def contents(folder):
    """The bytes of each file of a corpus."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {file.relative_to(folder): file.read_bytes() for file in files}


def prepare(raw, out, track=iter, **options):
    return text.prepare_text(PrepareTextConfig(str(raw), str(out), **options), track)


def stopping(after, files):
    yield from itertools.islice(files, after)
    raise KeyboardInterrupt


def test_goes_on_with_the_file_that_was_being_read(library, tmp_path, monkeypatch):
    (root, documents), out, read, words = library, tmp_path / "out", [], rules.words

    def counted(sentence):
        read.append(sentence)
        if len(read) == 60:  # the 20th of the second file
            raise KeyboardInterrupt
        return words(sentence)

    monkeypatch.setattr(rules, "words", counted)
    for track in (iter, *(partial(stopping, after) for after in range(6))):
        with pytest.raises(KeyboardInterrupt):
            prepare(root, out, track, form="sentences")
    with monkeypatch.context() as patch, pytest.raises(KeyError):
        patch.setattr("hypersphere_jax.data.text.prepare.write_json", lambda *_: {}["corpus.json"])
        prepare(root, out, form="sentences")
    with pytest.raises(UserError, match=r"corpus\.json: No such file .* prepare-text makes"):
        text.open_corpus(out)
    assert prepare(root, out, form="sentences")
    assert len(read) == 20 + sum(map(len, documents.values()))  # what was read is not read again
    made(root, tmp_path / "whole", form="sentences")
    assert contents(out) == contents(tmp_path / "whole")


def test_a_corpus_of_other_files_or_options_is_left_alone(library, tmp_path):
    root, out, begun, raw = library[0], tmp_path / "out", tmp_path / "begun", tmp_path / "raw"
    assert prepare(root, out) and not prepare(root, out)
    whole = contents(out)
    others = ({"max_tokens": 63}, {"vocabulary": 7}, {"held_out": 0.1}, {"form": "prose"})
    for place, options in [(root / "a.txt", {}), *((root, other) for other in others)]:
        with pytest.raises(UserError, match="corpus of other files or options"):
            prepare(place, out, **options)
    shutil.copytree(root, raw)
    (raw / "a.txt").write_bytes((root / "a.txt").read_bytes().replace(b"w", b"v"))
    for options in ({"max_tokens": 7}, {"form": "prose"}, {}):  # what they read is not used
        with pytest.raises(KeyboardInterrupt):
            prepare(raw, begun, partial(stopping, 3), **options)
    shutil.copyfile(root / "a.txt", raw / "a.txt")
    assert prepare(raw, begun) and contents(begun) == whole == contents(out)


def test_processes_wait_for_each_other(library, tmp_path):
    with futures.ThreadPoolExecutor() as pool:
        waiting = []

        def track(files):
            waiting.append(pool.submit(prepare, library[0], tmp_path / "out"))
            assert not futures.wait(waiting, 0.3).done
            return files

        assert prepare(library[0], tmp_path / "out", track) and waiting[0].result()
        assert len(waiting) == 1


def test_prepared_on_the_fly_once(library, tmp_path, caplog):
    options = (50_000, 64)
    caplog.set_level("INFO", "hypersphere_jax")
    folder = text.prepared(library[0], *options)
    assert f"kept for the next time in {folder}" in caplog.text
    assert text.prepared(library[0], *options) == folder and len(caplog.messages) == 1
    assert list(folder.parent.iterdir()) == [folder]
    others = {text.prepared(library[0], *some) for some in ((9, 64), (50_000, 9))}
    assert len({folder} | others) == 3
    for animal in ("cat", "horse"):  # text that changed is prepared anew
        (tmp_path / "t.txt").write_text(f"The {animal} sat. The {animal} ate.")
        train, _ = text.open_corpus(text.prepared(tmp_path / "t.txt", *options))
        assert train.text(0) == f"the {animal} sat ."


def test_a_cached_corpus_is_removed_only_where_it_is_damaged(tmp_path, monkeypatch):
    (tmp_path / "t.txt").write_text("The cat sat. The cat ate.")
    again = partial(text.prepared, tmp_path / "t.txt", 1000, 16)
    folder = again()
    (folder / "mine.txt").write_text("of mine")
    whole = contents(folder)
    with monkeypatch.context() as patch, pytest.raises(UserError, match="Too many open files"):
        patch.setattr(files, "_at_once", Mock(side_effect=OSError(24, "Too many open files")))
        again()
    assert contents(folder) == whole
    (folder / "vocabulary.txt").write_text("damaged")
    made = []

    def meanwhile(place):
        """Another process, too, sees the damage, and is done before this one goes on."""
        monkeypatch.setattr(prepare_module, "open_corpus", text.open_corpus)
        again()
        made.append((folder / "corpus.json").stat().st_mtime_ns)
        raise UserError("is damaged")

    monkeypatch.setattr(prepare_module, "open_corpus", meanwhile)
    assert again() == folder and (folder / "corpus.json").stat().st_mtime_ns == made[0]
    found = contents(folder)
    assert {name: found[name] for name in whole} == whole
