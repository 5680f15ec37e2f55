"""Progress of a run and of other work: a bar on a terminal, else a line now and then on stderr."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import TextColumn
from rich.progress import track as bar

T = TypeVar("T")

# Without a terminal lines come at least this far apart.
SECONDS_BETWEEN_LINES = 10.0
PER_SECOND = "_per_s"  # ends the name of a rate


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
        self._bar = None
        if start:
            print(f"{name}: continuing at step {start} of {total}", file=sys.stderr)
        if sys.stderr.isatty() and start < total:
            columns = (*Bar.get_default_columns(), TextColumn("{task.fields[values]}"))
            self._bar = Bar(*columns, console=Console(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task(name, total=total, completed=start, values="compiling")

    def update(self, record: dict[str, float]) -> None:
        """Shows a record of metrics (see docs/runs.md)."""
        step, now = int(record["step"]), time.monotonic()
        values = f"loss {record['loss']:.3f}"
        for key, value in record.items():
            if key.endswith(PER_SECOND):
                values += f", {value:,.0f} {key.removesuffix(PER_SECOND)}/s"
                values += f", data wait {record['data_wait']:.0%}"
            elif key.startswith("eval/"):
                values += f", {key} {value:.4g}"
        if self._bar is not None:
            self._bar.update(self._task, completed=step, values=values)
        elif (
            "eval/" in values or step == self._total or now - self._printed > SECONDS_BETWEEN_LINES
        ):
            if self._since:
                left = (now - self._since) / (step - self._start) * (self._total - step)
                values += f", {left:.0f} s left"
            print(f"{self._name}: step {step} of {self._total}, {values}", file=sys.stderr)
            self._printed = now
        if not self._since:  # the steps before compile
            self._start, self._since = step, now

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


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
        yield from bar(items, f"{name} ", count, console=Console(stderr=True), transient=True)
        return
    began = printed = time.monotonic()
    for done, item in enumerate(items):
        now = time.monotonic()
        if done and now - printed > SECONDS_BETWEEN_LINES:
            left = (now - began) / done * (count - done)
            print(f"{name}: {done / count:.0%}, {left:.0f} s left", file=sys.stderr)
            printed = now
        yield item
