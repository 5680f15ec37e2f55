"""Functions that run in several processes, each with its share of the cores."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.data.pipeline import end_with_parent

GPU_MEMORY = 0.75  # share of a GPU's memory that all processes may take
Item = TypeVar("Item")


def map_processes(
    function: Callable[[Item], Any], items: Sequence[Item], jobs: int
) -> Iterator[Item]:
    """Call a function for each item, and yield the item when the call ends.

    Several jobs are processes with separate cores; function and items are pickled.

    Raises:
      UserError: for more jobs than cores, or when a process dies.
    """
    if jobs == 1:
        for item in items:
            function(item)
            yield item
        return
    cores = available_cores()
    require(jobs <= len(cores), f"--jobs {jobs}: there are {len(cores)} cores")
    # The processes share the memory of a GPU.
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{GPU_MEMORY / jobs:.3f}")
    # A forked process would inherit JAX's threads in an undefined state.
    context = multiprocessing.get_context("spawn")
    slots = context.Queue()
    for job in range(jobs):
        slots.put(cores[job::jobs])
    with ProcessPoolExecutor(jobs, context, _start_process, (slots,)) as pool:
        futures = {pool.submit(function, item): item for item in items}
        try:
            for future in as_completed(futures):
                future.result()
                yield futures[future]
        except BrokenProcessPool as error:
            message = "a process died, perhaps for lack of memory: try fewer --jobs"
            raise UserError(f"{message}. Finished runs are kept.") from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def available_cores() -> list[int]:
    """Return the numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _start_process(slots: Any) -> None:
    """Take a share of the cores, and end with the parent process."""
    cores = slots.get()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    end_with_parent()
