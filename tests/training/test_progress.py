"""The progress bar and progress lines of long work."""

import io
import threading

import jax
import pytest
from jax._src import monitoring
from rich.console import Console

from hypersphere_jax.data.threads import thread_pool
from hypersphere_jax.training import progress

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
