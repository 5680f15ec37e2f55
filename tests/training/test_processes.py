"""Processes: killed at any moment, and two of them that train one run."""

import concurrent.futures
import functools
import json
import os
import signal
import socket

import numpy as np
import own_parts
import pytest
import tiny_runs
from processes import begun
from run_states import timeless

import hypersphere_jax as hj
from hypersphere_jax.configs import UserError
from hypersphere_jax.training import checkpoints, distributed

TRAIN = """
import json, os, signal, sys
sys.path.insert(0, "tests")
folder, options, at, number, files = json.loads(os.environ["DRIVE"])
if files:  # end at the n-th file of the run that is opened, made, renamed or removed
    def count(event, arguments):
        global files
        if event in ("open", "os.mkdir", "os.rename", "os.remove"):
            files -= "/own/" in str(arguments[0])
            if not files:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(count)
import hypersphere_jax as hj
import own_parts
own_parts.signal_at = (at, number)
parts = {"network": own_parts.NETWORK, "augment": own_parts.noisy, "loss": own_parts.signalled}
try:
    hj.train(own_parts.config(folder, **options), images=own_parts.IMAGES, **parts)
except hj.Stopped:
    sys.exit(3)
"""
# 12 steps with a queue that the batch does not divide.
OPTIONS = {"epochs": 4, "batch_size": 16, "queue_size": 24}
OPTIONS |= {"eval_every_epochs": 2, "evaluators": ("align_uniform",), "eval_images": 20}


def start(folder, at=0, number=0, files=0, **options):
    """Start a process that gets a signal at a call of the loss, or is killed at a file."""
    drive = json.dumps([str(folder), OPTIONS | options, at, number, files])
    # The options of this process make the numbers bit-identical.
    return begun("-c", TRAIN, DRIVE=drive, XLA_FLAGS=os.environ.get("XLA_FLAGS", ""))


def train_here(folder, devices):
    parts = {"network": own_parts.NETWORK, "augment": own_parts.noisy, "loss": own_parts.signalled}
    config = own_parts.config(folder, **(OPTIONS | {"devices": devices}))
    return hj.train(config, images=own_parts.IMAGES, **parts)


@pytest.mark.slow
def test_run_killed_several_times_has_the_same_bits(tmp_path):
    """Killed during startup, and twice while checkpoints are written."""
    for files in (10, 60, 95):
        process = start(tmp_path / "killed", files=files)
        errors = process.communicate()[1]
        assert process.returncode == -signal.SIGKILL, errors
    killed = train_here(tmp_path / "killed", devices=1)
    whole = train_here(tmp_path / "whole", devices=1)
    np.testing.assert_array_equal(killed.encoder.params["w"], whole.encoder.params["w"])
    assert timeless(killed.folder) == timeless(whole.folder)
    record = json.loads((killed.folder / "config.json").read_text())
    assert record["sessions"][-1]["from_step"] > 0


def train_two(folder, at, numbers, **options):
    """Return the exit statuses of two processes of two devices, which get signals."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        options["coordinator"] = f"localhost:{free.getsockname()[1]}"
    options |= {"num_processes": 2, "devices": 2}
    pair = [start(folder, at, numbers[i], process_index=i, **options) for i in range(2)]
    with concurrent.futures.ThreadPoolExecutor(2) as threads:  # read both at the same time
        errors = list(threads.map(lambda process: process.communicate()[1], pair))
    return [process.returncode for process in pair], errors


@pytest.mark.slow
@tiny_runs.needs_devices(4)
def test_two_processes_train_as_one_through_a_death_and_a_stop(tmp_path):
    (first, second), _ = train_two(tmp_path, 8, (signal.SIGKILL, 0))
    assert first == -signal.SIGKILL and second not in (0, 3)
    steps = functools.partial(checkpoints.steps, tmp_path / "own" / "checkpoints")
    before = steps()[-1]
    assert 0 < before <= 4
    # Each process now streams its rows; a signal to one of them stops both.
    statuses, errors = train_two(tmp_path, 4, (0, signal.SIGTERM), pipeline="streaming")
    assert statuses[0] == statuses[1] and statuses[0] in (0, 3), errors  # 0: it came too late
    assert before < steps()[-1] and (statuses[0] == 3 or steps()[-1] == 12)
    runs = [train_here(folder, devices=4) for folder in (tmp_path, tmp_path / "one")]
    for record, expected in zip(*(timeless(run.folder) for run in runs), strict=True):
        assert record == pytest.approx(expected, rel=1e-4, abs=1e-3)
    weights = [run.encoder.params["w"] for run in runs]
    np.testing.assert_allclose(*weights, atol=1e-4)
    assert len(list((tmp_path / "own").glob("events.out*"))) == 3  # one per session


def test_processes_with_different_options_are_refused(monkeypatch):
    """Three processes, simulated by what they send."""

    def gather(sent):
        return np.stack([sent, sent, sent + np.arange(len(sent), dtype=np.uint32)])

    monkeypatch.setattr(distributed.multihost_utils, "process_allgather", gather)
    monkeypatch.setattr("jax.distributed.is_initialized", lambda: True)
    with pytest.raises(UserError, match="seed=0"):
        distributed.check_equal({"epochs": 3, "seed": 0})
