"""What the terminal shows of long work, and the answers to Ctrl-C."""

import io
import re
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import jax
import pytest
from jax._src import monitoring
from processes import ROOT, begun
from rich.console import Console

from hypersphere_jax import signals
from hypersphere_jax.configs import Stopped
from hypersphere_jax.data.threads import thread_pool
from hypersphere_jax.training import checkpoint, progress
from hypersphere_jax.training.processes import StopSignals

NAME = "align_uniform_seed0"
RECORD = {"step": 2500, "loss": 2.5, "images_per_s": 1234.0, "data_wait": 0.5, "eval/knn": 91.5}


def shown(monkeypatch, width, compiles=False):
    """The line of a run's bar on a terminal."""
    console = Console(width=width, file=io.StringIO(), force_terminal=True, no_color=True)
    monkeypatch.setattr(progress, "Console", lambda **_: console)
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)
    bar = progress.Progress(NAME, 0, 5000)
    if not compiles:
        bar.completed(2500)
        bar.update(RECORD)
    bar._bar.stop()
    with console.capture() as captured:
        console.print(bar._bar.get_renderable())
    (line,) = captured.get().splitlines()
    return line


def test_narrow_terminals_lose_scores_first_and_the_name_last(monkeypatch):
    parts = [NAME, "━━", "2500/5000", ":", "loss 2.500", "1,234 images/s", "eval/knn 91.5"]
    for width, kept in ((130, 7), (85, 6), (60, 5), (45, 4)):
        line = shown(monkeypatch, width)
        assert [part in line for part in parts] == [True] * kept + [False] * (7 - kept), line
        assert len(line.rstrip()) <= width
    assert "0/5000 compiling" in shown(monkeypatch, 40, compiles=True)
    line = shown(monkeypatch, 36)
    assert "align_uni" in line and "…" in line and "2500/5000" in line and len(line.rstrip()) <= 36


@pytest.fixture
def stopped_clock(monkeypatch):
    monkeypatch.setattr(progress.time, "monotonic", lambda: 100.0)


def test_without_a_terminal_compiling_has_its_lines(capsys, stopped_clock):
    run = progress.Progress("run", 4, 5000)
    run.completed(5)
    run.update(RECORD)
    run.close()
    continuing, compiling, compiled, step = capsys.readouterr().err.splitlines()
    assert "at step 4 of 5000" in continuing and "compiling" in compiling
    assert compiled.startswith("run: step 5 of 5000 after 0 s")
    values = "loss 2.500, 1,234 images/s, data wait 50%, eval/knn 91.5"
    assert f"step 2500 of 5000, {values}, 0 s left" in step
    progress.Progress("run", 9, 9)
    assert "run: finished already, at step 9" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("events", "how"),
    [([], ""), (["hits"], ", from the compilation cache"), (["hits", "misses"], ", compiled")],
)
def test_a_program_from_the_cache_is_said_to_be(events, how, capsys, stopped_clock):
    listeners = len(monitoring.get_event_listeners())
    run = progress.Progress("run", 0, 9)
    for event in events:
        jax.monitoring.record_event(f"/jax/compilation_cache/cache_{event}")
    run.completed(1)
    assert f"run: step 1 of 9 after 0 s{how}\n" in capsys.readouterr().err
    progress.Progress("another", 0, 9).close()
    progress.Progress("done", 9, 9).close()
    run.close()
    assert len(monitoring.get_event_listeners()) == listeners


def test_work_without_a_terminal_has_a_line_now_and_then(monkeypatch, capsys):
    now = iter([0, 0, 3, 4, 20])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    assert list(progress.track("abcd", "decoding")) == [*"abcd"]
    assert capsys.readouterr().err.splitlines() == [
        "decoding: 25%, 9 s left",
        "decoding: 75%, 7 s left",
    ]


def test_what_has_not_begun_is_dropped_at_an_error():
    release, begun = threading.Event(), []
    with pytest.raises(KeyboardInterrupt), thread_pool(1) as pool:
        pool.submit(release.wait, 600)
        waiting = pool.submit(begun.append, "late")
        waiting.add_done_callback(lambda _: release.set())
        raise KeyboardInterrupt
    assert waiting.cancelled() and not begun


def test_the_answer_says_what_a_signal_brings_about():
    with StopSignals():
        assert signals._answer == "stopping after this step"
    assert signals._answer is None


