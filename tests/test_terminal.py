"""Lines on the terminal."""

from unittest.mock import Mock

from hypersphere_jax import terminal


def test_lines_break_at_words():
    """Not within a path, nor within a command that fits into one line; units stay."""
    path = "runs/reproduce/chen/figureB1/laptop/figure.png"
    assert terminal.wrapped(f"written: {path}", 40) == f"written:\n{path}"
    command = "python run.py reproduce chen/figureB1 --scale laptop"
    assert terminal.wrapped(f"to begin: {command}", 60) == f"to begin:\n{command}"
    assert terminal.wrapped(f"to begin: {command}", 40).splitlines() == [
        "to begin:",
        "python run.py reproduce \\",
        "  chen/figureB1 --scale laptop",
    ]
    assert terminal.wrapped("  on one GPU\n\nabout 24 h", 9) == "  on one\n  GPU\n\nabout\n24 h"
    assert terminal.wrapped("  a  one two", 10) == "  a  one\n     two"
    assert terminal.wrapped("take `--yes now` of all", 12) == "take\n`--yes now`\nof all"


def test_a_pipe_has_no_width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    text = "a line that is longer than these columns"
    for is_terminal, lines in ((False, 1), (True, 3)):
        file = Mock(isatty=lambda is_terminal=is_terminal: is_terminal)
        terminal.say(text, file)
        said = "".join(call.args[0] for call in file.write.call_args_list)
        assert len(said.splitlines()) == lines and said.split() == text.split()
