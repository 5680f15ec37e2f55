"""Tasks for several processes, each with its own cores or GPU; one that dies fails alone."""

import multiprocessing
import os
import re
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from hypersphere_jax.config import Stopped, require
from hypersphere_jax.train.signals import StopSignals

POLL = 0.5  # seconds between two looks at whether a signal came


class _Worker(NamedTuple):
    process: multiprocessing.Process
    connection: Connection
    place: int  # which share of the cores it has


def each(
    function: Callable[[Any, str], Any],
    tasks: Sequence[Any],
    jobs: int,
    command: str,
    logs: Path | None = None,
) -> Iterator[tuple[Any, Any]]:
    """Each task with what `function(task, command)` returned, in the order in which they end.

    Args:
      function: of a module, so that another process can import it.
      tasks: what it is called with.
      jobs: processes at a time. One: this process does all tasks in order.
      command: to continue with.
      logs: folder for what the processes print, a file each; None: they print here.

    Raises:
      Stopped: on a signal to this process or one of the others, once all have saved what they were
        at.
      UserError: for more jobs than there are cores, or GPUs.
      OSError: of a process, such as a full disk.
    """
    _places(jobs)  # a mistake is told also where there is nothing to do
    if jobs == 1:
        for task in tasks:
            yield task, function(task, command)
        return
    jobs = min(jobs, len(tasks))
    waiting, busy = deque(tasks), {}
    places = _places(jobs)
    free, idle = list(range(jobs)), []
    asked = False  # whether the processes were asked to stop: once, as twice means at once
    with StopSignals() as stop:
        try:
            while busy or (waiting and not stop.asked):
                while waiting and not stop.asked and (idle or free):
                    worker = idle.pop() if idle else _start(function, free.pop(), places, logs)
                    task = waiting.popleft()
                    worker.connection.send((task, command))
                    busy[worker.connection] = worker, task
                if stop.asked and not asked:
                    asked = True
                    for worker, _ in busy.values():
                        worker.process.terminate()
                for connection in wait(list(busy), POLL):
                    worker, task = busy.pop(connection)
                    try:
                        kind, value = connection.recv()
                    except (EOFError, ConnectionError):
                        worker.process.join()
                        free.append(worker.place)
                        if not stop.asked:
                            yield task, _death(worker.process.exitcode)
                        continue
                    if kind == "error":
                        raise RuntimeError(f"in a process of its own:\n{value}")
                    if kind == "system":
                        raise value
                    if kind == "stopped":  # perhaps by a signal to that process alone
                        stop.asked = True
                    if kind == "done":
                        idle.append(worker)
                        yield task, value
        finally:
            working = [worker for worker, _ in busy.values()]
            for worker in (*idle, *working):
                worker.connection.close()  # those that have nothing to do end by it
            for worker in () if asked else working:
                worker.process.terminate()
            for worker in (*idle, *working):
                worker.process.join()
    if stop.asked:
        raise Stopped(f"stopped; what was saved is kept, to go on: {command}")


def _start(function: Callable, place: int, places: list[dict], logs: Path | None) -> _Worker:
    # A fork would copy JAX's threads in whatever state they are.
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    log = None if logs is None else str(logs / f"process{place + 1}.log")
    arguments = (function, theirs, places[place], log)
    process = context.Process(target=_work, args=arguments, daemon=True)
    process.start()
    theirs.close()  # so that its end is heard here
    return _Worker(process, mine, place)


def _work(function: Callable, connection: Connection, place: dict, log: str | None) -> None:
    """What a process does: tasks as they come, until none does."""
    os.setsid()  # Ctrl-C is for the process above, which passes it on
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if place["cores"]:
        os.sched_setaffinity(0, place["cores"])
    if place["gpu"] is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = place["gpu"]
    if log is not None:
        Path(log).parent.mkdir(parents=True, exist_ok=True)
        with open(log, "a") as file:
            os.dup2(file.fileno(), sys.stdout.fileno())
            os.dup2(file.fileno(), sys.stderr.fileno())
    while True:
        try:
            task, command = connection.recv()
        except EOFError:
            return
        try:
            connection.send(("done", function(task, command)))
        except (Stopped, KeyboardInterrupt):
            connection.send(("stopped", None))
            return
        except OSError as error:
            connection.send(("system", error))
            return
        except BaseException:
            connection.send(("error", traceback.format_exc()))
            return


def _places(jobs: int) -> list[dict]:
    """The cores and the GPU of each process."""
    if jobs < 1:
        return []
    gpus = _gpus()
    require(
        not gpus or jobs <= len(gpus),
        f"--jobs {jobs}: there are {len(gpus)} GPU(s), of which each process takes one",
    )
    if not hasattr(os, "sched_getaffinity"):  # not on Linux: the system shares them out
        return [{"cores": None, "gpu": None}] * jobs
    cores = sorted(os.sched_getaffinity(0))
    require(jobs <= len(cores), f"--jobs {jobs}: there are {len(cores)} cores")
    return [
        {"cores": cores[place::jobs], "gpu": gpus[place] if gpus else None} for place in range(jobs)
    ]


def _gpus() -> list[str]:
    """Numbers of NVIDIA's GPUs, without starting JAX, which would take one."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        names = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
        return [name for name in names if name and not name.startswith("-")]
    numbers = (re.fullmatch(r"nvidia(\d+)", path.name) for path in Path("/dev").glob("nvidia*"))
    return sorted((match.group(1) for match in numbers if match), key=int)


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        reason = ", as the system does when memory runs out" if name == "SIGKILL" else ""
        return f"its process was killed by {name}{reason}"
    return f"its process ended with status {code}"
