"""Signals: default action until the first step is done, then saving after the current step."""

import functools
import re
import signal
import threading

import pytest
import tiny_runs
from processes import ROOT, begun
from run_states import assert_same_run, at_line

from hypersphere_jax.configs import RuntimeConfig, Stopped
from hypersphere_jax.training import checkpoints
from hypersphere_jax.training import train as training
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


def test_ignored_signals_stay_ignored(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopOnSignal() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop.requested
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_install_no_handlers():
    before, seen = handlers(), []

    def work():
        with StopOnSignal():
            seen.append(handlers())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.parametrize(("number", "step"), [*zip(SIGNALS, (4, 6, 12), strict=True)])
def test_a_stopped_run_resumes_to_the_same_numbers(number, step, short_run, tmp_path):
    """Also after a signal that arrives when the last step is done."""
    before = handlers()
    runtime = RuntimeConfig(devices=tiny_runs.two(), log_every_steps=2)  # no other checkpoints
    config = tiny_runs.short(tmp_path, runtime=runtime)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped, match="COMMAND") as stopped:
        at_line(patch, step, functools.partial(signal.raise_signal, number))
        training.train(config, command="COMMAND")
    saved = int(re.search(r"step (\d+) of 12", str(stopped.value))[1])
    assert step <= saved <= step + 2
    assert checkpoints.steps(tmp_path / "short" / "checkpoints")[-1] == saved
    assert handlers() == before
    assert_same_run(training.train(config), short_run)


OPTIONS = "--width 0.1 --dim 3 --name run --batch-size 220 --devices 1 --epochs"


@pytest.mark.slow
def test_a_signal_before_the_first_step_ends_the_process_at_once(tmp_path):
    command = ["run.py", "pretrain", *OPTIONS.split(), "2", "--runs-dir", str(tmp_path)]
    with begun(*command, JAX_ENABLE_COMPILATION_CACHE="false") as process:
        assert any("compiling" in line for line in iter(process.stderr.readline, ""))
        process.send_signal(signal.SIGINT)
        rest = process.communicate()[1]
    assert process.returncode == -signal.SIGINT and "Traceback" not in rest
    with begun(*command) as process:
        process.communicate()
    assert process.returncode == 0
    assert checkpoints.steps(tmp_path / "run" / "checkpoints")[-1] == 12


@pytest.mark.slow
def test_a_signal_during_the_steps_saves_and_exits_with_status_0(tmp_path):
    command = ["run.py", "pretrain", *OPTIONS.split(), "9000", "--runs-dir", str(tmp_path)]
    with begun(*command) as process:
        # The log has a line: steps are done.
        assert any("images/s" in line for line in iter(process.stderr.readline, ""))
        process.send_signal(signal.SIGTERM)
        rest = process.communicate()[1]
    assert process.returncode == 0, rest
    step = int(re.search(r"saved at step (\d+) of", rest)[1])
    assert checkpoints.steps(tmp_path / "run" / "checkpoints")[-1] == step


# The parent ends before its child asks for it; the child would run for a minute.
ORPHAN = """
import multiprocessing, os, signal, sys, time
from hypersphere_jax.data.threads import end_with_parent

def child(parent):
    while os.getppid() == parent:
        time.sleep(0.01)
    print("orphan", flush=True)
    end_with_parent()
    time.sleep(60)
    print("outlived", flush=True)

if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=child, args=(os.getpid(),)).start()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_child_process_ends_with_its_parent(tmp_path):
    (tmp_path / "orphan.py").write_text(ORPHAN)
    with begun(str(tmp_path / "orphan.py"), PYTHONPATH=str(ROOT)) as process:
        assert process.communicate()[0] == "orphan\n"
