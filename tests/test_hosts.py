"""Two processes of two devices each: the same run as one process of four, whatever happens.

Processes are started as a user starts them; a few lines around `run.py` let one of them get a
signal after a given step.
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
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from run_cases import state_of
from test_training import config, stop_at

from hypersphere_jax import checkpoint, hosts, runs, sharding, training
from hypersphere_jax.config import MocoConfig, ModelConfig, RuntimeConfig, UserError

ROOT = Path(__file__).parent.parent
FOUR = RuntimeConfig(devices=4, log_every_steps=2, checkpoint_every_steps=3)
# The run of `test_training.config` with a queue: 12 steps, of which 2, 4, … are logged and 3, 6, …
# are saved; the batch of 220 does not divide the queue.
MOCO = {
    "moco": MocoConfig(queue_size=130, ema_decay=0.9),
    "model": ModelConfig(dim=3, width=0.1, batch_norm="split", bn_groups=4),
    "runtime": FOUR,
}
OPTIONS = [
    *("--epochs", "2", "--batch-size", "220", "--width", "0.1", "--dim", "3"),
    *("--queue-size", "130", "--ema-decay", "0.9", "--bn-groups", "4"),
    *("--devices", "2", "--log-every-steps", "2", "--checkpoint-every-steps", "3"),
]
# Sends this process a signal once it has read the metrics of a step.
DRIVER = """
import os, sys, time
import jax
import run
from hypersphere_jax import hosts, session
hosts.POLL_SECONDS = 0.2  # else these few short steps are over before a stop is heard of
at, number = int(sys.argv[1]), int(sys.argv[2])
check = session.Group.check
def check_and_signal(group):
    steps = [step for step, _ in group.unchecked]
    check(group)
    if at in steps:
        os.kill(os.getpid(), number)
        time.sleep(1)
