"""A preparation that is stopped anywhere goes on, to the same files, bit by bit."""

import os

import pytest
from corpora import Stop, contents, made, stopping

from hypersphere_jax.config import UserError
from hypersphere_jax.data import text
from hypersphere_jax.data.text import prepare, reading, rules


@pytest.fixture
def long_lines(tmp_path, monkeypatch):
    """Paragraphs, sentences and lines that are longer than what is kept of them."""
    for name, size in (("PARAGRAPH_LIMIT", 300), ("SENTENCE_LIMIT", 100), ("PARAGRAPH_LINES", 3)):
        monkeypatch.setattr(reading, name, size)
    parts = [" ".join(f"X{i}y{j}" for j in range(5 + i)) + "." for i in range(36)]
    lines = ["Short.", *(" ".join(parts[i : i + 3]) for i in range(36))]
    (tmp_path / "long.txt").write_text("\n".join(lines))
    return tmp_path / "long.txt"


@pytest.mark.parametrize("form", ["prose", "sentences"])
@pytest.mark.parametrize("kind", ["library", "long lines"])
def test_goes_on_bit_by_bit(library, long_lines, tmp_path, small_steps, monkeypatch, kind, form):
    raw, out = library[0] if kind == "library" else long_lines, tmp_path / "again"
    options = {"form": form, "max_tokens": 512, "held_out": 0.1}
    words, read, steps = rules.words, [], []
    monkeypatch.setattr(rules, "words", lambda sentence: read.append(sentence) or words(sentence))
    count = lambda items, _: map(steps.append, items)  # noqa: E731
    text.prepare_text(raw, tmp_path / "whole", track=count, **options)
    whole = len(read)
    assert len(steps) > 25
    # Stopped again and again, while it reads and while it writes.
    for after in range(0, len(steps) - 1, 3):
        with pytest.raises(Stop):
            text.prepare_text(raw, out, track=stopping(after), **options)
        with pytest.raises(UserError, match="is no prepared corpus"):
            text.open_corpus(out)
        read.clear()
    assert text.prepare_text(raw, out, **options)
    assert contents(out) == contents(tmp_path / "whole")
    assert len(read) < whole / 2  # what was read is not read again
    assert not (out / prepare.UNFINISHED).exists()


def test_goes_on_after_it_was_stopped_while_writing(library, tmp_path, small_steps, monkeypatch):
    made(library[0], tmp_path / "whole")
    replace, tried, out = os.replace, [], tmp_path / "again"

    def failing(source, target):
        """Stops the first time that anything takes its place."""
        if target not in tried:
            tried.append(target)
            raise Stop
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    is_new = False
    while not is_new:
        try:
            is_new = text.prepare_text(library[0], out)
        except Stop:
            with pytest.raises(UserError, match="is no prepared corpus"):
                text.open_corpus(out)
    assert len(tried) > 5 and tried[-1] == out / "corpus.json"
    assert contents(out) == contents(tmp_path / "whole")


def test_damaged_parts_are_made_again(library, tmp_path, small_steps):
    made(library[0], tmp_path / "whole")
    with pytest.raises(Stop):
        text.prepare_text(library[0], tmp_path / "again", track=stopping(40))
    kept = sorted((tmp_path / "again" / prepare.UNFINISHED).glob("*.npz"))
    for part in kept[1:3]:
        part.write_bytes(part.read_bytes()[:300])
    assert len(kept) > 3 and text.prepare_text(library[0], tmp_path / "again")
    assert contents(tmp_path / "again") == contents(tmp_path / "whole")


def test_progress_is_of_reading_and_of_writing(library, tmp_path, small_steps):
    counts, is_writing = [], []

    def track(items, count):
        counts.append(count)
        for item in items:
            is_writing.append((tmp_path / "out" / prepare.UNFINISHED / "vocabulary.txt").exists())
            yield item

    text.prepare_text(library[0], tmp_path / "out", track=track)
    assert len(counts) == 1 and abs(len(is_writing) - counts[0]) <= 2
    assert is_writing == sorted(is_writing) and set(is_writing) == {False, True}


def test_a_corpus_of_other_files_or_options_is_left_alone(library, tmp_path, small_steps):
    root, out, begun = library[0], tmp_path / "out", tmp_path / "begun"
    made(root, out)
    whole = contents(out)
    assert not text.prepare_text(root, out)
    with pytest.raises(Stop):
        text.prepare_text(root, begun, track=stopping(20))
    others = (("max_tokens", 63), ("vocabulary", 7), ("held_out", 0.1), ("form", "prose"))
    for raw, options in [(root / "a.txt", {}), *((root, dict([other])) for other in others)]:
        for folder in (out, begun):
            with pytest.raises(UserError, match="corpus of other files or options"):
                text.prepare_text(raw, folder, **options)
    assert contents(out) == whole
    assert text.prepare_text(root, begun) and contents(begun) == whole
