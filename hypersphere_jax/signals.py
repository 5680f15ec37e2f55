"""Ctrl-C and SIGTERM on the command line: answered at once, also while JAX compiles or computes.

Python's handlers run in the main thread, between two of its instructions. Here a thread hears of
each signal as it comes. A second one ends the process: what is in files is whole at any moment.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading

NUMBERS = (signal.SIGINT, signal.SIGTERM)
AGAIN = "again to end now"
answer = "stopping"  # what the first signal brings about; `StopSignals` changes it
_came = False  # a signal


def answer_signals() -> None:
    """Answers signals until the process ends; to be called in the main thread.

    The first one raises KeyboardInterrupt there as soon as Python runs, or what its handler says.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for number in NUMBERS:
        signal.signal(number, signal.default_int_handler)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reader,), daemon=True).start()


def end_if_signalled(status: int) -> None:
    """Ends the process after a signal, without waiting for what JAX computes in the background.

    Python's own end would take the memory away from under it.
    """
    if _came:
        sys.stdout.flush()
        sys.stderr.flush()
        _end(status)


def _watch(reader: int) -> None:
    global _came
    while number := os.read(reader, 1)[0]:
        if number not in NUMBERS:
            continue
        if _came:
            _say("ended; what was saved is kept")
            _end(128 + number)
        _came = True
        _say(f"{answer}; {AGAIN}")


def _end(status: int) -> None:
    # One whose parent process has died may wait for its next task for ever.
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(status)


def _say(text: str) -> None:
    """Not by `print`: the main thread may hold the lock of `sys.stderr`."""
    # In place of a bar, which hides the cursor.
    line = f"\r\x1b[K\x1b[?25h{text}\n" if os.isatty(2) else f"{text}\n"
    with contextlib.suppress(OSError):
        os.write(2, line.encode())
