"""Tasks for several processes: each has its cores, and one that dies fails its task alone."""

import os
import signal
import threading
import time

import pytest

from experiments import workers
from hypersphere_jax.config import Stopped, UserError

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
needs_two = pytest.mark.skipif(CORES < 2, reason="needs two cores")


def work(task, command):
    """What the processes are asked for: the task says it."""
    if task == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if task == "bug":
        raise ZeroDivisionError("a bug")
    if task == "full":
        raise OSError(28, "No space left on device", "file")
    if task == "leave":
        os.kill(os.getpid(), signal.SIGTERM)
    if task == "long":
        try:
            time.sleep(60)
        except KeyboardInterrupt as error:
            raise Stopped("saved") from error
    if task == "cores":
        return os.sched_getaffinity(0)
    return f"{command} {task}"


def test_one_job_works_here_in_order():
    assert list(workers.each(work, [1, 2], 1, "do")) == [(1, "do 1"), (2, "do 2")]


@needs_two
def test_a_process_that_dies_fails_its_task_alone(tmp_path):
    found = dict(workers.each(work, [1, "die", 2, 3, "cores"], 2, "do", tmp_path))
    assert {found[task] for task in (1, 2, 3)} == {"do 1", "do 2", "do 3"}
    assert "SIGKILL" in found["die"] and "memory" in found["die"]
    assert len(found["cores"]) == CORES // 2 + CORES % 2 or len(found["cores"]) == CORES // 2
    assert list(tmp_path.glob("process*.log"))


@needs_two
def test_a_bug_is_not_taken_for_a_failure():
    with pytest.raises(RuntimeError, match="ZeroDivisionError: a bug"):
        list(workers.each(work, ["bug", "long"], 2, "do"))


@needs_two
def test_a_signal_stops_all_once_they_have_saved():
    threading.Timer(3, os.kill, (os.getpid(), signal.SIGTERM)).start()
    began = time.monotonic()
    with pytest.raises(Stopped, match="to go on: do"):
        list(workers.each(work, ["long", "long", "long"], 2, "do"))
    assert time.monotonic() - began < 30


@needs_two
def test_a_process_that_is_stopped_alone_stops_all():
    with pytest.raises(Stopped):
        list(workers.each(work, ["leave", "long", "long"], 2, "do"))


@needs_two
def test_a_full_disk_stays_one():
    with pytest.raises(OSError, match="No space left") as error:
        list(workers.each(work, ["full", 1], 2, "do"))
    assert error.value.filename == "file"


def test_too_many_jobs():
    with pytest.raises(UserError, match="--jobs 10000: there are"):
        list(workers.each(work, [], 10_000, "do"))
    with pytest.raises(UserError, match="--jobs 10000: there are"):
        list(workers.each(work, [1, 2], 10_000, "do"))


def test_each_process_has_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert [place["gpu"] for place in workers._places(1)] == ["3"]
    if CORES >= 2:
        assert [place["gpu"] for place in workers._places(2)] == ["3", "5"]
    with pytest.raises(UserError, match="2 GPU"):
        workers._places(3)
