"""Progress of a run and of other work: a bar on a terminal, else a line now and then on stderr."""

import datetime
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import ProgressColumn, Task
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

T = TypeVar("T")

# Without a terminal lines come at least this far apart.
SECONDS_BETWEEN_LINES = 10.0
PER_SECOND = "_per_s"  # ends the name of a rate
NARROWEST = 5  # columns of a bar


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
        if start:
            print(f"{name}: continuing at step {start} of {total}", file=sys.stderr)
        if start == total:
            return
        if sys.stderr.isatty():
            self._bar = _bar()
            self._bar.start()
            shown = {"completed": start, "values": ["compiling"]}
            self._task = self._bar.add_task(name, total=total, **shown)
        else:
            print(f"{name}: compiling (up to minutes, the first time)", file=sys.stderr)

    def compiled(self) -> None:
        """Shows that the first step is done."""
        done, seconds = self._start + 1, time.monotonic() - self._began
        if self._bar is not None:
            self._bar.update(self._task, completed=done, values=[])
        else:
            line = f"{self._name}: step {done} of {self._total}, compiled in {seconds:.0f} s"
            print(line, file=sys.stderr)

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
            if self._since:
                left = (now - self._since) / (step - self._start) * (self._total - step)
                self._last += f", {left:.0f} s left"
            print(self._last, file=sys.stderr)
            self._printed = now
        if not self._since:  # the steps before compile
            self._start, self._since = step, now

    def close(self) -> None:
        """Takes the bar away; what it showed last stays as a line."""
        if self._bar is not None:
            self._bar.stop()
            if self._last:
                print(self._last, file=sys.stderr)


class _Line(ProgressColumn):
    """Name, bar, steps, time left, and of the values those that there is room for.

    On a narrow terminal the last values go first, then the bar gets shorter, then the name.
    """

    def __init__(self, console: Console):
        super().__init__()
        self._console = console

    def render(self, task: Task) -> Table:
        left = task.time_remaining
        left = "-:--:--" if left is None else str(datetime.timedelta(seconds=round(left)))
        numbers = f" {task.completed:.0f}/{task.total:.0f} {left}"
        room = self._console.width - len(numbers) - 1
        bar = max(NARROWEST, min(self._console.width // 6, room - len(task.description)))
        name = Text(task.description)
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
    console = Console(stderr=True)
    return Bar(_Line(console), console=console, transient=True)


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

    def step_done(self) -> None:
        if self._since is None:
            self._reset()
        else:
            self._steps += 1

    def read(self) -> dict[str, float]:
        """The figures since the last reading; empty when that is no whole step."""
        passed = time.perf_counter() - self._since
        steps, waited = self._steps, self._waited
        self._reset()
        if not steps:
            return {}
        return {
            self._rate: round(steps * self._batch_size / passed, 1),
            "data_wait": round(waited / passed, 4),
        }

    def _reset(self) -> None:
        self._since, self._steps, self._waited = time.perf_counter(), 0, 0.0


def track(items: Iterable[T], name: str, count: int | None = None) -> Iterator[T]:
    """The items, while showing how far work on them is, if it takes a while.

    Args:
      items: to go through.
      name: of the work.
      count: how many items there are, where they have no length.
    """
    count = len(items) if count is None else count
    if sys.stderr.isatty():
        with _bar() as shown:
            task = shown.add_task(name, total=count, values=[])
            for item in items:
                yield item
                shown.advance(task)
        return
    began = printed = time.monotonic()
    for done, item in enumerate(items):
        now = time.monotonic()
        if done and now - printed > SECONDS_BETWEEN_LINES:
            left = (now - began) / done * (count - done)
            print(f"{name}: {done / count:.0%}, {left:.0f} s left", file=sys.stderr)
            printed = now
        yield item
