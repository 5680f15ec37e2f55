"""How far a training run is, and how fast: a bar on a terminal, else a line now and then."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

Item = TypeVar("Item")

# On no terminal, such as a log file, lines come at least this far apart.
SECONDS_BETWEEN_LINES = 10.0
PER_SECOND = "_per_s"  # ends the name of a rate


class Progress:
    """Shows the newest metrics of a run. Writes to stderr; results go to stdout.

    Args:
      name: of the run.
      start: steps done before.
      total: steps of the whole run.
    """

    def __init__(self, name: str, start: int, total: int):
        self._name, self._total = name, total
        self._printed = 0.0
        self._first: tuple[int, float] | None = None  # step and time of the first record
        self._bar = None
        if start:
            print(f"{name}: continuing at step {start} of {total}", file=sys.stderr)
        if sys.stderr.isatty() and start < total:
            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("{task.fields[values]}"),
                TimeRemainingColumn(compact=True),
                console=_stderr(),
            )
            self._bar.start()
            self._task = self._bar.add_task(name, total=total, completed=start, values="compiling")

    def update(self, record: dict[str, float]) -> None:
        """Shows a record of metrics (see docs/runs.md)."""
        step, now = record["step"], time.monotonic()
        values = f"loss {record['loss']:.3f}"
        for key in record:
            if key.endswith(PER_SECOND):
                values += f", {record[key]:,.0f} {key.removesuffix(PER_SECOND)}/s"
                values += f", data wait {record['data_wait']:.0%}"
        found = {key: value for key, value in record.items() if key.startswith("eval/")}
        values += "".join(f", {key} {value:.4g}" for key, value in found.items())
        if self._bar is not None:
            self._bar.update(self._task, completed=step, values=values)
        elif found or step == self._total or now - self._printed >= SECONDS_BETWEEN_LINES:
            print(
                f"{self._name}: step {step} of {self._total}, {values}{self._left(step, now)}",
                file=sys.stderr,
            )
            self._printed = now
        if self._first is None:
            self._first = (step, now)

    def _left(self, step: int, now: float) -> str:
        """Time left, at the rate since the first record: what comes before that compiles."""
        if self._first is None or step == self._total:
            return ""
        first, since = self._first
        return f", {(now - since) / (step - first) * (self._total - step):.0f} s left"

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


def track(items: Iterable[Item], name: str, count: int | None = None) -> Iterator[Item]:
    """The items, while showing on stderr how far work on them is, if it takes a while.

    Args:
      items: to go through.
      name: of the work.
      count: how many items there are, where they have no length.
    """
    from rich.progress import track as bar

    count = len(items) if count is None else count
    if sys.stderr.isatty():
        yield from bar(items, f"{name} ", count, console=_stderr(), transient=True)
        return
    began = printed = time.monotonic()
    for done, item in enumerate(items):
        now = time.monotonic()
        if done and now - printed >= SECONDS_BETWEEN_LINES:
            left = (now - began) / done * (count - done)
            print(f"{name}: {done / count:.0%}, {left:.0f} s left", file=sys.stderr)
            printed = now
        yield item


def _stderr():
    from rich.console import Console

    return Console(stderr=True)
