"""Ends of a process that native code or another host brings about: one line, and status 2."""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from typing import Any, NoReturn

# What JAX says before it aborts since the coordinator, or a host at the start, is missing; and what
# it says just before.
ABORTS = b"Terminating process because the JAX distributed service"
BEFORE = b"Polled an error from coordination service"


class Aborts:
    """Gives one line and status 2 where JAX's runtime aborts the process with a stack trace.

    It does so when the coordinator is gone, and offers no other way. So what native code writes to
    stderr passes through here on its way, and the signal of the abort is caught: nothing but this
    thread of native code is interrupted by it, so that Python may run then.
    """

    def __init__(self, text: str):
        self.text = text
        self._ending = threading.Lock()

    def __enter__(self) -> "Aborts":
        sys.stderr.flush()
        self._stderr = os.dup(2)
        self._before = sys.stderr
        sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
        source, sink = os.pipe()
        os.dup2(sink, 2)
        os.close(sink)
        self._held = False
        self._thread = threading.Thread(target=self._forward, args=(source,), daemon=True)
        self._thread.start()
        self._handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(self._aborted)
        self._signal(signal.SIGABRT, self._handler)
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self.close()

    def close(self) -> None:
        """Puts everything back as it was."""
        self._signal(signal.SIGABRT, None)
        sys.stderr.flush()
        os.dup2(self._stderr, 2)  # closes the pipe, whereupon the thread ends
        self._thread.join(1)
        sys.stderr = self._before

    def end(self, text: str) -> NoReturn:
        """Writes one line and ends the process; of two that call it the first is heard."""
        if not self._ending.acquire(blocking=False):
            time.sleep(60)
        _show_cursor()
        os.write(self._stderr, f"error: {text}\n".encode())
        leave_now(2)

    def _forward(self, source: int) -> None:
        with open(source, "rb") as lines:
            for line in lines:
                self._held = self._held or ABORTS in line
                if not self._held and BEFORE not in line:
                    os.write(self._stderr, line)

    def _aborted(self, _: int) -> None:
        time.sleep(0.2)  # for `_forward` to see the last line
        if self._held:
            self.end(self.text)
        self._signal(signal.SIGABRT, None)  # some other mishap: aborts as it would have

    @staticmethod
    def _signal(number: int, handler: Any) -> None:
        ctypes.CDLL(None).signal(number, handler)


def leave_now(status: int) -> NoReturn:
    """Ends the process and those that read for it, but waits for no host or thread."""
    sys.stdout.flush()
    sys.stderr.flush()
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(status)


def _show_cursor() -> None:
    """Undoes what a progress bar did to the terminal."""
    if sys.stderr.isatty():
        sys.stderr.write("\x1b[?25h\n")
