"""A run that was interrupted, at any moment and however, goes on to the same numbers."""

import dataclasses
import errno
import functools
import json
import os
import shutil
import signal

import jax
import numpy as np
import pytest
import tiny_runs
from run_states import (
    assert_same_run,
    events_of,
    state_of,
    timeless,
)

from hypersphere_jax import checkpoint, runs, training
from hypersphere_jax.config import Stopped


@pytest.fixture
def killed(killed_run, tmp_path):
    """A copy of it, to go on with."""
    return shutil.copytree(killed_run, tmp_path / "short")


def at_line(patch, step, happens):
    """Something happens when the line of metrics of this step is written."""
    write = runs.MetricsWriter.write

    def write_then(self, record):
        write(self, record)
        if record["step"] == step:
            happens()

    patch.setattr(runs.MetricsWriter, "write", write_then)


def disk_is_full():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_whatever_stops_it_the_run_is_the_same(short_run, tmp_path):
    """Stopped by SIGTERM, ended by a full disk, stopped by SIGINT."""
    config, folder = tiny_runs.short(tmp_path), tmp_path / "short"
    for step, happens, error, message, kept in (
        (4, lambda: os.kill(os.getpid(), signal.SIGTERM), Stopped, "saved", [0, 3, 4]),
        (8, disk_is_full, OSError, "No space left", [0, 3, 4, 6]),
        (10, lambda: os.kill(os.getpid(), signal.SIGINT), Stopped, "saved", [0, 6, 9, 10]),
    ):
        message = f"saved at step {step} of 12 .*to go on: CMD" if message == "saved" else message
        with pytest.MonkeyPatch.context() as patch, pytest.raises(error, match=message):
            at_line(patch, step, happens)
            training.train(config, command="CMD")
        assert checkpoint.steps(folder / "checkpoints") == kept
    training.train(config, command="CMD")
    assert_same_run(folder, short_run)
    sessions = json.loads((folder / "config.json").read_text())["sessions"]
    assert [session["command"] for session in sessions] == ["CMD"] * 4
    # TensorBoard drops what comes after the step at which a session began.
    began = [event.step for event in events_of(folder) if event.HasField("session_log")]
    assert began == [5, 7, 11]


def test_damaged_newest_checkpoint(short_run, killed, caplog):
    next((killed / "checkpoints" / "9" / "state" / "d").iterdir()).write_bytes(b"cut")
    training.train(tiny_runs.short(killed.parent))
    assert "checkpoints/9 is damaged" in caplog.text
    assert_same_run(killed, short_run)


def test_half_written_metrics_and_a_config_of_an_earlier_version(short_run, killed):
    """Lines after the checkpoint are written again; options that came later had standard values."""
    with open(killed / "metrics.jsonl", "a") as file:
        file.write('{"step": 10, "loss": 1.0}\n{"step": 12, "lo')
    record = json.loads((killed / "config.json").read_text())
    del record["config"]["moco"], record["config"]["optimizer"]["clip_norm"]
    (killed / "config.json").write_text(json.dumps(record))
    training.train(tiny_runs.short(killed.parent))
    assert_same_run(killed, short_run)


def test_on_other_devices(short_run, killed):
    """And with other intervals, which do not divide the steps: the last one is logged and saved."""
    runtime = dataclasses.replace(
        tiny_runs.short(killed).runtime, devices=1, log_every_steps=5, checkpoint_every_steps=5
    )
    training.train(tiny_runs.short(killed.parent, runtime=runtime))
    close = functools.partial(np.testing.assert_allclose, atol=1e-4)
    jax.tree.map(close, state_of(killed), state_of(short_run))
    assert timeless(killed)[:-2] == timeless(short_run)[:-2]
    assert [record["step"] for record in timeless(killed)] == [2, 4, 6, 8, 10, 12]
    assert checkpoint.steps(killed / "checkpoints") == [0, 9, 10, 12]
