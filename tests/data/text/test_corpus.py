"""Corpora of text: what the files hold, in splits, stopped and gone on with, kept."""

import collections
import itertools
import json
import pickle
import shutil
from functools import partial

import numpy as np
import pytest
from data_cases import made, read_back

from hypersphere_jax import data
from hypersphere_jax.config import DataConfig, UserError
from hypersphere_jax.data import text
from hypersphere_jax.data.text import rules
from hypersphere_jax.data.text.corpus import Corpus


@pytest.mark.parametrize("steps", ["home", "small_steps"])
def test_corpus_is_what_the_files_hold(library, tmp_path, steps, request):
    request.getfixturevalue(steps)
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
    assert [file["name"] for file in files] == [*documents, "empty.txt"]
    assert [file["encoding"] for file in files] == ["cp1252", *["utf-8"] * 4]


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
        (out / name).write_bytes(whole[:-3])
        with pytest.raises(UserError, match=rf"{out / name}.* (damaged|cannot be read)"):
            text.open_corpus(out)
        (out / name).write_bytes(whole)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.pdf").touch()
    (tmp_path / "cut.txt.gz").write_bytes((library[0] / "a/z.txt.gz").read_bytes()[:-20])
    for message, raw, folder in (
        ("no .txt or .txt.gz file", "full", "a"),
        ("damaged or cut short", "cut.txt.gz", "d"),
        ("lies in", library[0], library[0] / "a/out"),
        ("something else", library[0], "full"),
    ):
        with pytest.raises(UserError, match=message):
            text.prepare_text(tmp_path / raw, tmp_path / folder)
    assert (tmp_path / "full/thesis.pdf").exists()


def test_load(library, tmp_path):
    root = str(library[0])
    config = DataConfig(name="books", data_dir=root, max_tokens=9)
    dataset = data.load(config)
    assert dataset.recipe == "sentences" and dataset.pretrain is dataset.train
    assert dataset.train.max_tokens == 9 and len(dataset.test) == 8
    kept = str(dataset.train.folder)
    for same in (DataConfig(name=root, max_tokens=9), DataConfig(name=kept), config):
        assert data.load(same).digest() == dataset.digest()
    other = data.load(DataConfig(name=f"{root}/a.txt", recipe="sentences"))
    assert other.train.max_tokens == 64 and other.train.folder != dataset.train.folder
    for options in ({"name": kept, "max_tokens": 12}, {"name": root, "fraction": 0.5}):
        with pytest.raises(UserError, match=r"was prepared with 9|is for images"):
            data.load(DataConfig(**options))
    # Images beside text are images.
    for file, found in (("labels.txt", tmp_path), ("1.JPG", None)):
        (tmp_path / file).write_text("A cat.")
        assert data.text_folder(DataConfig(name=str(tmp_path))) == found


def contents(folder):
    """The bytes of each file of a corpus."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {file.relative_to(folder): file.read_bytes() for file in files}


def stopping(after, items, count):
    """A progress that is interrupted after so many steps."""
    yield from itertools.islice(items, after)
    raise KeyboardInterrupt


@pytest.mark.parametrize("form", ["prose", "sentences"])
def test_goes_on_bit_by_bit(library, tmp_path, small_steps, monkeypatch, form):
    """With paragraphs, sentences and lines that are longer than what is kept of them."""
    raw, out, read, steps = tmp_path / "raw", tmp_path / "again", [], []
    shutil.copytree(library[0], raw)
    parts = [" ".join(f"X{i}y{j}" for j in range(5 + i)) + "." for i in range(36)]
    lines = ["Short.", *(" ".join(parts[i : i + 3]) for i in range(36))]
    (raw / "long.txt").write_text("\n".join(lines))
    words = rules.words
    monkeypatch.setattr(rules, "words", lambda sentence: read.append(sentence) or words(sentence))
    options = {"form": form, "max_tokens": 512, "held_out": 0.1}
    text.prepare_text(raw, tmp_path / "whole", track=lambda s, _: map(steps.append, s), **options)
    whole = len(read)
    # Stopped again and again, while it reads and while it writes.
    for after in range(0, len(steps) - 1, 5):
        with pytest.raises(KeyboardInterrupt):
            text.prepare_text(raw, out, track=partial(stopping, after), **options)
    with pytest.raises(UserError, match="is no prepared corpus"):
        text.open_corpus(out)
    read.clear()
    assert text.prepare_text(raw, out, **options)
    assert contents(out) == contents(tmp_path / "whole")
    assert len(read) < whole / 2  # what was read is not read again


def test_a_corpus_of_other_files_or_options_is_left_alone(library, tmp_path, small_steps):
    root, out, begun = library[0], tmp_path / "out", tmp_path / "begun"

    def track(items, count):
        with pytest.raises(UserError, match="another process prepares"):
            text.prepare_text(root, out)
        return items

    assert text.prepare_text(root, out, track=track)
    whole = contents(out)
    assert not text.prepare_text(root, out)
    with pytest.raises(KeyboardInterrupt):
        text.prepare_text(root, begun, track=partial(stopping, 20))
    others = ({"max_tokens": 63}, {"vocabulary": 7}, {"held_out": 0.1}, {"form": "prose"})
    for raw, options in [(root / "a.txt", {}), *((root, other) for other in others)]:
        for folder in (out, begun):
            with pytest.raises(UserError, match="corpus of other files or options"):
                text.prepare_text(raw, folder, **options)
    assert text.prepare_text(root, begun) and contents(begun) == whole == contents(out)


def test_prepared_on_the_fly_once(library, tmp_path, home, caplog):
    folder = text.prepared(library[0])
    assert f"kept for the next time in {folder}" in caplog.text
    made_at = (folder / "corpus.json").stat().st_mtime_ns
    assert text.prepared(library[0]) == folder and len(caplog.messages) == 1
    assert (folder / "corpus.json").stat().st_mtime_ns == made_at
    whole = contents(folder)
    (folder / "vocabulary.txt").write_bytes(b"cut")  # a damaged one is made anew
    assert text.prepared(library[0]) == folder and contents(folder) == whole
    assert list(folder.parent.iterdir()) == [folder]
    others = [text.prepared(library[0], **{option: 9}) for option in ("max_tokens", "vocabulary")]
    assert len({folder, *others}) == 3
    for animal in ("cat", "dog"):  # text that changed is prepared anew
        (tmp_path / "t.txt").write_text(f"The {animal} sat. The {animal} ate.")
        train, _ = text.open_corpus(text.prepared(tmp_path / "t.txt"))
        assert text.text(train, 0) == f"the {animal} sat ."
    # Where a cache cannot be: until the process ends.
    shutil.rmtree(home)
    home.touch()
    elsewhere = text.prepared(library[0])
    assert elsewhere != folder and text.prepared(library[0]) == elsewhere
