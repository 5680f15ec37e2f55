"""Tasks for several processes: each has its cores, and one that dies fails its task alone."""

import os
import signal
import threading
import time

import pytest

from experiments import workers
from hypersphere_jax.config import Stopped, UserError

CORES = len(os.sched_getaffinity(0))


def work(task, command):
    """What the processes are asked for: the task says it."""
    if task == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if task == "bug":
        raise ZeroDivisionError("a bug")
    if task == "full":
        raise OSError(28, "No space left on device", "file")
    if task == "cores":
        return os.sched_getaffinity(0)
    if str(task).startswith("/"):  # works until it is stopped, and says that it has begun
        try:
            open(task, "w").close()
            time.sleep(3600)
        except KeyboardInterrupt as error:
            raise Stopped("saved") from error
    return f"{command} {task}"


def test_one_job_works_here_in_order():
    assert list(workers.each(work, [1, 2], 1, "do")) == [(1, "do 1"), (2, "do 2")]
    with pytest.raises(UserError, match="--jobs 10000: there are"):
        list(workers.each(work, [1, 2], 10_000, "do"))


def test_each_process_has_cores_and_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda of: {0, 1, 2, 3, 4})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    one, two = workers._places(2)
    assert (one["gpu"], two["gpu"]) == ("3", "5")
    assert sorted([*one["cores"], *two["cores"]]) == [0, 1, 2, 3, 4] and len(two["cores"]) == 2
    with pytest.raises(UserError, match="2 GPU"):
        workers._places(3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert [place["gpu"] for place in workers._places(1)] == [None]


def test_a_process_that_dies_fails_its_task_alone(tmp_path):
    found = dict(workers.each(work, [1, "die", 2, "cores"], 2, "do", tmp_path))
    assert {found[task] for task in (1, 2)} == {"do 1", "do 2"}
    assert "SIGKILL" in found["die"] and "memory" in found["die"]
    assert len(found["cores"]) in (CORES // 2, CORES - CORES // 2)
    assert list(tmp_path.glob("process*.log"))


def test_what_ends_all():
    for task, error, what in (
        ("bug", RuntimeError, "ZeroDivisionError: a bug"),  # not taken for a failure
        ("full", OSError, "No space left"),
    ):
        with pytest.raises(error, match=what):
            list(workers.each(work, [task, 1], 2, "do"))


@pytest.mark.slow
def test_a_signal_stops_all_once_they_have_saved(tmp_path):
    tasks = [str(tmp_path / name) for name in "abc"]

    def signal_once_two_have_begun():
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=signal_once_two_have_begun, daemon=True).start()
    with pytest.raises(Stopped, match="to go on: do"):
        list(workers.each(work, tasks, 2, "do"))
    assert len(list(tmp_path.iterdir())) == 2  # the third one was not begun
