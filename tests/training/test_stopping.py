"""Signals: default action until the first step is done, then saving after the current step."""

import signal
import time

import pytest
from processes import begun

from hypersphere_jax.training import checkpoints
from hypersphere_jax.training.stopping import SIGNALS, StopOnSignal


def handlers():
    return [signal.getsignal(number) for number in SIGNALS]


@pytest.mark.parametrize("number", SIGNALS)
def test_first_signal_requests_a_stop_and_second_has_its_usual_action(number):
    before = handlers()
    with pytest.raises(KeyboardInterrupt), StopOnSignal() as stop:
        assert not stop.requested and not set(handlers()) & set(before)
        signal.raise_signal(number)
        assert stop.requested
        assert handlers() == before
        signal.raise_signal(signal.SIGINT)
    assert handlers() == before


def signal_pretrain(folder, number, file, content, **environment):
    """Send a signal to `pretrain` once a file has content; return the exit status and stderr."""
    options = "--width 0.1 --dim 3 --name run --batch-size 220 --devices 1 --epochs 9000"
    command = ["run.py", "pretrain", *options.split(), "--runs-dir", str(folder)]
    with begun(*command, **environment) as process:
        path = folder / "run" / file
        while not (path.is_file() and content in path.read_text()):
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.05)
        process.send_signal(number)
        errors = process.communicate()[1]
    return process.returncode, errors


@pytest.mark.slow
def test_signals_to_a_process_before_and_during_the_steps(tmp_path):
    uncached = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    compiling = signal_pretrain(tmp_path, signal.SIGINT, "config.json", "sessions", **uncached)
    assert compiling[0] == -signal.SIGINT and "Traceback" not in compiling[1]
    status, errors = signal_pretrain(tmp_path, signal.SIGTERM, "metrics.jsonl", "loss")
    assert status == 0, errors
    newest = checkpoints.steps(tmp_path / "run" / "checkpoints")[-1]
    assert newest > 0 and str(newest) in errors
