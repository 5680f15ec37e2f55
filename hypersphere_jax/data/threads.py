"""Threads that read files."""

import concurrent.futures
import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def thread_pool(threads: int | None) -> Iterator[concurrent.futures.ThreadPoolExecutor]:
    """An executor; at an error what has not begun is dropped rather than waited for."""
    executor = concurrent.futures.ThreadPoolExecutor(threads)
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)
