"""Processes as a user starts them: killed at any moment, and several that train one run.

XLA is here as it is by default, so that numbers must agree to the bit where this is promised. A few
lines around `run.py` let a process end itself, or get a signal, at a given step: no clock decides.
"""

import dataclasses
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest
from processes import ROOT, environment
from run_states import assert_same_run, state_of, timeless

from hypersphere_jax import checkpoint, hosts, runs
from hypersphere_jax.config import RuntimeConfig, UserError

TINY = ["--width", "0.1", "--dim", "3", "--name", "run"]
# 12 steps, of which 2, 4, … are logged and 3, 6, … are saved.
SHORT = [*TINY, "--epochs", "2", "--batch-size", "220"]
SHORT += ["--log-every-steps", "2", "--checkpoint-every-steps", "3"]


def begin(driver, arguments, **more):
    """`run.py pretrain` after the lines of a driver, whose own arguments are read from `DRIVE`."""
    lines = (
        "import json, os, signal, sys, run\nfrom hypersphere_jax import checkpoint, hosts, session"
    )
    lines += f"\n{driver}\nsys.exit(run.main(['pretrain', *sys.argv[1:]]))"
    return subprocess.Popen(
        [sys.executable, "-c", lines, *map(str, arguments)],
        cwd=ROOT,
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finished(process):
    """The status of a process and what it wrote to stderr."""
    errors = process.communicate()[1]
    assert "Traceback" not in errors and "stack trace" not in errors, errors
    return process.returncode, errors


# Ends the process at the n-th file that it opens, makes, renames or removes in the run's folder
# after the save of a step began: threads write the checkpoint meanwhile.
KILLED = """
step, left = json.loads(os.environ["DRIVE"])
armed = step == 0
def count(event, arguments):
    global left
    if armed and event in ("open", "os.mkdir", "os.rename", "os.remove"):
        left -= "/killed/" in str(arguments[0])
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(count)
save = checkpoint.Checkpoints.save
def save_armed(self, at, tree):
    global armed
    armed = armed or at >= step
    save(self, at, tree)
checkpoint.Checkpoints.save = save_armed
"""


@pytest.mark.slow
def test_killed_twelve_times_is_the_same_run(tmp_path):
    options = ["--devices", "1", *SHORT, "--runs-dir"]
    options[options.index("3", options.index("--checkpoint-every-steps"))] = "1"
    assert finished(begin("", [*options, tmp_path / "whole"]))[0] == 0
    dice = random.Random(0)
    # While it starts and restores, then in and around one save after the other.
    moments = [(0, 2), (0, 15)] + [(step, dice.randrange(30)) for step in range(1, 11)]
    for moment in moments:
        process = begin(KILLED, [*options, tmp_path / "killed"], DRIVE=json.dumps(moment))
        assert finished(process)[0] == -signal.SIGKILL, moment
    assert finished(begin("", [*options, tmp_path / "killed"]))[0] == 0
    assert_same_run(tmp_path / "killed" / "run", tmp_path / "whole" / "run")


@pytest.mark.slow
def test_streamed_images_are_resident_ones_to_the_bit(tmp_path):
    ways = {"resident": (), "streaming": (), "workers": ("--workers", "2")}
    for way, more in ways.items():
        pipeline = "resident" if way == "resident" else "streaming"
        options = ["--devices", "2", *SHORT, "--pipeline", pipeline, *more]
        assert finished(begin("", [*options, "--runs-dir", tmp_path / way]))[0] == 0
    resident = timeless(tmp_path / "resident" / "run")
    assert len(resident) == 6
    for way in ("streaming", "workers"):
        assert timeless(tmp_path / way / "run") == resident


@pytest.mark.slow
def test_ctrl_c_with_workers_saves(tmp_path):
    """A terminal sends the signal to the readers, too."""
    options = [*TINY, "--devices", "1", "--pipeline", "streaming", "--workers", "2"]
    options += ["--epochs", "100000", "--batch-size", "280", "--log-every-steps", "1"]
    process = begin("", [*options, "--runs-dir", tmp_path])
    folder = tmp_path / "run"
    while process.poll() is None and len(runs.read_metrics(folder)) < 5:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    status, errors = finished(process)
    step = int(re.search(r"stopped and saved at step (\d+) of 500000", errors)[1])
    assert status == 0 and "leaked" not in errors
    assert checkpoint.steps(folder / "checkpoints")[-1] == step >= 5


# The run `short` with a queue, which the batch of 220 does not divide, on two devices of two hosts.
QUEUE = ["--queue-size", "130", "--ema-decay", "0.9", "--bn-groups", "4"]
QUEUE += ["--eval-every-epochs", "1", "--eval-images", "200", "--evaluators", "align_uniform"]
# Hosts hear of each other sooner, and wait for each other as long as it takes; a lost one is known
# by its silence alone. `DRIVE` says at which step this host gets a signal, and how long silence is.
HOST = """
at, number, silence, stops = json.loads(os.environ["DRIVE"])
hosts.POLL_SECONDS, hosts.LOST_SECONDS = 0.2, silence
hosts.JOIN_SECONDS = hosts.FAREWELL_SECONDS = hosts.JAX_SECONDS = 36000
check = session.Group.check
def check_and_signal(group):
    steps = [step for step, _ in group.unchecked]
    check(group)
    if number and at in steps:
        os.kill(os.getpid(), number)
session.Group.check = check_and_signal
asked_to_stop = hosts.stops
def stops_once_heard(asked, done):
    if stops and done > at:  # neither host goes on before it has heard that all are to stop
        with hosts._group._changed:
            hosts._group._changed.wait_for(lambda: hosts._group._last is not None)
    return asked_to_stop(asked, done)
hosts.stops = stops_once_heard
"""
SILENCE = 120  # seconds without a beat, of which there are five a second


def run_two(folder, options=((), ()), kill=((0, 0), (0, 0)), found=None):
    """(status, last line of stderr) of both hosts; `found` is a cluster's environment."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    processes = []
    for i in range(2):
        named = ["--coordinator", address, "--num-hosts", 2, "--host-index", i]
        more = {"SLURM_PROCID": str(i), "SLURM_LOCALID": "0"} | found if found else {}
        named = ["--hosts", "auto"] if found else named
        stops = signal.SIGTERM in (kill[0][1], kill[1][1])
        step = max(kill[0][0], kill[1][0]) if stops else kill[i][0]
        drive = json.dumps([step, kill[i][1], SILENCE, stops])
        command = [*SHORT, *QUEUE, "--devices", 2, "--runs-dir", folder, *named, *options[i]]
        # Both compile, and soon: Gloo gives up where one waits for the other for 30 seconds.
        more |= {"DRIVE": drive, "XLA_FLAGS": "--xla_backend_optimization_level=0"}
        more |= {"JAX_ENABLE_COMPILATION_CACHE": "false"}
        processes.append(begin(HOST, command, **more))
    ended = {}
    threads = [
        threading.Thread(target=lambda p=process: ended.update({p: p.communicate()[1]}))
        for process in processes
    ]
    for thread in threads:  # both are read from, as neither ends before the other
        thread.start()
    for thread in threads:
        thread.join()
    errors = [ended[process] for process in processes]
    assert not any("Traceback" in text or "stack trace" in text for text in errors), errors
    lines = [(text.splitlines() or [""])[-1] for text in errors]
    return [(process.returncode, line) for process, line in zip(processes, lines, strict=True)]


def assert_close_run(folder, other):
    ours, others = timeless(folder), timeless(other)
    assert [record["step"] for record in ours] == [record["step"] for record in others]
    for record, expected in zip(ours, others, strict=True):
        assert record.keys() == expected.keys()
        for name in record:
            near = {"rtol": 1e-4, "atol": 1e-3 if name.startswith("eval/") else 0}
            np.testing.assert_allclose(record[name], expected[name], **near, err_msg=name)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4), state_of(folder), state_of(other)
    )


def on_one_host(folder, *options):
    command = [*SHORT, *QUEUE, "--devices", "4", "--runs-dir", folder, *options]
    return finished(begin("", command))


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """The run on one host of four devices."""
    folder = tmp_path_factory.mktemp("four")
    assert on_one_host(folder)[0] == 0
    return folder / "run"


@pytest.mark.slow
def test_two_hosts_of_a_cluster_as_one_of_as_many_devices(four, tmp_path):
    # Its port comes from the job's number.
    job = str(random.Random().randrange(10**6))
    slurm = {"SLURM_JOB_ID": job, "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}
    first, second = run_two(tmp_path, found=slurm)
    assert first[0] == 0 and second == (0, "")
    assert_close_run(tmp_path / "run", four)
    session = json.loads((tmp_path / "run" / "config.json").read_text())["sessions"][0]
    assert session["device"] == {"kind": "cpu", "count": 4, "hosts": 2}
    assert (tmp_path / "run" / "report.html").is_file()
    assert len(list((tmp_path / "run").glob("events.out*"))) == 1


@pytest.mark.slow
def test_whatever_happens_the_run_is_the_same(four, tmp_path):
    """The first of two hosts dies, then the second; both are stopped; it ends on one host."""
    checkpoints = tmp_path / "run" / "checkpoints"

    first, second = run_two(tmp_path, kill=((4, signal.SIGKILL), (0, 0)))
    assert first[0] == -signal.SIGKILL and second[0] == 2
    assert re.match(r"error: host 0 of 2 is gone .*run the same command on all", second[1])

    first, second = run_two(tmp_path, kill=((0, 0), (8, signal.SIGKILL)))
    assert first[0] == 2 and second[0] == -signal.SIGKILL
    assert re.match(r"error: host 1 of 2 is gone .*run the same command on all", first[1])
    assert checkpoint.steps(checkpoints)[-1] == 6

    # With streamed images now, of which each host reads its rows.
    streaming = [("--pipeline", "streaming")] * 2
    ends = run_two(tmp_path, streaming, kill=((0, 0), (8, signal.SIGTERM)))
    for status, line in ends:
        at = re.search(r"stopped and saved at step (\d+) of 12", line)
        assert status == 0 and at, ends
        assert checkpoint.steps(checkpoints)[-1] == int(at[1]) >= 9

    assert on_one_host(tmp_path)[0] == 0
    assert_close_run(tmp_path / "run", four)


@pytest.mark.slow
def test_an_error_on_one_host_ends_both(four):
    for status, line in run_two(four.parent, [("--seed", "1")] * 2):  # found by the first alone
        assert status == 2 and "holds a run with another config (seed: 0 -> 1)" in line
    ends = run_two(four.parent, [("--data", "digits"), ("--data", "/nowhere.npz")])
    for status, line in ends:
        assert status == 2 and "/nowhere.npz" in line


@pytest.mark.slow
def test_no_cluster_to_be_found(tmp_path):
    status, errors = finished(begin("", [*SHORT, "--hosts", "auto", "--runs-dir", tmp_path]))
    assert status == 2 and "JAX finds no cluster here" in errors


class Store(dict):
    """JAX's key-value store, which all hosts share."""

    def key_value_set(self, key, value, allow_overwrite):
        self[key] = value

    def key_value_dir_get(self, prefix):
        return [(key, value) for key, value in self.items() if key.startswith(prefix)]


class Ended(Exception):
    pass


class Aborts:
    def end(self, text):
        raise Ended(text)


@pytest.fixture
def group():
    """Three hosts, whose threads are started by hand."""
    store, group = Store(), []
    for index in range(3):
        host = object.__new__(hosts._Group)
        host.index, host.count, host._client, host._aborts = index, 3, store, Aborts()
        host._changed, host._all_left = threading.Condition(), threading.Event()
        host._begun, host._frozen, host._told, host._failing = 0, False, False, False
        host._last, host.beats = None, {}
        group.append(host)
    return group


def look(host):
    host._look(host._read(""), host.beats)


def test_all_stop_after_the_furthest_step(group):
    done = [4, 6, 5]
    for host, at in zip(group, done, strict=True):
        assert not host.stops(False, at)  # each begins its next step
    assert not group[0].stops(True, 5)  # asked now, and told at once
    for _ in range(2):
        for host in group:
            look(host)
    assert [host._last for host in group] == [7, 7, 7]
    for host, at in zip(group, (6, 7, 6), strict=True):
        assert [host.stops(False, step) for step in range(at, 8)] == [False] * (7 - at) + [True]


def test_hosts_that_differ(group):
    for host, seed in zip(group, (0, 0, 1), strict=True):
        host._tell("same", json.dumps({"config": {"seed": seed}}))
    with pytest.raises(UserError, match=r"host 2 is not as host 0 \(config.seed: 0 -> 1\)"):
        group[0].agree({"config": {"seed": 0}})
    group[2]._tell("same", json.dumps({"config": {"seed": 0}}))
    group[0].agree({"config": {"seed": 0}})


def test_a_host_that_is_gone_or_fails_ends_the_others(group, monkeypatch):
    clock = dict.fromkeys(range(3), 0.0)
    monkeypatch.setattr(hosts, "time", type("", (), {"monotonic": staticmethod(lambda: now)}))
    now = 0.0
    for now in (0.0, 10.0, 20.0, 30.0):  # host 1 falls silent at once
        for host in (group[0], group[2]):
            clock[host.index] += 1
            host._tell("beat", str(clock[host.index]))
        if now <= hosts.LOST_SECONDS:
            look(group[0])
            look(group[2])
    with pytest.raises(Ended, match="host 1 of 3 is gone"):
        look(group[2])
    group[1]._tell("left", "1")  # but one that left is not missed
    del group[0]._client[f"{hosts.PREFIX}failed/2"]
    look(group[0])
    group[2]._tell("failed", "host 2 ended: no room")
    with pytest.raises(Ended, match="host 2 ended: no room"):
        look(group[0])


def test_one_host_needs_none_of_this():
    assert hosts.is_first() and not hosts.stops(False, 1) and hosts.stops(True, 1)
    hosts.agree({"any": "thing"})


def test_options_that_do_not_fit(tmp_path):
    for options, message in (
        ({"num_hosts": 2}, "all or none"),
        ({"coordinator": "here", "num_hosts": 2, "host_index": 0}, "HOST:PORT"),
        ({"coordinator": "a:1", "num_hosts": 2, "host_index": 2}, "counted from 0"),
        ({"coordinator": "a:1", "num_hosts": 0, "host_index": 0}, "at least 1"),
        ({"coordinator": "a:1", "num_hosts": 2, "host_index": 0, "hosts": "auto"}, "leave"),
    ):
        with pytest.raises(UserError, match=message):
            dataclasses.replace(RuntimeConfig(), **options)
