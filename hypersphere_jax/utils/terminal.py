"""Terminal output: printable text, progress bars, and log messages."""

import contextlib
import functools
import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:  # rich is imported when a bar is shown
    from rich import console, progress

T = TypeVar("T")

LONGEST = 1000  # characters in a printed line
SECONDS_BETWEEN_LINES = 10.0  # when stderr is not a terminal


def printable(text: object, limit: int = 200) -> str:
    """Return text in one line of at most `limit` characters, with control characters escaped."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))
    if len(shown) <= limit:
        return shown
    end = len(shown) - (limit - 1) // 2
    return f"{shown[: limit // 2]}…{shown[end:]}"


class Progress:
    """Progress on stderr: a bar of rich on a terminal, otherwise a line every ten seconds.

    Args:
      name: Name of the work.
      total: Number of steps.
      completed: Number of steps completed before.
    """

    def __init__(self, name: str, total: int, completed: int = 0):
        self._name = printable(name)
        self._total = total
        self._text = ""
        self._line = ""
        self._printed = time.monotonic()
        self._bar: progress.Progress | None = None
        if sys.stderr.isatty():
            self._bar = _make_bar()
            self._task = self._bar.add_task(self._name, total=total, completed=completed, text="")
            self._bar.start()

    def print(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        if self._bar is None:
            print(printable(text, LONGEST), file=sys.stderr, flush=True)
        else:
            self._bar.console.print(printable(text, LONGEST), markup=False, highlight=False)

    def update(self, completed: int, text: str = "", important: bool = False) -> None:
        """Show the number of completed steps.

        Args:
          completed: Steps completed.
          text: Text after the number; defaults to the last one.
          important: Print the line at once if stderr is not a terminal, as for the first text.
        """
        is_first = bool(text) and not self._text
        self._text = text or self._text
        self._line = f"{self._name} {completed} of {self._total}"
        if self._text:
            self._line += f", {self._text}"
        is_due = time.monotonic() - self._printed > SECONDS_BETWEEN_LINES
        if self._bar is not None:
            self._bar.update(self._task, completed=completed, text=self._text)
        elif important or is_first or is_due:
            self.print(self._line)
            self._printed = time.monotonic()

    def close(self) -> None:
        """Remove the bar, and leave its last line."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
            if self._text:
                self.print(self._line)


def track(items: Iterable[T], name: str, count: int | None = None) -> Iterator[T]:
    """Yield items and show progress on stderr; `count` defaults to `len(items)`."""
    total = len(items) if count is None else count  # type: ignore[arg-type]
    with contextlib.closing(Progress(name, total)) as progress:
        for done, item in enumerate(items):
            progress.update(done)
            yield item


@functools.cache
def stderr_console() -> "console.Console":
    """Return the console of all bars; rich can nest bars of one console."""
    from rich import console

    return console.Console(stderr=True)


def _make_bar() -> "progress.Progress":
    """Return a bar that disappears at its end."""
    from rich import progress

    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=20),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[text]}", markup=False),
        console=stderr_console(),
        transient=True,
        speed_estimate_period=600,  # seconds; steps may be slow
    )


def silence_orbax() -> None:
    """Silence what Orbax logs about failed reads and saves, which raise errors as well."""
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    show = sys.unraisablehook

    # After a failure Orbax's threads report to an event loop that it closed.
    def hook(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            show(unraisable)

    sys.unraisablehook = hook


class _Once(logging.Filter):
    """Drop repeated messages."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        is_new = message not in self._seen
        self._seen.add(message)
        return is_new


@contextlib.contextmanager
def log_to_stderr() -> Iterator[None]:
    """Print the package's log messages to stderr while a command runs."""
    logger = logging.getLogger("hypersphere_jax")
    level = logger.level
    propagate = logger.propagate
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_Once())
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    logger.setLevel(logging.INFO)
    logger.propagate = False  # imports of other packages may add a handler to the root
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