def test_a_signal_after_the_last_step_is_not_lost(monkeypatch):
    with pytest.raises(Stopped, match="stopped: all is saved; to go on: CMD"), StopSignals("CMD"):
        monkeypatch.setattr(signals, "came", True)


# The main thread hangs in native code that no signal wakes, as while XLA compiles; a child waits.
HANGS = """
import ctypes, multiprocessing, os, signal, sys, threading, time
from hypersphere_jax import signals
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which is ignored under nohup
signals.answer_signals()
signals.set_answer("stopping")
multiprocessing.get_context("spawn").Process(target=time.sleep, args=(900,)).start()
threading.Timer(600, os._exit, (3,)).start()  # if nothing else ends it
mutex, c = ctypes.create_string_buffer(64), ctypes.CDLL(None)
print("hangs", file=sys.stderr, flush=True)
for _ in range(2):
    c.pthread_mutex_lock(mutex)
"""


@pytest.mark.slow
def test_a_signal_is_answered_while_native_code_runs_and_the_second_ends_all():
    for number in (signal.SIGINT, signal.SIGHUP):
        with begun("-c", HANGS) as process:
            assert process.stderr.readline() == "hangs\n"
            process.send_signal(number)
            assert process.stderr.readline() == "stopping; again to end now\n"
            process.send_signal(number)
            # The pipes are the child's, too.
            assert process.communicate(timeout=600) == ("", "ended; what was saved is kept\n")
            assert process.returncode == 128 + number


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc says which signals have handlers")
def test_one_signal_at_any_moment_ends_with_one_line(short_run, tmp_path):
    """From the first line of run.py on; or by the signal itself, silent, or after all is done."""
    run = shutil.copytree(short_run, tmp_path / "run")
    seconds = [0, 0, *(0.001 * 1.45**moment for moment in range(21))]
    told_at = []
    for moment, wait in enumerate(seconds):
        number = (signal.SIGTERM, signal.SIGINT)[moment % 2]
        with begun("run.py", "report", str(run)) as process:
            status, caught = Path(f"/proc/{process.pid}/status"), []
            while process.poll() is None:  # Python's own handler is of SIGINT; that line removes it
                mask = int(re.search(r"SigCgt:\s*(\w+)", status.read_text())[1], 16)
                caught.append([mask >> (of - 1) & 1 for of in (signal.SIGINT, signal.SIGTERM)])
                if caught[-1] == [1, 1] or (caught[-1] == [0, 0] and [1, 0] in caught):
                    break
            time.sleep(wait)
            process.send_signal(number)
            out, said = process.communicate(timeout=600)
        killed = process.returncode == -number and not said
        told = process.returncode == 0 and re.fullmatch(r"stopped.*\n", said)
        done = process.returncode == 0 and not said and out == f"{run}/report.html\n"
        assert killed or told or done, (wait, process.returncode, out, said)
        told_at += [wait] if told else []
    assert told_at


# The parent dies before its child asks for it; the child would go on for a minute.
ORPHAN = """
import multiprocessing, os, signal, sys, time
from hypersphere_jax import signals

def child(parent):
    while os.getppid() == parent:
        time.sleep(0.01)
    print("orphan", flush=True)
    signals.end_with_parent()
    time.sleep(60)
    print("outlived", flush=True)

if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=child, args=(os.getpid(),)).start()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_child_ends_whose_parent_died_while_it_started(tmp_path):
    (tmp_path / "orphan.py").write_text(ORPHAN)
    with begun(str(tmp_path / "orphan.py"), PYTHONPATH=str(ROOT)) as process:
        assert process.communicate()[0] == "orphan\n"


SAVED = r"stopped: saved at step (\d+) of 12"


@pytest.mark.slow
def test_ctrl_c_while_the_step_compiles_saves_after_it(tmp_path):
    options = "--width 0.1 --dim 3 --name run --epochs 2 --batch-size 220 --devices 1"
    options += f" --runs-dir {tmp_path}"
    more = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    with begun("run.py", "pretrain", *options.split(), **more) as process:
        lines = iter(process.stderr.readline, "")
        assert any("compiling" in line for line in lines)
        process.send_signal(signal.SIGINT)
        answers = ("this step", "the first step, which still compiles")
        assert next(lines) in [f"stopping after {of}; again to end now\n" for of in answers]
        # It came before the first step, or while that compiled.
        step = next(int(found[1]) for line in lines if (found := re.search(SAVED, line)))
    assert process.returncode == 0
    assert checkpoint.steps(tmp_path / "run" / "checkpoints")[-1] == step <= 1
