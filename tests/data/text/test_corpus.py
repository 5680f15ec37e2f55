"""Corpora of text: what the files hold, numbered, in splits, as a source of sentences."""

import collections
import json
import pickle
import shutil

import numpy as np
import pytest
from corpora import FILES, made, read_back

from hypersphere_jax import data, datasheet
from hypersphere_jax.config import DataConfig, LookedAt, PrepareTextConfig, UserError
from hypersphere_jax.data import text
from hypersphere_jax.data.text.corpus import Corpus


@pytest.mark.parametrize("steps", ["large_steps", "small_steps"])
def test_corpus_is_what_the_files_hold(library, tmp_path, steps, request):
    request.getfixturevalue(steps)
    root, documents = library
    options = {"vocabulary": 40, "max_tokens": 8, "held_out": 0.1, "form": "sentences"}
    train, held_out = made(root, tmp_path / "out", **options)
    order = list(documents.values())
    held = [len(document) // 10 for document in order]
    assert held == [4, 6, 7, 0]
    expected = [d[: len(d) - h] for d, h in zip(order, held, strict=True)]
    counts = collections.Counter(w for d in expected for s in d for w in s[:7])
    vocabulary = sorted(counts, key=lambda word: (-counts[word], word))[:40]
    assert train.vocabulary == ("<pad>", "<end>", "<unk>", *vocabulary) == held_out.vocabulary

    known = set(vocabulary)
    ends = [d[len(d) - h :] for d, h in zip(order, held, strict=True) if h]
    for corpus, parts in ((train, expected), (held_out, ends)):
        sentences = [s for part in parts for s in part]
        shown = [" ".join(w if w in known else "<unk>" for w in s[:7]) for s in sentences]
        assert read_back(corpus) == shown
        assert corpus.documents.tolist() == [0, *np.cumsum([len(part) for part in parts])]
        assert corpus.lengths.tolist() == [min(len(s), 7) + 1 for s in sentences]
        assert any(len(s) == 7 for s in sentences)  # these are whole
        said = {
            "documents": len(parts),
            "sentences": len(sentences),
            "tokens": corpus.lengths.sum(),
            "cut": sum(len(s) > 7 for s in sentences),
            "unknown": sum(w not in known for s in sentences for w in s[:7]),
        }
        assert {name: corpus.counts[name] for name in said} == said and min(said.values()) > 0
    files = json.loads((tmp_path / "out/corpus.json").read_text())["files"]
    assert [file["name"] for file in files] == [*documents, "empty.txt"]
    assert [file["encoding"] for file in files] == ["cp1252", *["utf-8"] * 4]
    assert [file["sentences"] for file in files] == [40, 61, 75, 1, 0]


def test_source(library, tmp_path):
    train, _ = made(library[0], tmp_path / "out", max_tokens=9)
    assert train.image_shape == (9,) and train.class_names == () and train.max_tokens == 9
    np.testing.assert_array_equal(train.labels, [-1] * len(train))
    assert train.labels.dtype == train.lengths.dtype == np.int32
    tokens, lengths = train.rows(70, 90)
    assert tokens.dtype == lengths.dtype == np.int32 and type(tokens) is np.ndarray
    assert lengths.tolist() == train.lengths[70:90].tolist()
    for i, words in zip(range(70, 90), np.split(tokens, np.cumsum(lengths)[:-1]), strict=True):
        sample = train[i]
        assert sample["label"] == -1 and sample["image"].dtype == np.int32
        assert sample["image"].tolist() == [*words, *[0] * (9 - len(words))]
        assert words[-1] == 1 and 1 not in words[:-1]
    assert train[-1]["image"].tolist() == train[len(train) - 1]["image"].tolist()
    with pytest.raises(IndexError):
        train[len(train)]
    with pytest.raises(ValueError, match="rows 3 to 2"):
        train.rows(3, 2)
    assert train.rows(5, 5)[0].size == train.rows(5, 5)[1].size == 0
    again = pickle.loads(pickle.dumps(train))
    assert read_back(again) == read_back(train) and again.digest == train.digest
    assert len(pickle.dumps(train)) < 1000


def test_digest_changes_with_text_and_options(library, tmp_path):
    digests = set()
    for number, options in enumerate(({}, {"max_tokens": 8}, {"vocabulary": 9}, {"held_out": 0.2})):
        digests |= {part.digest for part in made(library[0], tmp_path / str(number), **options)}
    assert len(digests) == 8
    copy = tmp_path / "copy"
    shutil.copytree(library[0], copy)
    assert made(copy, tmp_path / "same")[0].digest in digests
    (copy / "e.txt").write_text("Another sentence .")
    assert made(copy, tmp_path / "other")[0].digest not in digests


def test_words_are_counted_in_the_training_part(tmp_path):
    (tmp_path / "t.txt").write_text("b b a.\n\nc a d.\n\nzebra zebra zebra.\n\n")
    train, held_out = made(tmp_path / "t.txt", tmp_path / "out", held_out=0.34)
    assert train.vocabulary[3:] == (".", "a", "b", "c", "d")  # ties in alphabetical order
    assert read_back(train) == ["b b a .", "c a d ."]
    assert held_out is None  # of one sentence
    assert read_back(Corpus(tmp_path / "out", "held_out")) == ["<unk> <unk> <unk> ."]


def test_held_out_is_rounded_down(tmp_path):
    (tmp_path / "t.txt").write_text("\n".join(f"Number {i}." for i in range(100)))
    for share, held in ((0.05, 5), (0.29, 29), (0.157, 15), (0.009, 0), (0, 0)):
        train, _ = made(tmp_path / "t.txt", tmp_path / str(share), held_out=share)
        assert len(Corpus(tmp_path / str(share), "held_out")) == held == 100 - len(train)


@pytest.mark.parametrize("words, size", [(2**16, 2), (2**16 + 1, 4)])
def test_large_vocabularies_take_more_bytes(tmp_path, words, size):
    known = [f"w{i:05}" for i in range(words - 3)]  # and three special ones
    lines = [" ".join(known[i : i + 60]) for i in range(0, len(known), 60)]
    (tmp_path / "t.txt").write_text("\n".join(lines))
    options = {"vocabulary": 10**6, "held_out": 0, "form": "sentences"}
    train, _ = made(tmp_path / "t.txt", tmp_path / "out", **options)
    assert len(train.vocabulary) == words and read_back(train) == lines
    tokens = (tmp_path / "out/train/tokens.bin").stat().st_size
    assert tokens == size * train.counts["tokens"]


def test_rare_words_are_forgotten_where_there_are_too_many(tmp_path, monkeypatch, small_steps):
    monkeypatch.setattr("hypersphere_jax.data.text.pieces.MAX_WORDS", 40)
    lines = [f"often never{i} often again{i % 7}{' early' * (i < 99)}." for i in range(400)]
    (tmp_path / "t.txt").write_text("\n".join(lines))
    train, _ = made(tmp_path / "t.txt", tmp_path / "out", vocabulary=10, form="sentences")
    assert train.vocabulary[3:6] == ("often", ".", "early")
    assert set(train.vocabulary[6:]) == {f"again{i}" for i in range(7)}


def test_damage(library, tmp_path):
    out = tmp_path / "out"
    made(library[0], out)
    for name in FILES:
        whole = (out / name).read_bytes()
        for damaged in (whole[:-3], b"", None):
            (out / name).unlink() if damaged is None else (out / name).write_bytes(damaged)
            with pytest.raises(UserError, match=rf"{out / name}.* (damaged|cannot be read)"):
                text.open_corpus(out)
        (out / name).write_bytes(whole)
        text.open_corpus(out)
    about = json.loads(whole)  # corpus.json is the last
    (out / name).write_text(json.dumps(about | {"format": 99}))
    with pytest.raises(UserError, match="format 99"):
        text.open_corpus(out)


def test_mistakes(tmp_path, library):
    def refused(message, raw, out=tmp_path / "out", content=None, **options):
        if content is not None:
            raw.write_bytes(content)
        with pytest.raises(UserError, match=message) as error:
            text.prepare_text(raw, out, **options)
        assert "\n" not in str(error.value) and not (out / "corpus.json").exists()
        shutil.rmtree(tmp_path / "out", ignore_errors=True)

    root, whole = library[0], (library[0] / "a/z.txt.gz").read_bytes()
    (tmp_path / "full").mkdir()
    refused("no .txt or .txt.gz file", tmp_path / "full")
    refused("no file or folder", tmp_path / "nowhere")
    refused("called .txt or .txt.gz", tmp_path / "x.pdf", content=b"A word.")
    refused("no sentence with a word", tmp_path / "none.txt", content=b"...\n\n--\n")
    refused("UTF-16", tmp_path / "wide.txt", content="Wide.".encode("utf-16"))
    for damaged in (whole[:-20], whole[:60] + b"?????" + whole[65:], b"no gzip at all", whole[:5]):
        message = "cut.txt.gz is damaged or cut short"
        refused(message, tmp_path / "cut.txt.gz", content=damaged)
    refused("lies in", root, out=root / "a" / "out")
    for option, value in (("vocabulary", 0), ("max_tokens", 1), ("held_out", 1.0), ("form", "x")):
        refused(f"--{option.replace('_', '-')} ", root, **{option: value})
    (tmp_path / "full/thesis.tex").touch()
    refused("holds something else", root, out=tmp_path / "full")
    assert (tmp_path / "full/thesis.tex").exists()


def test_load(library, tmp_path, home):
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
    located = data.located(DataConfig(name="books", data_dir=root))
    assert located["name"] == "books" and located["data_dir"] == str(library[0].resolve())

    def refused(message, **options):
        with pytest.raises(UserError, match=message):
            data.load(DataConfig(**options))

    refused(r"--max-tokens 12: .* was prepared with 9", name=kept, max_tokens=12)
    for_images = {"classes": "x", "subset": "uniform", "fraction": 0.5, "folds": 2, "bits": 1}
    for option, value in (for_images | {"recipe": "moco", "bad_images": "skip"}).items():
        flag = option.replace("_", "-")
        refused(f"--{flag} .*is for images", name=root, **{option: value})
    refused("books needs --data-dir", name="books")
    refused("no file or folder", name="books", data_dir=str(tmp_path / "nowhere"))
    refused("no file or folder", name="nowhere.txt")
    for option, value in (("vocabulary", 0), ("vocabulary", 2**31), ("max_tokens", 1)):
        refused(f"--{option.replace('_', '-')}", **{option: value})


def test_images_beside_text_are_images(tmp_path):
    config = DataConfig(name=str(tmp_path / "images"))
    (tmp_path / "images/deep").mkdir(parents=True)
    (tmp_path / "images/labels.txt").write_text("A cat.")
    assert data.text_folder(config) == tmp_path / "images"
    (tmp_path / "images/deep/1.JPG").touch()
    assert data.text_folder(config) is None
    (tmp_path / "images/deep/1.JPG").unlink()
    (tmp_path / "images/train").mkdir()
    assert data.text_folder(config) is data.text_folder(DataConfig(name="digits")) is None


def test_verbs(library, tmp_path, capsys):
    root, out = library[0], tmp_path / "out"
    for told in (f"prepared: {out}", "nothing to do"):
        datasheet.prepare_text(PrepareTextConfig(raw=str(root), out=str(out), max_tokens=8))
        assert told in capsys.readouterr().out
    datasheet.inspect(LookedAt(name="books", data_dir=str(out)), out=tmp_path / "found.json")
    printed = capsys.readouterr().out
    train, held_out = text.open_corpus(out)
    middle = train.documents[2:4].sum() // 2  # of the largest document
    assert text.text(train, middle) in " ".join(printed.split())
    assert all(word in printed for word in train.vocabulary[:20])
    found = json.loads((tmp_path / "found.json").read_text())
    n, words = len(train), int(train.lengths.sum()) - len(train)
    said = {"documents": 4, "sentences": n, "tokens": words + n, "words_95": 7, "unknown_share": 0}
    said |= {"words_mean": words / n, "cut_share": train.counts["cut"] / n}
    assert found["train"] == pytest.approx(said)
    assert found["test"]["sentences"] == len(held_out)
    with pytest.raises(UserError, match="is text, of which there is no picture"):
        datasheet.show(LookedAt(name=str(root)))
    datasheet.known(str(root))
    (row,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("books"))
    assert "not prepared" not in row
    for option, value in (("held_out", 1.0), ("vocabulary", 0)):
        with pytest.raises(UserError, match=f"--{option.replace('_', '-')} "):
            PrepareTextConfig(raw="x", out="y", **{option: value})
