"""Processes as a user starts them: killed at any moment, and several that train one run.

XLA is as it is by default, so that numbers agree to the bit where this is promised. Lines around
`run.py` let a process end itself, or get a signal, at a given step: no clock decides.
"""

import concurrent.futures
import functools
import json
import random
import re
import signal
import socket
import subprocess
import sys
import threading

import jax
import numpy as np
import pytest
from processes import ROOT, environment
from run_states import assert_same_run, state_of, timeless

from hypersphere_jax.config import UserError
from hypersphere_jax.train import checkpoint
from hypersphere_jax.train import processes as hosts

TINY = "--width 0.1 --dim 3 --name run"
# 12 steps, of which 2, 4, … are logged and 3, 6, … are saved.
SHORT = f"{TINY} --epochs 2 --batch-size 220 --log-every-steps 2 --checkpoint-every-steps 3"


def begin(options, folder, driver="", **more):
    """`run.py pretrain` after the lines of a driver, whose own arguments are read from `DRIVE`."""
    lines = f"""import json, os, signal, sys, run
from hypersphere_jax.train import checkpoint, session
from hypersphere_jax.train import processes as hosts
{driver}
sys.exit(run.main(['pretrain', *sys.argv[1:]]))"""
    return subprocess.Popen(
        [sys.executable, "-c", lines, *options.split(), "--runs-dir", str(folder)],
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
    options = "--devices 1 " + SHORT.replace("checkpoint-every-steps 3", "checkpoint-every-steps 1")
    assert finished(begin(options, tmp_path / "whole"))[0] == 0
    dice = random.Random(0)
    # While it starts and restores, then in and around one save after the other.
    for moment in [(0, 2), (0, 15)] + [(step, dice.randrange(30)) for step in range(1, 11)]:
        process = begin(options, tmp_path / "killed", KILLED, DRIVE=json.dumps(moment))
        assert finished(process)[0] == -signal.SIGKILL, moment
    assert finished(begin(options, tmp_path / "killed"))[0] == 0
    assert_same_run(tmp_path / "killed" / "run", tmp_path / "whole" / "run")


@pytest.mark.slow
def test_streamed_images_are_resident_ones_to_the_bit(tmp_path):
    for way in ("resident", "streaming --workers 2"):
        assert finished(begin(f"--devices 2 {SHORT} --pipeline {way}", tmp_path / way))[0] == 0
    resident, streamed = (timeless(folder / "run") for folder in sorted(tmp_path.iterdir()))
    assert len(resident) == 6 and streamed == resident


# The run `short` with a queue, which the batch of 220 does not divide, on four devices in all.
QUEUE = f"{SHORT} --queue-size 130 --ema-decay 0.9 --bn-groups 4"
QUEUE += " --eval-every-epochs 1 --eval-images 200 --evaluators align_uniform"
# Hosts hear of each other sooner, and wait for each other as long as it takes; a lost one is known
# by its silence alone. `DRIVE` says at which step this host gets a signal, and whether all stop.
HOST = """
at, number, stops = json.loads(os.environ["DRIVE"])
hosts.POLL_SECONDS, hosts.LOST_SECONDS = 0.2, 120
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


def run_two(folder, options="", at=0, signals=(0, 0)):
    """(status, stderr) of two hosts, of two devices each, which get signals at a step."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    processes = []
    for i in range(2):
        named = f"--coordinator {address} --num-hosts 2 --host-index {i}"
        drive = json.dumps([at, signals[i], signal.SIGTERM in signals])
        # Both compile, and soon: Gloo gives up where one waits for the other for 30 seconds.
        more = {"DRIVE": drive, "XLA_FLAGS": "--xla_backend_optimization_level=0"}
        more["JAX_ENABLE_COMPILATION_CACHE"] = "false"
        processes.append(begin(f"{QUEUE} --devices 2 {named} {options}", folder, HOST, **more))
    with concurrent.futures.ThreadPoolExecutor(2) as both:  # neither ends before the other
        return list(both.map(finished, processes))


@pytest.mark.slow
def test_two_hosts_are_as_one_of_as_many_devices_whatever_happens(tmp_path):
    """The first of two hosts dies; both are stopped; it ends on one host."""
    first, second = run_two(tmp_path, at=4, signals=(signal.SIGKILL, 0))
    assert first[0] == -signal.SIGKILL and second[0] == 2
    assert second[1].splitlines()[-1].startswith("error: host 0 of 2 is gone ")
    # With streamed images now, of which each host reads its rows.
    for status, errors in run_two(tmp_path, "--pipeline streaming", 8, (0, signal.SIGTERM)):
        step = int(re.search(r"stopped and saved at step (\d+) of 12", errors)[1])
        assert status == 0
        assert checkpoint.steps(tmp_path / "run" / "checkpoints")[-1] == step >= 9
    # It ends on one host of as many devices.
    for folder in (tmp_path, tmp_path / "one"):
        assert finished(begin(f"{QUEUE} --devices 4", folder))[0] == 0
    assert len(list((tmp_path / "run").glob("events.out*"))) == 3  # of the first host alone
    folders = tmp_path / "run", tmp_path / "one" / "run"
    for record, expected in zip(*map(timeless, folders), strict=True):
        assert record == pytest.approx(expected, rel=1e-4, abs=1e-3)
    close = functools.partial(np.testing.assert_allclose, atol=1e-4)
    jax.tree.map(close, *map(state_of, folders))


class Store(dict):
    """JAX's key-value store, which all hosts share; and what ends a process."""

    def key_value_set(self, key, value, allow_overwrite):
        self[key] = value

    def key_value_dir_get(self, prefix):
        return [(key, value) for key, value in self.items() if key.startswith(prefix)]

    def end(self, text):
        raise InterruptedError(text)


@pytest.fixture
def group():
    """Three hosts, whose threads are started by hand."""
    store, group = Store(), [object.__new__(hosts._Group) for _ in range(3)]
    for index, host in enumerate(group):
        host.index, host.count, host._client, host._aborts = index, 3, store, store
        host._changed, host._all_left = threading.Condition(), threading.Event()
        host._begun, host._frozen, host._told, host._failing = 0, False, False, False
        host._last, host.beats = None, {}
        host.look = lambda host=host: host._look(host._read(""), host.beats)
    return group


def test_all_stop_after_the_furthest_step(group):
    assert hosts.is_first() and not hosts.stops(False, 1) and hosts.stops(True, 1)  # one alone
    for host, at in zip(group, (4, 6, 5), strict=True):
        assert not host.stops(False, at)  # each begins its next step
    assert not group[0].stops(True, 5)  # asked now, and told at once
    for host in group * 2:
        host.look()
    for host, at in zip(group, (6, 7, 6), strict=True):
        assert [host.stops(False, step) for step in range(at, 8)] == [False] * (7 - at) + [True]


def test_a_host_that_differs_or_is_gone_or_fails_ends_the_others(group, monkeypatch):
    for host, seed in zip(group, (0, 0, 1), strict=True):
        host._tell("same", json.dumps({"seed": seed}))
    with pytest.raises(UserError, match=r"host 2 is not as host 0 \(seed: 0 -> 1\)"):
        group[0].agree({"seed": 0})
    now = 0.0
    monkeypatch.setattr(hosts, "time", type("", (), {"monotonic": staticmethod(lambda: now)}))
    group[0]._tell("left", "1")  # and is not missed; host 1 is
    group[2].look()
    now = hosts.LOST_SECONDS
    group[2].look()
    now += 1
    with pytest.raises(InterruptedError, match="host 1 of 3 is gone"):
        group[2].look()
    group[0]._client.clear()
    group[2]._tell("failed", "host 2 ended: no room")
    with pytest.raises(InterruptedError, match="host 2 ended: no room"):
        group[0].look()
