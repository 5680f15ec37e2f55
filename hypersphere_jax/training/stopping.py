"""Stopping a run by SIGTERM, SIGINT (Ctrl-C) or SIGHUP (a closed terminal)."""

import signal
import threading
from types import FrameType
from typing import Any

from hypersphere_jax.training import distributed

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopOnSignal:
    """While entered, the first signal sets `requested`; a second one has its usual action.

    Signals ignored by `nohup` stay ignored. Outside the main thread nothing changes. With several
    processes JAX catches SIGTERM (see `distributed.should_stop`); other signals become SIGTERM.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopOnSignal":
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS[distributed.is_multi_process() :]:
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._request)
        return self

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self.__exit__()
        if distributed.is_multi_process():
            signal.raise_signal(signal.SIGTERM)

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
