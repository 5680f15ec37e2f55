"""A trace of some steps of a run: what the devices and the host do in them, and when."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from hypersphere_jax.training import distributed
from hypersphere_jax.utils.terminal import say

UNTRACED_CALLS = 2  # the first compiles, and the second finds what only that one had to set up


class Profiler:
    """While entered, traces steps of a loop, in the first process, into a folder.

    Args:
      steps: how many; with several in a call, at least. None: none.
      folder: for TensorBoard (`plugins/profile/TIME/`), there also a file for Perfetto.
    """

    def __init__(self, steps: int | None, folder: Path):
        self._steps, self._folder = steps if distributed.is_first() else None, folder
        self._calls = self._traced = 0
        self._running = False

    def __enter__(self) -> "Profiler":
        return self

    @contextlib.contextmanager
    def call(self, steps: range, state: Any) -> Iterator[None]:
        """Around the call that takes these steps, from this state."""
        if self._steps and self._calls == UNTRACED_CALLS:
            jax.block_until_ready(state)
            self._start()
        if self._running and self._traced >= self._steps:
            jax.block_until_ready(state)
            self._stop()
        self._calls += 1
        self._traced += len(steps) if self._running else 0
        with jax.profiler.StepTraceAnnotation("train", step_num=steps.start):
            yield

    def __exit__(self, *_: object) -> None:
        if self._running:
            self._stop()
        elif self._steps and not self._traced:
            say(
                f"profile=: nothing is traced, as the steps ended with call {self._calls}, and "
                f"the first {UNTRACED_CALLS} compile",
                sys.stderr,
            )

    def _start(self) -> None:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # would take longer than a small network's step
        jax.profiler.start_trace(self._folder, create_perfetto_trace=True, profiler_options=options)
        self._running = True

    def _stop(self) -> None:
        self._running = False
        jax.profiler.stop_trace()
        written = max(self._folder.glob("plugins/profile/*/perfetto_trace.json.gz"))
        say(
            f"traced {self._traced} steps: {written} for https://ui.perfetto.dev; "
            f"tensorboard --logdir {self._folder} (pip install tensorboard xprof)",
            sys.stderr,
        )
