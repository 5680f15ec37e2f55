"""Progress of a run and of other work: a bar on a terminal, else a line now and then on stderr."""

import datetime
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import ProgressColumn, Task
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hypersphere_jax.terminal import printable, say

T = TypeVar("T")

# Without a terminal lines come at least this far apart.
SECONDS_BETWEEN_LINES = 10.0
PER_SECOND = "_per_s"  # ends the name of a rate
SECONDS_BEFORE_BAR = 0.5  # work that is over by then has none ...
SECONDS_BEFORE_LINE = 2.0  # ... or no line
NARROWEST = 5  # columns of a bar
# What JAX tells of its compilation cache: a program was there, or is written to it.
HIT, WRITTEN = (f"/jax/compilation_cache/cache_{what}" for what in ("hits", "misses"))
UNKNOWN = "-:--:--"  # time left


class Progress:
    """Shows the newest metrics of a run.

    Args:
      name: of the run.
      start: steps done before.
      total: steps of the whole run.
    """

    def __init__(self, name: str, start: int, total: int):
        self._name, self._start, self._total = name, start, total
        self._printed = self._since = 0.0
        self._bar, self._last = None, ""
        self._began = time.monotonic()
        self._events: set[str] = set()  # that JAX tells of until the first step is done
        self._listens = False
        if start == total:
            say(f"{name}: finished already, at step {total} (for more, raise epochs)", sys.stderr)
            return
        if start:
            say(f"{name}: continuing at step {start} of {total}", sys.stderr)
        if sys.stderr.isatty():
            self._bar = _bar()
            self._bar.start()
            shown = {"completed": start, "values": [], "unknown": "compiling"}
            self._task = self._bar.add_task(name, total=total, **shown)
        else:
            say(f"{name}: compiling (up to minutes, the first time)", sys.stderr)
        from jax import monitoring  # what only tracks work needs no JAX

        monitoring.register_event_listener(self._hear)
        self._listens = True

    def _hear(self, event: str, **_) -> None:
        self._events.add(event)

    def _hear_no_more(self) -> None:
        if self._listens:
            from jax import monitoring

            monitoring.unregister_event_listener(self._hear)
            self._listens = False

    def completed(self, step: int) -> None:
        """Shows that a step is completed, of which the first compiles."""
        if self._bar is not None:
            self._bar.update(self._task, completed=step, unknown=UNKNOWN)
        if not self._since:
            self._hear_no_more()
            passed = time.monotonic() - self._began
            line = f"{self._name}: step {step} of {self._total} after {passed:.0f} s"
            # Neither where a run before in this process had the program.
            if WRITTEN in self._events:
                line += ", compiled"
            elif HIT in self._events:
                line += ", from the compilation cache"
            if self._bar is None:
                say(line, sys.stderr)
            else:
                self._bar.print(Text(printable(line)))
            self._start = step
            self.reset()

    def reset(self) -> None:
        """Counts the time anew by which the time left is told."""
        self._since = time.monotonic()

    def update(self, record: dict[str, float]) -> None:
        """Shows a record of metrics (see docs/runs.md)."""
        step, now = int(record["step"]), time.monotonic()
        values, scores = [f"loss {record['loss']:.3f}"], []
        for key, value in record.items():
            if key.endswith(PER_SECOND):
                values.append(f"{value:,.0f} {key.removesuffix(PER_SECOND)}/s")
                values.append(f"data wait {record['data_wait']:.0%}")
            elif key.startswith("eval/"):
                scores.append(f"{key} {value:.4g}")
        values += scores
        self._last = f"{self._name}: step {step} of {self._total}, {', '.join(values)}"
        if self._bar is not None:
            self._bar.update(self._task, completed=step, values=values)
        elif scores or step == self._total or now - self._printed > SECONDS_BETWEEN_LINES:
            if step > self._start:
                left = (now - self._since) / (step - self._start) * (self._total - step)
                self._last += f", {left:.0f} s left"
            say(self._last, sys.stderr)
            self._printed = now

    def close(self) -> None:
        """Takes the bar away; what it showed last stays as a line."""
        self._hear_no_more()
        if self._bar is not None:
            self._bar.stop()
            if self._last:
                say(self._last, sys.stderr)


