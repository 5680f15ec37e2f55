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

import jax
import numpy as np
import platforms
import pytest
from processes import begun, environment
from run_states import assert_same_run, state_of, timeless

from hypersphere_jax.configs import UserError
from hypersphere_jax.training import checkpoints, distributed

TINY = "--width 0.1 --dim 3 --name run"
# 12 steps, of which 2, 4, … are logged and 3, 6, … are saved.
SHORT = f"{TINY} --epochs 2 --batch-size 220 --log-every-steps 2 --checkpoint-every-steps 3"


def begin(options, folder, driver="", **more):
    """`run.py pretrain` after the lines of a driver, whose own arguments are read from `DRIVE`."""
    lines = f"""import json, os, signal, sys, time
from hypersphere_jax import cli
from jax._src import distributed as jax_distributed
from hypersphere_jax.training import checkpoints, distributed, recorder
{driver}
sys.exit(cli.main(['pretrain', *sys.argv[1:]]))"""
    return begun("-c", lines, *options.split(), "--runs-dir", str(folder), **more)


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
save = checkpoints.Checkpointer.save
def save_armed(self, at, tree):
    global armed
    armed = armed or at >= step
    save(self, at, tree)
checkpoints.Checkpointer.save = save_armed
"""


@pytest.mark.slow
def test_killed_several_times_is_the_same_run(tmp_path):
    options = "--devices 1 " + SHORT.replace("checkpoint-every-steps 3", "checkpoint-every-steps 1")
    assert finished(begin(options, tmp_path / "whole"))[0] == 0
    dice = random.Random(0)
    # While it starts and restores, then in and around one save after the other.
    for moment in [(0, 15)] + [(step, dice.randrange(30)) for step in (1, 6, 11)]:
        process = begin(options, tmp_path / "killed", KILLED, DRIVE=json.dumps(moment))
        assert finished(process)[0] == -signal.SIGKILL, moment
    assert finished(begin(options, tmp_path / "killed"))[0] == 0
    assert_same_run(tmp_path / "killed" / "run", tmp_path / "whole" / "run")


# The run `short` with a queue, which the batch of 220 does not divide, on four devices in all.
QUEUE = f"{SHORT} --queue-size 130 --ema-decay 0.9 --bn-groups 4"
QUEUE += " --eval-every-epochs 1 --eval-images 200 --evaluators align_uniform"
# `DRIVE` says at which step this process gets which signal.
PROCESS = """
at, number = json.loads(os.environ["DRIVE"])
check = recorder.RunRecord.check
def check_then(self, step, metrics):
    check(self, step, metrics)
    if step == at and number:
        os.kill(os.getpid(), number)
    if number and step >= at:
        time.sleep(5)  # JAX looks for signals once a second
recorder.RunRecord.check = check_then
# Gloo gives up where one waits for the other for 30 seconds: none does while the other compiles.
pmap, compiled = distributed.pmap, []
def compiling_together(*given, **options):
    mapped = pmap(*given, **options)
    def call(*arrays):
        if mapped not in compiled:
            mapped.lower(*arrays).compile()
            compiled.append(mapped)
            client = jax_distributed.global_state.client
            client.wait_at_barrier(f"compiled {len(compiled)}", 3_600_000)
        return mapped(*arrays)
    return call
distributed.pmap = compiling_together
"""


def run_two(folder, options="", at=0, signals=(0, 0)):
    """(status, stderr) of two processes, of two devices each, which get signals at a step."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    both = []
    for i in range(2):
        named = f"--coordinator {address} --num-processes 2 --process-index {i}"
        flags = environment().get("XLA_FLAGS", "")
        more = {"XLA_FLAGS": f"{flags} {platforms.LEVEL}=0"}  # both compile, and soon
        more |= {"DRIVE": json.dumps([at, signals[i]])}
        both.append(begin(f"{QUEUE} --devices 2 {named} {options}", folder, PROCESS, **more))
    with concurrent.futures.ThreadPoolExecutor(2) as threads:  # neither ends before the other
        errors = list(threads.map(lambda process: process.communicate()[1], both))
    return [(process.returncode, text) for process, text in zip(both, errors, strict=True)]


@pytest.mark.slow
def test_two_processes_are_as_one_of_as_many_devices_whatever_happens(tmp_path):
    """One process dies; both are stopped; the run ends in one process."""
    first, second = run_two(tmp_path, at=4, signals=(signal.SIGKILL, 0))
    assert first[0] == -signal.SIGKILL and second[0] != 0
    # With streamed images now, of which each process reads its rows.
    for status, errors in run_two(tmp_path, "--pipeline streaming", 8, (0, signal.SIGTERM)):
        # On a slow machine the signal may arrive after the last step.
        assert status == 0 and "saved" in errors
        stopped = re.search(r"saved at step (\d+) of 12", errors)
        newest = checkpoints.steps(tmp_path / "run" / "checkpoints")[-1]
        assert newest == (12 if stopped is None else int(stopped[1])) >= 9
    # It ends in one process of as many devices.
    for folder in (tmp_path, tmp_path / "one"):
        assert finished(begin(f"{QUEUE} --devices 4", folder))[0] == 0
    assert len(list((tmp_path / "run").glob("events.out*"))) == 3  # one per session
    folders = tmp_path / "run", tmp_path / "one" / "run"
    for record, expected in zip(*map(timeless, folders), strict=True):
        assert record == pytest.approx(expected, rel=1e-4, abs=1e-3)
    close = functools.partial(np.testing.assert_allclose, atol=1e-4)
    jax.tree.map(close, *map(state_of, folders))


def test_processes_that_differ_are_refused(monkeypatch):
    """Three processes, of which each says in turn what it has."""
    assert (
        distributed.is_first()
        and distributed.should_stop(True, 1)
        and not distributed.should_stop(False, 1)
    )
    others = [json.dumps({"seed": seed}).encode() for seed in (0, 0, 10)]
    gathered = iter([np.array([len(text) for text in others]), others])

    def gather(mine):
        if (told := next(gathered)) is not others:
            return told
        return np.stack([np.frombuffer(text.ljust(mine.size), np.uint8) for text in others])

    monkeypatch.setattr(distributed.multihost_utils, "process_allgather", gather)
    monkeypatch.setattr(distributed, "is_multi_process", lambda: True)
    with pytest.raises(UserError, match=r"process 2 differs from process 0 \(seed: 0 -> 10\)"):
        distributed.check_equal({"seed": 0})
