"""Threads and processes that read data."""

import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def thread_pool(threads: int | None) -> Iterator[concurrent.futures.ThreadPoolExecutor]:
    """Open an executor that drops waiting tasks when it is closed, such as after an error."""
    executor = concurrent.futures.ThreadPoolExecutor(threads)
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


def end_with_parent() -> None:
    """End this child process as soon as its parent process ends."""
    from multiprocessing import connection, parent_process

    parent = parent_process()

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
