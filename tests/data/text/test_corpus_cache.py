"""Text that is prepared on the fly, kept for the next time, by one process or several."""

import shutil
import subprocess
import sys

import processes
import pytest
from corpora import contents

from hypersphere_jax import data
from hypersphere_jax.config import DataConfig, UserError
from hypersphere_jax.data import text
from hypersphere_jax.data.text import prepare


def test_text_that_changed_is_prepared_anew(tmp_path):
    file = tmp_path / "t.txt"
    file.write_text("The cat sat. The cat ate.")
    before = data.load(DataConfig(name=str(file))).train
    file.write_text("The dog sat. The dog ate.")
    assert text.text(before, 0) == "the cat sat ."
    assert text.text(data.load(DataConfig(name=str(file))).train, 0) == "the dog sat ."


def test_more_than_is_prepared_on_the_fly(library, monkeypatch):
    monkeypatch.setattr(prepare, "MAX_BYTES", 100)
    with pytest.raises(UserError, match=r"run\.py data prepare-text .* --out"):
        data.load(DataConfig(name=str(library[0])))


def test_preparation_on_the_fly_says_so_once(library, home, caplog):
    folder = text.prepared(library[0])
    (told,) = caplog.messages
    assert str(library[0]) in told and f"kept for the next time in {folder}" in told
    caplog.clear()
    made = (folder / "corpus.json").stat().st_mtime_ns
    assert text.prepared(library[0]) == folder and not caplog.messages
    assert (folder / "corpus.json").stat().st_mtime_ns == made
    others = [text.prepared(library[0], **{option: 9}) for option in ("max_tokens", "vocabulary")]
    assert len({folder, *others}) == 3
    # Where a cache cannot be: until the process ends.
    shutil.rmtree(home)
    home.touch()
    elsewhere = text.prepared(library[0], max_tokens=33)
    assert "not kept for the next time" in caplog.text and elsewhere != folder
    assert text.prepared(library[0], max_tokens=33) == elsewhere


@pytest.mark.parametrize("name", ["train/tokens.bin", "vocabulary.txt", "corpus.json"])
def test_a_damaged_cache_is_made_anew(library, caplog, name):
    folder = text.prepared(library[0])
    whole = contents(folder)
    (folder / name).write_bytes(whole[name][:-3])
    caplog.clear()
    assert text.prepared(library[0]) == folder and contents(folder) == whole
    assert any("it is made anew" in message and name in message for message in caplog.messages)
    assert list(folder.parent.iterdir()) == [folder]


def test_what_another_process_put_there_meanwhile_stays(library, monkeypatch):
    folder = text.prepared(library[0])
    (folder / "vocabulary.txt").unlink()
    original, others = prepare.prepare_text, []

    def meanwhile(*args, **options):
        original(*args, **options)
        if not others:
            others.append(0)
            others.append(text.prepared(library[0]).stat().st_ino)

    monkeypatch.setattr(prepare, "prepare_text", meanwhile)
    assert text.prepared(library[0]) == folder
    text.open_corpus(folder)
    assert folder.stat().st_ino == others[1] and list(folder.parent.iterdir()) == [folder]


def test_another_process_prepares_the_same(library, tmp_path):
    inside = []

    def track(items, count):
        with pytest.raises(UserError, match="another process prepares"):
            text.prepare_text(library[0], tmp_path / "out")
        inside.append(1)
        yield from items

    assert text.prepare_text(library[0], tmp_path / "out", track=track) and inside


@pytest.mark.slow
def test_two_processes_at_once(library, home):
    code = (
        "import pathlib, sys; from hypersphere_jax.data import text;"
        "folder = text.prepared(pathlib.Path(sys.argv[1]));"
        "print(folder, len(text.open_corpus(folder)[0]))"
    )
    command = [sys.executable, "-c", code, str(library[0])]
    options = {"cwd": processes.ROOT, "env": processes.environment(), "text": True}
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, **options) for _ in range(2)]
    first, second = (process.communicate()[0] for process in both)
    assert first == second and first.split()[1] == "169"
    assert len(list((home / ".cache/hypersphere_jax/text").iterdir())) == 1
