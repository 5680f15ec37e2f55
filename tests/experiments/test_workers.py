"""Tasks for several processes: each has its cores, and one that dies fails its task alone."""

import os
import signal
from unittest.mock import Mock

import pytest

from experiments import workers
from hypersphere_jax.configs import UserError

CORES = len(os.sched_getaffinity(0))


def work(task, command):
    """What the processes are asked for: the task says it."""
    if task == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if task == "bug":
        raise ZeroDivisionError("a bug")
    if task == "cores":
        return os.sched_getaffinity(0)
    return f"{command} {task}"


def test_each_process_has_cores_of_its_own_and_a_gpu_or_its_share(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda of: {0, 1, 2, 3, 4})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    one, two = workers._places(2)
    assert (one["gpu"], two["gpu"]) == ("3", "5") and one["share"] == two["share"] == "0.750"
    assert sorted([*one["cores"], *two["cores"]]) == [0, 1, 2, 3, 4] and len(two["cores"]) == 2
    shares = [(place["gpu"], place["share"]) for place in workers._places(5)]
    assert shares == [
        ("3", "0.250"),
        ("5", "0.375"),
        ("3", "0.250"),
        ("5", "0.375"),
        ("3", "0.250"),
    ]
    with pytest.raises(UserError, match="--jobs 6: there are 5 cores"):
        workers._places(6)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert [place["gpu"] for place in workers._places(1)] == [None]


def test_a_share_of_the_gpus_memory_unless_the_user_gave_one(monkeypatch):
    monkeypatch.setattr(os, "setsid", lambda: None)
    monkeypatch.setattr(workers, "signals", Mock())
    place, name = {"cores": None, "gpu": "5", "share": "0.375"}, "XLA_PYTHON_CLIENT_MEM_FRACTION"
    for given, expected in (({}, "0.375"), ({name: "0.1"}, "0.1")):
        monkeypatch.setattr(os, "environ", dict(given))
        workers._begin(place, None)
        assert os.environ == {"CUDA_VISIBLE_DEVICES": "5", name: expected}


@pytest.mark.slow
def test_a_process_that_dies_fails_its_task_alone(tmp_path):
    assert list(workers.each(work, [1, 2], 1, "do")) == [(1, "do 1"), (2, "do 2")]
    outcomes = dict(workers.each(work, [1, "die", 2, "cores"], 2, "do", tmp_path))
    assert {outcomes[task] for task in (1, 2)} == {"do 1", "do 2"}
    assert outcomes["die"] == workers.DIED
    assert len(outcomes["cores"]) in (CORES // 2, CORES - CORES // 2)
    with pytest.raises(ZeroDivisionError, match="a bug"):  # is no failure
        list(workers.each(work, ["bug", 1], 2, "do"))
