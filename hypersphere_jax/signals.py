"""Ctrl-C and its like on the command line: answered at once, also while JAX compiles or computes.

Python's handlers run in the main thread, between two of its instructions, and an exception that one
raises may be lost there. Here a thread hears of each signal as it comes. Where there is nothing to
save it ends the process at the first one, else at the second: what is in files is whole at any
moment.
"""

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN = "again to end now"
watched = False  # whether `answer_signals` was called
came = False  # a signal, while there was an answer
hide: Callable[[], object] | None = None  # takes a bar from the terminal
unfinished: set[Path] = set()  # files that are written now, to be removed at the end
_answer: str | None = None  # what the first signal brings about; None: the end
_lock = threading.Lock()


def answer_signals() -> None:
    """Answers signals until the process ends; to be called in the main thread."""
    global watched
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in NUMBERS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # by `nohup`
            signal.signal(number, lambda *_: None)
    watched = True
    threading.Thread(target=_watch, args=(reader,), daemon=True).start()
    # The first to be registered is the last to run: what has ended is not stopped.
    for number in NUMBERS:
        atexit.register(signal.signal, number, signal.SIG_IGN)


def set_answer(text: str | None) -> str | None:
    """Sets what the first signal brings about, as it is told (None: the end); gives what it was."""
    global _answer
    with _lock:
        before, _answer = _answer, text
    return before


def end(status: int) -> None:
    """Ends this process and those that it began, whatever JAX computes in the background."""
    try:
        _end_others()
    finally:
        os._exit(status)


def _end_others() -> None:
    flush = threading.Thread(target=_flush, daemon=True)  # the main thread may hold its lock
    flush.start()
    flush.join(0.2)
    # An import may have to wait for the main thread's.
    children = getattr(sys.modules.get("multiprocessing.process"), "active_children", list)
    for child in children():  # whose parent process has died may wait for its next task for ever
        child.kill()
    for file in tuple(unfinished):
        with contextlib.suppress(OSError):
            file.unlink()


def end_with_parent(pipe: int | None = None) -> None:
    """End this process when its parent ends, or at once if the parent has ended already.

    Args:
      pipe: descriptor whose other end only the parent holds; defaults to multiprocessing's.
    """
    from multiprocessing import connection, parent_process

    def watch():
        connection.wait([parent_process().sentinel if pipe is None else pipe])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def only_here() -> Iterator[None]:
    """A process that is begun inside leaves Ctrl-C, which a terminal sends to all, to this one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _watch(reader: int) -> None:
    global came
    while True:
        number = os.read(reader, 1)[0]
        if number not in NUMBERS:
            continue
        with _lock:
            again, answer = came, _answer
            came = came or answer is not None
        if again:
            _say("ended; what was saved is kept")
            end(128 + number)
        if answer is None:
            _say("stopped; what was saved is kept: the same command goes on")
            end(0)
        _say(f"{answer}; {AGAIN}")
        if hide is not None:
            with contextlib.suppress(Exception):
                hide()


def _flush() -> None:
    with contextlib.suppress(Exception):
        sys.stdout.flush()


def _say(text: str) -> None:
    """Not by `print`: the main thread may hold the lock of `sys.stderr`."""
    # In place of a bar, which hides the cursor.
    line = f"\r\x1b[K\x1b[?25h{text}\n" if os.isatty(2) else f"{text}\n"
    with contextlib.suppress(OSError):
        os.write(2, line.encode())
