"""Preparing a corpus goes on after an interruption, to the same files."""

import contextlib
import gzip

import pytest
from corpus_cases import (  # noqa: F401  fixtures
    Stop,
    contents,
    home_fixture,
    in_pieces_fixture,
    library_fixture,
    made,
    stopping,
)

from hypersphere_jax.config import UserError
from hypersphere_jax.data import text
from hypersphere_jax.data.text import pieces, prepare, reading


@pytest.mark.parametrize("form", ["prose", "sentences"])
def test_goes_on_bit_by_bit(library, tmp_path, in_pieces, monkeypatch, form):
    root, _ = library
    made(root, tmp_path / "whole", form=form)
    whole = contents(tmp_path / "whole")
    saved = []
    original = pieces._Piece.save
    monkeypatch.setattr(
        pieces._Piece,
        "save",
        lambda self, file, state: saved.append(1) or original(self, file, state),
    )
    made(root, tmp_path / "counted", form=form)
    count = len(saved)
    assert count >= 8
    # Stopped again and again, while it reads and while it writes.
    saved.clear()
    for after in range(0, 60, 3):
        with pytest.raises(Stop):
            text.prepare_text(root, tmp_path / "again", form=form, track=stopping(after))
            raise Stop
        assert not (tmp_path / "again/corpus.json").exists() or after > 40
    text.prepare_text(root, tmp_path / "again", form=form)
    assert contents(tmp_path / "again") == whole
    assert len(saved) == count  # no piece was made twice
    assert not (tmp_path / "again" / prepare.UNFINISHED).exists()


@contextlib.contextmanager
def stopped_before(number):
    """Nothing is made from this piece on."""

    def piece_file(work, i):
        if i >= number:
            raise Stop
        return original(work, i)

    original, pieces._piece_file = pieces._piece_file, piece_file
    try:
        with pytest.raises(Stop):
            yield
    finally:
        pieces._piece_file = original


def test_a_file_is_opened_once_for_all_its_pieces(tmp_path, in_pieces, monkeypatch):
    with gzip.open(tmp_path / "t.txt.gz", "wt") as file:
        file.write("\n".join(f"This is number {i}." for i in range(600)))
    begun = []
    read = reading.read
    monkeypatch.setattr(
        reading, "read", lambda path, cursor: begun.append(cursor.offset) or read(path, cursor)
    )
    made(tmp_path / "t.txt.gz", tmp_path / "whole")
    assert begun == [0]
    with stopped_before(4):
        text.prepare_text(tmp_path / "t.txt.gz", tmp_path / "out")
    made(tmp_path / "t.txt.gz", tmp_path / "out")
    assert begun[:2] == [0, 0] and len(begun) == 3 and begun[2] > 2000
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_very_long_sentences_are_cut_alike_after_an_interruption(tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES", 150_000)
    # Sentences of 36,000 letters and more, of which three stand in a line.
    parts = [" ".join(f"X{'x' * 200}{i}" for i in range(180 + k)) + "." for k in range(24)]
    lines = [" ".join(parts[i : i + 3]) for i in range(0, 24, 3)]
    (tmp_path / "t.txt").write_text("\n".join(["Short.", *lines]))
    options = {"max_tokens": 512, "form": "prose", "held_out": 0}
    made(tmp_path / "t.txt", tmp_path / "whole", **options)
    again = tmp_path / "again"
    for number in range(1, 4):
        with stopped_before(number):
            text.prepare_text(tmp_path / "t.txt", again, **options)
        assert len(list((again / prepare.UNFINISHED).glob("*.npz"))) == number
    made(tmp_path / "t.txt", again, **options)
    assert contents(again) == contents(tmp_path / "whole")


def test_both_passes_are_shown(library, tmp_path, in_pieces):
    work = tmp_path / "out" / prepare.UNFINISHED
    seen, counts = [], []

    def track(items, count):
        counts.append(count)
        for item in items:
            seen.append((work / "000002.npz").exists() + (work / "vocabulary.txt").exists())
            yield item

    text.prepare_text(library[0], tmp_path / "out", track=track)
    assert len(counts) == 1 and abs(len(seen) - counts[0]) <= 2
    assert seen == sorted(seen) and set(seen) == {0, 1, 2}


def test_goes_on_after_it_was_stopped_while_writing(library, tmp_path, in_pieces, monkeypatch):
    root, _ = library
    made(root, tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    replace, tried = prepare.os.replace, []

    def failing(source, target):
        """Stops the first time that anything takes its place."""
        if target not in tried:
            tried.append(target)
            raise Stop
        replace(source, target)

    monkeypatch.setattr(prepare.os, "replace", failing)
    out, is_done = tmp_path / "again", False
    while not is_done:
        try:
            is_done = text.prepare_text(root, out)
        except Stop:
            with pytest.raises(UserError, match="is no prepared corpus"):
                text.open_corpus(out)
    assert len(tried) > 12 and contents(out) == whole
    names = [path.relative_to(out).as_posix() for path in tried]
    assert names[-4:] == ["vocabulary.txt", "train", "held_out", "corpus.json"]


def test_a_damaged_piece_is_made_again(library, tmp_path, in_pieces):
    root, _ = library
    made(root, tmp_path / "whole")
    with pytest.raises(Stop):
        text.prepare_text(root, tmp_path / "again", track=stopping(40))
    piece = tmp_path / "again" / prepare.UNFINISHED / "000001.npz"
    piece.write_bytes(piece.read_bytes()[:300])
    text.prepare_text(root, tmp_path / "again")
    assert contents(tmp_path / "again") == contents(tmp_path / "whole")


def test_a_finished_corpus_is_left_alone(library, tmp_path):
    root, out = library[0], tmp_path / "out"
    made(root, out)
    before = contents(out)
    assert not text.prepare_text(root, out)
    for options in ({"max_tokens": 63}, {"vocabulary": 7}, {"held_out": 0.1}, {"form": "prose"}):
        with pytest.raises(UserError, match="corpus of other files or options"):
            text.prepare_text(root, out, **options)
    with pytest.raises(UserError, match="corpus of other files or options"):
        text.prepare_text(root / "a.txt", out)
    assert contents(out) == before


def test_a_part_of_another_corpus_is_left_alone(library, tmp_path, in_pieces):
    with pytest.raises(Stop):
        text.prepare_text(library[0], tmp_path / "out", track=stopping(20))
    with pytest.raises(UserError, match="a part of a corpus of other files or options"):
        text.prepare_text(library[0], tmp_path / "out", max_tokens=9)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.tex").touch()
    with pytest.raises(UserError, match="holds something else"):
        text.prepare_text(library[0], tmp_path / "full")


def test_pruning_keeps_the_frequent_words(tmp_path, monkeypatch, in_pieces):
    monkeypatch.setattr(pieces, "MAX_WORDS", 40)
    lines = [f"often never{i} often again{i % 7}{' early' * (i < 99)}." for i in range(400)]
    (tmp_path / "t.txt").write_text("\n".join(lines))
    train, _ = made(tmp_path / "t.txt", tmp_path / "out", vocabulary=10, form="sentences")
    assert train.vocabulary[3:6] == ("often", ".", "early")
    assert set(train.vocabulary[6:]) == {f"again{i}" for i in range(7)}
