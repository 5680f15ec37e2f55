"""Signals that ask a process to stop."""

import signal
import threading

from hypersphere_jax.config import Stopped


class StopSignals:
    """While entered, SIGTERM and SIGINT set `asked`; a second one stops at once.

    Args:
      command: that continues what is stopped.
    """

    def __init__(self, command: str = ""):
        self.asked, self._command = False, command or "the same command"

    def stopped(self, where: str) -> Stopped:
        """What to raise, with how to go on."""
        return Stopped(f"stopped {where}; to go on: {self._command}")

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
