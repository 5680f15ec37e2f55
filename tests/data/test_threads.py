"""Thread pools that read data."""

import threading

import pytest

from hypersphere_jax.data.threads import thread_pool


def test_waiting_tasks_are_dropped_after_an_error():
    release, begun = threading.Event(), []
    with pytest.raises(KeyboardInterrupt), thread_pool(1) as pool:
        pool.submit(release.wait, 600)
        waiting = pool.submit(begun.append, "late")
        waiting.add_done_callback(lambda _: release.set())
        raise KeyboardInterrupt
    assert waiting.cancelled() and not begun
