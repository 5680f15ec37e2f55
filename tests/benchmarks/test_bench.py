"""The benchmark of the losses: its forms agree, its arithmetic is right, its files are complete."""

import json
import time

import numpy as np
import pytest
from test_cli import run_py

from benchmarks import losses, timing
from benchmarks.loss_forms import DENSE, LOSSES, OURS, TORCH, make_form, unit_vectors
from hypersphere_jax import plots
from hypersphere_jax.config import UserError

FORMS = [DENSE] + ([TORCH] if losses.importlib.util.find_spec("torch") else [])


@pytest.mark.parametrize("name", LOSSES)
def test_forms_agree(name):
    loss = LOSSES[name]
    arrays = unit_vectors(loss.inputs, 24, 6)
    value, gradients = make_form(loss, OURS, arrays)()
    for form in FORMS:
        other, others = make_form(loss, form, arrays)()
        np.testing.assert_allclose(float(other), float(value), rtol=1e-5)
        assert len(others) == len(gradients) == loss.learned
        for one, two in zip(gradients, others, strict=True):
            np.testing.assert_allclose(np.asarray(two), one, atol=1e-6)


def test_summary_is_the_arithmetic_of_the_rounds():
    seconds = {
        OURS: np.array([2.0]),  # slow: one round
        DENSE: np.array([4.0, 100.0, 100.0]),
        losses.PRODUCT: np.array([0.5, 1.0, 1.0]),
    }
    given = (1000, 5, seconds, 1e7)  # a whole product of this size is 1e7 flops
    ours, dense = (losses.summary(LOSSES["contrastive"], form, *given) for form in (OURS, DENSE))
    assert ours["ms"] == 2000 and ours["ratio"] == 1 and ours["limit_ms"] == 4000
    assert ours["share"] == pytest.approx(4 * 0.5 / 2)
    assert dense["ratio"] == 2  # of the round that both had
    assert dense["share"] == pytest.approx(3 * 1 / 100)
    assert dense["limit_ms"] == 4000  # one limit for all forms
    projected = LOSSES["sliced_wasserstein"].flops(OURS, 100, 5)
    assert projected == 3 * 2 * 100 * 5 * 5


def test_rounds_are_counted_by_a_clock_that_is_told(monkeypatch):
    """The first one compiles and does not count; who is slow in the next has no other."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    calls = {"slow": 0, "quick": 0}

    def form(name, seconds):
        def call():
            calls[name] += 1
            now[0] += 1000.0 if calls[name] == 1 else seconds

        return call

    forms = {"slow": form("slow", 30.0), "quick": form("quick", 0.5)}
    seconds = losses.adaptive_rounds(forms, 4)
    assert {name: of.tolist() for name, of in seconds.items()} == {
        **{"slow": [30.0], "quick": [0.5] * 4},
    }
    assert timing.take_turns(forms, 2)["quick"].tolist() == [0.5, 0.5]
    assert [len(of) for of in losses.adaptive_rounds(forms, 1).values()] == [1, 1]


def test_peak_and_base_are_of_their_processes(monkeypatch):
    found = {1: {"resident_mb": 9.0}, 0: {"resident_mb": 4.0}}
    monkeypatch.setattr(losses, "_worker", lambda name, form, n, dim, calls: found[calls])
    memory = losses.peak_memory("uniform", OURS, 8, 2)
    assert (memory["peak_mb"], memory["base_mb"]) == (9, 4)
    found[0] = {"failure": "killed: SIGKILL"}
    assert losses.peak_memory("uniform", OURS, 8, 2) == found[0]


@pytest.mark.slow
def test_memory_is_of_the_form_alone():
    """It counts the n x n matrix (twice or more), and nothing of the process that asks."""
    n, mine = 4096, np.ones(600_000_000, np.uint8)
    found = losses.peak_memory("uniform", DENSE, n, 2)
    assert found["base_mb"] < mine.nbytes / 1e6
    assert found["peak_mb"] - found["base_mb"] > 2 * 4e-6 * n**2
    assert "ValueError" in losses.peak_memory("uniform", OURS, 1, 4)["failure"]


@pytest.mark.slow
def test_command_writes_all_results(capsys, tmp_path):
    limited = "--sizes 8 16 --dim 4 --rounds 2 --dense-limit 8 --no-memory"
    assert run_py.main(["bench", "losses", *limited.split(), "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.replace(str(tmp_path), "").splitlines())) <= 100
    found = json.loads((tmp_path / "losses.json").read_text())
    measured = {(r["loss"], r["n"], r["form"]) for r in found["records"]}
    expected = {(name, 8, form) for name in LOSSES for form in (OURS, *FORMS)}
    assert measured == expected | {(name, 16, OURS) for name in LOSSES}
    assert all(len(r["seconds"]) == 2 and r["ms"] > 0 for r in found["records"])
    table = (tmp_path / "losses.md").read_text()
    for name in LOSSES:
        assert f"## {name}, value and gradient" in table and (tmp_path / f"{name}.png").exists()


def test_a_form_that_dies_is_a_row_with_its_reason(capsys, monkeypatch, tmp_path):
    def die(name, form, n, dim):
        return {"failure": "killed: SIGKILL"} if form == DENSE else {"peak_mb": 2.0, "base_mb": 1.0}

    monkeypatch.setattr(losses, "peak_memory", die)
    monkeypatch.setattr(losses, "_product", lambda side: (lambda: None, 1))
    losses.scaling(sizes=(8,), dim=4, losses=("uniform",), rounds=1, out=tmp_path)
    said = capsys.readouterr().out
    (row,) = [line for line in said.splitlines() if line.lstrip().startswith(f"8  {DENSE}")]
    assert row.split()[3:] == ["-"] * 6 + ["killed:", "SIGKILL"]
    records = json.loads((tmp_path / "losses.json").read_text())["records"]
    assert "ms" not in records[1] and records[0]["peak_mb"] == 2 and records[0]["base_mb"] == 1
    assert (tmp_path / "uniform.png").exists() and "## uniform" in (
        tmp_path / "losses.md"
    ).read_text()
    with pytest.raises(UserError, match="no loss triplet: the losses are uniform"):
        losses.scaling(losses=("triplet",), out=tmp_path)
    with pytest.raises(UserError, match="--sizes"):
        losses.scaling(sizes=(1, 8), out=tmp_path)


def test_scaling_draws_what_was_measured():
    records = [
        {"form": OURS, "n": 1024, "ms": 1.0, "limit_ms": 0.5, "peak_mb": 300.0},
        {"form": DENSE, "n": 1024, "ms": 2.0, "limit_ms": 0.5, "peak_mb": 400.0},
        {"form": OURS, "n": 2048, "ms": 4.0, "limit_ms": 2.0, "peak_mb": 310.0},
        {"form": DENSE, "n": 2048, "failure": "out of memory"},
    ]
    spent, memory = plots.loss_scaling("title", records).axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in spent.lines}
    assert lines[OURS] == [[1024, 1], [2048, 4]] and lines[DENSE] == [[1024, 2]]
    assert lines["physical limit"] == [[1024, 0.5], [2048, 2]]
    assert [line.get_ydata().tolist() for line in memory.lines] == [[300, 310], [400]]
    assert spent.get_xscale() == spent.get_yscale() == memory.get_yscale() == "log"
    bare = plots.loss_scaling("title", [{"form": OURS, "n": 8, "ms": 1.0, "limit_ms": 0.5}])
    assert len(bare.axes[1].texts) == 1  # not measured
