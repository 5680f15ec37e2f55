"""Functions that run in several processes, each with its share of the cores."""

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.data.pipeline import end_with_parent

GPU_MEMORY = 0.75  # share of a GPU's memory that all processes may take


def run_processes(tasks: Sequence[tuple], jobs: int) -> Iterator[int]:
    """Call functions in processes with separate cores, and yield the index of each when it ends.

    Args:
      tasks: (function, *arguments) that can be pickled.
      jobs: number of processes.

    Raises:
      UserError: for more jobs than cores, or when a process dies.
    """
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
        futures = {pool.submit(*task): index for index, task in enumerate(tasks)}
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
