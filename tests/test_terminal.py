"""Terminal output: printable text and progress."""

import sys

import pytest

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
def test_any_text_becomes_one_short_printable_line(name):
    shown = terminal.printable(name, 100)
    assert shown.isprintable() and len(shown) <= 100 and shown.encode()
    assert terminal.printable(shown, 100) == shown


@pytest.fixture(params=[False, True], ids=["pipe", "terminal"])
def shown(request, capsys, monkeypatch):
    """Return the function that returns what stderr, a pipe or a terminal, shows."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: request.param)
    terminal.stderr_console.cache_clear()
    yield lambda: capsys.readouterr().err
    terminal.stderr_console.cache_clear()


def test_progress_shows_steps_and_text(shown):
    progress = terminal.Progress("run[b]: step", 9, 4)
    progress.print("[b] is markup")
    progress.update(5)
    progress.update(7, "loss 2.500")
    progress.close()
    text = " ".join(shown().split())
    for part in ("[b] is markup", "run[b]: step 7 of 9", "loss 2.500"):
        assert part in text
