"""Printing lines that may contain names from outside."""

from typing import TextIO

LONGEST = 1000  # characters of a line
FIXED = "\xa0"  # a space at which no line breaks


def say(text: str, file: TextIO | None = None) -> None:
    """Print lines at once, each as `printable` writes it; defaults to the standard output."""
    text = "\n".join(printable(line, LONGEST) for line in text.split("\n"))
    print(text, file=file, flush=True)


def printable(text: object, limit: int = 200) -> str:
    """A name from outside, fit for a terminal, an error or a picture, in one line.

    Args:
      text: whatever it holds: escape sequences, newlines, bytes that are no UTF-8 (as surrogates).
      limit: characters above which its middle is left out.
    """
    shown = "".join(c if c.isprintable() or c == FIXED else repr(c)[1:-1] for c in str(text))
    if len(shown) > limit:
        return f"{shown[: limit // 2]}…{shown[len(shown) - (limit - 1) // 2 :]}"
    return shown
