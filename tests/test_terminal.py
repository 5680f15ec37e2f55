"""Terminal output: printable text and progress."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from hypersphere_jax.utils import terminal

HOSTILE = (
    "\x1b[2J\x9b",
    "new\nline\r\t",
    "\udcff\udcfe",
    "\u202e\u2029\0",
    "[b]$_$<b>&",
    "y" * 5000,
)


@pytest.mark.parametrize("name", HOSTILE)
def test_any_text_becomes_one_short_printable_line(name, capsys):
    shown = terminal.printable(name, 100)
    assert shown.isprintable() and len(shown) <= 100 and shown.encode()
    assert terminal.printable(shown, 100) == shown
    terminal.say(name)
    assert capsys.readouterr().out.replace("\n", "").isprintable()


def test_long_text_keeps_its_ends():
    assert terminal.printable("abcdefgh", 6) == "abc…gh"
    assert terminal.printable("é日本", 3) == "é日本"


@pytest.fixture(params=[None, 200, 40], ids=["pipe", "terminal", "narrow"])
def shown(request, monkeypatch):
    """Return the stream of stderr: a pipe, or a terminal of some width."""
    stream = io.StringIO()
    monkeypatch.setattr(terminal, "sys", SimpleNamespace(stderr=stream))
    if request.param is not None:
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
        console = Console(file=stream, width=request.param, force_terminal=True)
        monkeypatch.setattr(terminal, "stderr_console", lambda: console)
    return stream


def test_progress_shows_steps_and_text(shown):
    progress = terminal.Progress("run[b]: step", 9, 4)
    progress.print("[b] is markup")
    progress.update(5)
    progress.update(7, "loss 2.500")
    progress.close()
    text = " ".join(shown.getvalue().split())
    assert all(part in text for part in ("[b] is markup", "run[b]: step 7 of 9", "loss 2.500"))


@pytest.mark.parametrize("name", ["work", *HOSTILE[:3]])
def test_track_yields_every_item(shown, name):
    assert list(terminal.track("abc", name)) == ["a", "b", "c"]
    assert list(terminal.track(iter("abc"), name, 3)) == ["a", "b", "c"]
    nested = [list(terminal.track(inner, "inner")) for inner in terminal.track(["ab", "c"], name)]
    assert nested == [["a", "b"], ["c"]]
    tracked = terminal.track(range(9), name)
    assert next(tracked) == 0
    tracked.close()
    assert list(terminal.track([], name)) == []
    shown.getvalue().encode()
