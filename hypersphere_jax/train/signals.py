"""Signals that ask a process to stop."""

import signal
import threading


class StopSignals:
    """While entered, SIGTERM and SIGINT set `asked`; a second one stops at once."""

    def __init__(self):
        self.asked = False

    def __enter__(self) -> "StopSignals":
        self._before = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._stop)
        return self

    def _stop(self, number, frame):
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __exit__(self, *_):
        for number, handler in self._before.items():
            signal.signal(number, handler)
