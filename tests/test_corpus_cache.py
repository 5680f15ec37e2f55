"""Text that is prepared on the fly, kept for the next time, by one process or two."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from corpus_cases import (  # noqa: F401  fixtures
    contents,
    home_fixture,
    library_fixture,
    made,
)

from hypersphere_jax import data
from hypersphere_jax.config import DataConfig, UserError
from hypersphere_jax.data import text
from hypersphere_jax.data.text import prepare

ROOT = Path(__file__).parent.parent


def test_text_that_changed_is_prepared_anew(tmp_path):
    file = tmp_path / "t.txt"
    file.write_text("The cat sat. The cat ate.")
    before = data.load(DataConfig(name=str(file))).train
    file.write_text("The dog sat. The dog ate.")
    assert text.text(before, 0) == "the cat sat ."
    assert text.text(data.load(DataConfig(name=str(file))).train, 0) == "the dog sat ."


def test_images_beside_text_are_images(tmp_path):
    folder = tmp_path / "images"
    (folder / "deep").mkdir(parents=True)
    (folder / "labels.txt").write_text("A cat.")
    config = DataConfig(name=str(folder))
    assert data.text_folder(config) == folder
    (folder / "deep/1.JPG").touch()
    assert data.text_folder(config) is None
    (folder / "deep/1.JPG").unlink()
    (folder / "train").mkdir()
    assert data.text_folder(config) is None
    assert data.text_folder(DataConfig(name="digits")) is None


def test_more_than_is_prepared_on_the_fly(library, monkeypatch):
    monkeypatch.setattr(prepare, "MAX_BYTES", 100)
    with pytest.raises(UserError, match=r"run\.py data prepare-text .* --out"):
        data.load(DataConfig(name=str(library[0])))


def test_a_cache_that_cannot_be_written(library, home):
    home.write_text("a file, where a folder would be")
    first, second = (data.load(DataConfig(name=str(library[0]))) for _ in range(2))
    assert first.train.folder == second.train.folder and len(first.train) > 100


def test_preparation_on_the_fly_says_so_once(library, home, caplog):
    folder = text.prepared(library[0])
    told = [message for message in caplog.messages if "prepared now" in message]
    assert len(told) == 1 and str(library[0]) in told[0] and str(folder) in told[0]
    assert "kept for the next time" in told[0] and " MB of text" in told[0]
    caplog.clear()
    assert text.prepared(library[0]) == folder and not caplog.messages
    shutil.rmtree(home)
    home.touch()
    text.prepared(library[0], max_tokens=33)  # this process has no folder of that yet
    assert any("not kept for the next time" in message for message in caplog.messages)


@pytest.mark.parametrize("name", ["train/tokens.bin", "vocabulary.txt", "corpus.json"])
def test_a_damaged_cache_is_made_anew(library, home, caplog, name):
    folder = text.prepared(library[0])
    whole = contents(folder)
    (folder / name).write_bytes(whole[name][:-3])
    caplog.clear()
    assert text.prepared(library[0]) == folder
    assert contents(folder) == whole
    assert any("it is made anew" in message and name in message for message in caplog.messages)
    assert list(folder.parent.iterdir()) == [folder]


def test_a_damaged_cache_and_two_processes(library, home, monkeypatch):
    """What another process has put there meanwhile stays."""
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
    assert folder.stat().st_ino == others[1]
    assert list(folder.parent.iterdir()) == [folder]


def test_two_processes_at_once(library, home):
    code = f"""
from pathlib import Path
from hypersphere_jax.data import text
folder = text.prepared(Path({str(library[0])!r}))
print(folder, len(text.open_corpus(folder)[0]))
"""
    both = [
        subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    first, second = (process.communicate(timeout=100)[0] for process in both)
    assert first == second and first.split()[1] == "169"
    assert len(list((home / ".cache/hypersphere_jax/text").iterdir())) == 1


def test_another_process_prepares_the_same(library, tmp_path):
    inside = []

    def track(items, count):
        with pytest.raises(UserError, match="another process prepares"):
            text.prepare_text(library[0], tmp_path / "out")
        inside.append(1)
        yield from items

    assert text.prepare_text(library[0], tmp_path / "out", track=track) and inside
