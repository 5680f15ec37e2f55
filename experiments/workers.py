"""Tasks for several processes, each with its own cores, and a GPU or a share of one.

One that dies fails alone.
"""

import contextlib
import multiprocessing
import os
import re
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from hypersphere_jax import cli
from hypersphere_jax.configs import Stopped, require
from hypersphere_jax.data.threads import end_with_parent
from hypersphere_jax.training.stopping import StopOnSignal
from hypersphere_jax.utils.terminal import say

# Of a GPU's memory, what all that train on it may take: as much as JAX takes for one alone.
GPU_MEMORY = 0.75
POLL = 0.5  # seconds between two looks at whether a signal came
DIED = "its process died, as when the system ends it for want of memory"


def each(
    function: Callable[[Any, str], Any],
    tasks: Iterable[Any],
    jobs: int,
    command: str,
    logs: Path | None = None,
) -> Iterator[tuple[Any, Any]]:
    """Each task with what `function(task, command)` returned, in the order in which they end.

    Of a task whose process died, that is `DIED`.

    Args:
      function: of a module, so that another process can import it.
      tasks: what it is called with.
      jobs: processes at a time. One: this process does all tasks in order.
      command: to continue with.
      logs: folder for what the processes print, a file each; None: they print here.

    Raises:
      Stopped: on a signal to this process or one of the others, once all have saved their state.
      UserError: for more jobs than there are cores.
    """
    places = _places(jobs)  # invalid input is refused also where there is nothing to do
    if jobs == 1:
        for task in tasks:
            yield task, function(task, command)
        return
    # An executor of one process each: where that dies, the others go on.
    executors: dict[int, ProcessPoolExecutor] = {}
    waiting, free, busy = deque(tasks), list(range(jobs)), {}
    if logs is not None:
        say(f"{jobs} at a time; what they print: {logs}", sys.stderr)
    # Else Python's tracker of semaphores tells of those that a second signal leaves to it.
    os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker")
    with StopOnSignal() as stop:
        terminated = False  # once: a second signal would end a process before it has saved
        try:
            while busy or (waiting and not stop.requested):
                while waiting and free and not stop.requested:
                    number, task = free.pop(), waiting.popleft()
                    if number not in executors:
                        executors[number] = _executor(number, places[number], logs)
                    with ctrl_c_blocked():
                        future = executors[number].submit(function, task, command)
                    busy[future] = number, task
                if stop.requested and not terminated:
                    terminated = True
                    _terminate()
                for future in wait(busy, POLL, FIRST_COMPLETED).done:
                    number, task = busy.pop(future)
                    free.append(number)
                    try:
                        outcome = future.result()
                    except BrokenProcessPool:
                        executors.pop(number).shutdown()
                        outcome = DIED
                    except Stopped:  # perhaps by a signal to it alone
                        stop.requested = True
                    if not waiting and number in executors:  # it ends while others work
                        executors.pop(number).shutdown(wait=False)
                    if not stop.requested:
                        yield task, outcome
        finally:
            if busy and not terminated:
                _terminate()
            for executor in executors.values():
                executor.shutdown()
    if stop.requested:
        raise Stopped(f"stopped: all have saved their state; to continue: {command}")


@contextlib.contextmanager
def ctrl_c_blocked() -> Iterator[None]:
    """Block SIGINT, so that a process started inside leaves Ctrl-C to this one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _executor(number: int, place: dict, logs: Path | None) -> ProcessPoolExecutor:
    log = None if logs is None else logs / f"process{number + 1}.log"
    # A fork would copy JAX's threads in whatever state they are.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, context, initializer=_begin, initargs=(place, log))


def _terminate() -> None:
    for process in multiprocessing.active_children():
        process.terminate()


def _begin(place: dict, log: Path | None) -> None:
    """Sets up a process."""
    cli.silence_orbax()
    os.setsid()  # Ctrl-C is for the process above, which passes it on
    end_with_parent()
    if place["cores"]:
        os.sched_setaffinity(0, place["cores"])
    if place["gpu"] is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = place["gpu"]
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", place["share"])
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:
            os.dup2(file.fileno(), sys.stdout.fileno())
            os.dup2(file.fileno(), sys.stderr.fileno())


def _places(jobs: int) -> list[dict]:
    """The cores of each process, its GPU, and its share of that one's memory."""
    if not hasattr(os, "sched_getaffinity"):  # not on Linux: the system shares them out
        return [{"cores": None, "gpu": None}] * jobs
    cores = sorted(os.sched_getaffinity(0))
    require(jobs <= len(cores), f"--jobs {jobs}: there are {len(cores)} cores")
    places = [{"cores": cores[place::jobs], "gpu": None} for place in range(jobs)]
    for number, gpu in enumerate(gpus := nvidia_gpus()):
        on_it = places[number :: len(gpus)]
        for place in on_it:
            place |= {"gpu": gpu, "share": f"{GPU_MEMORY / len(on_it):.3f}"}
    return places


def core_count() -> int:
    """How many this process may use."""
    known = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


def nvidia_gpus() -> list[str]:
    """Numbers of NVIDIA's GPUs, without starting JAX, which would take one."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        names = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
        return [name for name in names if name and not name.startswith("-")]
    numbers = (re.fullmatch(r"nvidia(\d+)", path.name) for path in Path("/dev").glob("nvidia*"))
    return sorted((match.group(1) for match in numbers if match), key=int)
