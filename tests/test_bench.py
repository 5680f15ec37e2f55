"""The benchmark of the losses: its forms agree, its arithmetic is right, its files are complete."""

import importlib.util
import json

import matplotlib.image
import numpy as np
import pytest
from test_cli import run_py

from benchmarks import losses
from benchmarks.loss_forms import DENSE, LOSSES, OURS, TORCH, make_form, unit_vectors
from hypersphere_jax import plots
from hypersphere_jax.config import UserError

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"
)
LIMITED = ["--sizes", "8", "16", "--dim", "4", "--rounds", "2", "--dense-limit", "8"]


@pytest.mark.parametrize("form", [DENSE, pytest.param(TORCH, marks=needs_torch)])
@pytest.mark.parametrize("name", LOSSES)
def test_forms_agree(name, form):
    loss = LOSSES[name]
    arrays = unit_vectors(loss.inputs, 24, 6)
    value, gradients = make_form(loss, OURS, arrays)()
    other, others = make_form(loss, form, arrays)()
    np.testing.assert_allclose(float(other), float(value), rtol=1e-5)
    assert len(others) == len(gradients) == loss.learned
    for one, two in zip(gradients, others, strict=True):
        np.testing.assert_allclose(np.asarray(two), one, atol=1e-6)


def test_summary_is_the_arithmetic_of_the_rounds():
    loss = LOSSES["contrastive"]
    seconds = {
        OURS: np.array([2.0]),  # slow: one round
        DENSE: np.array([4.0, 100.0, 100.0]),
        losses.PRODUCT: np.array([0.5, 1.0, 1.0]),
    }
    n, d, product_flops = 1000, 5, 1e7  # a whole product of this size is 1e7 flops
    ours = losses.summary(loss, OURS, n, d, seconds, product_flops)
    dense = losses.summary(loss, DENSE, n, d, seconds, product_flops)
    assert ours["ms"] == 2000 and ours["ratio"] == 1 and ours["limit_ms"] == 4000
    assert ours["share"] == pytest.approx(4 * 0.5 / 2)
    assert dense["ratio"] == 2  # of the round that both had
    assert dense["share"] == pytest.approx(3 * 1 / 100)
    assert dense["limit_ms"] == 4000  # one limit for all forms


def test_slow_forms_have_one_round(monkeypatch):
    monkeypatch.setattr(losses, "SLOW_S", 0.01)
    calls = {"slow": lambda: losses.time.sleep(0.02), "quick": lambda: None}
    seconds = losses.adaptive_rounds(calls, 4)
    assert len(seconds["slow"]) == 1 and len(seconds["quick"]) == 4
    assert all(map(len, losses.adaptive_rounds(calls, 1).values()))


def test_memory_is_of_the_form_alone():
    """It counts the n x n matrix (twice or more), and nothing of the process that asks."""
    n = 4096
    mine = np.ones(600_000_000, np.uint8)
    found = losses.peak_memory("uniform", DENSE, n, 2)
    assert found["base_mb"] < mine.nbytes / 1e6
    assert found["peak_mb"] - found["base_mb"] > 2 * 4e-6 * n**2


@pytest.mark.slow
def test_command_writes_all_results(capsys, tmp_path):
    out = tmp_path / "out"
    arguments = ["bench", "losses", *LIMITED, "--no-memory", "--out", str(out)]
    assert run_py.main(arguments) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.replace(str(out), "").splitlines())) <= 100
    results = json.loads((out / "losses.json").read_text())
    measured = {(r["loss"], r["n"], r["form"]) for r in results["records"]}
    small = {OURS, DENSE} | ({TORCH} if results["torch"] else set())
    expected = {(name, 8, form) for name in LOSSES for form in small}
    assert measured == expected | {(name, 16, OURS) for name in LOSSES}
    assert all(len(r["seconds"]) == 2 and r["ms"] > 0 for r in results["records"])
    table = (out / "losses.md").read_text()
    for name in LOSSES:
        assert f"{name}, n = 8: {OURS}" in said and f"## {name}, value and gradient" in table
        assert (out / f"{name}.png").exists()


def test_a_form_that_dies_is_a_row_with_its_reason(capsys, monkeypatch, tmp_path):
    assert "ValueError" in losses.peak_memory("uniform", OURS, 1, 4)["failure"]

    def die(name, form, n, dim):
        return {"failure": "killed: SIGKILL"} if form == DENSE else {"peak_mb": 2.0, "base_mb": 1.0}

    monkeypatch.setattr(losses, "peak_memory", die)
    losses.scaling(sizes=(8,), dim=4, losses=("uniform",), rounds=1, out=tmp_path)
    said = capsys.readouterr().out
    (row,) = [line for line in said.splitlines() if line.lstrip().startswith(f"8  {DENSE}")]
    assert row.split()[3:] == ["-"] * 6 + ["killed:", "SIGKILL"]
    assert f"{OURS} " in said and "1 round" in said
    records = json.loads((tmp_path / "losses.json").read_text())["records"]
    assert "ms" not in records[1] and records[0]["peak_mb"] == 2


def test_mistakes(tmp_path):
    with pytest.raises(UserError, match="no loss triplet: the losses are uniform"):
        losses.scaling(losses=("triplet",), out=tmp_path)
    with pytest.raises(UserError, match="--sizes"):
        losses.scaling(sizes=(1, 8), out=tmp_path)


def test_help_says_what_each_option_does(capsys):
    with pytest.raises(SystemExit):
        run_py.main(["bench", "losses", "--help"])
    text = capsys.readouterr().out
    for option in ("sizes", "dim", "losses", "rounds", "dense-limit", "memory", "out"):
        assert f"--{option}" in text
    assert "--no-memory" in text and "grows as n^2" in " ".join(text.split())


def test_scaling_draws_what_was_measured(tmp_path):
    records = [
        {"form": OURS, "n": 1024, "ms": 1.0, "limit_ms": 0.5, "peak_mb": 300.0},
        {"form": DENSE, "n": 1024, "ms": 2.0, "limit_ms": 0.5, "peak_mb": 400.0},
        {"form": OURS, "n": 2048, "ms": 4.0, "limit_ms": 2.0, "peak_mb": 310.0},
        {"form": DENSE, "n": 2048, "failure": "out of memory"},
    ]
    figure = plots.loss_scaling("title", records, tmp_path / "a.png")
    time, memory = figure.axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in time.lines}
    assert lines[OURS] == [[1024, 1], [2048, 4]] and lines[DENSE] == [[1024, 2]]
    assert lines["physical limit"] == [[1024, 0.5], [2048, 2]]
    assert [line.get_ydata().tolist() for line in memory.lines] == [[300, 310], [400]]
    assert time.get_xscale() == time.get_yscale() == memory.get_yscale() == "log"
    assert "(ms)" in time.get_ylabel() and "MB" in memory.get_ylabel()
    assert (matplotlib.image.imread(tmp_path / "a.png")[..., :3].min(axis=-1) < 0.9).mean() > 0.005
    bare = plots.loss_scaling("title", [{"form": OURS, "n": 8, "ms": 1.0, "limit_ms": 0.5}])
    assert [text.get_text() for text in bare.axes[1].texts] == ["not measured"]
