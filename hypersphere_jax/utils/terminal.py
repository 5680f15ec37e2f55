"""Terminal output: printable text, progress, and throughput."""

import functools
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TextIO, TypeVar

if TYPE_CHECKING:  # rich is imported when a bar is shown
    from rich import console, progress

T = TypeVar("T")

LONGEST = 1000  # characters in a printed line
SECONDS_BETWEEN_LINES = 10.0  # when stderr is not a terminal
PER_SECOND = "_per_s"  # suffix of a throughput metric


def say(text: str, file: TextIO | None = None) -> None:
    """Print each line of a text as `printable` shows it; defaults to stdout."""
    lines = [printable(line, LONGEST) for line in text.split("\n")]
    print("\n".join(lines), file=file, flush=True)


def printable(text: object, limit: int = 200) -> str:
    """Return text in one line of at most `limit` characters, with control characters escaped."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))
    if len(shown) <= limit:
        return shown
    end = len(shown) - (limit - 1) // 2
    return f"{shown[: limit // 2]}…{shown[end:]}"


class Progress:
    """Progress of a training run on stderr.

    A terminal shows a bar. Otherwise a line is printed for each evaluation and every ten seconds.

    Args:
      name: Name of the run.
      start: Steps completed in earlier sessions.
      total: Steps of the whole run.
    """

    def __init__(self, name: str, start: int, total: int):
        self._name = name
        self._start = start
        self._total = total
        self._opened = time.monotonic()
        self._since: float | None = None  # end of the first step
        self._printed = float("-inf")
        self._last = ""
        self._bar: progress.Progress | None = None
        if start == total:
            self._print(f"finished already, at step {total} (to continue, raise epochs)")
            return
        if start:
            self._print(f"resuming at step {start} of {total}")
        self._print("compiling (takes up to minutes the first time)")
        if sys.stderr.isatty():
            self._bar = _make_bar()
            self._task = self._bar.add_task(
                printable(name), total=total, completed=start, metrics=""
            )
            self._bar.start()

    def completed(self, step: int) -> None:
        """Advance the bar to a completed step."""
        if self._bar is not None:
            self._bar.update(self._task, completed=step)
        if self._since is None:
            self._start = step
            self.reset()
            seconds = self._since - self._opened
            self._print(f"step {step} of {self._total} after {seconds:.0f} s")

    def reset(self) -> None:
        """Restart the clock of the estimated remaining time."""
        self._since = time.monotonic()

    def update(self, record: dict[str, float]) -> None:
        """Show a record of metrics."""
        step = int(record["step"])
        shown = _describe(record)
        self._last = f"step {step} of {self._total}, {shown}"
        if self._bar is not None:
            self._bar.update(self._task, completed=step, metrics=shown)
            return
        now = time.monotonic()
        is_evaluated = any(key.startswith("eval/") for key in record)
        is_late = now - self._printed > SECONDS_BETWEEN_LINES
        if is_evaluated or is_late or step == self._total:
            self._print(self._last)
            self._printed = now

    def close(self) -> None:
        """Remove the bar and print the last record."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
            if self._last:
                self._print(self._last)

    def _print(self, text: str) -> None:
        line = printable(f"{self._name}: {text}", LONGEST)
        if self._bar is None:
            say(line, sys.stderr)
        else:
            stderr_console().print(line, markup=False, highlight=False)


def _describe(record: dict[str, float]) -> str:
    """Return loss, throughput and scores of a record as text."""
    parts = [f"loss {record['loss']:.3f}"]
    for key, value in record.items():
        if key.endswith(PER_SECOND):
            parts.append(f"{value:,.0f} {key.removesuffix(PER_SECOND)}/s")
        elif key == "data_wait":
            parts.append(f"data wait {value:.0%}")
        elif key.startswith("eval/"):
            parts.append(f"{key} {value:.4g}")
    return ", ".join(parts)


def track(items: Iterable[T], name: str, count: int | None = None) -> Iterator[T]:
    """Yield items and show progress on stderr; `count` defaults to `len(items)`."""
    if count is None:
        count = len(items)
    if sys.stderr.isatty():
        with _make_bar() as bar:
            task = bar.add_task(printable(name), total=count, metrics="")
            yield from bar.track(items, total=count, task_id=task)
        return
    started = time.monotonic()
    printed = started
    for done, item in enumerate(items):
        now = time.monotonic()
        if done and now - printed > SECONDS_BETWEEN_LINES:
            left = (now - started) / done * (count - done)
            say(f"{name}: {done / count:.0%}, {left:.0f} s left", sys.stderr)
            printed = now
        yield item


def _make_bar() -> "progress.Progress":
    """Return a bar that disappears at its end."""
    from rich import progress

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=20),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[metrics]}", markup=False),
    )
    # The estimate of the remaining time averages over ten minutes, as steps may be slow.
    options = {"transient": True, "speed_estimate_period": 600}
    return progress.Progress(*columns, console=stderr_console(), **options)


@functools.cache
def stderr_console() -> "console.Console":
    """Return the console of all bars; rich can nest bars of one console."""
    from rich import console

    return console.Console(stderr=True)


class Meter:
    """Throughput, and the share of time in which the devices wait for data.

    As a context manager it measures the time of fetching a batch. The clock starts after the first
    step, which includes compilation.
    """

    def __init__(self, batch_size: int, unit: str = "images"):
        self._batch_size = batch_size
        self._rate_name = unit + PER_SECOND
        self._since: float | None = None

    def __enter__(self) -> None:
        self._waiting_since = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        if self._since is not None:
            self._waited += time.perf_counter() - self._waiting_since

    def steps_begun(self, count: int) -> None:
        """Count steps; the first call starts the clock."""
        if self._since is None:
            self.reset()
        else:
            self._steps += count

    def read(self) -> dict[str, float]:
        """Return the figures since the last reading, or the last ones if there was no step."""
        passed = time.perf_counter() - self._since
        figures = self._figures
        if self._steps:
            rate = round(self._steps * self._batch_size / passed, 1)
            figures = {self._rate_name: rate, "data_wait": round(self._waited / passed, 4)}
        self.reset(figures)
        return figures

    def reset(self, figures: dict[str, float] | None = None) -> None:
        """Restart the clock, e.g. after a checkpoint or an evaluation."""
        self._since = time.perf_counter()
        self._steps = 0
        self._waited = 0.0
        self._figures = figures or {}
