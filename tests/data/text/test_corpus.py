"""Corpora of text: what the files hold, numbered, in splits, as a source of sentences."""

import collections
import json
import pickle
import shutil

import numpy as np
import pytest
from corpora import contents, made, read_back

from hypersphere_jax import data, datasheet
from hypersphere_jax.config import DataConfig, LookedAt, UserError
from hypersphere_jax.data import text
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
        assert corpus.lengths.tolist() == [len(words) + 1 for words in shown]
        assert any(len(s) == 7 for s in sentences)  # these are whole
        said = {
            "documents": len(parts),
            "sentences": len(sentences),
            "tokens": corpus.lengths.sum(),
            "cut": sum(len(s) > 7 for s in sentences),
            "unknown": sum(words.count("<unk>") for words in shown),
        }
        assert {name: corpus.counts[name] for name in said} == said and min(said.values()) > 0
    files = json.loads((tmp_path / "out/corpus.json").read_text())["files"]
    found = [(file["name"], file["encoding"], file["sentences"]) for file in files]
    encodings = ["cp1252", *["utf-8"] * 4]
    names, sizes = [*documents, "empty.txt"], [*map(len, documents.values()), 0]
    assert found == list(zip(names, encodings, sizes, strict=True))


def test_source(library, tmp_path):
    train, _ = made(library[0], tmp_path / "out", max_tokens=9)
    assert train.image_shape == (9,) and train.class_names == () and train.max_tokens == 9
    np.testing.assert_array_equal(train.labels, [-1] * len(train))
    assert train.labels.dtype == train.lengths.dtype == np.int32
    tokens, lengths = train.rows(70, 90)
    assert tokens.dtype == lengths.dtype == np.int32
    assert lengths.tolist() == train.lengths[70:90].tolist()
    for i, words in zip(range(70, 90), np.split(tokens, np.cumsum(lengths)[:-1]), strict=True):
        sample = train[i]
        assert sample["label"] == -1 and sample["image"].dtype == np.int32
        assert sample["image"].tolist() == [*words, *[0] * (9 - len(words))]
        assert words[-1] == 1 and 1 not in words[:-1]
    with pytest.raises(IndexError):
        train[len(train)]
    again = pickle.loads(pickle.dumps(train))
    assert read_back(again) == read_back(train) and again.digest == train.digest
    assert len(pickle.dumps(train)) < 1000


def test_digest_changes_with_text_and_options(library, tmp_path):
    digests = set()
    for number, options in enumerate(({}, {"max_tokens": 8}, {"vocabulary": 9}, {"held_out": 0.2})):
        digests |= {part.digest for part in made(library[0], tmp_path / str(number), **options)}
    assert len(digests) == 8
    shutil.copytree(library[0], tmp_path / "copy")
    assert made(tmp_path / "copy", tmp_path / "same")[0].digest in digests
    (tmp_path / "copy/e.txt").write_text("Another sentence .")
    assert made(tmp_path / "copy", tmp_path / "other")[0].digest not in digests


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


def test_more_words_than_two_bytes_number(tmp_path):
    known = [f"w{i:05}" for i in range(2**16 - 2)]  # and three special ones
    lines = [" ".join(known[i : i + 60]) for i in range(0, len(known), 60)]
    (tmp_path / "t.txt").write_text("\n".join(lines))
    options = {"vocabulary": 10**6, "held_out": 0, "form": "sentences"}
    assert read_back(made(tmp_path / "t.txt", tmp_path / "out", **options)[0]) == lines


def test_damage(library, tmp_path):
    out = tmp_path / "out"
    made(library[0], out)
    for name, whole in contents(out).items():
        for damaged in (whole[:-3], b""):
            (out / name).write_bytes(damaged)
            with pytest.raises(UserError, match=rf"{out / name}.* (damaged|cannot be read)"):
                text.open_corpus(out)
        (out / name).write_bytes(whole)
    about = json.loads((out / "corpus.json").read_text())
    (out / "corpus.json").write_text(json.dumps(about | {"format": 99}))
    with pytest.raises(UserError, match="format 99"):
        text.open_corpus(out)


