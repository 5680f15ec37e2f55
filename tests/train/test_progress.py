"""What a user sees of a run that trains: its rate, how far it is, and the time that is left."""

from types import SimpleNamespace

import pytest

from hypersphere_jax import progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless it is moved."""
    clock = SimpleNamespace(now=100.0)
    told = lambda: clock.now  # noqa: E731
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=told, perf_counter=told))
    return clock


def test_rate_and_waiting_since_the_line_before(clock):
    meter = progress.Meter(20)

    def step(wait, compute):
        with meter:
            clock.now += wait
        clock.now += compute
        meter.step_done()

    step(wait=50, compute=1000)  # which compiles, and does not count
    for _ in range(3):
        step(wait=1, compute=4)
    assert meter.read() == {"images_per_s": 3 * 20 / 15, "data_wait": 0.2}
    clock.now += 7
    assert meter.read() == {}  # an evaluation, say
    step(wait=0, compute=2)
    assert meter.read() == {"images_per_s": 10.0, "data_wait": 0.0}
    assert progress.Meter(20, "sentences")._rate == "sentences_per_s"


def test_lines_where_there_is_no_terminal(clock, capsys):
    shown = progress.Progress("run", 10, 100)
    for step, seconds in ((20, 1), (30, 4), (40, 7), (50, 1), (100, 1)):
        clock.now += seconds
        values = {"loss": 0.5, "images_per_s": 2000.0, "data_wait": 0.25}
        shown.update({"step": step} | values | ({"eval/knn_top1": 91.5} if step == 50 else {}))
    shown.close()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "run: continuing at step 10 of 100"
    # At once, when ten seconds have passed, with an evaluation, and at the end.
    assert [line.split(",")[0] for line in lines[1:]] == [
        f"run: step {step} of 100" for step in (20, 40, 50, 100)
    ]
    assert "loss 0.500, 2,000 images/s, data wait 25%" in lines[1]
    # 11 seconds for the 20 steps since the first line, and 60 steps to go.
    assert lines[2].endswith(", 33 s left") and "eval/knn_top1 91.5" in lines[3]
    assert "left" not in lines[1] and "left" not in lines[4]


def test_items_are_tracked(clock, capsys):
    found = []
    for item in progress.track(range(5), "decoding"):
        found.append(item)
        clock.now += 6
    assert found == [0, 1, 2, 3, 4]
    assert capsys.readouterr().err == "decoding: 40%, 18 s left\ndecoding: 80%, 6 s left\n"
