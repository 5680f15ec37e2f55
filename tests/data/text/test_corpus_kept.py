"""A preparation that is stopped anywhere goes on, and what is prepared on the fly is kept."""

import os
import shutil

import pytest
from corpora import contents, made

from hypersphere_jax import data
from hypersphere_jax.config import DataConfig, UserError
from hypersphere_jax.data import text
from hypersphere_jax.data.text import prepare, rules


class Stop(Exception):
    pass


def stopping(after):
    """A progress that stops the work after so many steps."""

    def track(items, count):
        for number, item in enumerate(items):
            if number == after:
                raise Stop
            yield item

    return track


@pytest.mark.parametrize("form", ["prose", "sentences"])
def test_goes_on_bit_by_bit(library, tmp_path, small_steps, monkeypatch, form):
    """With paragraphs, sentences and lines that are longer than what is kept of them."""
    raw, out = tmp_path / "raw", tmp_path / "again"
    shutil.copytree(library[0], raw)
    parts = [" ".join(f"X{i}y{j}" for j in range(5 + i)) + "." for i in range(36)]
    lines = ["Short.", *(" ".join(parts[i : i + 3]) for i in range(36))]
    (raw / "long.txt").write_text("\n".join(lines))
    words, read, steps = rules.words, [], []
    monkeypatch.setattr(rules, "words", lambda sentence: read.append(sentence) or words(sentence))
    options = {"form": form, "max_tokens": 512, "held_out": 0.1}
    text.prepare_text(raw, tmp_path / "whole", track=lambda s, _: map(steps.append, s), **options)
    whole = len(read)
    # Stopped again and again, while it reads and while it writes.
    for after in range(0, len(steps) - 1, 5):
        with pytest.raises(Stop):
            text.prepare_text(raw, out, track=stopping(after), **options)
        with pytest.raises(UserError, match="is no prepared corpus"):
            text.open_corpus(out)
        read.clear()
    assert text.prepare_text(raw, out, **options)
    assert contents(out) == contents(tmp_path / "whole")
    assert len(read) < whole / 2  # what was read is not read again


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
            assert not (out / "corpus.json").exists()
    assert len(tried) > 1 and contents(out) == contents(tmp_path / "whole")


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


def test_another_process_prepares_the_same(library, tmp_path):
    def track(items, count):
        with pytest.raises(UserError, match="another process prepares"):
            text.prepare_text(library[0], tmp_path / "out")
        yield from items

    assert text.prepare_text(library[0], tmp_path / "out", track=track)


def test_prepared_on_the_fly_once(library, tmp_path, home, caplog, monkeypatch):
    folder = text.prepared(library[0])
    (told,) = caplog.messages
    assert f"kept for the next time in {folder}" in told
    caplog.clear()
    made_at = (folder / "corpus.json").stat().st_mtime_ns
    assert text.prepared(library[0]) == folder and not caplog.messages
    assert (folder / "corpus.json").stat().st_mtime_ns == made_at
    others = [text.prepared(library[0], **{option: 9}) for option in ("max_tokens", "vocabulary")]
    assert len({folder, *others}) == 3
    # Text that changed is prepared anew.
    for animal in ("cat", "dog"):
        (tmp_path / "t.txt").write_text(f"The {animal} sat. The {animal} ate.")
        train = data.load(DataConfig(name=str(tmp_path / "t.txt"))).train
        assert text.text(train, 0) == f"the {animal} sat ."
    # Where a cache cannot be: until the process ends.
    shutil.rmtree(home)
    home.touch()
    elsewhere = text.prepared(library[0])
    assert elsewhere != folder and text.prepared(library[0]) == elsewhere
    monkeypatch.setattr(prepare, "MAX_BYTES", 100)
    with pytest.raises(UserError, match=r"run\.py data prepare-text .* --out"):
        text.prepared(library[0])


@pytest.mark.parametrize("is_another_faster", [False, True])
def test_a_damaged_cache_is_made_anew(library, caplog, monkeypatch, is_another_faster):
    folder = text.prepared(library[0])
    whole, original, others = contents(folder), prepare.prepare_text, []
    (folder / "vocabulary.txt").write_bytes(b"cut")
    caplog.clear()

    def meanwhile(*args, **options):
        original(*args, **options)
        if is_another_faster and not others:
            others.append(0)
            others.append(text.prepared(library[0]).stat().st_ino)

    monkeypatch.setattr(prepare, "prepare_text", meanwhile)
    assert text.prepared(library[0]) == folder and contents(folder) == whole
    assert "it is made anew" in caplog.text
    assert others[1:] in ([], [folder.stat().st_ino])  # what the other put there stays
    assert list(folder.parent.iterdir()) == [folder]