session.Group.check = check_and_signal
sys.argv = ["run.py", *sys.argv[3:]]
sys.exit(run.main(sys.argv[1:]))
"""


def start(folder, index, *options, kill=(0, 0), found=None):
    """One of two hosts; the other one finds it by its options, or in a cluster's environment."""
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    }
    command = [*OPTIONS, "--name", "run", "--runs-dir", str(folder), *options]
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, *map(str, kill), "pretrain", *command],
        cwd=ROOT,
        env=environment | (found or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_two(folder, options=((), ()), kill=((0, 0), (0, 0))):
    """(status, last line of stderr) of both hosts, and the seconds between their ends."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    named = ("--coordinator", address, "--num-hosts", "2", "--host-index")
    processes = [start(folder, i, *named, str(i), *options[i], kill=kill[i]) for i in range(2)]
    return ends_of(processes)


def ends_of(processes):
    ended = {}
    try:
        until = time.monotonic() + 150
        while len(ended) < 2 and time.monotonic() < until:
            for process in processes:
                if process not in ended and process.poll() is not None:
                    ended[process] = time.monotonic()
            time.sleep(0.05)
        assert len(ended) == 2, "a host waits for ever"
    finally:
        for process in processes:
            process.kill()
    errors = [process.communicate()[1] for process in processes]
    assert not any("Traceback" in text or "stack trace" in text for text in errors), errors
    lines = [(text.splitlines() or [""])[-1] for text in errors]
    apart = abs(ended[processes[0]] - ended[processes[1]])
    return [(p.returncode, line) for p, line in zip(processes, lines, strict=True)], apart


def metrics_of(folder):
    kept = ("loss", "align", "uniform", "grad_norm")
    records = runs.read_metrics(folder)
    return {record["step"]: [record[name] for name in kept] for record in records}


def assert_close(folder, other):
    ours, others = metrics_of(folder), metrics_of(other)
    assert ours.keys() == others.keys()
    for step in ours:
        np.testing.assert_allclose(ours[step], others[step], rtol=1e-4, err_msg=f"step {step}")
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4), state_of(folder), state_of(other)
    )


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """The run on one host of four devices."""
    return training.train(config(tmp_path_factory.mktemp("four"), **MOCO))


@pytest.mark.slow
def test_two_hosts_of_a_cluster_as_one_of_as_many_devices(four, tmp_path):
    # Its port comes from the job's number.
    slurm = {
        "SLURM_JOB_ID": str(random.Random().randrange(10**6)),
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
    }
    processes = []
    for i in range(2):
        task = {"SLURM_PROCID": str(i), "SLURM_LOCALID": "0"}
        processes.append(start(tmp_path, i, "--hosts", "auto", found=slurm | task))
    (first, second), _ = ends_of(processes)
    assert first[0] == 0 and second == (0, "")
    assert_close(tmp_path / "run", four)
    session = json.loads((tmp_path / "run" / "config.json").read_text())["sessions"][0]
    assert session["device"] == {"kind": "cpu", "count": 4, "hosts": 2}
    assert (tmp_path / "run" / "report.html").is_file()
    assert len(list((tmp_path / "run").glob("events.out*"))) == 1


@pytest.mark.slow
def test_whatever_happens_the_run_is_the_same(four, tmp_path):
    """Begun on one host; the first of two dies, then the second; both are stopped; ended on one."""
    checkpoints = tmp_path / "run" / "checkpoints"
    stop_at(tmp_path, 3, **MOCO)

    (first, second), apart = run_two(tmp_path, kill=((4, signal.SIGKILL), (0, 0)))
    assert first[0] == -signal.SIGKILL and second[0] == 2 and apart < 15
    assert re.match(r"error: host 0 of 2 is gone .*run the same command on all", second[1])

    (first, second), apart = run_two(tmp_path, kill=((0, 0), (8, signal.SIGKILL)))
    assert first[0] == 2 and second[0] == -signal.SIGKILL and apart < 60
    assert re.match(r"error: host 1 of 2 is gone .*run the same command on all", first[1])
    assert checkpoint.steps(checkpoints)[-1] == 6

    # With streamed images now, of which each host reads its rows.
    streaming = [("--pipeline", "streaming")] * 2
    (first, second), _ = run_two(tmp_path, streaming, kill=((0, 0), (8, signal.SIGTERM)))
    said = r"stopped (?:and saved at step (\d+) of 12|after the last step)"
    at = [re.match(said, line) for _, line in (first, second)]
    assert first[0] == second[0] == 0, (first, second)
    # On a busy machine the few steps that are left may be over before both hear of it.
    steps = {int(match[1]) for match in at if match and match[1]} or {12}
    assert steps == {checkpoint.steps(checkpoints)[-1]}

    training.train(config(tmp_path, **MOCO))
    assert_close(tmp_path / "run", four)


@pytest.mark.slow
def test_an_error_on_one_host_ends_both(four):
    ends, _ = run_two(four.parent, [("--seed", "1")] * 2)
    for status, line in ends:  # found by the first host alone
        assert status == 2 and "holds a run with another config (seed: 0 -> 1)" in line
    ends, _ = run_two(four.parent, [("--data", "digits"), ("--data", "/nowhere.npz")])
    for status, line in ends:
        assert status == 2 and "/nowhere.npz" in line


def test_hosts_that_differ(monkeypatch):
    told = {f"same/{i}": json.dumps({"config": {"seed": i // 2}}) for i in range(3)}
    group = object.__new__(hosts._Group)
    group.count = 3
    monkeypatch.setattr(group, "_tell", lambda *_: None, raising=False)
    monkeypatch.setattr(group, "_read", lambda _: told, raising=False)
    with pytest.raises(UserError, match=r"host 2 is not as host 0 \(config.seed: 0 -> 1\)"):
        group.agree({})


def test_one_host_needs_none_of_this():
    assert hosts.is_first() and not hosts.stops(False, 1) and hosts.stops(True, 1)
    hosts.agree({"any": "thing"})
    devices = sharding.everywhere(4)
    assert devices == sharding.here(devices) == jax.local_devices()[:4]
    assert sharding.rows_here(12, devices) == slice(0, 12)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_hosts": 2}, "all or none"),
        ({"coordinator": "here", "num_hosts": 2, "host_index": 0}, "HOST:PORT"),
        ({"coordinator": "a:1", "num_hosts": 2, "host_index": 2}, "counted from 0"),
        ({"coordinator": "a:1", "num_hosts": 0, "host_index": 0}, "at least 1"),
        ({"coordinator": "a:1", "num_hosts": 2, "host_index": 0, "hosts": "auto"}, "leave"),
    ],
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(FOUR, **options)


def test_no_cluster_to_be_found():
    process = start("runs", 0, "--hosts", "auto")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2 and "JAX finds no cluster here" in errors