class _Line(ProgressColumn):
    """Name, bar, steps, time left, and of the values those that there is room for.

    On a narrow terminal the last values go first, then the bar gets shorter, then the name.
    """

    def __init__(self, console: Console):
        super().__init__()
        self._console = console

    def render(self, task: Task) -> Table:
        left = task.fields["unknown"]
        if task.time_remaining is not None:
            left = str(datetime.timedelta(seconds=round(task.time_remaining)))
        numbers = f" {task.completed:.0f}/{task.total:.0f} {left}"
        room = self._console.width - len(numbers) - 1
        bar = max(NARROWEST, min(self._console.width // 6, room - len(task.description)))
        name = Text(printable(task.description))
        name.truncate(max(room - bar, 1), overflow="ellipsis")
        room -= len(name) + bar
        for number, value in enumerate(task.fields["values"]):
            text = f"{', ' if number else '  '}{value}"
            room -= len(text)
            if room < 0:
                break
            numbers += text
        line = Table.grid()
        line.add_row(name, " ", ProgressBar(task.total, task.completed, bar), numbers)
        return line


def _bar() -> Bar:
    """A progress bar that estimates the rate of slow steps as well."""
    console = Console(stderr=True)
    return Bar(_Line(console), console=console, transient=True, speed_estimate_period=600)


class Meter:
    """Images or sentences per second, and the share of the time in which devices wait for data.

    As a context manager it measures the waiting. Time counts from the end of the first step, which
    compiles.
    """

    def __init__(self, batch_size: int, unit: str = "images"):
        self._batch_size, self._rate = batch_size, unit + PER_SECOND
        self._since: float | None = None

    def __enter__(self):
        self._waits_since = time.perf_counter()

    def __exit__(self, *_):
        if self._since is not None:
            self._waited += time.perf_counter() - self._waits_since

    def steps_begun(self, count: int) -> None:
        if self._since is None:
            self.reset()
        else:
            self._steps += count

    def read(self) -> dict[str, float]:
        """The figures since the last reading, or of the last one if no step was begun since."""
        passed = time.perf_counter() - self._since
        steps, waited = self._steps, self._waited
        figures = self._figures
        if steps:
            rate = round(steps * self._batch_size / passed, 1)
            figures = {self._rate: rate, "data_wait": round(waited / passed, 4)}
        self.reset(figures)
        return figures

    def reset(self, figures: dict[str, float] | None = None) -> None:
        """Begins anew: what passed until now was something else."""
        self._since, self._steps, self._waited = time.perf_counter(), 0, 0.0
        self._figures = figures or {}


def track(items: Iterable[T], name: str, count: int | None = None) -> Iterator[T]:
    """The items, while showing how far work on them is, if it takes a while.

    Args:
      items: to go through.
      name: of the work.
      count: how many items there are, where they have no length.
    """
    count = len(items) if count is None else count
    if sys.stderr.isatty():
        shown = _bar()
        task = shown.add_task(name, total=count, values=[], unknown=UNKNOWN)
        later = threading.Timer(SECONDS_BEFORE_BAR, shown.start)
        later.start()
        try:
            for item in items:
                yield item
                shown.advance(task)
        finally:
            later.cancel()
            later.join()
            shown.stop()
        return
    began, due = time.monotonic(), SECONDS_BEFORE_LINE
    for done, item in enumerate(items):
        passed = time.monotonic() - began
        if done and passed > due:
            left = passed / done * (count - done)
            say(f"{name}: {done / count:.0%}, {left:.0f} s left", sys.stderr)
            due = passed + SECONDS_BETWEEN_LINES
        yield item