def test_mistakes(tmp_path, library):
    whole = (library[0] / "a/z.txt.gz").read_bytes()
    files = {"x.pdf": b"A word.", "none.txt": b"...\n\n--\n", "c.txt.gz": whole[:-20]}
    for name, content in (files | {"wide.txt": "Wide.".encode("utf-16")}).items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.pdf").touch()
    for message, raw, out, options in (
        ("no .txt or .txt.gz file", tmp_path / "full", "out", {}),
        ("no file or folder", tmp_path / "nowhere", "out", {}),
        ("called .txt or .txt.gz", tmp_path / "x.pdf", "out", {}),
        ("no sentence with a word", tmp_path / "none.txt", "out", {}),
        ("UTF-16", tmp_path / "wide.txt", "out", {}),
        ("c.txt.gz is damaged or cut short", tmp_path / "c.txt.gz", "out", {}),
        ("lies in", library[0], library[0] / "a/out", {}),
        ("holds something else", library[0], "full", {}),
        ("--held-out ", library[0], "out", {"held_out": 1.0}),
        ("--max-tokens ", library[0], "out", {"max_tokens": 1}),
    ):
        with pytest.raises(UserError, match=message):
            text.prepare_text(raw, tmp_path / out, **options)
        assert not (tmp_path / out / "corpus.json").exists()
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
    assert (tmp_path / "full/thesis.pdf").exists()


def test_load(library, tmp_path):
    root = str(library[0])
    config = DataConfig(name="books", data_dir=root, max_tokens=9)
    dataset = data.load(config)
    assert dataset.recipe == "sentences" and dataset.pretrain is dataset.train
    assert dataset.class_names == () and dataset.train.max_tokens == 9 and len(dataset.test) == 8
    kept = str(dataset.train.folder)
    for same in (DataConfig(name=root, max_tokens=9), DataConfig(name=kept), config):
        assert data.load(same).digest() == dataset.digest()
    other = data.load(DataConfig(name=f"{root}/a.txt", recipe="sentences"))
    assert other.train.max_tokens == 64 and other.train.folder != dataset.train.folder
    located = data.located(config)
    assert located["name"] == "books" and located["data_dir"] == str(library[0].resolve())
    for message, options in (
        (r"--max-tokens 12: .* was prepared with 9", {"name": kept, "max_tokens": 12}),
        ("--fraction .*is for images", {"name": root, "fraction": 0.5}),
        ("--bits .*is for images", {"name": root, "bits": 1}),
        ("--recipe .*is for images", {"name": root, "recipe": "moco"}),
        ("books needs --data-dir", {"name": "books"}),
        ("no file or folder", {"name": "nowhere.txt"}),
    ):
        with pytest.raises(UserError, match=message):
            data.load(DataConfig(**options))


def test_images_beside_text_are_images(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "labels.txt").write_text("A cat.")
    assert data.text_folder(DataConfig(name=str(tmp_path))) == tmp_path
    (tmp_path / "deep/1.JPG").touch()
    assert data.text_folder(DataConfig(name=str(tmp_path))) is None
    assert data.text_folder(DataConfig(name="digits")) is None


def test_inspect(library, tmp_path, capsys):
    config = LookedAt(name="books", data_dir=str(library[0]))
    datasheet.inspect(config, out=tmp_path / "found.json")
    train, printed = data.load(config).train, capsys.readouterr().out
    assert all(word in printed for word in train.vocabulary[:20])
    found = json.loads((tmp_path / "found.json").read_text())["train"]
    n, words = len(train), int(train.lengths.sum()) - len(train)
    said = {"documents": 4, "sentences": n, "tokens": words + n, "words_mean": words / n}
    assert {name: found[name] for name in said} == pytest.approx(said)
