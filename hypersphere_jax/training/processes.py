"""Several processes that train one run, and signals: the only place that knows `jax.distributed`.

Each takes every step, as the steps communicate. When one ends by an error, or dies, JAX's
coordinator (in process 0) ends the others; the same command on all continues from the newest
checkpoint. In a run of one process nothing here costs anything.
"""

import atexit
import contextlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from hypersphere_jax import memory, signals
from hypersphere_jax.configs import RuntimeConfig, Stopped, UserError, differences, require

# The processes may start this far apart.
INITIALIZATION_SECONDS = 300
# A process that JAX has not heard of for so long has died.
HEARTBEAT_SECONDS = 30
# At the end the others wait for what the first one does alone, such as drawing the report.
SHUTDOWN_SECONDS = 3600
# The first process's end ends the others: before it they may report an error that all have.
EXIT_DELAY_SECONDS = 3
AFTER_STEP = "stopping after this step"
COMPILING = "stopping after the first step, which still compiles"


def initialize(runtime: RuntimeConfig) -> None:
    """Connects the processes of a run, if it has several; must come before JAX's first use.

    Raises:
      UserError: when no cluster is detected, or JAX is in use already.
    """
    if not runtime.multi_process or is_multi_process():
        return
    print("waiting for the other processes to start", file=sys.stderr)
    named = runtime.coordinator is not None
    # They end the process: Python's handlers would not run while native code waits.
    before = _handle(dict.fromkeys(signals.NUMBERS, signal.SIG_DFL))
    try:
        jax.distributed.initialize(
            runtime.coordinator,
            runtime.num_processes,
            runtime.process_index,
            # Else one GPU for each process, where a cluster is detected.
            local_device_ids=None if runtime.devices is None else list(range(runtime.devices)),
            cluster_detection_method="deactivate" if named else None,
            initialization_timeout=INITIALIZATION_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=SHUTDOWN_SECONDS,
        )
    except (ValueError, RuntimeError) as error:
        hint = "" if named else "; coordinator=, num_processes= and process_index= name a cluster"
        reason = str(error).splitlines()[0]
        raise UserError(f"could not connect the processes: {reason}{hint}") from error
    finally:
        if is_multi_process():  # JAX has a handler of SIGTERM now
            before.pop(signal.SIGTERM, None)
        _handle(before)


def is_multi_process() -> bool:
    """Whether this process is one of several. Does not start JAX's devices."""
    return jax.distributed.is_initialized()


def is_first() -> bool:
    """Whether this process is the one that writes: the run's folder, and what the user reads."""
    return not is_multi_process() or jax.process_index() == 0


def check_equal(values: dict[str, Any]) -> None:
    """Compares what must be the same in all processes (JSON values).

    Raises:
      UserError: in all processes, when one differs.
    """
    if not is_multi_process():
        return
    text = json.dumps(values).encode()
    size = int(multihost_utils.process_allgather(np.int32(len(text))).max())
    texts = multihost_utils.process_allgather(np.frombuffer(text.ljust(size), np.uint8))
    first, *others = (json.loads(row.tobytes()) for row in texts)
    for index, other in enumerate(others, 1):
        changed = differences(first, other)
        require(
            not changed,
            f"process {index} differs from process 0 ({'; '.join(changed)}): start all with the "
            "same options, data and kind of machine",
        )


def should_stop(asked: bool, count: int) -> bool:
    """Whether to stop before the next step: the same answer in all processes, asked before each.

    Args:
      asked: whether this process, if it is the only one, was asked to stop.
      count: steps since `train` was called.
    """
    # Of several, JAX catches SIGTERM in any and lets all stop after the same step: 0.2 us a call.
    return multihost_utils.reached_preemption_sync_point(count) if is_multi_process() else asked


class StopSignals:
    """While entered, SIGTERM, SIGINT and SIGHUP set `asked`; a second one stops at once.

    Of several processes JAX catches SIGTERM itself (see `should_stop`). Where there is nothing to
    save this is not entered: a signal ends the work where it is.

    Args:
      command: that continues what is stopped.
      saved: what is saved at the end, with which a signal that came late is answered.
    """

    def __init__(self, command: str = "", saved: str = "all is saved"):
        self._command, self._saved, self._asked = command or "the same command", saved, False
        self._several = is_multi_process()
        self._where: str | None = None  # the checkpoint from which a signal may stop at once

    @property
    def asked(self) -> bool:
        """Whether to stop."""
        return self._asked or (signals.came and not self._several)

    def ask(self) -> None:
        """Stops, as a signal does."""
        self._asked = True

    def stopped(self, where: str) -> Stopped:
        """What to raise, with how to go on."""
        return Stopped(f"stopped: {where}; to go on: {self._command}")

    def __enter__(self) -> "StopSignals":
        numbers = () if self._several else signals.NUMBERS
        hung_up = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # by `nohup`
        numbers = [n for n in numbers if n != signal.SIGHUP or not hung_up]
        self._before = _handle(dict.fromkeys(numbers, self._stop))
        self._answer = signals.set_answer(AFTER_STEP)
        return self

    @contextlib.contextmanager
    def at_once(self, where: str) -> Iterator[None]:
        """Inside, where all is saved, the first signal stops without waiting for this work.

        Several processes stop together, so that they do wait.
        """
        if self._several:
            yield
            return
        self._where, answer = where, signals.set_answer(None)
        try:
            if self.asked:
                raise self.stopped(where)
            yield
        finally:
            self._where = None
            signals.set_answer(answer)

    def _stop(self, number, frame):
        if not signals.watched:
            if self._where is not None:
                raise self.stopped(self._where)
            if self._asked:
                raise KeyboardInterrupt
        self._asked = True

    def __exit__(self, kind, *_):
        signals.set_answer(self._answer)
        _handle(self._before)
        if kind is None and self.asked:
            raise self.stopped(self._saved)


def _handle(handlers: dict) -> dict:
    """Sets handlers of signals, in the main thread, and gives those that were there."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.signal(number, do) for number, do in handlers.items()}


def _terminate(number, frame) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def exit_on_error() -> Iterator[None]:
    """An error inside ends this process without waiting for the others, so that those end too.

    SIGINT and SIGHUP in one of several become SIGTERM, which stops all of them.
    """
    several, answer = (signal.SIGINT, signal.SIGHUP), None
    before = _handle(dict.fromkeys(several, _terminate) if is_multi_process() else {})
    if is_multi_process():
        answer = signals.set_answer(AFTER_STEP)
    try:
        yield
    except Stopped:  # as all are
        raise
    except BaseException as error:
        if is_multi_process():
            atexit.register(_exit)
            if isinstance(error, jax.errors.JaxRuntimeError) and not memory.is_used_up(error):
                line = (str(error).splitlines() or ["JAX failed"])[0]
                raise UserError(
                    f"{line}: has another process ended? To continue, run the same command in all"
                ) from error
        raise
    finally:
        _handle(before)
        if is_multi_process():
            signals.set_answer(answer)


def _exit() -> None:
    """Ends the process and those that read for it, without JAX's wait for the other processes."""
    sys.stdout.flush()
    sys.stderr.flush()
    for child in multiprocessing.active_children():
        child.kill()
    if is_first():
        time.sleep(EXIT_DELAY_SECONDS)
    os._exit(2)
